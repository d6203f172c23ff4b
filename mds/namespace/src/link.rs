//! Hard links.

use sluice_kv::Transaction;

use crate::credential::Want;
use crate::directory::{Delta, Parent};
use crate::error::FsError;
use crate::inode::{Inode, Kind, MAX_LINKS};
use crate::keys::InodeKey;
use crate::name::Name;
use crate::pending::{DirectoryChange, Pending, settle_fields};
use crate::quota::Charged;
use crate::{Namespace, Request, dirent, fetch, join};

/// What a link led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linked {
    pub inode: Inode,
    pub directory: DirectoryChange,
}
settle_fields!(Linked: inode, directory);

impl Namespace {
    /// Gives `file` another name.
    ///
    /// Errors: Stale, NotDirectory, IsDirectory (a directory has one name), NotFound (it has lost
    /// its last name), TooManyLinks, CrossDevice (another quota tree), Access, Exists, NoSpace.
    pub async fn link(
        &self,
        txn: &mut Transaction,
        file: &InodeKey,
        directory: &InodeKey,
        name: &Name<'_>,
        request: &Request<'_>,
    ) -> Result<Pending<Linked>, FsError> {
        let (parent, place) =
            join::both(Parent::read(txn, directory), dirent::find(txn, &self.hash, directory.fileid, name))
                .await?;
        let mut record = fetch::record(txn, file).await?;
        let kind = record.kind();
        if kind == Kind::Directory {
            return Err(FsError::IsDirectory);
        }
        parent.record.owned().require(request.who, Want::EXECUTE)?;
        if place.entry.is_some() {
            return Err(FsError::Exists);
        }
        parent.record.owned().require_add(request.who, kind)?;
        // What has no name is on its way to the garbage queue and does not come back.
        if record.nlink == 0 {
            return Err(FsError::NotFound);
        }
        if record.nlink >= MAX_LINKS {
            return Err(FsError::TooManyLinks);
        }
        // It could be charged to one of the two only.
        if record.tree != parent.record.tree {
            let before = Charged::of(&record);
            record.tree = self.living_tree(txn, record.tree).await?;
            if record.tree != parent.record.tree {
                return Err(FsError::CrossDevice);
            }
            self.charge(txn, file, Some(before), Some(Charged::of(&record))).await?;
        }
        record.nlink += 1;
        record.ctime = request.now;
        fetch::put(txn, file, &record);
        place.insert(txn, name, kind, *file)?;
        let change = self.update_directory(txn, &parent, Delta::plus(kind), request).await?;
        let inode = Inode { key: *file, record, directory: None, change: 0 };
        Ok(Pending::new(Linked { inode, directory: change }, self.base()))
    }
}
