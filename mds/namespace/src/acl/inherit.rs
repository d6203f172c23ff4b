//! What something new begins with (RFC 8881 §6.4.3; RFC 8275 for the umask).

use super::{Ace, Acl, AclFlags, Inheritance};
use crate::error::FsError;
use crate::inode::Kind;

/// The mode that something new is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewMode {
    /// This one.
    Given(u16),
    /// With a umask that counts where nothing is inherited.
    Umasked { mode: u16, umask: u16 },
    /// Nobody said: this one where nothing is inherited.
    Default(u16),
    /// It is to be made without permissions that anybody could use, and nothing is inherited.
    Bare,
}

impl NewMode {
    /// Where there is no list.
    pub fn alone(self) -> u16 {
        match self {
            Self::Given(mode) | Self::Default(mode) => mode,
            Self::Umasked { mode, umask } => mode & !umask,
            Self::Bare => 0,
        }
    }

    /// What a client said of the bits that no list has.
    fn special(self) -> u16 {
        match self {
            Self::Given(mode) | Self::Umasked { mode, .. } => mode & !0o777,
            Self::Default(_) | Self::Bare => 0,
        }
    }
}

/// List and mode of something new, in a directory with the list `parent`; `given` is a list that the client wants.
///
/// # Errors
/// Invalid: the list that is wanted does not fit.
pub(crate) fn initial(
    parent: Option<&Acl>,
    kind: Kind,
    mode: NewMode,
    given: Option<&Acl>,
) -> Result<(Option<Acl>, u16), FsError> {
    if let Some(acl) = given {
        // §6.4.3, 2 and 3: nothing is inherited, and the list has the last word on the mode.
        acl.require_fit(kind)?;
        let mode = mode.special() | acl.mode();
        return Ok((acl.clone().beyond_mode(kind, mode), mode));
    }
    let heir = if mode == NewMode::Bare { None } else { parent.and_then(|parent| parent.inherited(kind)) };
    let Some(acl) = heir else { return Ok((None, mode.alone())) };
    let decides = acl.aces().iter().any(Ace::is_effective);
    let (acl, low) = match mode {
        // §6.4.3, 4: as inherited.
        NewMode::Default(_) if decides => {
            let low = acl.mode();
            (acl, low)
        }
        // RFC 8275 §4: in place of the umask the directory's list says what nobody is to have by default. What is
        // asked for and what is inherited limit each other.
        NewMode::Umasked { mode, .. } if decides => {
            let low = mode & acl.mode();
            (acl.limited(kind, low, mode), low)
        }
        // Nobody has chosen anything.
        NewMode::Default(mode) => {
            let flags = acl.flags();
            (acl.with_mode(kind, mode).flagged(flags), mode & 0o777)
        }
        // §6.4.3, 1.
        _ => (acl.with_mode(kind, mode.alone()), mode.alone() & 0o777),
    };
    let mode = mode.special() | low;
    Ok((acl.beyond_mode(kind, mode), mode))
}

impl Acl {
    /// What something made in this directory inherits (§6.4.3.1), if anything.
    pub(super) fn inherited(&self, kind: Kind) -> Option<Self> {
        // §6.4.3.2: who passes changes on must know later what came from the directory.
        let marks = self.flags().has(AclFlags::AUTO_INHERIT);
        let mark = |ace: Ace| match marks {
            true => Ace { inheritance: Inheritance(ace.inheritance.0 | Inheritance::INHERITED.0), ..ace },
            false => ace,
        };
        let aces: Vec<Ace> = self.aces().iter().filter_map(|ace| ace.inherited(kind)).map(mark).collect();
        let flags = if marks { AclFlags::AUTO_INHERIT } else { AclFlags::NONE };
        (!aces.is_empty()).then(|| Self::of(aces).flagged(flags))
    }
}

impl Ace {
    pub(super) fn inherited(&self, kind: Kind) -> Option<Self> {
        let (files, directories) =
            (self.inheritance.has(Inheritance::FILES), self.inheritance.has(Inheritance::DIRECTORIES));
        let on = !self.inheritance.has(Inheritance::NO_PROPAGATE);
        let inheritance = match kind {
            Kind::Symlink => return None,
            Kind::Directory if directories && on => {
                Inheritance(self.inheritance.0 & Inheritance::ALL.0 & !Inheritance::ONLY.0)
            }
            Kind::Directory if directories => Inheritance::NONE,
            // It passes through: it is meant for files further down.
            Kind::Directory if files && on => Inheritance(Inheritance::FILES.0 | Inheritance::ONLY.0),
            Kind::Directory => return None,
            _ if files => Inheritance::NONE,
            _ => return None,
        };
        Some(Self { inheritance, ..*self })
    }
}
