//! fattr4 to and from inodes.
