//! Which files something is done with.

use std::sync::Arc;

use sluice_namespace::{DataFileId, FsError, Inode, InodeKey};

use super::tree::Tree;
use crate::layout::census;
use crate::server::Mds;

/// Files still to come.
#[derive(Debug)]
pub(crate) enum Files {
    One(Option<InodeKey>),
    Below(Tree),
    /// Behind one; of these only some count.
    All(Option<DataFileId>, fn(&Inode) -> bool),
}

/// Some of them.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// Looked at for that.
    pub(super) seen: usize,
    pub(super) files: Vec<InodeKey>,
}

impl Files {
    /// A file, or all below a directory.
    pub(crate) fn at(inode: &Inode) -> Self {
        match inode.is_directory() {
            true => Self::Below(Tree::of(inode.key)),
            false => Self::One(Some(inode.key)),
        }
    }

    /// All that `counts` is true of.
    pub(crate) fn all(counts: fn(&Inode) -> bool) -> Self {
        Self::All(None, counts)
    }

    /// Some more; `None`: that was all. After an error the same is tried again.
    ///
    /// # Errors
    /// What the metadata store says.
    pub(super) async fn next(&mut self, mds: &Arc<Mds>) -> Result<Option<Page>, FsError> {
        let every = |files: Vec<InodeKey>| Page { seen: files.len(), files };
        match self {
            Self::One(file) => Ok(file.take().map(|file| every(vec![file]))),
            Self::Below(tree) => Ok(tree.next(mds).await?.map(every)),
            Self::All(after, counts) => {
                let Some((last, inodes)) = census::page(mds, *after).await? else { return Ok(None) };
                *after = Some(last);
                let files = inodes.iter().filter(|inode| counts(inode)).map(|inode| inode.key).collect();
                Ok(Some(Page { seen: inodes.len(), files }))
            }
        }
    }
}
