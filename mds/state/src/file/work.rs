//! Which operations in flight exclude each other.

use crate::delegation::Use;
use crate::effect::IoMode;
use crate::ids::ClientId;
use crate::open::{Claim, Deny, shares_conflict};
use crate::owner::OpenOwner;

use super::Intent;

/// A checked intent: what a ticket holds, and what a queued request will hold.
#[derive(Clone, Debug, Hash)]
pub(super) struct Work {
    pub(super) intent: Intent,
    /// The open-owner of OPEN, CLOSE and OPEN_DOWNGRADE.
    pub(super) owner: Option<OpenOwner>,
    /// A settle or clear whose transaction deletes the rw_layout row.
    pub(super) clears_rw: bool,
    /// A new size that is durable, and waits for layouts to come back before the rest of it is done.
    pub(super) lets_commits_in: bool,
}

impl Work {
    pub(super) fn client(&self) -> Option<ClientId> {
        self.intent.client()
    }

    /// It changes data by itself.
    pub(super) fn writes(&self) -> bool {
        matches!(self.intent, Intent::ProxyIo { write: true, .. } | Intent::SetSize { .. })
    }

    pub(super) fn is_rw_layout_get(&self) -> bool {
        matches!(self.intent, Intent::LayoutGet { iomode: IoMode::ReadWrite, .. })
    }

    /// May both be in flight at once? Symmetric.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        self.excludes(other) || other.excludes(self)
    }

    fn excludes(&self, other: &Self) -> bool {
        use Intent as I;
        match (&self.intent, &other.intent) {
            // One stateid, one seqid at a time: the planned stateid is then exact.
            (
                I::Open(_) | I::Close { .. } | I::Downgrade { .. },
                I::Open(_) | I::Close { .. } | I::Downgrade { .. },
            ) => self.owner == other.owner || self.shares_exclude(other),
            // Whether the inode becomes an orphan or garbage must hold until the transaction ends.
            (I::Open(_) | I::Unlink { last_link: true, .. }, I::Unlink { last_link: true, .. })
            // A new size and everything that reads, extends or hands out the old one.
            | (
                I::SetSize { .. },
                I::SetSize { .. }
                | I::LayoutGet { .. }
                | I::ProxyIo { .. }
                | I::Relayout
                | I::Settle,
            )
            | (
                I::Relayout,
                I::Relayout | I::LayoutGet { .. } | I::LayoutCommit { .. } | I::ProxyIo { .. } | I::Settle,
            )
            | (I::Settle | I::ClearRw, I::Settle | I::ClearRw)
            // A commit still under way after the return must be durable before the row goes.
            | (I::ClearRw, I::LayoutCommit { .. })
            // Which of them is the later decides what the file's times are. A size that is found while attributes
            // are set must not undo a truncation.
            | (I::SetAttributes { .. }, I::LayoutCommit { .. } | I::SetSize { .. }) => true,
            (I::SetSize { .. }, I::LayoutCommit { .. }) => !self.lets_commits_in,
            // What is read as of one moment is not written to meanwhile.
            (I::ProxyIo { exclusive: true, write: false, .. }, I::ProxyIo { write: true, .. }) => true,
            (I::ProxyIo { exclusive: true, .. }, I::LayoutGet { .. }) => other.is_rw_layout_get(),
            (I::Settle | I::ClearRw, I::LayoutGet { .. }) => self.clears_rw && other.is_rw_layout_get(),
            _ => false,
        }
    }

    fn shares_exclude(&self, other: &Self) -> bool {
        match (&self.intent, &other.intent) {
            (Intent::Open(a), Intent::Open(b)) => shares_conflict((a.uses(), a.deny), (b.uses(), b.deny)),
            _ => false,
        }
    }

    /// What it does to delegations of other clients.
    pub(super) fn uses(&self) -> Option<Use> {
        match &self.intent {
            Intent::Open(open) => {
                let changes = open.uses().writes() || open.deny.bits() & Deny::READ.bits() != 0;
                Some(if changes { Use::Change } else { Use::Read })
            }
            Intent::Unlink { .. } | Intent::SetAttributes { .. } | Intent::SetSize { .. } => {
                Some(Use::Change)
            }
            Intent::ProxyIo { write, .. } => Some(if *write { Use::Change } else { Use::Read }),
            _ => None,
        }
    }

    /// Never made to wait behind queued requests, only behind tickets: these either end state or are
    /// what a queued request waits for (a recalled client commits before it returns).
    pub(super) fn passes_queue(&self) -> bool {
        match &self.intent {
            Intent::Close { .. }
            | Intent::Downgrade { .. }
            | Intent::LayoutCommit { .. }
            | Intent::Settle => true,
            // RFC 8881 §10.4.4: opens made under a delegation are claimed before it is returned.
            Intent::Open(open) => matches!(open.claim, Claim::Delegation { .. }),
            _ => false,
        }
    }
}
