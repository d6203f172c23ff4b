//! Results that are known only in part until the transaction commits: the change attribute is the
//! file system's base plus the commit version.

/// How the change attribute of a directory moved, or of what has extended attributes: change_info4 of RFC 8881 §3.3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryChange {
    pub before: u64,
    /// Zero until resolved.
    pub after: u64,
    /// Nothing else changed it in between: `before` was read under conflict.
    pub atomic: bool,
}

/// What holds change attributes that the commit decides.
pub trait Settle {
    /// Puts `change` wherever the transaction will have changed something.
    fn settle(&mut self, change: u64);
}

/// The result of an operation whose transaction has not committed yet.
#[derive(Clone, Debug)]
pub struct Pending<T> {
    value: T,
    base: u64,
}

impl<T: Settle> Pending<T> {
    pub(crate) const fn new(value: T, base: u64) -> Self {
        Self { value, base }
    }

    /// The result, once the transaction has committed as `version`.
    pub fn resolve(mut self, version: u64) -> T {
        self.value.settle(self.base.wrapping_add(version));
        self.value
    }

    /// The result with the change attributes of what the transaction changes still zero.
    pub const fn peek(&self) -> &T {
        &self.value
    }
}

impl Settle for DirectoryChange {
    fn settle(&mut self, change: u64) {
        if self.after == 0 {
            self.after = change;
        }
    }
}

impl Settle for crate::inode::Inode {
    fn settle(&mut self, change: u64) {
        if self.change == 0 {
            self.change = change;
        }
    }
}

impl<T: Settle> Settle for Option<T> {
    fn settle(&mut self, change: u64) {
        if let Some(inner) = self {
            inner.settle(change);
        }
    }
}

/// Settles the fields named.
macro_rules! settle_fields {
    ($type:ty: $($field:ident),*) => {
        impl $crate::pending::Settle for $type {
            fn settle(&mut self, change: u64) {
                $($crate::pending::Settle::settle(&mut self.$field, change);)*
            }
        }
    };
}
pub(crate) use settle_fields;
