//! NFSv4.1 and 4.2 (RFC 8881, 7862, 8276, 9754). All names live in this module whatever file they come from.

mod attributes;
mod cb;
mod fattr;
mod numbers;
mod ops;
mod types;
mod v42;
mod xattr;

pub use attributes::{Attributes, AttributesError, attribute_name};
pub use cb::*;
pub use fattr::{bitmap4, fattr4};
pub use numbers::*;
pub use ops::*;
pub use types::*;
pub use v42::*;
pub use xattr::*;
