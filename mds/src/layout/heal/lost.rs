//! What went with a data server that was removed, and is nowhere else. Nobody waits for it any more: no other data server
//! is kept for it, and one that is emptied does not miss it.

use std::sync::Arc;

use sluice_namespace::{DataFile, FsError, Inode, InodeKey, StoreId};

use super::anew;
use crate::server::Mds;

/// The data server that all of a column went with which counts: every copy that missed no write was at one that was
/// removed.
pub(crate) fn went_with(mds: &Mds, column: &[DataFile]) -> Option<StoreId> {
    let mut good = column.iter().filter(|file| !file.stale).peekable();
    let first = good.peek()?.store;
    good.all(|file| mds.data_servers.is_removed(file.store)).then_some(first)
}

/// What of a file is lost, and with which data servers. A part that nobody has seen is none of it: that is placed anew when
/// it is first used.
pub(crate) fn columns<'a>(mds: &Mds, inode: &'a Inode) -> impl Iterator<Item = (&'a [DataFile], StoreId)> {
    let used = inode.layout().into_iter().flat_map(|layout| layout.in_use(inode.size()));
    let columns = used.flat_map(|component| component.slots.chunks(usize::from(component.mirrors.max(1))));
    columns.filter_map(|column| Some((column, went_with(mds, column)?)))
}

/// Something was to take the place of what is lost.
pub(crate) fn is_awaited(mds: &Mds, inode: &Inode) -> bool {
    columns(mds, inode).any(|(column, _)| column.iter().any(|file| file.moving))
}

/// Nothing is to take the place any more of what is lost.
///
/// # Errors
/// What the metadata store says.
pub(crate) async fn give_up(mds: &Arc<Mds>, key: InodeKey) -> Result<(), FsError> {
    let (namespace, servers) = (&mds.namespace, mds);
    let given_up = mds.write(|mut txn| {
        Box::pin(async move {
            let inode = namespace.getattr(&txn, &key).await?;
            let Some(row) = namespace.heal(&txn, key.fileid).await? else { return Ok(()) };
            for file in columns(servers, &inode).flat_map(|(column, _)| column) {
                if let Some(new) = row.replacement(file.slot) {
                    namespace.withdraw_replacement(&mut txn, &key, file.slot, new.store).await?;
                }
            }
            Ok(())
        })
    });
    anew::changed(mds, given_up.await)
}
