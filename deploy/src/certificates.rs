//! The certificate of a server while it runs: it may be replaced under it.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use sluice_rpc::Tls;
use sluice_rpc::tls::{Files, Identity};

use crate::cli;
use crate::keys::{Look, look};

/// Between two looks at the files.
pub(crate) const LOOK: Duration = Duration::from_secs(10);
/// Whoever renews certificates by a program does so earlier.
const SOON: Duration = Duration::from_secs(7 * 24 * 3600);
/// Between two warnings.
const WARN: Duration = Duration::from_secs(24 * 3600);

/// Reads the certificate that is wanted, if one is.
///
/// # Errors
/// One line: options that do not go together, or a file that is not what it should be.
pub(crate) fn follow(options: &cli::Tls) -> Result<Option<Followed>> {
    let Some(mut followed) = read(options)? else { return Ok(None) };
    let (certificate, demand) = (followed.files.certificate.display(), followed.tls.demand());
    tracing::info!(%certificate, clients = ?demand, "TLS for clients");
    followed.warn(SystemTime::now());
    Ok(Some(followed))
}

/// Whether a start with these options would find what it needs.
///
/// # Errors
/// As [`follow`].
pub(crate) fn check(options: &cli::Tls) -> Result<()> {
    read(options).map(drop)
}

fn read(options: &cli::Tls) -> Result<Option<Followed>> {
    let Some((files, demand)) = options.wanted()? else { return Ok(None) };
    // Before they are read: what comes meanwhile is seen then.
    let seen = looks(&files);
    let identity = files.read()?;
    Ok(Some(Followed { tls: Tls::new(demand, &identity)?, files, seen, identity, warned: None }))
}

/// Files that were read, and may be looked at again.
#[derive(Debug)]
pub(crate) struct Followed {
    tls: Tls,
    files: Files,
    seen: Vec<Look>,
    identity: Identity,
    warned: Option<SystemTime>,
}

fn looks(files: &Files) -> Vec<Look> {
    files.all().map(look).collect()
}

impl Followed {
    pub(crate) fn tls(&self) -> Tls {
        self.tls.clone()
    }

    #[cfg(test)]
    pub(crate) fn is_good_for_long(&self) -> bool {
        !self.identity.is_outside_its_time(SystemTime::now() + SOON)
    }

    /// Looks at the files now and then, for ever.
    pub(crate) async fn on(mut self) {
        loop {
            tokio::time::sleep(LOOK).await;
            self.look();
        }
    }

    /// Shows what is there now, and warns of one that is good no longer.
    pub(crate) fn look(&mut self) {
        self.again();
        self.warn(SystemTime::now());
    }

    /// Whether another certificate is shown from now on.
    pub(crate) fn again(&mut self) -> bool {
        let seen = looks(&self.files);
        if seen == self.seen {
            return false;
        }
        self.seen = seen;
        let certificate = self.files.certificate.display();
        let read = self.files.read().and_then(|identity| self.tls.replace(&identity).map(|()| identity));
        match read {
            Ok(identity) => {
                tracing::info!(%certificate, "the certificate has been replaced");
                (self.identity, self.warned) = (identity, None);
                true
            }
            // A certificate is there before its key, or half of it: the next look is at both.
            Err(error) => {
                tracing::warn!(%certificate, "clients are shown the certificate of before: {error}");
                false
            }
        }
    }

    /// Clients mount nothing, and lose what they have mounted when they connect again, once it is no longer good.
    fn warn(&mut self, now: SystemTime) {
        if self.warned.is_some_and(|warned| now.duration_since(warned).is_ok_and(|since| since < WARN)) {
            return;
        }
        let certificate = self.files.certificate.display();
        if self.identity.is_outside_its_time(now) {
            tracing::error!(%certificate, "the certificate has expired, or is not good yet: clients refuse it; replace the files");
        } else if self.identity.is_outside_its_time(now + SOON) {
            tracing::warn!(%certificate, "the certificate expires within a week: replace the files");
        } else {
            return;
        }
        self.warned = Some(now);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// Puts a certificate that is good until so many days behind yesterday in place, or only one of the two files.
    pub(crate) fn put(dir: &Path, days: u32, names: &[&str]) {
        let day = Duration::from_secs(24 * 3600);
        let mut params = CertificateParams::default();
        params.not_before = (SystemTime::now() - 2 * day).into();
        params.not_after = (SystemTime::now() - day + days * day).into();
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        for name in names {
            let text = if *name == "pem" { certificate.clone() } else { key.serialize_pem() };
            // As whoever renews certificates does it: by a new file.
            fs::write(dir.join("new"), text).unwrap();
            fs::rename(dir.join("new"), dir.join(name)).unwrap();
        }
    }

    #[test]
    fn what_is_put_in_place_of_a_certificate_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        put(dir, 30, &["pem", "key"]);
        let mut options = cli::Tls {
            tls_certificate: Some(dir.join("pem")),
            tls_key: Some(dir.join("key")),
            ..cli::Tls::default()
        };
        let mut followed = follow(&options).unwrap().unwrap();
        let now = SystemTime::now();
        assert!(!followed.again() && followed.warned.is_none());
        put(dir, 4, &["pem", "key"]);
        assert!(followed.again() && !followed.again());
        followed.warn(now);
        assert_eq!(followed.warned, Some(now), "it expires soon");
        put(dir, 30, &["pem"]);
        assert!(!followed.again(), "a certificate without its key changes nothing");
        put(dir, 30, &["pem", "key"]);
        assert!(followed.again());
        followed.warn(now);
        assert_eq!(followed.warned, None);

        options.tls = Some(cli::What::Mutual);
        assert!(follow(&options).unwrap_err().to_string().contains("--tls-clients"));
        options.tls_key = None;
        assert!(follow(&options).unwrap_err().to_string().contains("--tls-key"));
        assert!(follow(&cli::Tls::default()).unwrap().is_none());
    }

    /// The kubelet writes a new directory beside the one of before, puts a link to that in place of `..data`, and removes the
    /// old one. What servers were told are links through `..data`, which stay.
    #[test]
    fn what_a_kubelet_puts_in_place_of_a_secret_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let replace = |version: &str, days: u32| {
            let before = fs::read_link(dir.join("..data")).ok();
            fs::create_dir(dir.join(version)).unwrap();
            put(&dir.join(version), days, &["pem", "key"]);
            symlink(version, dir.join("..data_tmp")).unwrap();
            fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
            if let Some(before) = before {
                fs::remove_dir_all(dir.join(before)).unwrap();
            }
        };
        replace("..2026_11_28", 4);
        for name in ["pem", "key"] {
            symlink(Path::new("..data").join(name), dir.join(name)).unwrap();
        }
        let options = cli::Tls {
            tls_certificate: Some(dir.join("pem")),
            tls_key: Some(dir.join("key")),
            ..cli::Tls::default()
        };
        let mut followed = follow(&options).unwrap().unwrap();
        assert!(!followed.again());
        replace("..2026_11_29", 30);
        assert!(followed.again() && !followed.again());
        assert!(!followed.identity.is_outside_its_time(SystemTime::now() + SOON), "the new one is shown");
    }
}
