//! Heals one file: no read-write layout is out, pieces are compared and copied between data servers, ends are
//! made equal and everything durable, and in one transaction the mirrors are good again.
//!
//! All that is known of how far it came is in memory: after a restart, or when anything it relied on changed,
//! it begins again, and comparing finds what is equal already.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_namespace::stable_storage::put_fence;
use sluice_namespace::{
    DataFile, DataFileId, FsError, Heal, Healed, HealedSlot, Inode, InodeKey, Layout, StoreId,
};
use sluice_state::ClientId;
use sluice_state::file::{Error, File, Intent};
use sluice_xdr::control::ctl_stat;

use super::anew;
use super::gate::{Closed, Filling};
use super::leave;
use super::plan::{Pair, Plan};
use super::room::{self, Room};
use crate::dsctl::resync::{self, NotCopied, NotRead, NotSet};
use crate::dsctl::{self, epochs};
use crate::files::{FileEntry, Held};
use crate::layout::settle;
use crate::server::Mds;

/// How long truncations wait for the heal of a long file to let them in.
const SLICE: u64 = 1_000_000_000;
const BREATH: Duration = Duration::from_millis(10);
/// Of attempts to have the read-write layouts back; each waits some seconds by itself.
const TRIES: u32 = 20;
const AGAIN: Duration = Duration::from_millis(100);
/// The server itself.
const NOBODY: ClientId = ClientId(0);

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is left to do.
    Done,
    /// What could be done is done.
    WaitsFor(Vec<StoreId>),
    /// What could be done is done; the rest this data server's device cannot read, and there is no other copy, or not fill.
    Unreadable(StoreId),
    /// What could be done is done; nobody has room for the rest, a data file of so many bytes.
    NoRoom(u64),
    /// Something came in between, or a data server failed.
    Again,
}

/// Heals a file as far as the data servers that are here allow.
///
/// # Errors
/// What the metadata store says.
pub(crate) async fn heal(mds: &Arc<Mds>, key: InodeKey) -> Result<Outcome, FsError> {
    match settle::settle_size(mds, &key).await {
        Ok(_) => {}
        Err(FsError::Busy | FsError::EndUnknown) => return Ok(Outcome::Again),
        Err(error) => return Err(error),
    }
    if mds.file(&key).await?.peek(File::needs_settle) {
        // Who got a layout of an earlier incarnation may still write.
        return Ok(Outcome::Again);
    }
    let (mut inode, mut row) = look(mds, key).await?;
    // Of mirrors that may differ none may be missing: those that are given up are left behind. Nothing is ever made equal
    // to what is damaged.
    let leaves = |layout: &Layout| {
        layout.mirrors_dirty || layout.data_files().any(|file| leave::is_damaged(mds, layout, file))
    };
    if inode.layout().is_some_and(|layout| leaves(layout) && !leave::away(mds, layout).is_empty()) {
        leave::leave(mds, key).await?;
        (inode, row) = look(mds, key).await?;
    }
    let (Some(layout), Some(row)) = (inode.layout(), row) else { return Ok(Outcome::Done) };
    let mut plan = plan(mds, &inode, &row);
    let room = room::find(mds, &inode, &mut plan).await?;
    if room == Room::Elsewhere {
        return Ok(Outcome::Again);
    }
    let only_mark = layout.mirrors_dirty && plan.equal;
    if plan.pairs.is_empty() && !only_mark {
        return Ok(waits(mds, plan.id, room, plan.waits_for));
    }
    carry_out(mds, key, plan, room).await
}

/// Does what is planned; there is no room for what is not, if `room` says so.
async fn carry_out(mds: &Arc<Mds>, key: InodeKey, plan: Plan, room: Room) -> Result<Outcome, FsError> {
    let Some(gate) = mds.heals.close(key.fileid) else { return Ok(Outcome::Again) };
    let id = plan.id;
    let mut work = Work { mds, key, entry: mds.file(&key).await?, gate, plan, at: (0, 0), begun: false };
    let healed = work.run().await;
    work.gate.lock.write().await.clear();
    drop(work);
    match healed {
        Ok(left) => {
            mds.heals.over(key.fileid);
            let all = left.is_empty() && room == Room::Enough;
            if all {
                mds.heals.full.forget(key.fileid);
            }
            Ok(if all { Outcome::Done } else { waits(mds, id, room, left) })
        }
        Err(Trouble::Again) => Ok(Outcome::Again),
        Err(Trouble::Full(pair)) => room::ran_out(mds, key, id, &pair).await,
        Err(Trouble::Removed(pair)) => anew::rename(mds, &key, id, &pair).await.map(|()| Outcome::Again),
        Err(Trouble::Store(error)) => Err(error),
    }
}

fn waits(mds: &Mds, id: DataFileId, room: Room, missed: Vec<StoreId>) -> Outcome {
    let here = |store: &StoreId| mds.data_servers.get(*store).is_some_and(|store| store.takes_heals());
    let unreadable = |store: &&StoreId| {
        here(store) && mds.data_servers.get(**store).is_some_and(|store| store.has_unreadable(id, mds.now()))
    };
    match (room, missed.iter().find(unreadable)) {
        (Room::Nowhere(bytes), _) => Outcome::NoRoom(bytes),
        (_, Some(store)) => Outcome::Unreadable(*store),
        (_, None) => Outcome::WaitsFor(missed),
    }
}

pub(super) async fn look(mds: &Arc<Mds>, key: InodeKey) -> Result<(Inode, Option<Heal>), FsError> {
    let namespace = &mds.namespace;
    mds.read(|txn| {
        Box::pin(async move {
            Ok((namespace.getattr(&txn, &key).await?, namespace.heal(&txn, key.fileid).await?))
        })
    })
    .await
}

fn plan(mds: &Mds, inode: &Inode, row: &Heal) -> Plan {
    let Some(layout) = inode.layout() else { return Plan::default() };
    // What a device could not read is tried again later: until then others are read, if there are any.
    let readable = |file: &DataFile, anew| !leave::is_unreadable(mds, layout.id, file, anew);
    let gives = |file: &DataFile| {
        mds.data_servers.get(file.store).is_some_and(|store| store.gives()) && readable(file, false)
    };
    let takes = |file: &DataFile| {
        mds.data_servers.get(file.store).is_some_and(|store| store.takes_heals()) && readable(file, true)
    };
    Plan::of(layout, row, gives, takes)
}

enum Trouble {
    Again,
    /// There is no room left where this is filled.
    Full(Pair),
    /// Nor may there be a data file of that name where this is filled.
    Removed(Pair),
    Store(FsError),
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Self {
        Self::Store(error)
    }
}

struct Work<'a> {
    mds: &'a Arc<Mds>,
    key: InodeKey,
    entry: Arc<FileEntry>,
    gate: Closed<'a>,
    plan: Plan,
    /// The pair worked on, and the offset in it.
    at: (usize, u64),
    /// The data servers know that old handles of the targets are dead.
    begun: bool,
}

impl Work<'_> {
    /// Slice by slice; the data servers that are still missed in the end.
    async fn run(&mut self) -> Result<Vec<StoreId>, Trouble> {
        loop {
            let held = self.exclude_writers().await?;
            let inode = self.unchanged().await?;
            if self.gate.was_disturbed() {
                (self.at, self.begun) = ((0, 0), false);
            }
            if !self.begun {
                self.begin(&inode).await?;
            }
            let pause = self.slice().await?;
            if pause.is_zero() && self.at.0 >= self.plan.pairs.len() {
                let (inode, held) = self.exclude_readers(inode, held).await?;
                return self.finish(&inode, held).await;
            }
            drop(held);
            // Who waits for the ticket is in front of us now.
            self.mds.env.clock.sleep(pause.max(BREATH)).await;
        }
    }

    /// A ticket under which nobody holds a read-write layout. The gate is closed before it is asked for, so
    /// that none goes out between two slices either.
    async fn exclude_writers(&self) -> Result<Held, Trouble> {
        self.exclude(&Intent::ProxyIo { client: NOBODY, write: true, exclusive: true }).await
    }

    /// What is replaced may have come back meanwhile and be read: nobody may hold a layout that names it once
    /// others are written without it. What missed writes nobody reads anyway.
    async fn exclude_readers(&self, inode: Inode, held: Held) -> Result<(Inode, Held), Trouble> {
        if !self.plan.pairs.iter().any(|pair| pair.replaces() && !pair.old.stale) {
            return Ok((inode, held));
        }
        drop(held);
        let held = self.exclude(&Intent::Relayout).await?;
        Ok((self.unchanged().await?, held))
    }

    async fn exclude(&self, intent: &Intent) -> Result<Held, Trouble> {
        for _ in 0..TRIES {
            match self.mds.prepare(&self.entry, intent).await {
                // The end of an unclean layout is settled first: it may say that more mirrors differ.
                Ok(_) if self.entry.peek(File::needs_settle) => return Err(Trouble::Again),
                Ok(held) => return Ok(held),
                Err(Error::Stale) => return Err(FsError::Stale.into()),
                Err(_) => self.mds.env.clock.sleep(AGAIN).await,
            }
        }
        Err(Trouble::Again)
    }

    /// The file as it is now, if the plan is still the right one. Asked under the ticket, which keeps
    /// truncations away; one that an earlier incarnation left is carried out without one, and comes first.
    async fn unchanged(&self) -> Result<Inode, Trouble> {
        let (namespace, file) = (&self.mds.namespace, self.key.fileid);
        let cut = self.mds.read(|txn| Box::pin(async move { namespace.truncate_intent(&txn, file).await }));
        if cut.await?.is_some() {
            return Err(Trouble::Again);
        }
        let (inode, row) = look(self.mds, self.key).await?;
        let row = row.ok_or(Trouble::Again)?;
        if self.plan.stands(&plan(self.mds, &inode, &row)) { Ok(inode) } else { Err(Trouble::Again) }
    }

    /// No handle from before leads to a target any more, nothing in it lies beyond the end of its source, what is there of
    /// both is durable, and writes that come through this server go there.
    async fn begin(&mut self, inode: &Inode) -> Result<(), Trouble> {
        let id = self.plan.id;
        for pair in &self.plan.pairs {
            // What was given up there and is carried out all the same would change what has been compared.
            sure(resync::is_quiet(self.mds, id, &pair.source).await)?;
            if pair.target.stale {
                sure(resync::fence_generations(self.mds, id, &pair.target, pair.target.generation).await)?;
            }
        }
        let fills = |pair: &Pair| Filling { id, column: pair.source.slot, target: pair.target };
        let outside = |pair: &&Pair| pair.target.stale || pair.replaces();
        // Waits for writes that are under way.
        let mut filling = self.gate.lock.write().await;
        for pair in &self.plan.pairs {
            // A write that grows the file would leave what lies beyond in the middle of it.
            let (source, target) = (self.source(pair).await?, self.stat(&pair.target).await?);
            // What writers left unstable would be compared, and could be lost before the target counts.
            if source.exists && !pair.is_a_move() {
                sure(dsctl::commit(self.mds, id, &pair.source).await.is_ok())?;
            }
            let end = source.size.min(target.size);
            self.set_end(pair, end, inode.size()).await?;
        }
        *filling = self.plan.pairs.iter().filter(outside).map(fills).collect();
        self.begun = true;
        Ok(())
    }

    /// Works for a while, or until there has to be a pause so long: nobody is to wait for that.
    async fn slice(&mut self) -> Result<Duration, Trouble> {
        let until = self.mds.now().plus_nanos(SLICE);
        while let Some(pair) = self.plan.pairs.get(self.at.0).copied() {
            let (next, copied) = self.piece(&pair, self.at.1).await?;
            self.at = next.map_or((self.at.0 + 1, 0), |next| (self.at.0, next));
            if pair.replaces() {
                let pause = crate::layout::pause(self.mds, pair.old.store, copied);
                if !pause.is_zero() {
                    return Ok(pause);
                }
            }
            if self.mds.now() > until {
                break;
            }
        }
        Ok(Duration::ZERO)
    }

    /// Makes one piece equal; where the next one begins, and how many bytes had to be copied.
    async fn piece(&self, pair: &Pair, at: u64) -> Result<(Option<u64>, u64), Trouble> {
        let (mds, id) = (self.mds, self.plan.id);
        let length = mds.config.heal_piece;
        let _alone = self.gate.lock.write().await;
        let (source, target) = tokio::join!(
            resync::next_data(mds, id, &pair.source, at),
            resync::next_data(mds, id, &pair.target, at)
        );
        let next = match (source.ok_or(Trouble::Again)?, target.ok_or(Trouble::Again)?) {
            (Some(a), Some(b)) => a.min(b),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return Ok((None, 0)),
        };
        let at = at.max(next / length * length);
        let mut copied = 0;
        let equal = self.equal(pair, at, length).await?;
        if equal != Some(true) {
            // What the device of the target cannot read may be whole once it is written.
            copied = self.copy(pair, (at, length)).await.map_err(|trouble| match (equal, trouble) {
                (None, Trouble::Again) => self.unreadable(&pair.target, true),
                (_, trouble) => trouble,
            })?;
            if !pair.is_a_move() {
                mds.metrics.healed_bytes.fetch_add(copied, Ordering::Relaxed);
            }
            // What the source does not have the target is to lose: its end is set when all is copied.
            if copied > 0 {
                match self.equal(pair, at, copied).await? {
                    Some(true) => {}
                    Some(false) => {
                        tracing::error!(
                            file = self.key.fileid.0,
                            offset = at,
                            "a mirror differs after it was copied"
                        );
                        return Err(Trouble::Again);
                    }
                    None => return Err(self.unreadable(&pair.target, true)),
                }
            }
        }
        Ok((Some(at.saturating_add(length)), copied))
    }

    async fn copy(&self, pair: &Pair, range: (u64, u64)) -> Result<u64, Trouble> {
        let copied = resync::copy(self.mds, self.plan.id, &pair.source, &pair.target, range).await;
        copied.map_err(|error| match error {
            NotCopied::Full if pair.may_go_elsewhere() => Trouble::Full(*pair),
            _ => Trouble::Again,
        })
    }

    /// `None`: the device of the target cannot read it.
    async fn equal(&self, pair: &Pair, at: u64, length: u64) -> Result<Option<bool>, Trouble> {
        let (mds, id) = (self.mds, self.plan.id);
        let (source, target) = tokio::join!(
            resync::checksum(mds, id, &pair.source, at, length),
            resync::checksum(mds, id, &pair.target, at, length)
        );
        match (source, target) {
            (Err(NotRead::Unreadable), _) => Err(self.unreadable(&pair.source, false)),
            (Ok(_), Err(NotRead::Unreadable)) => Ok(None),
            (Ok(source), Ok(target)) => Ok(Some(source == target)),
            (Err(NotRead::Failed), _) | (_, Err(NotRead::Failed)) => Err(Trouble::Again),
        }
    }

    /// The next plan is one without it.
    fn unreadable(&self, file: &DataFile, anew: bool) -> Trouble {
        if let Some(store) = self.mds.data_servers.get(file.store) {
            store.cannot_read(self.plan.id, file.slot, anew, self.mds.now());
        }
        Trouble::Again
    }

    /// Ends are made equal, all is made durable, and the mirrors are good.
    async fn finish(&self, inode: &Inode, held: Held) -> Result<Vec<StoreId>, Trouble> {
        let mds = self.mds;
        let mut filling = self.gate.lock.write().await;
        // A write that could not be written to a target, too.
        if self.gate.was_disturbed() {
            return Err(Trouble::Again);
        }
        let mut slots = Vec::with_capacity(self.plan.pairs.len());
        let mut replaced = Vec::new();
        for pair in &self.plan.pairs {
            let exists = self.same_end(pair, inode.size()).await?;
            let old = pair.old;
            if pair.replaces() && self.has_readers(pair, inode)? {
                replaced.push(old);
            }
            let filled = (pair.target.store, pair.target.slot);
            slots.push(HealedSlot { slot: old.slot, generation: old.generation, filled, exists });
        }
        let (dirty, equal) = (self.plan.dirty, self.plan.equal);
        let healed = Healed { id: self.plan.id, slots, dirty, equal };
        match commit(mds, self.key, &healed, &replaced, || !self.gate.is_disturbed()).await {
            // Some of it is to go elsewhere by now, or mirrors have come to differ.
            Err(FsError::Invalid) => return Err(Trouble::Again),
            done => done?,
        }
        for pair in &self.plan.pairs {
            // Rewritten as a whole: what was damaged there is not any more.
            if let Some(store) = mds.data_servers.get(pair.target.store) {
                store.mended(self.plan.id, pair.target.slot);
            }
        }
        filling.clear();
        drop(held.commit());
        if !self.plan.pairs.iter().all(Pair::is_a_move) {
            mds.metrics.healed_files.fetch_add(1, Ordering::Relaxed);
            tracing::info!(file = self.key.fileid.0, mirrors = healed.slots.len(), "mirrors are equal again");
        }
        Ok(self.plan.waits_for.clone())
    }

    /// Nobody may read what is replaced when others are written without it: whether it has to be fenced. One that was removed
    /// serves nobody.
    fn has_readers(&self, pair: &Pair, inode: &Inode) -> Result<bool, Trouble> {
        let mds = self.mds;
        if pair.is_a_move() {
            // Whoever held it under us has given it back or is fenced; those of our predecessors have to be over.
            let old_handles = inode.layout().is_none_or(|layout| epochs::old_handles_live(mds, layout));
            return if old_handles { Err(Trouble::Again) } else { Ok(false) };
        }
        Ok(!mds.data_servers.is_removed(pair.old.store))
    }

    /// Whether there is a data file.
    async fn same_end(&self, pair: &Pair, size: u64) -> Result<bool, Trouble> {
        let source = self.source(pair).await?;
        let target = self.stat(&pair.target).await?;
        if source.size > 0 && !target.exists {
            // A hole to its end: one zero brings it into being.
            let last = (source.size - 1, 1);
            self.copy(pair, last).await?;
        }
        // The source is not cut: that could be carried out late, when others have written behind its end.
        self.set_end(pair, source.size, size).await?;
        let target = self.stat(&pair.target).await?;
        sure(target.size == source.size)?;
        Ok(target.exists)
    }

    async fn set_end(&self, pair: &Pair, end: u64, size: u64) -> Result<(), Trouble> {
        let set = resync::set_end(self.mds, self.plan.id, &pair.target, end, size).await;
        set.map_err(|error| match error {
            NotSet::Removed if pair.may_go_elsewhere() => Trouble::Removed(*pair),
            _ => Trouble::Again,
        })
    }

    /// What others are made equal to. One that was there once and is not is no hole: it is damage, and the others have
    /// what it had.
    async fn source(&self, pair: &Pair) -> Result<ctl_stat, Trouble> {
        let (source, found) = (&pair.source, self.stat(&pair.source).await?);
        if source.materialised && !found.exists {
            if let Some(store) = self.mds.data_servers.get(source.store) {
                store.lacks(self.plan.id, source.slot);
            }
            return Err(Trouble::Again);
        }
        Ok(found)
    }

    async fn stat(&self, file: &DataFile) -> Result<ctl_stat, Trouble> {
        resync::stat(self.mds, self.plan.id, file).await.ok_or(Trouble::Again)
    }
}

fn sure(done: bool) -> Result<(), Trouble> {
    if done { Ok(()) } else { Err(Trouble::Again) }
}

/// Durably, with the fences of data files that were replaced: one that was fenced before would be the file's own still if this
/// failed, and refuse its writers. Those whose data server is away are told to it before it serves again. Invalid when what was
/// compared `stands` no more.
async fn commit(
    mds: &Arc<Mds>,
    key: InodeKey,
    healed: &Healed,
    replaced: &[DataFile],
    stands: impl Fn() -> bool + Send + Sync,
) -> Result<(), FsError> {
    let (namespace, stands) = (&mds.namespace, &stands);
    let fences = dsctl::fences_of_parted(mds, healed.id, replaced).await?;
    let rows = &fences;
    dsctl::write_with_fences(mds, rows, |mut txn| {
        Box::pin(async move {
            rows.iter().for_each(|row| put_fence(&mut txn, row));
            let healed = namespace.healed(&mut txn, &key, healed).await?;
            // After the inode was read: what is suspected from now on conflicts.
            if stands() { Ok(healed) } else { Err(FsError::Invalid) }
        })
    })
    .await?;
    dsctl::tell_fences_first(mds, fences).await;
    Ok(())
}
