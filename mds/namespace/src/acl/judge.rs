//! What a list lets somebody do: entries in order, each bit decided by the first that is about the caller and names
//! it (RFC 8881 §6.2.1).

use super::{Ace, Acl, Rights, Who};
use crate::credential::Credential;

/// Which bits are decided, and how. What is neither was not spoken of, which for most bits is a no; removal of
/// names makes a difference (§6.2.1.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: Rights,
    pub(crate) denied: Rights,
}

impl Verdict {
    fn hear(&mut self, ace: &Ace) {
        let undecided = !(self.allowed | self.denied);
        if ace.allow {
            self.allowed |= ace.rights & undecided;
        } else {
            self.denied |= ace.rights & undecided;
        }
    }
}

impl Acl {
    /// For `who`, where the file belongs to user `uid` and group `gid`.
    pub(crate) fn judge(&self, uid: u32, gid: u32, who: &Credential) -> Verdict {
        self.judge_where(|whom| match whom {
            Who::Owner => who.uid == uid,
            Who::Group => who.in_group(gid),
            Who::Everyone => true,
            Who::User(id) => who.uid == id,
            Who::Members(id) => who.in_group(id),
        })
    }

    pub(super) fn judge_where(&self, applies: impl Fn(Who) -> bool) -> Verdict {
        let mut verdict = Verdict::default();
        for ace in self.aces().iter().filter(|ace| ace.is_effective() && applies(ace.who)) {
            verdict.hear(ace);
        }
        verdict
    }

    /// Somebody may execute it.
    pub(crate) fn is_executable(&self) -> bool {
        self.aces().iter().any(|ace| ace.allow && ace.is_effective() && ace.rights.meets(Rights::EXECUTE))
    }
}
