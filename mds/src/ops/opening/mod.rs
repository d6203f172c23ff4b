//! Parts of OPEN: making files, and what is said about delegations.

pub(super) mod create;
pub(super) mod delegation;
