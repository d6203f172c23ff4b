//! Who asks, and what the access control list lets them do (RFC 8881 §6), or where there is none the mode bits
//! (POSIX.1-2017 §4.5, as Linux applies it).

use std::ops::{BitOr, BitOrAssign};

use crate::acl::{Acl, Rights, Verdict};
use crate::error::FsError;
use crate::inode::Kind;

/// A user, already squashed as the export says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credential {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub gids: Vec<u32>,
}

impl Credential {
    /// The superuser.
    pub const ROOT: Self = Self { uid: 0, gid: 0, gids: Vec::new() };

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.gids.contains(&gid)
    }
}

/// What permission depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub kind: Kind,
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
    /// Decides in place of the mode's permission bits.
    pub acl: Option<Acl>,
}

pub(crate) const SET_UID: u16 = 0o4000;
pub(crate) const SET_GID: u16 = 0o2000;
/// The bits of a mode that a write may take away.
pub const SET_ID: u16 = SET_UID | SET_GID;
pub(crate) const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o0010;

/// Read, write, execute or search, in any combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want(u16);

impl Want {
    pub const READ: Self = Self(4);
    pub const WRITE: Self = Self(2);
    pub const EXECUTE: Self = Self(1);
    /// What changing a directory's entries takes.
    pub const CHANGE_ENTRIES: Self = Self(3);

    /// In terms of a list. Data servers cannot tell appending from overwriting: writing takes both.
    fn rights(self) -> Rights {
        let mut rights = Rights::NONE;
        for (bit, means) in [
            (Self::READ, Rights::READ_DATA),
            (Self::WRITE, Rights::WRITE_DATA | Rights::APPEND_DATA),
            (Self::EXECUTE, Rights::EXECUTE),
        ] {
            if self.0 & bit.0 != 0 {
                rights |= means;
            }
        }
        rights
    }
}

impl BitOr for Want {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The bits of RFC 8881 §18.1.1 and RFC 8276 §8.4.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessMask(pub u32);

impl AccessMask {
    pub const READ: Self = Self(0x01);
    pub const LOOKUP: Self = Self(0x02);
    pub const MODIFY: Self = Self(0x04);
    pub const EXTEND: Self = Self(0x08);
    pub const DELETE: Self = Self(0x10);
    pub const EXECUTE: Self = Self(0x20);
    pub const XAREAD: Self = Self(0x40);
    pub const XAWRITE: Self = Self(0x80);
    pub const XALIST: Self = Self(0x100);

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for AccessMask {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for AccessMask {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl Owned {
    /// Whether `who` may do `want`.
    pub fn permits(&self, who: &Credential, want: Want) -> bool {
        if who.is_root() {
            // Root reads and writes anything, searches any directory, and executes what somebody may.
            return want.0 & 1 == 0 || self.kind == Kind::Directory || self.is_executable();
        }
        if let Some(acl) = &self.acl {
            return self.judge(acl, who).allowed.contains(want.rights());
        }
        let shift = if who.uid == self.uid {
            6
        } else if who.in_group(self.gid) {
            3
        } else {
            0
        };
        (self.mode >> shift) & want.0 == want.0
    }

    fn judge(&self, acl: &Acl, who: &Credential) -> Verdict {
        acl.judge(self.uid, self.gid, who)
    }

    /// What a list says of `who`; of what has none, nothing.
    fn listed(&self, who: &Credential) -> Verdict {
        self.acl.as_ref().map(|acl| self.judge(acl, who)).unwrap_or_default()
    }

    fn is_executable(&self) -> bool {
        self.mode & 0o111 != 0 || self.acl.as_ref().is_some_and(Acl::is_executable)
    }

    /// The list itself may be read: by the owner in any case (RFC 8881 §6.4.3 has owners set lists that lock them
    /// out, and they must be able to see it).
    pub fn may_read_acl(&self, who: &Credential) -> bool {
        self.acl.is_none() || self.is_owner(who) || self.listed(who).allowed.contains(Rights::READ_ACL)
    }

    /// [`FsError::NotOwner`] unless `who` may set list and mode: one makes the other.
    pub(crate) fn require_write_acl(&self, who: &Credential) -> Result<(), FsError> {
        let may = self.is_owner(who) || self.listed(who).allowed.contains(Rights::WRITE_ACL);
        if may { Ok(()) } else { Err(FsError::NotOwner) }
    }

    /// Somebody who may take it over (RFC 8881 §6.2.1.3.1, WRITE_OWNER) does with it what an owner may.
    pub(crate) fn may_take(&self, who: &Credential) -> bool {
        self.listed(who).allowed.contains(Rights::WRITE_OWNER)
    }

    /// Times of one's choice are the owner's to set, and of those to whom a list gives it.
    pub(crate) fn may_set_times(&self, who: &Credential) -> bool {
        self.is_owner(who) || self.listed(who).allowed.contains(Rights::WRITE_ATTRIBUTES)
    }

    /// [`FsError::Access`] unless `who` may read, or write, extended attributes: like data, unless the list denies
    /// it by the bits for named attributes.
    pub(crate) fn require_xattrs(&self, who: &Credential, want: Want) -> Result<(), FsError> {
        self.require(who, want)?;
        if self.may_use_xattrs(who, want) { Ok(()) } else { Err(FsError::Access) }
    }

    fn may_use_xattrs(&self, who: &Credential, want: Want) -> bool {
        let by_list = if want == Want::WRITE { Rights::WRITE_NAMED_ATTRS } else { Rights::READ_NAMED_ATTRS };
        self.permits(who, want) && (who.is_root() || !self.listed(who).denied.meets(by_list))
    }

    /// [`FsError::Access`] unless `who` may change entries of this directory in some way; in which,
    /// [`Self::require_add`] says where there is a list. An entry of which more is known may go by its own
    /// ([`Self::require_remove`]).
    pub(crate) fn require_change(&self, who: &Credential) -> Result<(), FsError> {
        self.require(who, if self.acl.is_some() { Want::EXECUTE } else { Want::CHANGE_ENTRIES })
    }

    /// [`FsError::Access`] unless `who` may add an entry of this kind to this directory.
    pub(crate) fn require_add(&self, who: &Credential, kind: Kind) -> Result<(), FsError> {
        let add = if kind == Kind::Directory { Rights::APPEND_DATA } else { Rights::WRITE_DATA };
        self.require_change(who)?;
        let listed = self.acl.is_none() || who.is_root() || self.listed(who).allowed.contains(add);
        if listed { Ok(()) } else { Err(FsError::Access) }
    }

    /// [`FsError::Access`] or [`FsError::NotOwner`] unless `who` may take `entry` out of this directory.
    pub(crate) fn require_remove(&self, entry: &Self, who: &Credential) -> Result<(), FsError> {
        if self.acl.is_none() && entry.acl.is_none() {
            self.require(who, Want::CHANGE_ENTRIES)?;
            return self.require_sticky(entry, who);
        }
        self.require(who, Want::EXECUTE)?;
        let (of_entry, here) = (entry.listed(who), self.listed(who));
        // RFC 8881 §6.2.1.3.2: either of the two lists is enough, whatever the other denies. The entry's own says it
        // of this very file, so that it holds in a sticky directory too.
        if who.is_root() || of_entry.allowed.contains(Rights::DELETE) {
            return Ok(());
        }
        let allowed = match &self.acl {
            None => self.permits(who, Want::WRITE),
            Some(_) if here.allowed.contains(Rights::DELETE_CHILD) => true,
            // Where neither speaks of it, who may add may remove.
            Some(_) => {
                let denied =
                    here.denied.contains(Rights::DELETE_CHILD) || of_entry.denied.contains(Rights::DELETE);
                !denied && here.allowed.contains(Rights::WRITE_DATA)
            }
        };
        if allowed { self.require_sticky(entry, who) } else { Err(FsError::Access) }
    }

    /// [`FsError::Access`] unless `who` may do `want`.
    pub fn require(&self, who: &Credential, want: Want) -> Result<(), FsError> {
        if self.permits(who, want) { Ok(()) } else { Err(FsError::Access) }
    }

    /// [`FsError::NotOwner`] unless `who` owns it or is root.
    pub fn require_owner(&self, who: &Credential) -> Result<(), FsError> {
        if self.is_owner(who) { Ok(()) } else { Err(FsError::NotOwner) }
    }

    fn is_owner(&self, who: &Credential) -> bool {
        who.is_root() || who.uid == self.uid
    }

    /// In a sticky directory only the owner of an entry or of the directory removes or renames it.
    fn require_sticky(&self, entry: &Self, who: &Credential) -> Result<(), FsError> {
        let free = self.mode & STICKY == 0 || who.is_root();
        if free || who.uid == entry.uid || who.uid == self.uid { Ok(()) } else { Err(FsError::NotOwner) }
    }

    /// The answer to ACCESS, all bits considered.
    pub fn access(&self, who: &Credential) -> AccessMask {
        let directory = self.kind == Kind::Directory;
        let mut mask = AccessMask::default();
        if self.permits(who, Want::READ) {
            mask |= AccessMask::READ;
        }
        if self.may_use_xattrs(who, Want::READ) {
            mask |= AccessMask::XAREAD | AccessMask::XALIST;
        }
        if self.may_use_xattrs(who, Want::WRITE) {
            mask |= AccessMask::XAWRITE;
        }
        if self.permits(who, Want::EXECUTE) {
            mask |= if directory { AccessMask::LOOKUP } else { AccessMask::EXECUTE };
        }
        mask | if directory { self.access_to_entries(who) } else { self.access_to_data(who) }
    }

    fn access_to_data(&self, who: &Credential) -> AccessMask {
        if self.permits(who, Want::WRITE) {
            return AccessMask::MODIFY | AccessMask::EXTEND;
        }
        AccessMask::default()
    }

    /// Changing entries takes search permission too.
    fn access_to_entries(&self, who: &Credential) -> AccessMask {
        let mut mask = AccessMask::default();
        if [Kind::File, Kind::Directory].into_iter().any(|kind| self.require_add(who, kind).is_ok()) {
            mask |= AccessMask::MODIFY | AccessMask::EXTEND;
        }
        // Of an entry that says nothing of it and belongs to the caller.
        let entry = Self { kind: Kind::File, mode: 0, uid: who.uid, gid: who.gid, acl: None };
        if self.require_remove(&entry, who).is_ok() {
            mask |= AccessMask::DELETE;
        }
        mask
    }

    /// The mode after `who` wrote data. Root takes nothing away; others the set-group-id bit also where it does not mean
    /// execution, unless they are in the group, as Linux has it.
    pub(crate) fn written_by(&self, who: &Credential) -> u16 {
        if who.is_root() || self.kind == Kind::Directory {
            return self.mode;
        }
        let group = if who.in_group(self.gid) { 0 } else { SET_GID };
        self.without_set_id() & !group
    }

    /// The mode after the owner changed: set-id bits go, the set-group-id bit only where it means execution.
    pub(crate) fn without_set_id(&self) -> u16 {
        if self.kind == Kind::Directory {
            return self.mode;
        }
        let group = if self.mode & GROUP_EXECUTE != 0 { SET_GID } else { 0 };
        self.mode & !(SET_UID | group)
    }
}

/// Owner group and mode of something that `who` makes with `mode` in `parent`: a set-group-id
/// directory gives its group, and to subdirectories the bit.
pub(crate) fn inherit(parent: &Owned, who: &Credential, kind: Kind, mode: u16) -> (u32, u16) {
    if parent.mode & SET_GID == 0 {
        return (who.gid, mode);
    }
    if kind == Kind::Directory {
        return (parent.gid, mode | SET_GID);
    }
    let foreign = !who.is_root() && !who.in_group(parent.gid);
    // A set-group-id program of a group one is not in cannot be made this way.
    let drop = foreign && mode & SET_GID != 0 && mode & GROUP_EXECUTE != 0;
    (parent.gid, if drop { mode & !SET_GID } else { mode })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(uid: u32, gid: u32, gids: &[u32]) -> Credential {
        Credential { uid, gid, gids: gids.to_vec() }
    }
    fn owned(kind: Kind, mode: u16) -> Owned {
        Owned { kind, mode, uid: 10, gid: 20, acl: None }
    }

    #[test]
    fn the_first_class_that_matches_decides() {
        let users =
            [(who(10, 20, &[]), 6), (who(11, 20, &[]), 3), (who(11, 1, &[5, 20]), 3), (who(11, 1, &[5]), 0)];
        for mode in 0..0o1000 {
            let f = owned(Kind::File, mode);
            for (user, shift) in &users {
                for want in 1..8 {
                    assert_eq!(
                        f.permits(user, Want(want)),
                        (mode >> shift) & want == want,
                        "{mode:o} {user:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn root_executes_only_what_somebody_may() {
        let root = Credential::ROOT;
        assert!(owned(Kind::File, 0).permits(&root, Want::READ | Want::WRITE));
        assert!(!owned(Kind::File, 0o666).permits(&root, Want::EXECUTE));
        assert!(owned(Kind::File, 0o001).permits(&root, Want::EXECUTE));
        assert!(owned(Kind::Directory, 0).permits(&root, Want::CHANGE_ENTRIES));
    }

    #[test]
    fn access_answers_for_files_and_directories() {
        let user = who(10, 20, &[]);
        let mask = owned(Kind::Directory, 0o300).access(&user);
        assert!(
            mask.contains(AccessMask::LOOKUP | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE)
        );
        assert!(!mask.contains(AccessMask::READ) && !mask.contains(AccessMask::EXECUTE));
        let mask = owned(Kind::Directory, 0o600).access(&user);
        assert!(!mask.contains(AccessMask::MODIFY) && !mask.contains(AccessMask::LOOKUP));
        let mask = owned(Kind::File, 0o700).access(&user);
        let all = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::EXECUTE;
        assert!(mask.contains(all | AccessMask::XAREAD | AccessMask::XAWRITE | AccessMask::XALIST));
        assert!(!mask.contains(AccessMask::LOOKUP) && !mask.contains(AccessMask::DELETE));
        assert_eq!(owned(Kind::File, 0o700).access(&who(1, 1, &[])), AccessMask(0));
    }

    #[test]
    fn sticky_directories_protect_entries() {
        let sticky = Owned { kind: Kind::Directory, mode: 0o1777, uid: 1, gid: 1, acl: None };
        let entry = owned(Kind::File, 0o666);
        assert!(sticky.require_sticky(&entry, &who(11, 20, &[])).is_err());
        assert!(sticky.require_sticky(&entry, &who(10, 5, &[])).is_ok());
        assert!(sticky.require_sticky(&entry, &who(1, 5, &[])).is_ok());
        assert!(sticky.require_sticky(&entry, &Credential::ROOT).is_ok());
        assert!(Owned { mode: 0o777, ..sticky }.require_sticky(&entry, &who(11, 20, &[])).is_ok());
    }

    #[test]
    fn set_id_bits_go_with_a_write() {
        for (mode, left) in [(0o6777, 0o777), (0o6767, 0o2767), (0o4644, 0o644), (0o1755, 0o1755)] {
            assert_eq!(owned(Kind::File, mode).without_set_id(), left);
        }
        assert_eq!(owned(Kind::Directory, 0o2777).without_set_id(), 0o2777);
    }

    #[test]
    fn who_writes_takes_set_id_bits_away() {
        let (member, other) = (who(10, 20, &[]), who(10, 21, &[22]));
        for (mode, by_member, by_other) in [
            (0o6777, 0o777, 0o777),
            (0o6767, 0o2767, 0o767),
            (0o4644, 0o644, 0o644),
            (0o1755, 0o1755, 0o1755),
        ] {
            assert_eq!(owned(Kind::File, mode).written_by(&member), by_member);
            assert_eq!(owned(Kind::File, mode).written_by(&other), by_other);
            assert_eq!(owned(Kind::File, mode).written_by(&Credential::ROOT), mode);
        }
        assert_eq!(owned(Kind::Directory, 0o2777).written_by(&other), 0o2777);
    }

    #[test]
    fn a_set_group_id_directory_gives_its_group() {
        let plain = Owned { kind: Kind::Directory, mode: 0o777, uid: 1, gid: 50, acl: None };
        let setgid = Owned { mode: 0o2777, ..plain.clone() };
        let user = who(10, 20, &[]);
        assert_eq!(inherit(&plain, &user, Kind::File, 0o644), (20, 0o644));
        assert_eq!(inherit(&setgid, &user, Kind::File, 0o644), (50, 0o644));
        assert_eq!(inherit(&setgid, &user, Kind::File, 0o2755), (50, 0o755));
        assert_eq!(inherit(&setgid, &who(10, 20, &[50]), Kind::File, 0o2755), (50, 0o2755));
        assert_eq!(inherit(&setgid, &user, Kind::Directory, 0o755), (50, 0o2755));
    }
}
