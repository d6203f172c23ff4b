//! The commands and their options.

mod exports;
mod kerberos;
mod key;
mod path;
mod tls;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::{ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand};
use serde::{Deserialize, Serialize};
use sluice_mds::Network;
use sluice_namespace::inline_limit;

#[cfg(test)]
pub(crate) use exports::Transport;
pub(crate) use exports::{Export, Flavour, RuleOptions, Squash};
pub(crate) use kerberos::Kerberos;
pub(crate) use key::Key;
pub(crate) use path::path;
pub(crate) use tls::Tls;
#[cfg(test)]
pub(crate) use tls::What;

use crate::meta::Meta;

/// Sluice: a parallel NAS for unmodified Linux clients.
#[derive(Debug, Parser)]
#[command(name = "sluice", version = crate::VERSION, about, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole installation on this host: a metadata server and its data servers
    Up(Up),
    /// Run a metadata server
    Mds(Mds),
    /// Run a data server; or add, list, drain and remove data servers
    Ds(Ds),
    /// Show the metadata server, its data servers and its clients
    Status(Status),
    /// Watch data servers, clients and operations
    Top(Top),
    /// Show or set the layout policy of a directory: default, small, wide, wide-any
    Policy(Policy),
    /// Explain how clients get at a file's data, and why it is slow if it is
    Why(Why),
    /// Look for what is wrong with an installation, and say what to do
    Doctor(Doctor),
    /// Clients: list them, or end one
    Client {
        #[command(subcommand)]
        command: Client,
    },
    /// Layouts of a file: show who holds them, or ask for them back
    Layout {
        #[command(subcommand)]
        command: Layout,
    },
    /// Who has files open or locked, and breaking that
    Lock {
        #[command(subcommand)]
        command: crate::locks::Lock,
    },
    /// Copies of mirrored files: compare them, and make them equal to the right one
    Mirror {
        #[command(subcommand)]
        command: crate::mirrors::Mirror,
    },
    /// The metadata: check it, back it up, load it into another store
    Meta {
        #[command(subcommand)]
        command: Meta,
    },
    /// What clients may mount, and which of them: add, list, set, remove
    Export {
        #[command(subcommand)]
        command: Export,
    },
    /// Who uses how much, and may use how much: users, groups, directory trees
    Quota {
        #[command(subcommand)]
        command: crate::quotas::Quota,
    },
    /// Check a configuration file
    Config {
        #[command(subcommand)]
        command: Config,
    },
    /// Make and inspect cluster keys, and replace the keys that data servers are reached with
    Key {
        #[command(subcommand)]
        command: Key,
    },
    /// Print what a shell needs to complete these commands
    Completions { shell: clap_complete::Shell },
    /// Write a manual page for each command into DIR
    Man { dir: PathBuf },
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Where everything is kept [default: /var/lib/sluice as root, else the user's data directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Data servers to run; may grow from one start to the next, and shrinks no further than to those with data [default: as before, 4 at first]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) data_servers: Option<u16>,
    /// Address that clients mount
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub(crate) listen: IpAddr,
    /// Port that clients mount; data servers take the ports after it
    #[arg(long, value_name = "P", default_value_t = 2049, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Addresses of the data servers, used in turn [default: as --listen]
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',')]
    pub(crate) data_listen: Vec<IpAddr>,
    /// Address and port of the metadata server's metrics for Prometheus; data servers take the ports after it
    /// [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) tls: Tls,
    #[command(flatten)]
    pub(crate) kerberos: Kerberos,
    #[command(flatten)]
    pub(crate) sums: Sums,
    #[command(flatten)]
    pub(crate) store: Store,
    #[command(flatten)]
    pub(crate) tuning: Tuning,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "sluice mds --data-dir <DIR> [OPTIONS]\n       sluice mds --config <FILE> [OPTIONS]"
)]
pub(crate) struct Mds {
    /// Read the options from section [mds] of FILE; those on the command line win
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where the metadata is kept, unless it is in FoundationDB
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Make no new file system: metadata that is not there is on a device that is not mounted
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_possible_values = true)]
    pub(crate) existing: bool,
    #[command(flatten)]
    pub(crate) store: Store,
    /// While another metadata server has the file system in FoundationDB: wait, and take over when it is gone
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_possible_values = true)]
    pub(crate) standby: bool,
    /// Address and port for clients, data servers and commands
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:2049")]
    pub(crate) listen: SocketAddr,
    /// Cluster key [default: cluster.key in the data directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Address and port for Prometheus, which GETs /metrics there without asking who it is [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) tls: Tls,
    #[command(flatten)]
    pub(crate) kerberos: Kerberos,
    #[command(flatten)]
    pub(crate) tuning: Tuning,
    #[command(flatten)]
    pub(crate) child: Child,
}

/// A data server that is run, or what is done about data servers.
#[derive(Debug)]
pub(crate) enum Ds {
    Run(Run),
    Do(DsCommand),
}

#[derive(Debug, Args)]
#[command(
    override_usage = "sluice ds --mds <HOST[:PORT]> --data-dir <DIR> [OPTIONS]\n       sluice ds --config <FILE> [OPTIONS]\n       sluice ds <COMMAND>"
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) serve: Serve,
    /// Make a new store if the directory is empty; without it an empty directory is refused, since the
    /// device may not be mounted
    #[arg(long)]
    pub(crate) new: bool,
}

/// By hand: required options that a command makes superfluous.
impl Args for Ds {
    fn augment_args(command: clap::Command) -> clap::Command {
        DsCommand::augment_subcommands(Run::augment_args(command))
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand_required(false)
            .arg_required_else_help(false)
    }
    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Ds {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match matches.subcommand_name() {
            Some(_) => DsCommand::from_arg_matches(matches).map(Self::Do),
            None => Run::from_arg_matches(matches).map(Self::Run),
        }
    }
    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum DsCommand {
    /// Make this host's directory or device a new data server: look whether all is as it should be, make its store,
    /// register it, and end; then start it, with the same options
    Add {
        #[command(flatten)]
        serve: Box<Serve>,
        /// Once for each device: a store that is there is left alone, and none is made where a data server is registered at one of
        /// these addresses, whose device is not mounted then
        #[arg(long)]
        once: bool,
        /// Its class, as `sluice ds class` gives it: only directories whose policy names that place files there [default: none]
        #[arg(long, value_name = "CLASS", value_parser = crate::servers::class::name)]
        class: Option<String>,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Every data server, with what it holds and how far it is drained
    List {
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Show or set the class of a data server, a name such as `archive`: directories choose one with `sluice policy --class`
    Class(crate::servers::class::Options),
    /// Succeed if the data server at ADDRESS serves its clients; for probes. It needs no key unless TLS is demanded there
    Ready {
        #[arg(value_name = "ADDRESS", default_value = "127.0.0.1:2050")]
        address: SocketAddr,
        /// Cluster key, for a data server that answers nobody in clear [default: ask in clear]
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
    },
    /// Empty a data server: nothing new goes there, and what is there goes to others, while clients use it
    Drain {
        /// As in `sluice ds list`
        id: u32,
        /// Copy at most so many MiB per second [default: no limit; given again, it holds from now on]
        #[arg(long, value_name = "MIB", default_value_t = 0, hide_default_value = true)]
        limit: u64,
        /// Do not wait until it is done
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        reach: Reach,
        /// For scripts: a line for each look
        #[arg(long)]
        json: bool,
    },
    /// Let a data server that is drained, or is being drained, take new files again
    Undrain {
        /// As in `sluice ds list`
        id: u32,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Fill data servers about evenly: data files go from fuller ones to emptier ones, while clients use them
    Balance(crate::servers::balance::Options),
    /// Read back all that has checksums, now, and show how far it is and what is damaged
    Scrub {
        /// As in `sluice ds list` [default: all]
        #[arg(default_value_t = 0, hide_default_value = true)]
        id: u32,
        /// Only look
        #[arg(long, conflicts_with_all = ["stop", "no_wait"])]
        look: bool,
        /// End the scrub that runs
        #[arg(long, conflicts_with = "no_wait")]
        stop: bool,
        /// Do not wait until it is done
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Compare what data servers hold with what the metadata says, while both are in use
    Audit {
        /// As in `sluice ds list` [default: all]
        #[arg(default_value_t = 0, hide_default_value = true)]
        id: u32,
        #[command(flatten)]
        reach: Reach,
        /// For scripts: a line for each finding, and one at the end
        #[arg(long)]
        json: bool,
    },
    /// Take a data server out for good; it must be drained
    Remove {
        /// As in `sluice ds list`
        id: u32,
        /// It is gone with what it holds: say what is lost, and ask
        #[arg(long)]
        lost: bool,
        /// With --lost: do not ask
        #[arg(long, requires = "lost")]
        accept_data_loss: bool,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Have a data server go on that was refused since its store went back to an older copy: what was written there since is
    /// gone, but for what has another mirror
    AcceptOlder {
        /// As in `sluice ds list`
        id: u32,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}

/// How a data server is run.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Read the options from section [ds] of FILE; those on the command line win
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Metadata server; the port is 2049 unless given
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) mds: String,
    /// Where the data is kept: a directory on the device to serve
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// Address and port for clients
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:2050")]
    pub(crate) listen: SocketAddr,
    /// Addresses and ports that clients are told, the preferred one first [default: the one that reaches the
    /// metadata server]
    #[arg(long, value_name = "ADDR:PORT,...", value_delimiter = ',', value_parser = crate::ports::address)]
    pub(crate) advertise: Vec<SocketAddr>,
    /// Cluster key [default: cluster.key in the data directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Address and port for Prometheus, which GETs /metrics there without asking who it is [default: off]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) tls: Tls,
    #[command(flatten)]
    pub(crate) sums: Sums,
    #[command(flatten)]
    pub(crate) child: Child,
}

/// Checksums of what is at rest.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Sums {
    /// Keep checksums of what is at rest, and scrub it; `false` removes them [default: as before; not in a new store]
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_missing_value = "true", hide_possible_values = true)]
    pub(crate) checksums: Option<bool>,
    /// Read at most so many MiB per second for checksums and scrubs (0: no limit) [default: 100]
    #[arg(long, value_name = "MIB")]
    pub(crate) scrub_rate: Option<u32>,
    /// From one scrub to the next, in days (0: only by `sluice ds scrub`) [default: 14]
    #[arg(long, value_name = "DAYS")]
    pub(crate) scrub_days: Option<u32>,
}

/// How `up` holds its children: they stop when their standard input ends, so that none outlives it.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Child {
    #[arg(long, hide = true)]
    pub(crate) stop_with_stdin: bool,
}

/// Where the metadata is. `up` remembers it in its installation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(crate) struct Store {
    /// What keeps the metadata [default: embedded]
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) store: Option<StoreKind>,
    /// FoundationDB's cluster file [default: FDB_CLUSTER_FILE, or /etc/foundationdb/fdb.cluster]
    #[arg(long, value_name = "FILE")]
    pub(crate) fdb_cluster_file: Option<PathBuf>,
    /// FoundationDB's client library [default: libfdb_c.so where the system looks for libraries]
    #[arg(long, value_name = "FILE")]
    pub(crate) fdb_library: Option<PathBuf>,
    /// Tells this file system from others in the same FoundationDB cluster: letters, digits, '.', '_', '-'
    /// [default: sluice]
    #[arg(long, value_name = "NAME")]
    pub(crate) fdb_name: Option<String>,
    /// Certificate for a FoundationDB cluster with TLS [default: FDB_TLS_CERTIFICATE_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) fdb_tls_certificate: Option<PathBuf>,
    /// Its key; a password for it is in FDB_TLS_PASSWORD [default: FDB_TLS_KEY_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) fdb_tls_key: Option<PathBuf>,
    /// Authorities that may vouch for the cluster [default: FDB_TLS_CA_FILE]
    #[arg(long, value_name = "FILE")]
    pub(crate) fdb_tls_ca: Option<PathBuf>,
    /// What the cluster's certificates must say, such as "Check.Valid=1,S.O=Example" [default: FDB_TLS_VERIFY_PEERS]
    #[arg(long, value_name = "PATTERN")]
    pub(crate) fdb_tls_verify_peers: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreKind {
    /// The data directory
    #[default]
    Embedded,
    /// A FoundationDB cluster
    Foundationdb,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Tuning {
    /// Lease of a client, in seconds; also the longest wait for clients after a restart
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub(crate) lease: u32,
    /// A data server away for so long, in seconds, is lost for good: its mirrors are made anew on others (0: never)
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) rebuild_after: u32,
    /// Networks whose clients may use the export `/` besides this host: 10.0.0.0/8, 2001:db8::/32, an address, or any;
    /// until `sluice export set /` says otherwise [default: none]
    #[arg(long, value_name = "NETWORK,...", value_delimiter = ',')]
    pub(crate) allow: Vec<Network>,
    /// Map uid 0 of clients to nobody, in the export `/`; until `sluice export set /` says otherwise
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_possible_values = true)]
    pub(crate) root_squash: bool,
    /// A file system that this start makes keeps files of up to this size in the metadata: `16KiB`, at most `64KiB`, or
    /// `off`; of one that there is `sluice policy` says
    #[arg(long, value_name = "SIZE", default_value = "32KiB", value_parser = inline)]
    pub(crate) inline: u32,
    /// Data servers that a new file is kept at, each with all of it; a directory's policy (`sluice policy`) may say otherwise
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) mirrors: u8,
    /// Delegations that clients are given, to open and cache files without asking
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Delegations::Write)]
    pub(crate) delegations: Delegations,
    /// Files that were changed within so many seconds are delegated only to clients that ask for it
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) delegation_quiet: u32,
    /// Names that clients may use
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Names::Any)]
    pub(crate) names: Names,
    /// Who knows which groups a user is in. A client can tell of 16
    #[arg(long, value_enum, value_name = "WHO", default_value_t = Groups::Client)]
    pub(crate) groups: Groups,
    /// Owners may be given by name: NAME@DOMAIN is the user or group NAME of the metadata server's host. DOMAIN as in clients'
    /// idmapd.conf [default: with Kerberos the keytab's realm in lower case, else none]
    #[arg(long, value_name = "DOMAIN", value_parser = domain)]
    pub(crate) owner_domain: Option<String>,
    /// Whom owners are told by name, as NAME@DOMAIN of the metadata server's host; others are told numbers
    #[arg(long, value_enum, value_name = "WHOM", default_value_t = TellNames::Nobody)]
    pub(crate) tell_names: TellNames,
    /// Memory for metadata that was read or written lately, in MiB, where it is in the data directory
    /// [default: three sixteenths of what the server may use, 320 at least, 24576 at most]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(16..))]
    pub(crate) metadata_cache: Option<u32>,
    /// Hand out no layouts: all data goes through the metadata server (to compare)
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = false, default_missing_value = "true", hide_possible_values = true)]
    pub(crate) no_layouts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Delegations {
    Off,
    /// For reading
    Read,
    /// For reading and for writing
    Write,
    /// For both, and who writes answers for the times of the file: times of old that Linux sets on such a file are lost
    Times,
}

impl fmt::Display for Delegations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Read => "read",
            Self::Write => "write",
            Self::Times => "times",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Names {
    /// Any bytes, as on Linux
    Any,
    /// UTF-8 alone
    Utf8,
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any",
            Self::Utf8 => "utf8",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Groups {
    /// The client, which leaves out those after the 16th
    Client,
    /// The metadata server's host, by its passwd and group databases (nsswitch.conf): all of them, for users that it knows
    Host,
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Host => "host",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TellNames {
    /// Numbers for all: users have the same ones everywhere
    Nobody,
    /// Names for callers with Kerberos tickets
    Tickets,
    /// Names for all
    Everybody,
}

impl fmt::Display for TellNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "nobody",
            Self::Tickets => "tickets",
            Self::Everybody => "everybody",
        })
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Reach {
    /// Data directory of an installation on this host
    #[arg(long, value_name = "DIR", conflicts_with = "mds")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Metadata server; needs --key [default: SLUICE_MDS, unless --data-dir is given]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) mds: Option<String>,
    /// Cluster key [default: SLUICE_KEY with a metadata server, else cluster.key in the data directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// For scripts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Remark that no dump of the metadata has been made for so many days (0: do not)
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    pub(crate) dump_days: u32,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// For scripts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) interval: u32,
    /// Looks until it ends [default: until q or Ctrl-C]
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u32>,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// For scripts: a line for each look
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Policy {
    /// Directory, from the root of the file system
    #[arg(value_parser = path)]
    pub(crate) path: String,
    /// New policy; files made from now on follow it
    pub(crate) policy: Option<String>,
    /// Files made from now on are kept in the metadata up to this size: `16KiB`, at most `64KiB`, or `off`
    #[arg(long, value_name = "SIZE")]
    pub(crate) inline: Option<String>,
    /// Files made from now on are placed on data servers of this class, or of `none` (`sluice ds class`)
    #[arg(long, value_name = "CLASS", value_parser = crate::servers::class::name_or_none)]
    pub(crate) class: Option<String>,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// For scripts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Why {
    /// File or directory, from the root of the file system
    #[arg(value_parser = path)]
    pub(crate) path: String,
    /// Only this client: its address, name or ID [default: every client]
    #[arg(long)]
    pub(crate) client: Option<String>,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// For scripts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Client {
    /// Every client, with what it holds
    List {
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// End a client: its opens, locks and layouts are gone, and it is fenced off; a live one begins anew
    Evict {
        /// Its ID as in the list, its address or its name
        client: String,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Layout {
    /// Who holds layouts of a file, since when, under which stateid
    Show {
        /// File, from the root of the file system
        #[arg(value_parser = path)]
        path: String,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Ask for the layouts of a file back; who does not return them in time is fenced off
    Recall {
        /// File, from the root of the file system
        #[arg(value_parser = path)]
        path: String,
        /// Only this client's: its ID as in `sluice client list`, its address or its name
        #[arg(long, value_name = "CLIENT")]
        client: Option<String>,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}

fn domain(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if !(1..=253).contains(&text.len())
        || !text.chars().all(fits)
        || text.starts_with('.')
        || text.ends_with('.')
    {
        return Err("a domain such as example.com, without an @".to_owned());
    }
    Ok(text.to_owned())
}

fn inline(text: &str) -> Result<u32, String> {
    inline_limit(text).ok_or_else(|| "16KiB, a number of bytes, or off; at most 64KiB".to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Say whether a server would take FILE, or what is wrong and in which line
    Check {
        file: PathBuf,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}
