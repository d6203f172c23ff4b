//! Paths as an administrator gives them.

use sluice_namespace::{Credential, FsError, Inode, InodeKey, Name};

use crate::server::Mds;

impl Mds {
    /// What is at a path from the root, whatever the permissions on the way. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotDirectory`], [`FsError::BadName`] for `.` and `..`; or the store's.
    pub(crate) async fn walk(&self, path: &[u8]) -> Result<Inode, FsError> {
        let namespace = &self.namespace;
        self.read(|txn| {
            Box::pin(async move {
                let mut at = namespace.getattr(&txn, &InodeKey::ROOT).await?;
                for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
                    at = namespace.lookup(&txn, &at.key, &Name::new(name)?, &Credential::ROOT).await?.inode;
                }
                Ok(at)
            })
        })
        .await
    }
}
