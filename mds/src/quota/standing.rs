//! What is left: for the attributes of RFC 8881 §5.8.2.28 to §5.8.2.30, and for `df` in a tree.

use sluice_namespace::{Charged, FsError, Inode, Limit, Limits, Subject, Usage};

use crate::server::Mds;

/// What holds for one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Of whoever has least left, or else of the owner.
    pub(crate) used: u64,
    /// The least that any of them has left; `None` without limits.
    pub(crate) left_hard: Option<u64>,
    pub(crate) left_soft: Option<u64>,
    /// Of the tree that it is in, if that has limits.
    pub(crate) tree: Option<Room>,
}

/// As a file system of its own would show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) bytes: Option<(u64, u64)>,
    pub(crate) files: Option<(u64, u64)>,
}

impl Mds {
    /// What holds for a file.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn standing(&self, inode: &Inode) -> Result<Standing, FsError> {
        let mut standing = Standing::default();
        let mut least = None;
        for subject in Charged::of(&inode.record).subjects() {
            let limits = self.quotas.limits(subject).unwrap_or_default();
            let owner = matches!(subject, Subject::User(_));
            if limits.is_none() && !owner {
                continue;
            }
            let used = self.usage(subject).await?;
            let hard = left(limits.bytes.hard, used);
            let soft = left(limits.bytes.soft, used);
            let binding = [hard, soft].into_iter().flatten().min();
            if owner || binding.is_some_and(|binding| least.is_none_or(|least| binding < least)) {
                (standing.used, least) = (short(used.bytes), binding.or(least));
            }
            standing.left_hard = lesser(standing.left_hard, hard);
            standing.left_soft = lesser(standing.left_soft, soft.or(hard));
            if matches!(subject, Subject::Tree(_)) {
                standing.tree = Some(room(&limits, used));
            }
        }
        Ok(standing)
    }

    /// What a subject uses now.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn usage(&self, subject: Subject) -> Result<Usage, FsError> {
        let namespace = &self.namespace;
        self.read(|txn| Box::pin(async move { namespace.usage(&txn, subject).await })).await
    }
}

fn left(limit: u64, used: Usage) -> Option<u64> {
    (limit != 0).then(|| limit.saturating_sub(short(used.bytes)))
}

fn lesser(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    [a, b].into_iter().flatten().min()
}

/// Sparse files of the greatest size may come to more than the wire can say.
pub(crate) fn short(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Total and free, where there is a limit: what may be used for good comes before what may be used for a while.
fn room(limits: &Limits, used: Usage) -> Room {
    let one = |limit: Limit, used: u64| {
        let total = if limit.hard == 0 { limit.soft } else { limit.hard };
        (total != 0).then(|| (total, total.saturating_sub(used)))
    };
    Room { bytes: one(limits.bytes, short(used.bytes)), files: one(limits.files, used.files) }
}
