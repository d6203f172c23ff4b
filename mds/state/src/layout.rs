//! Layout state of one file: RFC 8881 §12.5, §18.42-18.44. One entry per client: stateid, iomodes, seqid; no
//! segment list, since recalls and returns are whole-file.

use crate::effect::IoMode;

/// The iomode of a LAYOUTRETURN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReturnMode {
    /// LAYOUTIOMODE4_READ.
    Read,
    /// LAYOUTIOMODE4_RW.
    ReadWrite,
    /// LAYOUTIOMODE4_ANY.
    Any,
}

/// A set of iomodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoModes {
    /// READ segments were handed out.
    pub read: bool,
    /// Read-write segments were handed out.
    pub read_write: bool,
}

impl IoModes {
    /// True when nothing is held.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !self.read && !self.read_write
    }

    /// Adds one.
    pub const fn insert(&mut self, mode: IoMode) {
        match mode {
            IoMode::Read => self.read = true,
            IoMode::ReadWrite => self.read_write = true,
        }
    }
}
