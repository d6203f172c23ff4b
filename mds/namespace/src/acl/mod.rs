//! Access control lists as NFSv4 has them (RFC 8881 §6): what a list is, and how it is stored. `judge` says what a
//! list lets somebody do, `mode` how list and mode bits follow each other, `inherit` what something new begins with.

mod inherit;
mod judge;
mod mode;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::{BitAnd, BitOr, BitOrAssign, Not};
use std::sync::Arc;

use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::inode::Kind;

pub use inherit::NewMode;
pub(crate) use inherit::initial;
pub(crate) use judge::Verdict;

/// The bits of RFC 8881 §6.2.1.3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(pub u32);

impl Rights {
    pub const NONE: Self = Self(0);
    /// Of a directory: list it.
    pub const READ_DATA: Self = Self(0x1);
    /// Of a directory: add what is not a directory.
    pub const WRITE_DATA: Self = Self(0x2);
    /// Of a directory: add a directory.
    pub const APPEND_DATA: Self = Self(0x4);
    pub const READ_NAMED_ATTRS: Self = Self(0x8);
    pub const WRITE_NAMED_ATTRS: Self = Self(0x10);
    /// Of a directory: search it.
    pub const EXECUTE: Self = Self(0x20);
    pub const DELETE_CHILD: Self = Self(0x40);
    pub const READ_ATTRIBUTES: Self = Self(0x80);
    pub const WRITE_ATTRIBUTES: Self = Self(0x100);
    pub const DELETE: Self = Self(0x1_0000);
    pub const READ_ACL: Self = Self(0x2_0000);
    pub const WRITE_ACL: Self = Self(0x4_0000);
    pub const WRITE_OWNER: Self = Self(0x8_0000);
    pub const SYNCHRONIZE: Self = Self(0x10_0000);
    /// Every bit that the RFC defines; those of retention (0x600) are kept and mean nothing here.
    pub const ALL: Self = Self(0x1f_07ff);

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Rights {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Rights {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for Rights {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for Rights {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0)
    }
}

/// Whom an entry is about (§6.2.1.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Whoever owns the file.
    Owner,
    /// Whoever is in the file's group.
    Group,
    Everyone,
    User(u32),
    Members(u32),
}

impl Who {
    /// Not a user or group by number.
    pub(crate) fn is_special(self) -> bool {
        matches!(self, Self::Owner | Self::Group | Self::Everyone)
    }
}

/// What an entry of a directory's list means for what is made in it (§6.2.1.4). The number is that of the RFC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inheritance(pub u8);

impl Inheritance {
    /// It is about the file itself alone.
    pub const NONE: Self = Self(0);
    pub const FILES: Self = Self(1);
    pub const DIRECTORIES: Self = Self(2);
    /// By the children, not by theirs.
    pub const NO_PROPAGATE: Self = Self(4);
    /// It is not about the directory itself.
    pub const ONLY: Self = Self(8);
    /// Everything that is about handing on.
    pub const ALL: Self = Self(15);
    /// It came from the directory, by automatic inheritance (§6.4.3.2).
    pub const INHERITED: Self = Self(0x80);
    const STORED: Self = Self(Self::ALL.0 | Self::INHERITED.0);

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// By something.
    pub(crate) const fn is_inheritable(self) -> bool {
        self.has(Self(Self::FILES.0 | Self::DIRECTORIES.0))
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// Allows, or else denies.
    pub allow: bool,
    pub inheritance: Inheritance,
    pub rights: Rights,
    pub who: Who,
}

impl Ace {
    /// It is about the file itself.
    pub(crate) fn is_effective(&self) -> bool {
        !self.inheritance.has(Inheritance::ONLY)
    }
}

/// What is said of a whole list, for those who pass changes of a directory's list on to what is in it (§6.4.3.2). The
/// numbers are those of the RFC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AclFlags(pub u8);

impl AclFlags {
    pub const NONE: Self = Self(0);
    /// It takes part: what comes from the directory is marked.
    pub const AUTO_INHERIT: Self = Self(1);
    /// Somebody has chosen it: what changes in the directory is not passed on to it.
    pub const PROTECTED: Self = Self(2);
    pub const DEFAULTED: Self = Self(4);
    pub const ALL: Self = Self(7);

    const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
    /// After somebody chose a mode, which nobody who passes changes on may undo.
    const fn chosen(self) -> Self {
        if self.has(Self::AUTO_INHERIT) { Self(self.0 | Self::PROTECTED.0) } else { self }
    }
}

/// Entries in the order in which they are judged. Cheap to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    aces: Arc<[Ace]>,
    flags: AclFlags,
}

/// Entries that are handed on, and as many that are about the file itself, may be set.
const MAX_EACH: usize = 256;
/// Room for those that stand for a mode: what this server made of a list may be set again.
const FOR_MODE: usize = 8;
/// Entries of a stored list. What a list is made into, by modes and in directories below, hands on no more than it did,
/// and is about the file itself in as many entries at most, and those for the mode.
const MAX_STORED: usize = 2 * (MAX_EACH + FOR_MODE);

impl Acl {
    /// Entries that a list may be wanted with, however they are.
    pub const MOST: usize = 2 * MAX_EACH + FOR_MODE;

    /// A list as somebody wants it.
    ///
    /// # Errors
    /// NoSpace: it is too long.
    pub fn new(aces: Vec<Ace>) -> Result<Self, FsError> {
        let own = aces.iter().filter(|ace| ace.is_effective()).count();
        let handed_on =
            aces.iter().filter(|ace| !ace.is_effective() || ace.inheritance.is_inheritable()).count();
        if own > MAX_EACH + FOR_MODE || handed_on > MAX_EACH {
            return Err(FsError::NoSpace);
        }
        Ok(Self::of(aces))
    }

    fn of(aces: Vec<Ace>) -> Self {
        Self { aces: aces.into(), flags: AclFlags::NONE }
    }

    /// The same entries with these flags.
    #[must_use]
    pub fn flagged(self, flags: AclFlags) -> Self {
        Self { flags, ..self }
    }

    pub fn aces(&self) -> &[Ace] {
        &self.aces
    }

    pub fn flags(&self) -> AclFlags {
        self.flags
    }

    /// Releases before there was automatic inheritance do not read it.
    pub(crate) fn is_marked(&self) -> bool {
        self.flags != AclFlags::NONE
            || self.aces.iter().any(|ace| ace.inheritance.has(Inheritance::INHERITED))
    }

    /// Invalid for what has nothing made in it, if something is to be inherited (§6.2.1.4.1); a symbolic link has no
    /// permissions at all.
    pub(crate) fn require_fit(&self, kind: Kind) -> Result<(), FsError> {
        let inherits = self.aces.iter().any(|ace| ace.inheritance.has(Inheritance::ALL));
        match kind {
            Kind::Directory => Ok(()),
            Kind::Symlink => Err(FsError::Invalid),
            _ if inherits => Err(FsError::Invalid),
            _ => Ok(()),
        }
    }

    pub(crate) fn encode(&self, w: &mut Writer) {
        w.u8(self.flags.0);
        w.u16(u16::try_from(self.aces.len()).unwrap_or(u16::MAX));
        for ace in self.aces.iter() {
            let (code, id) = match ace.who {
                Who::Owner => (0, None),
                Who::Group => (1, None),
                Who::Everyone => (2, None),
                Who::User(id) => (3, Some(id)),
                Who::Members(id) => (4, Some(id)),
            };
            w.u8(code).bool(ace.allow).u8(ace.inheritance.0).u32(ace.rights.0);
            if let Some(id) = id {
                w.u32(id);
            }
        }
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let flags = AclFlags(r.u8()?);
        if flags.0 > AclFlags::ALL.0 {
            return Err(r.corrupt());
        }
        let count = usize::from(r.u16()?);
        if count > MAX_STORED {
            return Err(r.corrupt());
        }
        let aces: Vec<Ace> = (0..count).map(|_| Ace::decode(r)).collect::<Result<_, _>>()?;
        Ok(Self::of(aces).flagged(flags))
    }
}

impl Ace {
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let (code, allow) = (r.u8()?, r.bool()?);
        let (inheritance, rights) = (Inheritance(r.u8()?), Rights(r.u32()?));
        if inheritance.0 & !Inheritance::STORED.0 != 0 || !Rights::ALL.contains(rights) {
            return Err(r.corrupt());
        }
        let who = match code {
            0 => Who::Owner,
            1 => Who::Group,
            2 => Who::Everyone,
            3 => Who::User(r.u32()?),
            4 => Who::Members(r.u32()?),
            _ => return Err(r.corrupt()),
        };
        Ok(Self { allow, inheritance, rights, who })
    }
}
