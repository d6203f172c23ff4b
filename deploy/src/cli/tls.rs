//! TLS for clients of a server.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use sluice_rpc::Demand;
use sluice_rpc::tls::Files;

/// RPC with TLS (RFC 9289), which clients mount with `xprtsec=tls` or `xprtsec=mtls`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Tls {
    /// Speak TLS with clients that ask for it, and show them this certificate: PEM, with those that lead to its authority
    /// [default: no TLS]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The certificate's key: PEM, without a password
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificates of the authorities that sign those of clients: PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_clients: Option<PathBuf>,
    /// What clients have to do [default: offer]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) tls: Option<What>,
}

/// What clients have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum What {
    /// They may speak TLS
    Offer,
    /// They must: who speaks in clear is refused
    Require,
    /// They must, and show a certificate of one of the authorities of --tls-clients
    Mutual,
}

impl Tls {
    /// The same, for a server that `up` starts.
    ///
    /// # Errors
    /// A file whose name is not text.
    pub(crate) fn arguments(&self) -> Result<Vec<String>> {
        let files = [
            ("--tls-certificate", &self.tls_certificate),
            ("--tls-key", &self.tls_key),
            ("--tls-clients", &self.tls_clients),
        ];
        let mut arguments = Vec::new();
        for (option, file) in files.into_iter().filter_map(|(option, file)| Some((option, file.as_ref()?))) {
            // Servers are started in the same directory.
            let Some(file) = file.to_str() else { bail!("{} is not UTF-8", file.display()) };
            arguments.extend([option.to_owned(), file.to_owned()]);
        }
        if let Some(what) = self.tls.and_then(|what| what.to_possible_value()) {
            arguments.extend(["--tls".to_owned(), what.get_name().to_owned()]);
        }
        Ok(arguments)
    }

    /// Where the certificate is and what is asked of clients, if there is to be TLS.
    ///
    /// # Errors
    /// Options that mean nothing, or not enough, together.
    pub(crate) fn wanted(&self) -> Result<Option<(Files, Demand)>> {
        let demand = match self.tls {
            None | Some(What::Offer) => Demand::Offer,
            Some(What::Require) => Demand::Require,
            Some(What::Mutual) => Demand::Mutual,
        };
        let (Some(certificate), Some(key)) = (&self.tls_certificate, &self.tls_key) else {
            if [&self.tls_certificate, &self.tls_key, &self.tls_clients].iter().any(|file| file.is_some())
                || self.tls.is_some()
            {
                bail!("TLS needs a certificate and its key: give --tls-certificate and --tls-key");
            }
            return Ok(None);
        };
        if demand == Demand::Mutual && self.tls_clients.is_none() {
            bail!("clients that have to show certificates need an authority: give --tls-clients");
        }
        let clients = self.tls_clients.clone();
        Ok(Some((Files { certificate: certificate.clone(), key: key.clone(), clients }, demand)))
    }
}
