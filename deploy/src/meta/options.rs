//! The options of `sluice meta`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::cli::{Reach, Store};

#[derive(Debug, Subcommand)]
pub(crate) enum Meta {
    /// Look for contradictions, as of one moment, while the file system is in use; exits with 1 if there are any
    Check {
        /// Check a dump
        #[arg(long, value_name = "FILE", conflicts_with_all = ["data_dir", "mds"])]
        file: Option<PathBuf>,
        #[command(flatten)]
        reach: Reach,
        #[command(flatten)]
        store: Store,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Write everything, as of one moment, to a new FILE, while the file system is in use
    Dump {
        /// `-` is standard output
        file: PathBuf,
        #[command(flatten)]
        reach: Reach,
        #[command(flatten)]
        store: Store,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Let a copy of a store (a snapshot, a restored backup of its disk or cluster) go on in place of what it was copied from,
    /// with numbers that nobody has used; the metadata server is not running
    Adopt {
        /// Data directory of the installation, or of the metadata server
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
        #[command(flatten)]
        store: Store,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Make the file system of a dump in an empty store; the metadata server is not running
    Load {
        file: PathBuf,
        /// Data directory of the installation, or of the metadata server
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
        #[command(flatten)]
        store: Store,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}
