//! Is this handle good, and may its holder do this? Everything is answered from memory.

use parking_lot::RwLock;
use sluice_store::{Access, Epoch, FileKey};
use sluice_xdr::capability::{Capability, CapabilityError, Rights};
use sluice_xdr::control::ctl_capability_key;
use sluice_xdr::nfs3::nfsstat3;

use crate::error;
use crate::shared::Shared;

/// The keys that seal capabilities, by id, and the store they must name.
#[derive(Debug)]
pub(crate) struct Seals {
    inner: RwLock<Known>,
}

struct Known {
    /// 0 before the first registration.
    store: u16,
    keys: [Option<[u8; 32]>; 256],
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the keys themselves.
        let ids: Vec<_> = (0..=255u8).filter(|id| self.keys[usize::from(*id)].is_some()).collect();
        f.debug_struct("Known").field("store", &self.store).field("keys", &ids).finish()
    }
}

impl Default for Seals {
    fn default() -> Self {
        Self { inner: RwLock::new(Known { store: 0, keys: [None; 256] }) }
    }
}

impl Seals {
    pub(crate) fn set_store(&self, store: u16) {
        self.inner.write().store = store;
    }

    pub(crate) fn store(&self) -> u16 {
        self.inner.read().store
    }

    /// Replaces all keys: those not named are no longer accepted. Ids above 255 are ignored.
    pub(crate) fn set_keys(&self, keys: &[ctl_capability_key]) {
        let mut known = self.inner.write();
        known.keys = [None; 256];
        for key in keys {
            if let Some(place) = usize::try_from(key.id).ok().and_then(|id| known.keys.get_mut(id)) {
                *place = Some(key.key);
            }
        }
    }

    fn open(&self, handle: &[u8]) -> Result<Capability, nfsstat3> {
        let known = self.inner.read();
        let capability = Capability::open(handle, |id| known.keys[usize::from(id)]);
        let capability = capability.map_err(|error| match error {
            // A key we no longer have: the handle was good once.
            CapabilityError::UnknownKey(_) => nfsstat3::NFS3ERR_STALE,
            CapabilityError::Length(_) | CapabilityError::Format | CapabilityError::Mac => {
                nfsstat3::NFS3ERR_BADHANDLE
            }
        })?;
        if capability.store == known.store { Ok(capability) } else { Err(nfsstat3::NFS3ERR_STALE) }
    }
}

/// A handle that was let in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) access: Access,
    /// The data file is one of several: its end says nothing about the file's.
    pub(crate) sparse: bool,
}

impl Shared {
    /// Judges a filehandle that must carry `rights`.
    ///
    /// # Errors
    /// JUKEBOX while out of contact, BADHANDLE if forged, STALE if of another store or if the data
    /// file is over, ACCES if fenced, expired or without the rights.
    pub(crate) fn admit(&self, handle: &[u8], rights: Rights) -> Result<Admitted, nfsstat3> {
        if !self.contact.may_serve(self.env.clock.now()) {
            return Err(nfsstat3::NFS3ERR_JUKEBOX);
        }
        let judged = self.judge(handle, rights);
        if judged.is_err() {
            self.counters.refused();
        }
        judged
    }

    fn judge(&self, handle: &[u8], rights: Rights) -> Result<Admitted, nfsstat3> {
        let capability = self.seals.open(handle)?;
        if !capability.rights.contains(rights) {
            return Err(nfsstat3::NFS3ERR_ACCES);
        }
        let access = Access {
            holder: capability.holder,
            key: FileKey { file: capability.data_file, slot: capability.slot },
            generation: capability.generation,
            epoch: Epoch(capability.epoch),
            must_exist: capability.rights.contains(Rights::MUST_EXIST),
        };
        self.store.check(&access).map_err(error::refused)?;
        Ok(Admitted { access, sparse: capability.rights.contains(Rights::SPARSE) })
    }
}
