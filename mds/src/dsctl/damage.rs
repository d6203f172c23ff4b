//! What data servers hold and nobody is to see, as they tell it: their checksums say so (docs/adr/0023). It is durable
//! there and is told again with every registration; here it is in memory alone. A damaged mirror is left behind and
//! healed, if its column has another one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{DataFileId, FsError, InodeKey, StoreId};
use sluice_state::Time;
use sluice_xdr::control::{DAMAGED_args, ctl_damage, ctl_status};

use super::StoreHandle;
use crate::layout::heal::leave;
use crate::server::Mds;

/// Ranges of one data server that are remembered; it keeps no more itself.
const MOST: usize = 65_536;
/// Until those are tried again whose layouts did not come back, and between two looks who is here.
const AGAIN: Duration = Duration::from_secs(5);
/// Nanoseconds for which a data file that has refused a write is done without: a heartbeat says in a moment what is wrong with all
/// of a data server, but layouts take longer to come back.
const REFUSES: u64 = 60_000_000_000;

/// Nanoseconds until what a device could not read is read again: it takes layouts of the file back, and mostly nothing comes of it
/// before somebody has looked after the device, and started its data server again.
const READ_AGAIN: u64 = 3_600_000_000_000;

/// The damage of one store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Damage {
    /// By data file: offsets and lengths.
    files: BTreeMap<(DataFileId, u16), Vec<(u64, u64)>>,
}

impl Damage {
    pub(crate) fn ranges(&self) -> usize {
        self.files.values().map(Vec::len).sum()
    }

    pub(crate) fn of(&self, id: DataFileId, slot: u16) -> &[(u64, u64)] {
        self.files.get(&(id, slot)).map(Vec::as_slice).unwrap_or_default()
    }

    /// The first of it, as it was told.
    pub(crate) fn some(&self, most: usize) -> Vec<(DataFileId, ctl_damage)> {
        let all = self.files.iter().flat_map(|((id, slot), ranges)| {
            let file = sluice_xdr::control::ctl_data_file { file: id.0, slot: (*slot).into(), generation: 0 };
            ranges.iter().map(move |&(offset, length)| (*id, ctl_damage { file, offset, length }))
        });
        all.take(most).collect()
    }

    /// For people; "" when there is none.
    pub(crate) fn words(&self) -> String {
        match (self.ranges(), self.files.len()) {
            (0, _) => String::new(),
            (1, _) => "1 range is damaged and in quarantine: see `sluice ds scrub --look`".to_owned(),
            (ranges, 1) => format!(
                "{ranges} ranges of a data file are damaged and in quarantine: see `sluice ds scrub --look`"
            ),
            (ranges, files) => format!(
                "{ranges} ranges of {files} data files are damaged and in quarantine: see `sluice ds scrub --look`"
            ),
        }
    }

    fn add(&mut self, damage: &[ctl_damage]) {
        let mut ranges = self.ranges();
        for one in damage {
            if let Ok(slot) = u16::try_from(one.file.slot)
                && ranges < MOST
            {
                self.files
                    .entry((DataFileId(one.file.file), slot))
                    .or_default()
                    .push((one.offset, one.length));
                ranges += 1;
            }
        }
    }
}

impl StoreHandle {
    /// What it told of damage.
    pub(crate) fn damage(&self) -> Arc<Damage> {
        self.update(|view| Arc::clone(&view.damage))
    }

    /// Whether what is there of a data file is not what was written.
    pub(crate) fn is_damaged(&self, id: DataFileId, slot: u16) -> bool {
        self.update(|view| !view.damage.of(id, slot).is_empty() || view.missing.contains(&(id, slot)))
    }

    /// It once had this data file, and says that it is not there.
    pub(crate) fn lacks(&self, id: DataFileId, slot: u16) {
        let new = self.update(|view| view.missing.len() < MOST && view.missing.insert((id, slot)));
        if new {
            tracing::error!(data_server = self.id.0, data_file = id.0, slot, "a data file is lost");
        }
    }

    /// It could not write to this data file, or not make it durable.
    pub(crate) fn refused(&self, id: DataFileId, slot: u16, now: Time) {
        let new = self.update(|view| {
            if view.refusing.len() >= MOST {
                view.refusing.retain(|_, until| now < *until);
            }
            let before = view.refusing.get(&(id, slot)).copied();
            // Whoever there is no room for waits for the heartbeat.
            if before.is_some() || view.refusing.len() < MOST {
                view.refusing.insert((id, slot), now.plus_nanos(REFUSES));
            }
            before.is_none_or(|until| until <= now)
        });
        if new {
            tracing::error!(
                data_server = self.id.0,
                data_file = id.0,
                slot,
                "a data file does not take a write"
            );
        }
    }

    /// Whether others are to be written without it, if there are any.
    pub(crate) fn refuses(&self, id: DataFileId, slot: u16, now: Time) -> bool {
        self.update(|view| view.refusing.get(&(id, slot)).is_some_and(|until| now < *until))
    }

    /// Its device could not read some of this data file; `anew`, nor when that had been written anew.
    pub(crate) fn cannot_read(&self, id: DataFileId, slot: u16, anew: bool, now: Time) {
        self.update(|view| {
            if view.unreadable.len() >= MOST {
                view.unreadable.retain(|_, (until, _)| now < *until);
            }
            if view.unreadable.len() < MOST {
                view.unreadable.insert((id, slot), (now.plus_nanos(READ_AGAIN), anew));
            }
        });
        tracing::error!(
            data_server = self.id.0,
            data_file = id.0,
            slot,
            "its device cannot read a data file"
        );
    }

    /// Whether that was so a while ago.
    pub(crate) fn is_unreadable(&self, id: DataFileId, slot: u16, anew: bool, now: Time) -> bool {
        let known = self.update(|view| view.unreadable.get(&(id, slot)).copied());
        known.is_some_and(|(until, also)| now < until && (also || !anew))
    }

    /// The same of any data file of a file.
    pub(crate) fn has_unreadable(&self, id: DataFileId, now: Time) -> bool {
        self.update(|view| {
            view.unreadable.range((id, 0)..=(id, u16::MAX)).any(|(_, (until, _))| now < *until)
        })
    }

    /// Somebody wrote a data file anew; the data server says so itself, a moment later.
    pub(crate) fn mended(&self, id: DataFileId, slot: u16) {
        self.update(|view| {
            view.missing.remove(&(id, slot));
            view.refusing.remove(&(id, slot));
            view.unreadable.remove(&(id, slot));
            if !view.damage.of(id, slot).is_empty() {
                Arc::make_mut(&mut view.damage).files.remove(&(id, slot));
            }
        });
    }
}

/// A part of what a data server has to tell.
pub(super) fn told(mds: &Mds, store: &StoreHandle, args: &DAMAGED_args) -> ctl_status {
    let complete = store.update(|view| {
        if args.first {
            view.damage_coming = Damage::default();
        }
        view.damage_coming.add(&args.damage);
        args.last.then(|| {
            view.damage = Arc::new(std::mem::take(&mut view.damage_coming));
            view.news += 1;
            view.damage.ranges()
        })
    });
    if let Some(ranges) = complete {
        if ranges > 0 {
            tracing::error!(data_server = store.id.0, ranges, "data is damaged and in quarantine");
        }
        mds.data_servers.told.notify_one();
    }
    ctl_status::CTL_OK
}

/// Which data servers are here, and how often each has said what of it is whole.
type Signs = Vec<(StoreId, bool, u64)>;

/// Leaves the damaged mirrors behind that have another one, so that they are healed, for the life of the server. Where
/// the other one is away, or damaged too, they are looked at again when that may be over: nobody tells of them anew.
pub(crate) async fn run(mds: Arc<Mds>) {
    let (mut seen, mut left) = (Signs::new(), BTreeSet::new());
    loop {
        let now = signs(&mds);
        if now != seen {
            (seen, left) = (now, damaged(&mds));
        }
        left = mend(&mds, left).await;
        let _ = mds.env.clock.timeout(AGAIN, mds.data_servers.told.notified()).await;
    }
}

fn signs(mds: &Mds) -> Signs {
    let of = |store: &Arc<StoreHandle>| (store.id, store.takes_writes(), store.update(|view| view.news));
    mds.data_servers.all().iter().map(of).collect()
}

/// What is damaged anywhere.
fn damaged(mds: &Mds) -> BTreeSet<DataFileId> {
    let all = mds.data_servers.all().into_iter().map(|store| store.damage());
    all.flat_map(|damage| damage.files.keys().map(|(id, _)| *id).collect::<Vec<_>>()).collect()
}

/// Those that are to be tried again soon.
async fn mend(mds: &Arc<Mds>, files: BTreeSet<DataFileId>) -> BTreeSet<DataFileId> {
    let mut left = BTreeSet::new();
    for id in files {
        if let Err(FsError::Busy | FsError::Kv(_)) = leave_behind(mds, id).await {
            left.insert(id);
        }
    }
    left
}

async fn leave_behind(mds: &Arc<Mds>, id: DataFileId) -> Result<(), FsError> {
    match owner(mds, id).await? {
        Some(key) => leave::damaged(mds, key).await,
        None => Ok(()),
    }
}

/// Whose data file it is.
///
/// # Errors
/// What the metadata store says.
pub(crate) async fn owner(mds: &Mds, id: DataFileId) -> Result<Option<InodeKey>, FsError> {
    let namespace = &mds.namespace;
    mds.read(|txn| Box::pin(async move { namespace.data_file_owner(&txn, id).await })).await
}
