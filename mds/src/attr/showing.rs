//! What others were shown of files whose holders of write delegations know more: under one change attribute one size (RFC 8881
//! §10.4.3), also where several ask at once and the holder writes on between them.

use std::collections::BTreeMap;

use sluice_namespace::{FileId, Inode};
use tokio::sync::{Mutex, MutexGuard};

/// Files remembered of each part; beyond it all are forgotten, and only who asks at that moment may see two sizes.
const MOST: usize = 1024;
const PARTS: usize = 32;

/// A change attribute, and the size that was shown with it.
type Shown = BTreeMap<FileId, (u64, u64)>;

#[derive(Debug, Default)]
pub(crate) struct Showing([Mutex<Shown>; PARTS]);

/// Nobody else moves the change attribute of the file for what its holder says.
pub(crate) struct Turn<'a>(MutexGuard<'a, Shown>, FileId);

impl Showing {
    pub(crate) async fn turn(&self, file: FileId) -> Option<Turn<'_>> {
        let part = usize::try_from(file.0).unwrap_or(0) % PARTS;
        Some(Turn(self.0.get(part)?.lock().await, file))
    }

    /// At least what was shown with this change attribute.
    pub(crate) async fn size(&self, inode: &Inode) -> Option<u64> {
        let turn = self.turn(inode.key.fileid).await?;
        turn.with(inode.change)
    }
}

impl Turn<'_> {
    /// The size that was shown with this change attribute, if one was.
    pub(crate) fn with(&self, change: u64) -> Option<u64> {
        self.0.get(&self.1).filter(|(shown, _)| *shown == change).map(|(_, size)| *size)
    }

    pub(crate) fn show(&mut self, change: u64, size: u64) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(self.1, (change, size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_shown_is_known_for_its_change_attribute_alone() {
        let showing = Showing::default();
        let file = FileId(7);
        showing.turn(file).await.unwrap().show(3, 100);
        let turn = showing.turn(file).await.unwrap();
        assert_eq!((turn.with(3), turn.with(4)), (Some(100), None));
        drop(turn);
        assert_eq!(showing.turn(FileId(7 + 32)).await.unwrap().with(3), None);
    }
}
