//! delegation
