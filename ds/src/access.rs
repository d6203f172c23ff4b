//! Is this handle good, and may its holder do this? Everything is answered from memory.

use parking_lot::RwLock;
use sluice_rpc::Connection;
use sluice_rpc::tls::Encrypted;
use sluice_store::{Access, Epoch, FileKey, StoreError};
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

/// When the metadata server had these keys: its own epoch, and of capabilities the current and the oldest one. A key
/// is taken away only when the oldest one moves, and taken into use only when the current one does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AsOf {
    pub(crate) mds_epoch: u64,
    pub(crate) current: u32,
    pub(crate) oldest: u32,
}

struct Known {
    /// 0 before the first registration.
    store: u16,
    as_of: AsOf,
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
        Self { inner: RwLock::new(Known { store: 0, as_of: AsOf::default(), keys: [None; 256] }) }
    }
}

impl Seals {
    pub(crate) fn set_store(&self, store: u16) {
        self.inner.write().store = store;
    }

    pub(crate) fn store(&self) -> u16 {
        self.inner.read().store
    }

    /// Keys that are no longer named are no longer accepted. What was said earlier may arrive later, as the answer to a
    /// registration and an order do not wait for each other: it changes nothing, and of the same moment all keys count.
    /// Ids above 255 are ignored.
    pub(crate) fn set_keys(&self, as_of: AsOf, keys: &[ctl_capability_key]) {
        let mut known = self.inner.write();
        if as_of < known.as_of {
            return;
        }
        if as_of > known.as_of {
            known.as_of = as_of;
            known.keys = [None; 256];
        }
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

/// Whether a connection is protected as a handle wants it. Servers among themselves are under the cluster key.
fn is_as_wanted(from: &Connection, wants: Rights) -> bool {
    let certified = |encrypted: &Encrypted| !wants.contains(Rights::CERTIFIED) || encrypted.has_certificate();
    from.is_secure() || from.encrypted().is_some_and(certified)
}

/// A handle that was let in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) access: Access,
    /// The file may end later than the data file.
    pub(crate) sparse: bool,
}

impl Shared {
    /// Judges a filehandle that must carry `rights` and comes over `from`.
    ///
    /// # Errors
    /// JUKEBOX while out of contact, BADHANDLE if forged, STALE if of another store or if the data
    /// file is over, ACCES if fenced, expired, without the rights or over a connection that is not as it wants it.
    pub(crate) fn admit(
        &self,
        from: &Connection,
        handle: &[u8],
        rights: Rights,
    ) -> Result<Admitted, nfsstat3> {
        if !self.contact.may_serve(self.env.clock.now()) {
            return Err(nfsstat3::NFS3ERR_JUKEBOX);
        }
        let judged = self.judge(from, handle, rights);
        // No handle at all is how somebody asks whether anybody is served (`sluice ds ready`).
        if judged.is_err() && !handle.is_empty() {
            self.counters.refused();
        }
        judged
    }

    fn judge(&self, from: &Connection, handle: &[u8], rights: Rights) -> Result<Admitted, nfsstat3> {
        let capability = self.seals.open(handle)?;
        let wants = capability.rights.wants();
        if !capability.rights.contains(rights) || !(wants.is_none() || is_as_wanted(from, wants)) {
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

    /// A data file is not there: whether that is a hole. Never where there was data.
    ///
    /// # Errors
    /// IO when it is lost, STALE if only a newer handle can tell.
    pub(crate) fn absent(&self, access: &Access) -> Result<(), nfsstat3> {
        self.store.absent(access).map_err(|why| {
            if matches!(why, StoreError::Missing) {
                tracing::error!(file = %access.key, store = %self.store.place(), "a data file is lost");
                self.counters.error();
            }
            error::nfs_status(&why)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(current: u32, oldest: u32, ids: &[u32]) -> (AsOf, Vec<ctl_capability_key>) {
        let key = |id: &u32| ctl_capability_key { id: *id, epoch: 0, key: [*id as u8; 32] };
        (AsOf { mds_epoch: 1, current, oldest }, ids.iter().map(key).collect())
    }

    fn has(seals: &Seals) -> Vec<u32> {
        let known = seals.inner.read();
        (0..256).filter(|id| known.keys[*id as usize].is_some()).collect()
    }

    /// A whole rotation, and the announcement of the next, arriving in every order.
    #[test]
    fn what_was_said_earlier_and_arrives_later_changes_nothing() {
        let told = [
            said(5, 3, &[1]),
            said(5, 3, &[1, 2]),
            said(6, 3, &[1, 2]),
            said(6, 6, &[2]),
            said(6, 6, &[2, 3]),
        ];
        for order in 0..3125_usize {
            let seals = Seals::default();
            let mut newest = 0;
            for step in 0..5 {
                let at = order / 5_usize.pow(step) % 5;
                seals.set_keys(told[at].0, &told[at].1);
                newest = newest.max(at);
                // Everything that is in use as of the newest that was heard, nothing that was over by then.
                let (wanted, over): (&[u32], &[u32]) = match newest {
                    0 => (&[1], &[3]),
                    1 => (&[1, 2], &[3]),
                    2 => (&[1, 2], &[3]),
                    3 => (&[2], &[1]),
                    _ => (&[2, 3], &[1]),
                };
                let has = has(&seals);
                assert!(wanted.iter().all(|id| has.contains(id)), "order {order}: {has:?} as of {newest}");
                assert!(over.iter().all(|id| !has.contains(id)), "order {order}: {has:?} as of {newest}");
            }
        }
    }

    /// A metadata server that was made from a dump may have had fewer epochs.
    #[test]
    fn a_new_incarnation_says_what_holds() {
        let seals = Seals::default();
        let (as_of, keys) = said(9, 9, &[7]);
        seals.set_keys(as_of, &keys);
        let (as_of, keys) = said(4, 2, &[1]);
        seals.set_keys(AsOf { mds_epoch: 2, ..as_of }, &keys);
        assert_eq!(has(&seals), [1]);
    }
}
