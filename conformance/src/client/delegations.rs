//! Read delegations: files that are opened again and closed without a word to the server. RFC 8881 §10.4.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use sluice_xdr::nfs4::{OPEN4_SHARE_ACCESS_READ, nfs_fh4, open_delegation4, stateid4};

use super::files::{How, Open, opened, opening};
use super::session::Client;
use super::{Result, ops};

/// A name in a directory.
type Name = (nfs_fh4, Bytes);

/// The delegations that a client holds.
#[derive(Debug, Default)]
pub(super) struct Delegations {
    held: Mutex<BTreeMap<Name, Open>>,
}

impl Delegations {
    fn find(&self, name: &Name) -> Option<Open> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn keep(&self, name: Name, open: Open) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(name, open);
    }

    /// Is no longer held: its file, if it was.
    pub(super) fn forget(&self, stateid: stateid4) -> Option<nfs_fh4> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, _) = held.iter().find(|(_, open)| open.stateid.other == stateid.other)?;
        let name = name.clone();
        held.remove(&name).map(|open| open.handle)
    }

    fn stateids(&self) -> Vec<stateid4> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).values().map(|open| open.stateid).collect()
    }
}

/// A file opened for reading.
#[derive(Clone, Debug)]
pub struct Reading {
    pub open: Open,
    /// The server knows of it, and must hear of its end.
    pub told: bool,
}

impl Client {
    /// Opens for reading, by the delegation if one is held.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn open_to_read(&self, directory: &nfs_fh4, name: &[u8]) -> Result<Reading> {
        let key = (directory.clone(), Bytes::copy_from_slice(name));
        if let Some(open) = self.inner.delegations.find(&key) {
            return Ok(Reading { open, told: false });
        }
        let how = How { delegation: true, ..How::existing(OPEN4_SHARE_ACCESS_READ) };
        let results = self.compound(opening(directory, name, &how)?).await?;
        let open = opened(&results)?;
        if let Some(open_delegation4::OPEN_DELEGATE_READ(given)) = super::files::delegation(&results) {
            self.inner.delegations.keep(key, Open { stateid: given.stateid, ..open.clone() });
        }
        Ok(Reading { open, told: true })
    }

    /// Returns every delegation.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn return_delegations(&self) -> Result<()> {
        for stateid in self.inner.delegations.stateids() {
            if let Some(handle) = self.inner.delegations.forget(stateid) {
                self.compound(vec![ops::putfh(&handle), ops::delegreturn(stateid)]).await?;
            }
        }
        Ok(())
    }
}
