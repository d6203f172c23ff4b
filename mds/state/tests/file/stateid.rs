//! stateid
