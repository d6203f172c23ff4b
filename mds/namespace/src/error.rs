//! What a namespace operation can refuse, and why. The metadata server maps these to nfsstat4 in
//! exactly one place.

use sluice_kv::KvError;

/// The outcome of a namespace operation that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    #[error("no such file or directory")]
    NotFound,
    #[error("name exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory not empty")]
    NotEmpty,
    /// The mode bits forbid it (EACCES).
    #[error("permission denied")]
    Access,
    /// Only the owner or root may do this (EPERM).
    #[error("operation not permitted")]
    NotOwner,
    #[error("name too long")]
    NameTooLong,
    /// Empty, `.`, `..`, or with a slash or a NUL.
    #[error("bad name")]
    BadName,
    #[error("invalid argument")]
    Invalid,
    /// The object is of a kind that this operation does not apply to (a size on a socket, ...).
    #[error("wrong type")]
    WrongType,
    /// A symbolic link where a regular file is needed.
    #[error("is a symbolic link")]
    IsSymlink,
    #[error("cross-device link")]
    CrossDevice,
    #[error("no space")]
    NoSpace,
    #[error("quota exceeded")]
    Quota,
    #[error("file too large")]
    TooBig,
    /// The filehandle's object is gone.
    #[error("stale filehandle")]
    Stale,
    /// A filehandle that this server never made.
    #[error("bad filehandle")]
    BadHandle,
    #[error("too many links")]
    TooManyLinks,
    #[error("read-only")]
    ReadOnly,
    #[error("no such extended attribute")]
    NoXattr,
    #[error("extended attribute too large")]
    XattrTooBig,
    /// The name no longer means the file that the caller prepared its state for: start over.
    #[error("the name means another file now")]
    NameMoved,
    /// A truncate of this file is still being carried out on the data servers: wait for it.
    #[error("a truncate is in progress")]
    Busy,
    /// Where the file ends only a data server knows that was given up: it may come back, or not.
    #[error("the end of the file is known to a data server only that does not answer")]
    EndUnknown,
    /// Another, newer metadata server owns the store: this one must stop serving at once.
    #[error("fenced: epoch {found} is newer than this server's {ours}")]
    Fenced { ours: u64, found: u64 },
    /// A record was written by a newer version of the software.
    #[error("{what}: schema {found} is newer than this software reads (up to {known}); upgrade it")]
    NewerSchema { what: &'static str, found: u8, known: u8 },
    /// There is no file system: one was being loaded.
    #[error("a dump was being loaded into this store and is not complete: run `sluice meta load` again")]
    HalfLoaded,
    #[error("corrupt metadata: {what}")]
    Corrupt { what: &'static str },
    #[error(transparent)]
    Kv(#[from] KvError),
}

impl FsError {
    pub(crate) const fn corrupt(what: &'static str) -> Self {
        Self::Corrupt { what }
    }

    /// Whether the transaction may have been applied.
    #[must_use]
    pub fn maybe_committed(&self) -> bool {
        matches!(self, Self::Kv(error) if error.maybe_committed())
    }
}
