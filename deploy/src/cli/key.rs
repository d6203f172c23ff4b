//! `sluice key`.

use std::path::PathBuf;

use clap::Subcommand;

use super::Reach;

#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    /// Write a new cluster key, readable by its owner only
    New {
        file: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Print a key's fingerprint, to compare hosts without showing the key
    Fingerprint {
        file: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Put a new cluster key before those in FILE, which stay accepted: the first step to replace it while servers and clients
    /// work. They take up the file by themselves; the second step is `sluice key forget`
    Renew {
        file: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Leave in FILE the first cluster key alone: who has none but older ones is let in no more
    Forget {
        file: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Write a monitoring key to FILE: with it, `status`, `doctor`, `top` and the like work, and nothing that changes anything. It
    /// is good as long as the cluster key that it is made of
    Monitor {
        /// The cluster key
        cluster_key: PathBuf,
        file: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Show the keys that handles of data files are sealed with and what a rotation waits for, and the cluster keys that are
    /// accepted and which data servers came with which
    List {
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Replace the key that handles of data files are sealed with, while clients work; ends when handles made with
    /// the older one are good nowhere any more. Interrupted, the rotation goes on by itself
    Rotate {
        #[command(flatten)]
        reach: Reach,
        /// Only begin: `sluice key list` shows how far it is
        #[arg(long)]
        no_wait: bool,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}
