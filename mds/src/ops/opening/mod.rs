//! Parts of OPEN: making files, what is said about delegations, what a restart interrupted.

pub(super) mod create;
pub(super) mod delegation;
pub(super) mod resume;
