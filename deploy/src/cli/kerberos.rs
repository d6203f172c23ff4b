//! Kerberos for clients of a metadata server.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

/// RPCSEC_GSS (RFC 2203), which clients mount with `sec=krb5`, `krb5i` or `krb5p` where an export takes it.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Kerberos {
    /// Know clients by their tickets for a key of this keytab, nfs/HOST@REALM [default: no Kerberos]
    #[arg(long, value_name = "FILE")]
    pub(crate) kerberos_keytab: Option<PathBuf>,
    /// MIT Kerberos' GSS-API library [default: libgssapi_krb5.so.2, where the loader finds it]
    #[arg(long, value_name = "FILE", requires = "kerberos_keytab")]
    pub(crate) kerberos_library: Option<PathBuf>,
}

impl Kerberos {
    /// The same, for a server that `up` starts.
    ///
    /// # Errors
    /// A file whose name is not text.
    pub(crate) fn arguments(&self) -> Result<Vec<String>> {
        let files =
            [("--kerberos-keytab", &self.kerberos_keytab), ("--kerberos-library", &self.kerberos_library)];
        let mut arguments = Vec::new();
        for (option, file) in files.into_iter().filter_map(|(option, file)| Some((option, file.as_ref()?))) {
            // Servers are started in the same directory.
            let Some(file) = file.to_str() else { bail!("{} is not UTF-8", file.display()) };
            arguments.extend([option.to_owned(), file.to_owned()]);
        }
        Ok(arguments)
    }
}
