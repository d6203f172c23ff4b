//! One file leaves a data server: what nobody has seen gets another place, all else is filled elsewhere first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::{Component, DataFile, FsError, Heal, Inode, InodeKey, Layout, StoreId};

use super::progress::Progress;
use crate::layout::census::{self, Amount};
use crate::layout::heal::{self, Outcome, lost};
use crate::layout::placement::{self, Candidate, Wanted};
use crate::layout::{candidates, classes, turn};
use crate::server::Mds;

/// Attempts in a row; then others have their turn.
const TRIES: u32 = 5;
const RETRY: Duration = Duration::from_secs(1);
/// Looks whether somebody else has done with a file, and what is between two. A long one does not keep others from their turn.
const LOOKS: u32 = 100;
const LOOK: Duration = Duration::from_millis(50);

/// Its layout names the data server; or it is being healed, and then something may be on its way there.
pub(super) fn concerns(inode: &Inode, store: StoreId) -> bool {
    inode.layout().is_some_and(|layout| layout.names(store) || layout.is_degraded())
}

/// In one transaction: other data servers for the parts of these files that nobody has seen. Those files that have
/// more there.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn replace_unseen(
    mds: &Arc<Mds>,
    keys: &[InodeKey],
    store: StoreId,
) -> Result<Vec<InodeKey>, FsError> {
    let (chosen, namespace) = (candidates(mds), &mds.namespace);
    let list = &chosen.list;
    // Of what is lost nothing waits for its class.
    let leaves = classes::may_leave(mds, store);
    let (more, _) = mds
        .write(|mut txn| {
            Box::pin(async move {
                let mut more = Vec::new();
                for key in keys {
                    let inode = match namespace.getattr(&txn, key).await {
                        Ok(inode) => inode,
                        Err(FsError::Stale) => continue,
                        Err(error) => return Err(error),
                    };
                    let Some(layout) = inode.layout() else { continue };
                    let mut left = layout.is_degraded();
                    for (index, component) in layout.components.iter().enumerate() {
                        if component.slots.iter().all(|file| file.store != store) {
                            continue;
                        }
                        let untouched = component.is_untouched(inode.size());
                        let like = |from| classes::like(mds, from);
                        let without = || without(component, store, list, turn(mds), like, leaves);
                        match untouched.then(without).flatten() {
                            Some(new) => {
                                namespace.replace_component(&mut txn, key, index, new).await?;
                            }
                            None => left = true,
                        }
                    }
                    if left {
                        more.push(*key);
                    }
                }
                Ok(more)
            })
        })
        .await?;
    drop(chosen);
    Ok(more)
}

/// A component that nobody has seen without this data server: what it has there goes to others that are `like` it, or to any
/// where it `leaves` these and they take nothing. `None`: some of it finds nobody.
fn without(
    component: &Component,
    store: StoreId,
    candidates: &[Candidate],
    turn: u64,
    like: impl Fn(StoreId) -> Wanted,
    leaves: bool,
) -> Option<Component> {
    let mut new = placement::repaired(component, candidates, turn, &like);
    if leaves {
        let like = |from| if from == store { Wanted::Any } else { like(from) };
        new = placement::repaired(&new, candidates, turn, like);
    }
    new.slots.iter().all(|file| file.store != store).then_some(new)
}

/// Moves what a file has at the data server; how much that was.
///
/// # Errors
/// Why it cannot be done now, in words.
pub(super) async fn go(mds: &Arc<Mds>, key: InodeKey, progress: &Progress) -> Result<Amount, String> {
    let store = progress.store();
    let mut amount = Amount::default();
    let mut why = String::new();
    let (mut pause, mut carried) = (false, false);
    for _ in 0..TRIES {
        if pause {
            mds.env.clock.sleep(RETRY).await;
        }
        // Whoever heals files has found it: that is none of our attempts.
        for _ in 0..LOOKS {
            if !mds.heals.is_busy(key.fileid) || progress.is_stopped() {
                break;
            }
            mds.env.clock.sleep(LOOK).await;
        }
        if progress.is_stopped() {
            return Err("the drain was cancelled".to_owned());
        }
        let step = match look(mds, key).await {
            Ok((inode, row)) => {
                if done(mds, &inode, row.as_ref(), store) {
                    return Ok(amount);
                }
                let here = census::amount(&inode, store);
                amount = if here.data_files > 0 { here } else { amount };
                move_once(mds, &inode, row.as_ref(), store).await
            }
            Err(error) => Err(error),
        };
        // What was carried out is looked at anew without a pause: nearly every file is done by then.
        let before = std::mem::replace(&mut carried, matches!(step, Ok(None)));
        pause = before || !carried;
        why = match step {
            Ok(None) => continue,
            Ok(Some(words)) => words,
            Err(FsError::Stale) => return Ok(amount),
            Err(error) => format!("the metadata store says: {error}"),
        };
    }
    match look(mds, key).await {
        Ok((inode, row)) if done(mds, &inode, row.as_ref(), store) => Ok(amount),
        Err(FsError::Stale) => Ok(amount),
        _ if why.is_empty() => Err("it changes all the time".to_owned()),
        _ => Err(why),
    }
}

pub(in crate::layout) async fn look(mds: &Arc<Mds>, key: InodeKey) -> Result<(Inode, Option<Heal>), FsError> {
    let namespace = &mds.namespace;
    mds.read(|txn| {
        Box::pin(async move {
            Ok((namespace.getattr(&txn, &key).await?, namespace.heal(&txn, key.fileid).await?))
        })
    })
    .await
}

/// Nothing of it is there, or is on its way there, but a copy that missed writes of what is lost: that can be made equal to
/// nothing, here or elsewhere.
fn done(mds: &Mds, inode: &Inode, row: Option<&Heal>, store: StoreId) -> bool {
    let comes = row.is_some_and(|row| row.replacements.iter().any(|new| new.new.store == store));
    let there = |file: &&DataFile| file.store == store;
    let names = inode.layout().map_or(0, |layout| layout.data_files().filter(there).count());
    !comes && names == lost::columns(mds, inode).flat_map(|(column, _)| column).filter(there).count()
}

/// Plans and does as much as can be; why not all of it, in words.
async fn move_once(
    mds: &Arc<Mds>,
    inode: &Inode,
    row: Option<&Heal>,
    store: StoreId,
) -> Result<Option<String>, FsError> {
    let (key, namespace) = (inode.key, &mds.namespace);
    // A part that nobody has seen may have come back into the layout's old state with a truncation.
    if replace_unseen(mds, &[key], store).await?.is_empty() {
        return Ok(None);
    }
    let Some(layout) = inode.layout() else { return Ok(None) };
    if lost::is_awaited(mds, inode) {
        lost::give_up(mds, key).await?;
        return Ok(None);
    }
    let columns = || {
        let used = heal::columns(layout.in_use(inode.size()), inode);
        used.filter(|column| lost::went_with(mds, column.files).is_none())
    };
    let wanted = columns().flat_map(|column| column.files);
    let wanted = wanted.filter(|file| heal::needs_place(mds, file, row, store)).count();
    let chosen = candidates(mds);
    let places = heal::places(mds, &chosen.list, columns(), row, store);
    let short = places.len() < wanted;
    for heal::Place { slot, store: to, .. } in places {
        let planned = mds
            .write(|mut txn| {
                Box::pin(async move { namespace.plan_replacement(&mut txn, &key, slot, to).await })
            })
            .await;
        match planned {
            Ok(_) => {}
            // It has changed meanwhile.
            Err(FsError::Invalid) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    drop(chosen);
    if short {
        return Ok(Some(format!(
            "no other data server{} takes it: too few are there for its mirrors, or they are full",
            classes::of_it(mds, store)
        )));
    }
    carry_out(mds, key, layout, |at| at == store).await
}

/// Fills what takes the place of a file's data files at some data servers; why not, in words.
///
/// # Errors
/// What the metadata store says.
pub(in crate::layout) async fn carry_out(
    mds: &Arc<Mds>,
    key: InodeKey,
    layout: &Layout,
    goes: impl Fn(StoreId) -> bool,
) -> Result<Option<String>, FsError> {
    Ok(match heal::heal(mds, key).await? {
        Outcome::Done => None,
        Outcome::WaitsFor(stores) => {
            let names: Vec<String> = stores.iter().map(|store| store.0.to_string()).collect();
            Some(format!("data server {} is not there", names.join(" and ")))
        }
        Outcome::Unreadable(store) => Some(format!(
            "the device of data server {} cannot read some of it, and there is no other copy: restore the file from a backup, or remove it",
            store.0
        )),
        Outcome::NoRoom(bytes) => {
            let least = bytes.div_ceil(1 << 20).max(1);
            let classes: BTreeSet<String> = layout
                .data_files()
                .filter(|file| goes(file.store))
                .map(|file| classes::of_it(mds, file.store))
                .collect();
            let class = classes.first().filter(|_| classes.len() == 1).cloned().unwrap_or_default();
            Some(format!("no other data server{class} has room for {least} MiB of it"))
        }
        Outcome::Again
            if layout
                .data_files()
                .any(|file| goes(file.store) && heal::leave::is_damaged(mds, layout, file)) =>
        {
            Some("what is there of it is damaged, or lost, and there is no other copy".to_owned())
        }
        Outcome::Again => Some("it is in use, and not given back".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use sluice_namespace::Class;

    use super::*;

    fn class(store: u16) -> Option<Class> {
        Class::parse(if [1, 2, 5].contains(&store) { "archive" } else { "nvme" })
    }

    fn candidates<const N: usize>(ids: [u16; N]) -> [Candidate; N] {
        ids.map(|id| Candidate { store: StoreId(id), free_bytes: 1 << 40, host: None, class: class(id) })
    }

    #[test]
    fn what_goes_may_leave_its_class_and_what_is_full_beside_it_stays_there() {
        let slots = [1, 2].map(|id| DataFile { store: StoreId(id), ..DataFile::default() }).to_vec();
        let (start, end, stripe_unit) = (0, u64::MAX, 1 << 20);
        let old = Component { start, end, stripe_unit, width: 2, mirrors: 1, handed_out: false, slots };
        let like = |store: StoreId| Wanted::Of(class(store.0));
        let at = |free: &[Candidate], leaves| {
            let new = without(&old, StoreId(1), free, 0, like, leaves)?;
            Some(new.slots.iter().map(|file| file.store.0).collect::<Vec<_>>())
        };
        let others = candidates([3, 4]);
        assert_eq!(at(&others, false), None, "it waits for its class");
        assert_eq!(at(&others, true), Some(vec![3, 2]));
        assert_eq!(at(&candidates([3, 4, 5]), true), Some(vec![5, 5]), "its class has a place for both");
        // The drain is over: it takes new files again.
        assert_eq!(at(&candidates([1, 2]), true), None);
        assert_eq!(at(&[], true), None);
        let slots = [1, 5, 1, 2].map(|id| DataFile { store: StoreId(id), ..DataFile::default() }).to_vec();
        let mirrored = Component { mirrors: 2, slots, ..old };
        let new = without(&mirrored, StoreId(1), &candidates([3, 5]), 0, like, true).unwrap();
        let new = new.slots.iter().map(|file| file.store.0).collect::<Vec<_>>();
        assert_eq!(new, [3, 5, 5, 2], "only one of its columns finds nobody of its class");
    }
}
