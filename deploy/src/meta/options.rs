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
    /// Write everything, as of one moment, to a new FILE, while the file system is in use; or to one more file in DIR, for a timer
    #[command(
        override_usage = "sluice meta dump [OPTIONS] <FILE>\n       sluice meta dump --into <DIR> [--keep <N>] [OPTIONS]"
    )]
    Dump {
        /// `-` is standard output
        #[arg(required_unless_present = "into", conflicts_with = "into")]
        file: Option<PathBuf>,
        /// Write DIR/<file system>-<UTC time>.dump, read it back, and only then give it its name; DIR is there
        #[arg(long, value_name = "DIR")]
        into: Option<PathBuf>,
        /// Then keep the newest N dumps of this file system in DIR, this one included, and remove the others [default: all]
        #[arg(long, value_name = "N", requires = "into", value_parser = clap::value_parser!(u32).range(1..))]
        keep: Option<u32>,
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
