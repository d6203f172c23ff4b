//! The store of a data server: plain data files on one device, and the rows that say who may not
//! touch them. No network, no NFS.
//!
//! * [`Store`] is what the data server uses; [`device`] is what it stands on.
//! * A data file exists from its first write on; its existence is journalled before the first
//!   stable acknowledgement and reported upward, so that its loss is noticed later.
//! * Fences and tombstones are durable before they are acknowledged and are looked up in memory.
//! * Checksums, where they are switched on, are made of what has come to rest, and scrubbed: [`Scrub`].
//! * A failed flush reaches everyone who waited for it and changes the file's write verifier.

mod absent;
mod access_ops;
mod callers;
mod data_file;
pub mod device;
mod emptied;
mod error;
mod fence;
mod flush;
mod folders;
mod format;
mod gate;
mod in_place;
mod journal;
mod key;
mod lane;
mod log;
mod newcomers;
mod open_files;
mod pace;
mod places;
mod pool;
mod reflink;
mod room;
mod soon;
mod space_ops;
mod startup;
mod store;
mod sums;
mod tide;
mod transfer;
mod under_way;
mod unfinished;
mod verifier;
mod vitals;
mod witness;
mod write_count;
mod writes;

pub use access_ops::Step;
pub use error::StoreError;
pub use fence::{Access, Fence, Refusal};
pub use in_place::InPlace;
pub use key::{Epoch, FileKey, Stability, Uuid, Verifier};
pub use reflink::{Base, Reflink};
pub use soon::Soon;
pub use space_ops::Sought;
pub use startup::Options;
pub use store::{Capacity, Entry, Read, Store, Writes};
pub use sums::{Damage, Scrub, SumOptions};
pub use transfer::Transfer;
pub use vitals::Vitals;
