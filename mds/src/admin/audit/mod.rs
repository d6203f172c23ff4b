//! `sluice ds audit`: what data servers hold against what the metadata says, a page at a time and while both are in use.
//!
//! Nothing that is on its way is a finding. A data file has an owner, or a row of garbage or of spares, before the first
//! handle of it exists and until its removal is durable; numbers are never used twice. What does not fit is looked at
//! again a little later, at the data server and in the metadata, and must not have been touched in between.

mod held;
mod owned;

use std::time::Duration;

use sluice_namespace::{DataFile, DataFileId, FsError, Inode, InodeKey};
use sluice_xdr::control::*;

use super::Admin;
use crate::files::file_id;

/// Until what does not fit is looked at again. A write through this server is with the data servers before it is in the
/// metadata, and a removal the other way round: they have arrived by then.
const SETTLE: Duration = Duration::from_secs(2);

/// In words, why there is no page.
type Page = Result<ADMIN_AUDIT_resok, String>;

/// A file as it was read, and whether somebody was at it just before.
struct Judged {
    inode: Inode,
    in_use: bool,
}

impl Admin {
    pub(super) async fn audit(&self, args: ADMIN_AUDIT_args) -> ADMIN_AUDIT_res {
        let page = if args.id == 0 { self.owned(args).await } else { self.held(args).await };
        match page {
            Ok(page) => ADMIN_AUDIT_res::CTL_OK(page),
            Err(why) => ADMIN_AUDIT_res::Default(ctl_status::CTL_ERR_AGAIN, why.into()),
        }
    }

    /// A file, unless it is gone. Whether it is in use is asked first: who is done by then has told all he wrote.
    async fn judged(&self, key: &InodeKey) -> Result<Option<Judged>, FsError> {
        let in_use = self.is_in_use(key).await?;
        let namespace = &self.mds.namespace;
        match self.mds.read(|txn| Box::pin(async move { namespace.getattr(&txn, key).await })).await {
            Err(FsError::Stale) => Ok(None),
            inode => Ok(Some(Judged { inode: inode?, in_use })),
        }
    }

    /// Data servers may know of a size that the metadata does not know yet, or hold what a truncation cuts.
    async fn is_in_use(&self, key: &InodeKey) -> Result<bool, FsError> {
        let (namespace, file) = (&self.mds.namespace, key.fileid);
        let state = self.mds.files.get(file_id(key));
        let open = state.is_some_and(|entry| entry.peek(|file| !file.is_still() || file.needs_settle()));
        let rows = self.mds.read(|txn| {
            Box::pin(async move {
                let cut = namespace.truncate_intent(&txn, file).await?.is_some();
                Ok(cut || namespace.is_read_write(&txn, file).await?)
            })
        });
        Ok(rows.await? || open)
    }

    /// A finding about a data file of this file.
    async fn of_file(&self, inode: &Inode, finding: ctl_audit_finding) -> ctl_audit_finding {
        let name = self.named(&inode.key, "").await.name;
        ctl_audit_finding { owner: inode.key.fileid.0, name, ..finding }
    }
}

fn wire(id: DataFileId, placed: &DataFile) -> ctl_data_file {
    ctl_data_file { file: id.0, slot: placed.slot.into(), generation: placed.generation.into() }
}

/// Nobody wrote to it since the earlier look.
fn untouched(before: &ctl_stat, now: &ctl_stat) -> bool {
    (now.exists, now.size) == (before.exists, before.size) && now.last_write <= before.writes
}

fn words(error: FsError) -> String {
    format!("the metadata store does not answer: {error}")
}
