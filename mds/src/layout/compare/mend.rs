//! Copies are made equal to the one that is right: the others are left behind, as if they had missed writes, and healed.
//! From then on nobody reads them, and writes go to the right one, until each is equal to it.

use std::sync::Arc;

use sluice_env::BoxFuture;
use sluice_namespace::{DataFile, DataFileId, FsError, Inode, InodeKey, Layout, StoreId};

use super::found::Finding;
use crate::dsctl::resync;
use crate::layout::drain::change::Refusal;
use crate::layout::heal::leave;
use crate::server::Mds;

/// Who has what is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// This data server, wherever it has a copy.
    At(StoreId),
    /// What zeros told when the file was compared.
    ByZeros,
}

/// What a command names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named<'a> {
    Path(&'a [u8]),
    /// A file that was found to differ.
    Number(u64),
}

/// The file.
///
/// # Errors
/// There is none.
pub(crate) async fn find(mds: &Arc<Mds>, named: Named<'_>) -> Result<InodeKey, Refusal> {
    match named {
        Named::Path(path) => Ok(crate::layout::maintenance::walk(mds, path).await?.key),
        Named::Number(number) => {
            let found = finding(mds, number);
            let none = || {
                let why = "it is not among those that the last comparison found to differ: compare again, or name it by its path";
                Refusal::No(why.to_owned())
            };
            found.map(|finding| finding.key).ok_or_else(none)
        }
    }
}

/// Whether copies of it are still to be made equal.
///
/// # Errors
/// What the metadata store says.
pub(crate) async fn is_healing(mds: &Arc<Mds>, key: InodeKey) -> Result<bool, FsError> {
    let inode = crate::layout::settle::inode(mds, key).await?;
    Ok(inode.layout().is_some_and(Layout::is_degraded))
}

/// Has the copies of a file made equal to those that are right: how many. Durable when it returns, and nobody reads them any
/// more; what is left is done in the background.
///
/// # Errors
/// Why not.
pub(crate) async fn mend(mds: &Arc<Mds>, key: InodeKey, right: Right) -> Result<usize, Refusal> {
    let chosen = match right {
        Right::At(_) => None,
        Right::ByZeros => Some(by_zeros(mds, key)?),
    };
    let (inner, chosen) = (Arc::clone(mds), Arc::new(chosen));
    let others = move |inode: Inode| -> BoxFuture<'static, Result<Vec<DataFile>, Refusal>> {
        let (mds, chosen) = (Arc::clone(&inner), Arc::clone(&chosen));
        Box::pin(async move { others(&mds, &inode, chosen.as_ref().as_ref(), right).await })
    };
    match leave::leave_others(mds, key, others).await {
        Ok(left) => left,
        Err(FsError::Stale) => Err(no("it is gone")),
        Err(FsError::Invalid) => Err(no("its mirrors have changed meanwhile: compare it again")),
        Err(FsError::Busy) => {
            Err(Refusal::NotYet("clients do not give back their layouts of it: try again".to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

/// What of a file as it is now is made equal to what is right of it.
async fn others(
    mds: &Arc<Mds>,
    inode: &Inode,
    chosen: Option<&(DataFileId, Vec<DataFile>)>,
    right: Right,
) -> Result<Vec<DataFile>, Refusal> {
    let layout = inode.layout().ok_or_else(|| no("its data is kept in the metadata"))?;
    let keeps = match (chosen, right) {
        (Some((id, keeps)), _) if *id == layout.id => keeps.clone(),
        (None, Right::At(store)) => at(layout, inode.size(), store)?,
        _ => return Err(no("it is not the file any more that was compared: compare it again")),
    };
    beside(mds, layout, &keeps).await
}

fn no(why: &str) -> Refusal {
    Refusal::No(why.to_owned())
}

/// What the last comparison found of a file.
fn finding(mds: &Mds, file: u64) -> Option<Arc<Finding>> {
    mds.comparisons.get()?.own(|found| found.of(file))
}

fn by_zeros(mds: &Mds, key: InodeKey) -> Result<(DataFileId, Vec<DataFile>), Refusal> {
    let finding =
        finding(mds, key.fileid.0).ok_or_else(|| no("the last comparison did not find that it differs"))?;
    let right = finding.differences.right_by_zeros().filter(|_| finding.lost.is_empty());
    let right = right.ok_or_else(|| {
        no("zeros do not tell which copy of it is right: say it with --from, when you have looked at them")
    })?;
    Ok((finding.id, right))
}

/// Its copies at a data server.
fn at(layout: &Layout, size: u64, store: StoreId) -> Result<Vec<DataFile>, Refusal> {
    let used = layout.in_use(size).filter(|component| component.mirrors > 1);
    let keeps: Vec<DataFile> =
        used.flat_map(|component| &component.slots).filter(|file| file.store == store).copied().collect();
    if keeps.is_empty() {
        return Err(Refusal::No(format!(
            "data server {} has no copy of it that has another one beside it",
            store.0
        )));
    }
    Ok(keeps)
}

/// What is beside these, if they are to be had and nothing else is the matter with the file.
async fn beside(mds: &Arc<Mds>, layout: &Layout, keeps: &[DataFile]) -> Result<Vec<DataFile>, Refusal> {
    if layout.is_degraded() {
        let why =
            "mirrors of it are being made equal, or wait for that: `sluice why` shows it; try again then";
        return Err(Refusal::NotYet(why.to_owned()));
    }
    if mds.in_grace() || crate::dsctl::epochs::old_handles_live(mds, layout) {
        let why = "clients of before the metadata server's start may still use the other copies: try again in a minute";
        return Err(Refusal::NotYet(why.to_owned()));
    }
    let mut others = Vec::new();
    for keep in keeps {
        let store = keep.store.0;
        let gives = mds.data_servers.get(keep.store).is_some_and(|store| store.takes_heals());
        if !gives || leave::is_damaged(mds, layout, keep) {
            let why = format!("data server {store} is away, does not take writes, or what it has is damaged");
            return Err(Refusal::NotYet(why));
        }
        match resync::stat(mds, layout.id, keep).await {
            Some(stat) if stat.exists => {}
            Some(_) => return Err(Refusal::No(format!("data server {store} does not have it any more"))),
            None => return Err(Refusal::NotYet(format!("data server {store} does not answer"))),
        }
        let column = layout.columns().find(|column| column.iter().any(|file| file.slot == keep.slot));
        let beside = column.into_iter().flatten().filter(|file| file.slot != keep.slot);
        others.extend(beside.copied());
    }
    Ok(others)
}
