//! `sluice export`, and what clients of a network may do.

use clap::{Args, Subcommand};
use sluice_mds::Clients;
use sluice_xdr::control::ctl_protection;

use super::{Reach, path};

#[derive(Debug, Subcommand)]
pub(crate) enum Export {
    /// Let clients mount a directory
    Add {
        /// Directory, from the root of the file system
        #[arg(value_parser = path)]
        path: String,
        /// Whose clients may: 10.0.0.0/8, 2001:db8::/32, an address, a host name, a name with wildcards (*.example.com), @netgroup, or
        /// any. Of several that a client is one of, hosts come first, then networks by the length of their prefix, names with
        /// wildcards, netgroups, any
        #[arg(long = "client", value_name = "CLIENTS,...", value_delimiter = ',', required = true)]
        clients: Vec<Clients>,
        #[command(flatten)]
        options: RuleOptions,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Every export, with what clients of which networks may do
    List {
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Hosts and netgroups that exports have by name: where they are, and who is taken for whom
    Names {
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Look all of them up now, instead of within five minutes
    Refresh {
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Change what clients may do; it holds at once, mounted or not
    Set {
        /// Directory, as in the list
        #[arg(value_parser = path)]
        path: String,
        /// Networks and names to add, or to change; without any the options are for all that it has, but for those with --no-access
        #[arg(long = "client", value_name = "CLIENTS,...", value_delimiter = ',')]
        clients: Vec<Clients>,
        #[command(flatten)]
        options: RuleOptions,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
    /// Take a directory back from all clients, or from some
    Remove {
        /// Directory, as in the list
        #[arg(value_parser = path)]
        path: String,
        /// Networks and names to take it back from; without any the export is gone
        #[arg(long = "client", value_name = "CLIENTS,...", value_delimiter = ',')]
        clients: Vec<Clients>,
        #[command(flatten)]
        reach: Reach,
        /// For scripts
        #[arg(long)]
        json: bool,
    },
}

/// What clients of a network may do; what is not given stays as it is, or as said in brackets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct RuleOptions {
    /// Nothing may be changed
    #[arg(long, conflicts_with = "read_write")]
    pub(crate) read_only: bool,
    /// Files may be changed [this is so for a new network]
    #[arg(long)]
    pub(crate) read_write: bool,
    /// Who is taken for the anonymous user [root for a new network]
    #[arg(long, value_enum, value_name = "WHO")]
    pub(crate) squash: Option<Squash>,
    /// uid and gid of the anonymous user [65534:65534 for a new network]
    #[arg(long, value_name = "UID[:GID]", value_parser = anonymous)]
    pub(crate) anonymous: Option<(u32, u32)>,
    /// Security flavours that clients may come with [sys,none for a new network]
    #[arg(long, value_enum, value_name = "FLAVOUR,...", value_delimiter = ',')]
    pub(crate) sec: Vec<Flavour>,
    /// What connections of clients need at least: `tls`, or `mtls` with a certificate of the client; `none` takes it back. Of
    /// several, as in exports(5), the weakest [none for a new network]
    #[arg(long, value_name = "none:tls:mtls", value_parser = transport)]
    pub(crate) xprtsec: Option<Transport>,
    /// Nobody gets in from there: a hole in a wider network. `--sec` of `export set` closes it
    #[arg(long, conflicts_with_all = ["sec", "xprtsec", "read_only", "read_write", "squash", "anonymous"])]
    pub(crate) no_access: bool,
}

impl RuleOptions {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Squash {
    /// uid 0 and gid 0
    Root,
    /// Everybody
    All,
    /// Nobody
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Flavour {
    /// AUTH_SYS: users as their hosts name them
    Sys,
    /// AUTH_NONE: everybody is the anonymous user
    None,
    /// Kerberos: who calls is proved
    Krb5,
    /// And what is said is whole: files are read and written through the metadata server, unless under TLS, too
    Krb5i,
    /// And nobody else can read it: the same
    Krb5p,
}

/// What protects a connection; each goes beyond those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    None,
    Tls,
    Mtls,
}

impl Transport {
    pub(crate) fn protection(self) -> ctl_protection {
        match self {
            Self::None => ctl_protection::PROTECTION_NONE,
            Self::Tls => ctl_protection::PROTECTION_TLS,
            Self::Mtls => ctl_protection::PROTECTION_MUTUAL,
        }
    }
}

/// As exports(5) has it, or with commas as other options of ours.
fn transport(text: &str) -> Result<Transport, String> {
    let one = |word: &str| match word {
        "none" => Ok(Transport::None),
        "tls" => Ok(Transport::Tls),
        "mtls" => Ok(Transport::Mtls),
        _ => {
            Err(format!("{word:?} protects no connection: none, tls, mtls, or several with a colon between"))
        }
    };
    let all = text.split([':', ',']).map(one).collect::<Result<Vec<_>, _>>()?;
    // Who comes with more is let in, too.
    all.into_iter().min().ok_or_else(|| "none, tls or mtls".to_owned())
}

fn anonymous(text: &str) -> Result<(u32, u32), String> {
    let number =
        |part: &str| part.parse::<u32>().map_err(|_| format!("{part:?} is no number: UID or UID:GID"));
    match text.split_once(':') {
        Some((uid, gid)) => Ok((number(uid)?, number(gid)?)),
        None => number(text).map(|id| (id, id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_ways_the_weakest_counts_and_others_are_refused() {
        for (text, meant) in [
            ("none", Transport::None),
            ("tls", Transport::Tls),
            ("mtls", Transport::Mtls),
            ("mtls:tls", Transport::Tls),
            ("tls,mtls", Transport::Tls),
            ("none:tls:mtls", Transport::None),
        ] {
            assert_eq!(transport(text), Ok(meant), "{text}");
        }
        for text in ["", "TLS", "tls:", "tls mtls", "ssl"] {
            assert!(transport(text).is_err(), "{text}");
        }
    }
}
