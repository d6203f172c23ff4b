//! Authorities, and what they sign.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use pkcs8::pkcs5::pbes2::Parameters;
use pkcs8::{LineEnding, PrivateKeyInfo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

const DAY: Duration = Duration::from_secs(24 * 3600);

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// The files of one side.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ca: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Writes a certificate for `name` that is good since yesterday, for so many days, and its key.
    pub(crate) fn sign(&self, dir: &Path, name: &str, days: u32) -> Side {
        fs::create_dir_all(dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let yesterday = SystemTime::now() - DAY;
        params.not_before = (yesterday - DAY).into();
        params.not_after = (yesterday + DAY * days).into();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        let made = params.signed_by(&key, &self.issuer).unwrap();
        let side = Side {
            certificate: dir.join(format!("{name}.pem")),
            key: dir.join(format!("{name}.key")),
            ca: dir.join(format!("{name}-ca.pem")),
        };
        fs::write(&side.certificate, made.pem()).unwrap();
        fs::write(&side.key, key.serialize_pem()).unwrap();
        fs::write(&side.ca, self.pem()).unwrap();
        side
    }
}

impl Side {
    /// Puts a password on the key.
    pub(crate) fn lock(&self, password: &str) {
        let key = KeyPair::from_pem(&fs::read_to_string(&self.key).unwrap()).unwrap().serialize_der();
        let parameters = Parameters::pbkdf2_sha256_aes256cbc(2048, &[7; 8], &[9; 16]).unwrap();
        let locked =
            PrivateKeyInfo::try_from(&key[..]).unwrap().encrypt_with_params(parameters, password).unwrap();
        fs::write(&self.key, locked.to_pem("ENCRYPTED PRIVATE KEY", LineEnding::LF).unwrap().as_bytes())
            .unwrap();
    }

    /// The options of `sluice` that name them.
    pub(crate) fn options(&self) -> Vec<String> {
        let files = [
            ("--fdb-tls-certificate", &self.certificate),
            ("--fdb-tls-key", &self.key),
            ("--fdb-tls-ca", &self.ca),
        ];
        files.into_iter().flat_map(|(option, file)| [option.to_owned(), text(file)]).collect()
    }

    /// The same as keys of a configuration file.
    pub(crate) fn keys(&self) -> String {
        let options = self.options();
        let lines =
            options.chunks(2).map(|pair| format!("{} = {:?}\n", pair[0].trim_start_matches('-'), pair[1]));
        lines.collect()
    }
}

pub(crate) fn text(file: &Path) -> String {
    file.to_str().unwrap().to_owned()
}
