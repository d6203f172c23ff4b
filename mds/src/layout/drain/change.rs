//! What an administrator asks for. Whatever would lose data is refused, and why.

use std::sync::Arc;

use sluice_namespace::stable_storage::{
    Drain, Store, StoreState, cancel_drain, drain, put_drain, put_store, remove_store, store,
};
use sluice_namespace::{Class, FsError, StoreId};
use sluice_state::Time;
use sluice_xdr::control::ctl_capacity;

use super::is_headed_for;
use super::progress::Closed;
use crate::dsctl::{StoreHandle, together};
use crate::layout::census::{self, Alone, Census, Count};
use crate::layout::placement::Wanted;
use crate::layout::{classes, garbage};
use crate::server::Mds;

/// Of what is free elsewhere, the part that a drain leaves to others: one in so many.
const SPARE_ROOM: u64 = 20;

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It never will be, as things are.
    No(String),
    /// Not known yet: ask again.
    NotYet(String),
}

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Self {
        Self::NotYet(format!("the metadata store does not answer: {error}"))
    }
}

fn no<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::No(why.into()))
}

/// What the removal of a data server that is lost costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) files: u64,
    pub(crate) examples: Vec<Alone>,
    /// Done, as it was agreed to.
    pub(crate) removed: bool,
}

/// Begins to empty a data server, or sets how fast.
///
/// # Errors
/// Why not.
pub(crate) async fn begin(mds: &Arc<Mds>, id: StoreId, rate: u64) -> Result<(), Refusal> {
    let _alone = mds.drains.asked.lock().await;
    let handle = known(mds, id).await?;
    let counted = if handle.is_active() { Some(judge(mds, &handle)?) } else { None };
    let (count, now) = (counted.unwrap_or_default(), mds.env.clock.wall().seconds);
    let amount = count.amount;
    let change = mds.write_again(|mut txn| {
        Box::pin(async move {
            let store = row(&txn, id).await?;
            let fresh = Drain {
                store: id,
                since: now,
                rate,
                data_files: amount.data_files,
                bytes: amount.bytes,
                done: false,
            };
            let drain = drain(&txn, id).await?.map_or(fresh, |drain| Drain { rate, ..drain });
            put_drain(&mut txn, &store, &drain);
            Ok(drain)
        })
    });
    let row = surely(mds, id, change).await?;
    handle.update(|view| view.intent = StoreState::Draining);
    tracing::info!(data_server = id.0, data_files = row.data_files, "data server is drained");
    mds.drains.began(row);
    Ok(())
}

/// It takes new files again; files on their way go on.
///
/// # Errors
/// Why not.
pub(crate) async fn cancel(mds: &Arc<Mds>, id: StoreId) -> Result<(), Refusal> {
    let _alone = mds.drains.asked.lock().await;
    let handle = known(mds, id).await?;
    if handle.is_active() {
        return no(format!("data server {} is not being drained", id.0));
    }
    // Before: it is not to be recorded that it is done any more.
    mds.drains.ended(id);
    let change = mds.write_again(|mut txn| {
        Box::pin(async move {
            let store = row(&txn, id).await?;
            let there = store.state != StoreState::Removed;
            if there {
                cancel_drain(&mut txn, &store);
            }
            Ok(there)
        })
    });
    let cancelled = surely(mds, id, change).await?;
    if !cancelled {
        // By an attempt whose end nobody was told.
        forget(mds, &handle).await;
        return no(format!("data server {} is removed", id.0));
    }
    handle.update(|view| view.intent = StoreState::Active);
    tracing::info!(data_server = id.0, "data server takes new files again");
    Ok(())
}

/// Takes out a data server that holds nothing.
///
/// # Errors
/// Why not.
pub(crate) async fn remove(mds: &Arc<Mds>, id: StoreId) -> Result<Loss, Refusal> {
    let _alone = mds.drains.asked.lock().await;
    let handle = known(mds, id).await?;
    if handle.is_active() {
        return no(format!("data server {0} is in use: drain it first, with `sluice ds drain {0}`", id.0));
    }
    let change = mds.write_again(|mut txn| {
        Box::pin(async move {
            let store = row(&txn, id).await?;
            if store.state == StoreState::Removed {
                // By an attempt whose end is not known.
                return Ok(true);
            }
            let done = drain(&txn, id).await?.is_some_and(|drain| drain.done);
            if done {
                remove_store(&mut txn, &store);
            }
            Ok(done)
        })
    });
    let done = surely(mds, id, change).await?;
    if !done {
        return no(format!("data server {} still holds data files: it is being drained", id.0));
    }
    forget(mds, &handle).await;
    Ok(Loss { removed: true, ..Loss::default() })
}

/// Takes out a data server that is gone with what it holds, if `agreed` files are lost with it: exactly so many, or so many as was
/// said, and no others since then.
///
/// # Errors
/// Why not.
pub(crate) async fn remove_lost(mds: &Arc<Mds>, id: StoreId, agreed: Option<u64>) -> Result<Loss, Refusal> {
    let _alone = mds.drains.asked.lock().await;
    let handle = known(mds, id).await?;
    let is_here = || {
        no(format!(
            "data server {0} was heard of a moment ago: stop it if it is lost, or drain it with `sluice ds drain {0}`",
            id.0
        ))
    };
    if !census::is_lost(mds, &handle) {
        return is_here();
    }
    if handle.is_active() {
        return no(format!(
            "drain it first, with `sluice ds drain {}`: what has another mirror is made anew from that",
            id.0
        ));
    }
    // What was written while it was here again is counted, too.
    let moment = closed(mds, id).await?.max(handle.view().last_heard);
    let census = match as_shown(mds, id, moment, agreed) {
        Some(shown) => shown,
        None => census::since(mds, moment).map_err(counting)?,
    };
    let Count { alone, examples, files, .. } = census.of(id);
    if files > alone {
        return no(format!(
            "{} files have mirrors elsewhere that are not copied yet: wait, or add a data server that takes them{}",
            files - alone,
            lost_too(mds)
        ));
    }
    let loss = Loss { files: alone, examples, removed: agreed == Some(alone) };
    if let Some(progress) = mds.drains.of(id) {
        progress.show(census);
    }
    if loss.removed {
        let goes = &handle;
        let change = mds.write_again(|mut txn| {
            Box::pin(async move {
                let store = row(&txn, id).await?;
                // By an attempt whose end is not known.
                let done = store.state == StoreState::Removed;
                // Whoever registers changes the row first: it is back, or will find that it is out.
                if !done && !goes.view().lost {
                    return Ok(false);
                }
                if !done {
                    remove_store(&mut txn, &store);
                }
                Ok(true)
            })
        });
        if !surely(mds, id, change).await? {
            return is_here();
        }
        forget(mds, &handle).await;
    }
    Ok(loss)
}

/// What a change of a class came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Classed {
    pub(crate) before: Option<Class>,
    /// Data servers in use that are as this one was.
    pub(crate) left: usize,
}

/// Gives a data server a class, or takes it away. New files follow at once; what is there stays where it is.
///
/// # Errors
/// Why not.
pub(crate) async fn set_class(mds: &Arc<Mds>, id: StoreId, class: Option<Class>) -> Result<Classed, Refusal> {
    let _alone = mds.drains.asked.lock().await;
    // What has one is not read by older releases, whether it is in use or not.
    let handle = if class.is_some() { known(mds, id).await? } else { ever(mds, id).await? };
    let before = handle.class();
    let change = mds.write_again(|mut txn| {
        Box::pin(async move {
            let row = row(&txn, id).await?;
            if row.class != class {
                put_store(&mut txn, &Store { class, ..row });
            }
            Ok(())
        })
    });
    surely(mds, id, change).await?;
    handle.update(|view| view.class = class);
    let is_left = |store: &&Arc<StoreHandle>| store.is_active() && store.class() == before;
    Ok(Classed { before, left: mds.data_servers.all().iter().filter(is_left).count() })
}

/// The count that was agreed to. Whoever agrees may have thought about it for long, and to count anew may take hours: nothing has
/// been added to it since. Files that were removed meanwhile are none that it was not agreed to.
fn as_shown(mds: &Mds, id: StoreId, moment: Time, agreed: Option<u64>) -> Option<Arc<Census>> {
    let shown = mds.drains.of(id)?.shown()?;
    (Some(shown.of(id).alone) == agreed && census::holds(mds, &shown, moment)).then_some(shown)
}

/// The data server, as its rows say.
async fn known(mds: &Arc<Mds>, id: StoreId) -> Result<Arc<StoreHandle>, Refusal> {
    let known = ever(mds, id).await?;
    if known.is_removed() { no(format!("data server {} was removed", id.0)) } else { Ok(known) }
}

/// The same, or one that was removed.
async fn ever(mds: &Arc<Mds>, id: StoreId) -> Result<Arc<StoreHandle>, Refusal> {
    let Some(handle) = mds.data_servers.get(id) else {
        return no(format!("there is no data server {}: sluice ds list shows them", id.0));
    };
    if mds.drains.is_doubtful(id) {
        look_up(mds, &handle).await?;
    }
    Ok(handle)
}

/// Changes rows of a data server. Where that fails they are looked up before anything else is done with it, and as soon as
/// the store answers.
async fn surely<T>(
    mds: &Mds,
    id: StoreId,
    change: impl Future<Output = Result<(T, u64), FsError>>,
) -> Result<T, FsError> {
    mds.drains.doubtful.lock().insert(id);
    let done = change.await;
    match &done {
        Ok(_) => drop(mds.drains.doubtful.lock().remove(&id)),
        Err(_) => mds.drains.changed.notify_one(),
    }
    done.map(|(value, _)| value)
}

/// What became of changes whose end nobody could be told.
///
/// # Errors
/// What the store says.
pub(super) async fn look_up_doubtful(mds: &Arc<Mds>) -> Result<(), FsError> {
    let doubtful = mds.drains.doubtful.lock().clone();
    for id in doubtful {
        // Most are of a change that is under way.
        let _alone = mds.drains.asked.lock().await;
        if let Some(handle) = mds.data_servers.get(id).filter(|_| mds.drains.is_doubtful(id)) {
            look_up(mds, &handle).await?;
        }
    }
    Ok(())
}

/// What is stored of a data server holds from now on.
async fn look_up(mds: &Arc<Mds>, handle: &StoreHandle) -> Result<(), FsError> {
    let id = handle.id;
    let rows = mds.read(|txn| Box::pin(async move { Ok((row(&txn, id).await?, drain(&txn, id).await?)) }));
    let (store, drain) = rows.await?;
    handle.update(|view| view.class = store.class);
    match drain {
        _ if handle.is_removed() => {}
        _ if store.state == StoreState::Removed => forget(mds, handle).await,
        Some(drain) => {
            handle.update(|view| view.intent = StoreState::Draining);
            mds.drains.began(drain);
        }
        None => {
            mds.drains.ended(id);
            handle.update(|view| view.intent = StoreState::Active);
        }
    }
    mds.drains.doubtful.lock().remove(&id);
    Ok(())
}

async fn row(txn: &sluice_kv::Transaction, id: StoreId) -> Result<Store, FsError> {
    store(txn, id).await?.ok_or(FsError::NotFound)
}

fn counting(seen: u64) -> Refusal {
    Refusal::NotYet(format!("looking at what it holds: {seen} files so far"))
}

/// Since when nothing comes to one that is drained: what was counted before may not be all.
async fn closed(mds: &Arc<Mds>, id: StoreId) -> Result<Time, Refusal> {
    let not_yet = || Refusal::NotYet("waiting for what is on its way there".to_owned());
    let progress = mds.drains.of(id).ok_or_else(not_yet)?;
    match progress.closed() {
        Closed::No => Err(not_yet()),
        Closed::ForNew if is_headed_for(mds, id).await? => Err(not_yet()),
        Closed::ForNew => {
            let now = mds.now();
            progress.close(Closed::Since(now));
            Ok(now)
        }
        Closed::Since(moment) => Ok(moment),
    }
}

/// Others that are lost and may come back, for people: what only they have a copy of is waited for.
fn lost_too(mds: &Mds) -> String {
    let mut lost = mds.data_servers.all();
    lost.retain(|store| store.is_active() && census::is_lost(mds, store));
    let names: Vec<String> = lost.iter().map(|store| store.id.0.to_string()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(
            "; where these are at data server {}: that is lost, too, and is waited for until it is drained",
            names.join(" or ")
        ),
    }
}

/// Whether the others can take what it holds.
fn judge(mds: &Arc<Mds>, goes: &StoreHandle) -> Result<Count, Refusal> {
    // What is lost, and nowhere else, needs no place; and where new files are made it is missed already.
    let lost = census::is_lost(mds, goes);
    let count = || census::fresh(mds).map(|census| census.of(goes.id)).map_err(counting);
    let counted = if lost { Some(count()?) } else { None };
    if counted.as_ref().is_some_and(|count| count.copied_mirrors == 0) {
        return Ok(counted.unwrap_or_default());
    }
    let mut others = mds.data_servers.all();
    let leaves = lost || classes::may_leave(mds, goes.id);
    let like = if leaves { Wanted::Any } else { classes::like(mds, goes.id) };
    others.retain(|store| {
        store.id != goes.id && store.serves() && store.takes_new() && like.takes(store.class())
    });
    let (left, class) = (others.len(), classes::of_it(mds, goes.id));
    if left == 0 && !class.is_empty() {
        return no(format!(
            "no other data server{class} takes new files: add one first, or make another one such with `sluice ds class`"
        ));
    }
    if left == 0 {
        return no("no other data server takes new files: add one first");
    }
    if !lost && usize::from(mds.config.policy.mirrors) > left {
        return no(format!(
            "files are made with {} mirrors, and only {left} other data servers{class} take new files: add one first",
            mds.config.policy.mirrors
        ));
    }
    let count = counted.map_or_else(count, Ok)?;
    let (mirrors, bytes) =
        if lost { (count.copied_mirrors, count.copied) } else { (count.mirrors, count.amount.bytes) };
    if usize::from(mirrors) > left {
        return no(format!(
            "it holds a part of files with {mirrors} mirrors, and only {left} other data servers{class} take new files: add one first"
        ));
    }
    let ctl_capacity { free_bytes, .. } = together(others.iter().map(|store| store.view().capacity));
    if bytes > free_bytes - free_bytes / SPARE_ROOM {
        return no(format!(
            "it holds {} MiB, and the other data servers{class} have room for {} MiB: add one first",
            bytes >> 20,
            free_bytes >> 20
        ));
    }
    Ok(count)
}

/// It is out, durably.
pub(crate) async fn forget(mds: &Arc<Mds>, handle: &StoreHandle) {
    mds.drains.ended(handle.id);
    let connection = handle.update(|view| {
        (view.intent, view.lost) = (StoreState::Removed, true);
        view.connection.take()
    });
    let proxies = handle.nfs.lock().await.take();
    for connection in connection.into_iter().chain(proxies) {
        connection.close();
    }
    tracing::warn!(data_server = handle.id.0, "data server removed for good");
    garbage::poke(mds);
}
