//! The files below a directory. Some directories are remembered at a time, not the tree: as many as are beside the way
//! down, in pages.

use std::sync::Arc;

use sluice_namespace::{Cookie, Credential, FsError, InodeKey, Kind, ReadDir};

use crate::server::Mds;

/// Entries read at once.
const PAGE: usize = 256;

/// Directories to be read, from a cookie on; the last is the next.
#[derive(Debug)]
pub(crate) struct Tree(Vec<(InodeKey, Cookie)>);

impl Tree {
    pub(super) fn of(directory: InodeKey) -> Self {
        Self(vec![(directory, Cookie(0))])
    }

    /// Some more files; `None`: that was all. After an error the same is tried again.
    ///
    /// # Errors
    /// What the metadata store says.
    pub(super) async fn next(&mut self, mds: &Arc<Mds>) -> Result<Option<Vec<InodeKey>>, FsError> {
        let Some((directory, after)) = self.0.last().copied() else { return Ok(None) };
        let namespace = &mds.namespace;
        let read = &ReadDir { directory, after, limit: PAGE, attributes: false };
        let page = mds
            .read(|txn| Box::pin(async move { namespace.readdir(&txn, read, &Credential::ROOT).await }))
            .await;
        let page = match page {
            // It is gone, with all that was below.
            Err(FsError::Stale | FsError::NotDirectory) => {
                self.0.pop();
                return Ok(Some(Vec::new()));
            }
            page => page?,
        };
        self.0.pop();
        if let Some(last) = page.entries.last().filter(|_| !page.eof) {
            self.0.push((directory, last.entry.cookie));
        }
        let mut files = Vec::new();
        for found in page.entries {
            match found.entry.kind {
                Kind::Directory => self.0.push((found.entry.inode, Cookie(0))),
                Kind::File => files.push(found.entry.inode),
                _ => {}
            }
        }
        Ok(Some(files))
    }
}
