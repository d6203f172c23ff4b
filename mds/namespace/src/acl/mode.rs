//! How list and mode bits follow each other (RFC 8881 §6.3.2, §6.4.1, §6.4.2).

use super::{Ace, Acl, Inheritance, Rights, Who};
use crate::inode::Kind;

/// What anybody may do with any file.
const ALWAYS: Rights = Rights(Rights::READ_ATTRIBUTES.0 | Rights::READ_ACL.0 | Rights::SYNCHRONIZE.0);
/// What an owner may do with any file.
const OWNERS: Rights = Rights(ALWAYS.0 | Rights::WRITE_ATTRIBUTES.0 | Rights::WRITE_ACL.0);

/// Bits 0 to 7 of one class of a mode.
#[derive(Clone, Copy)]
struct Classes {
    user: u16,
    group: u16,
    other: u16,
}

impl Classes {
    fn of(mode: u16) -> Self {
        Self { user: mode >> 6 & 7, group: mode >> 3 & 7, other: mode & 7 }
    }
}

/// What read, write and execute stand for.
fn rights(bits: u16, kind: Kind) -> Rights {
    let mut rights = Rights::NONE;
    if bits & 4 != 0 {
        rights |= Rights::READ_DATA;
    }
    if bits & 2 != 0 {
        rights |= Rights::WRITE_DATA | Rights::APPEND_DATA;
        if kind == Kind::Directory {
            rights |= Rights::DELETE_CHILD;
        }
    }
    if bits & 1 != 0 {
        rights |= Rights::EXECUTE;
    }
    rights
}

/// §6.3.2: writing is both of its bits.
fn bits(rights: Rights) -> u16 {
    let one = |bit: u16, what: Rights| if rights.contains(what) { bit } else { 0 };
    one(4, Rights::READ_DATA) | one(2, Rights::WRITE_DATA | Rights::APPEND_DATA) | one(1, Rights::EXECUTE)
}

/// What entries about owner, group and everyone grant besides what the mode says.
#[derive(Clone, Copy, Default)]
struct Besides {
    owner: Rights,
    group: Rights,
    everyone: Rights,
}

impl Besides {
    fn of(&mut self, who: Who) -> Option<&mut Rights> {
        match who {
            Who::Owner => Some(&mut self.owner),
            Who::Group => Some(&mut self.group),
            Who::Everyone => Some(&mut self.everyone),
            Who::User(_) | Who::Members(_) => None,
        }
    }
}

fn entry(allow: bool, rights: Rights, who: Who) -> Ace {
    Ace { allow, inheritance: Inheritance::NONE, rights, who }
}

/// The entries that stand for a mode: those before the ones about users and groups by number, and those after. In a
/// list everybody gets what any entry grants, by a mode only what the first class does that one is in: denials make
/// up for it.
fn standing_for(classes: Classes, kind: Kind, besides: Besides) -> (Vec<Ace>, Vec<Ace>) {
    let Classes { user, group, other } = classes;
    let before = [
        entry(false, rights((group | other) & !user, kind), Who::Owner),
        entry(true, rights(user, kind) | besides.owner, Who::Owner),
    ];
    let after = [
        entry(false, rights(other & !group, kind), Who::Group),
        entry(true, rights(group, kind) | besides.group, Who::Group),
        entry(true, rights(other, kind) | besides.everyone, Who::Everyone),
    ];
    let says = |ace: &Ace| ace.rights != Rights::NONE;
    (before.into_iter().filter(says).collect(), after.into_iter().filter(says).collect())
}

impl Acl {
    /// The list that says what a mode does.
    pub fn of_mode(kind: Kind, mode: u16) -> Self {
        let besides = Besides { owner: OWNERS, group: ALWAYS, everyone: ALWAYS };
        let (mut aces, after) = standing_for(Classes::of(mode), kind, besides);
        aces.extend(after);
        Self::of(aces)
    }

    /// The nine permission bits that the list amounts to (§6.3.2). Entries about users and groups by number do not
    /// count: a group bit that came from them would be read as everybody's in the group.
    pub fn mode(&self) -> u16 {
        let of = |class: Who| bits(self.judge_where(|who| who == class || who == Who::Everyone).allowed);
        of(Who::Owner) << 6 | of(Who::Group) << 3 | of(Who::Everyone)
    }

    /// The list after the nine permission bits were set (§6.4.1.1).
    pub(crate) fn with_mode(&self, kind: Kind, mode: u16) -> Self {
        self.limited(kind, mode, mode)
    }

    /// The list that amounts to `mode`, where entries about users and groups by number grant no more than the group
    /// bits of `most`.
    pub(super) fn limited(&self, kind: Kind, mode: u16, most: u16) -> Self {
        let all = rights(7, kind);
        let most = rights(Classes::of(most).group, kind) | !all;
        let denied = self.judge_denials();
        let mut besides = Besides::default();
        let (mut named, mut inherited) = (Vec::new(), Vec::new());
        for ace in self.aces() {
            // What is handed on is not touched: modes of children are their own (§6.4.1.1).
            if ace.inheritance.is_inheritable() {
                let inheritance = Inheritance(ace.inheritance.0 | Inheritance::ONLY.0);
                inherited.push(Ace { inheritance, ..*ace });
            }
            if !ace.is_effective() {
                continue;
            }
            let inheritance = Inheritance(ace.inheritance.0 & Inheritance::INHERITED.0);
            let mut own = Ace { inheritance, ..*ace };
            if own.who.is_special() {
                // The mode says all there is to say of these.
                own.rights = own.rights & !all;
            } else if own.allow {
                own.rights = own.rights & most;
            }
            match besides.of(own.who) {
                // Where nothing denies it, the place in the list does not matter.
                Some(known) if own.allow && !denied.meets(own.rights) => *known |= own.rights,
                _ if own.rights != Rights::NONE => named.push(own),
                _ => {}
            }
        }
        let (mut aces, after) = standing_for(Classes::of(mode), kind, besides);
        aces.extend(named);
        aces.extend(after);
        aces.extend(inherited);
        Self::of(aces).flagged(self.flags().chosen())
    }

    /// Whatever is denied to somebody.
    fn judge_denials(&self) -> Rights {
        let denials = self.aces().iter().filter(|ace| !ace.allow && ace.is_effective());
        denials.fold(Rights::NONE, |all, ace| all | ace.rights)
    }

    /// `None` for a list that says no more than the mode does: it need not be stored.
    pub(crate) fn beyond_mode(self, kind: Kind, mode: u16) -> Option<Self> {
        (self != Self::of_mode(kind, mode)).then_some(self)
    }
}
