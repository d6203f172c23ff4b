//! One file: mirrors are added as such that missed all writes, and healed; or given up while nobody holds a layout.

use std::sync::Arc;

use sluice_env::BoxFuture;
use sluice_namespace::stable_storage::put_fence;
use sluice_namespace::{DataFile, FsError, Inode, InodeKey, Layout};
use sluice_state::file::File;

use super::choose::{self, Added, NoPlace};
use crate::dsctl::{self, epochs, resync};
use crate::layout::heal::leave;
use crate::layout::maintenance::{Outcome, Tried};
use crate::layout::placement::{self, Wanted};
use crate::layout::{candidates, classes, garbage, settle, turn};
use crate::server::Mds;

const HEALING: &str = "its mirrors are being made equal, or wait for that";
const CHANGED: &str = "it has changed meanwhile";
const OLD: &str = "clients of before the metadata server's start may still use it as it was";
const IN_USE: &str = "clients do not give back their layouts of it";

/// What was done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// It is as it should be, or gone.
    Nothing,
    /// It is kept in the metadata, and will have as many as it should when it is not any more.
    Noted,
    /// So many bytes are to be copied, at most: it waits to be healed.
    Added(u64),
    Dropped,
}

const fn done(done: Done) -> Tried<Done> {
    Ok(Outcome::Done(done))
}

fn later(why: impl Into<String>) -> Tried<Done> {
    Ok(Outcome::Later(why.into()))
}

/// Has a file have so many mirrors. What it gets is durable when this returns, and queued to be filled.
///
/// # Errors
/// What the metadata store says.
pub(super) async fn set(mds: &Arc<Mds>, key: InodeKey, mirrors: u8) -> Tried<Done> {
    match try_set(mds, key, mirrors).await {
        Err(FsError::Stale) => done(Done::Nothing),
        Err(FsError::Busy) => later(HEALING),
        Err(FsError::EndUnknown) => later("its length is not known yet"),
        Err(FsError::Invalid) => later(CHANGED),
        Err(FsError::NoSpace) => Ok(Outcome::Never("its data files have used up their numbers".to_owned())),
        step => step,
    }
}

async fn try_set(mds: &Arc<Mds>, key: InodeKey, mirrors: u8) -> Tried<Done> {
    // How much there is to copy.
    settle::settle_size(mds, &key).await?;
    let inode = settle::inode(mds, key).await?;
    if inode.inline().is_some() {
        return note(mds, key, mirrors).await;
    }
    let Some(layout) = inode.layout() else { return done(Done::Nothing) };
    let mirrors = u16::from(mirrors);
    // Of what nobody has written to yet, too: it would have as many as before when somebody does.
    if layout.components.iter().all(|component| component.mirrors == mirrors) {
        return done(Done::Nothing);
    }
    if layout.is_degraded() {
        return later(HEALING);
    }
    if layout.components.iter().any(|component| component.mirrors > mirrors) {
        return give_up(mds, key, mirrors).await;
    }
    add(mds, &inode, layout, mirrors).await
}

async fn note(mds: &Arc<Mds>, key: InodeKey, mirrors: u8) -> Tried<Done> {
    let namespace = &mds.namespace;
    let (changed, _) = mds
        .write(|mut txn| Box::pin(async move { namespace.set_inline_mirrors(&mut txn, &key, mirrors).await }))
        .await?;
    done(if changed { Done::Noted } else { Done::Nothing })
}

async fn add(mds: &Arc<Mds>, inode: &Inode, layout: &Layout, mirrors: u16) -> Tried<Done> {
    let mut chosen = candidates(mds);
    placement::interleave(&mut chosen.list);
    let host = |store| mds.data_servers.get(store).and_then(|store| store.update(|view| view.host()));
    let size = (inode.size(), inode.file().map_or(0, |file| file.space_used));
    let like = |store| classes::like(mds, store);
    let added = match choose::add(layout, size, mirrors, &chosen.list, turn(mds), host, like) {
        Ok(added) => added,
        Err(why) => {
            let wanted = layout.data_files().next().map_or(Wanted::Any, |file| like(file.store));
            let (servers, class) = (wanted.among(&chosen.list).count(), classes::words(mds, wanted));
            return Ok(Outcome::Never(words(why, mirrors, servers, &class)));
        }
    };
    if added.is_nothing() {
        return done(Done::Nothing);
    }
    let Added { places, bytes } = added;
    let (namespace, key, id, places) = (&mds.namespace, inode.key, layout.id, &places);
    mds.write(|mut txn| {
        Box::pin(async move { namespace.add_mirrors(&mut txn, &key, id, mirrors, places).await })
    })
    .await?;
    // What was chosen is in the store: a data server that is drained from now on finds it.
    drop(chosen);
    mds.heals.queue(key);
    done(Done::Added(bytes))
}

fn words(why: NoPlace, mirrors: u16, servers: usize, class: &str) -> String {
    match why {
        NoPlace::TooWide(most) => format!("it is striped so widely that it can have {most} copies at most"),
        NoPlace::TooFew => {
            format!("{mirrors} copies need as many data servers{class} that take new files, and {servers} do")
        }
        NoPlace::NoRoom => format!("no data server{class} that has no copy of it yet has room for one"),
    }
}

/// Gives up what is more than so many.
async fn give_up(mds: &Arc<Mds>, key: InodeKey, mirrors: u16) -> Tried<Done> {
    let act = |inode: Inode| -> BoxFuture<'static, _> {
        let mds = Arc::clone(mds);
        Box::pin(async move {
            let outcome = under_ticket(&mds, &inode, mirrors).await?;
            Ok(if matches!(outcome, Outcome::Done(Done::Dropped)) { Ok(outcome) } else { Err(outcome) })
        })
    };
    // The end of an unclean layout is settled first: it says that mirrors may differ.
    match leave::under_relayout(mds, key, File::needs_settle, act).await {
        Ok(Ok(dropped)) => {
            garbage::poke(mds);
            Ok(dropped)
        }
        Ok(Err(other)) => Ok(other),
        Err(FsError::Busy) => later(IN_USE),
        Err(error) => Err(error),
    }
}

/// Nobody holds a layout, and nothing goes on with the file's data.
async fn under_ticket(mds: &Arc<Mds>, inode: &Inode, mirrors: u16) -> Tried<Done> {
    let Some(layout) = inode.layout() else { return done(Done::Nothing) };
    if layout.is_degraded() {
        return later(HEALING);
    }
    if mds.in_grace() || epochs::old_handles_live(mds, layout) {
        return later(OLD);
    }
    let at = |store| {
        let store = mds.data_servers.get(store);
        store.map_or((None, 0), |store| store.update(|view| (view.host(), view.capacity.free_bytes)))
    };
    let slots = choose::drop(layout, mirrors, at);
    for stays in beside(layout, &slots) {
        if let Some(why) = is_amiss(mds, layout, &stays).await {
            return later(why);
        }
    }
    drop_them(mds, inode.key, layout, &slots).await
}

/// What is left of the columns that these slots are of.
fn beside(layout: &Layout, slots: &[u16]) -> Vec<DataFile> {
    let goes = |file: &DataFile| slots.contains(&file.slot);
    let columns = layout.columns().filter(|column| column.iter().any(goes));
    columns.flatten().filter(|file| !goes(file)).copied().collect()
}

/// Why nobody may rely on this mirror alone, if so.
async fn is_amiss(mds: &Arc<Mds>, layout: &Layout, file: &DataFile) -> Option<String> {
    let store = file.store.0;
    let well = mds.data_servers.get(file.store).is_some_and(|store| store.takes_heals());
    if !well || leave::is_damaged(mds, layout, file) {
        return Some(format!("data server {store} is away, does not take writes, or what it has is damaged"));
    }
    match resync::stat(mds, layout.id, file).await {
        Some(stat) if stat.exists || !file.materialised => None,
        Some(_) => Some(format!("data server {store} does not have its copy any more")),
        None => Some(format!("data server {store} does not answer")),
    }
}

/// In one transaction with their fences, which their data servers hear of before anybody writes without them.
async fn drop_them(mds: &Arc<Mds>, key: InodeKey, layout: &Layout, slots: &[u16]) -> Tried<Done> {
    let (namespace, id) = (&mds.namespace, layout.id);
    let parted: Vec<DataFile> =
        layout.data_files().filter(|file| slots.contains(&file.slot)).copied().collect();
    let fences = dsctl::fences_of_parted(mds, id, &parted).await?;
    let rows = &fences;
    dsctl::write_with_fences(mds, rows, |mut txn| {
        Box::pin(async move {
            rows.iter().for_each(|row| put_fence(&mut txn, row));
            namespace.drop_mirrors(&mut txn, &key, id, slots).await
        })
    })
    .await?;
    dsctl::tell_fences_first(mds, fences).await;
    done(Done::Dropped)
}
