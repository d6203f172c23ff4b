//! Certificates for the lab's servers and for its clients.

use std::fs;
use std::path::Path;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};

use crate::guest::lab::{SERVERS, server_address};

/// An authority (`ca.pem`), the servers' certificate (`server.pem`, for all their addresses, and `server.key`), that of
/// clients, and one of a client that nobody knows (`stranger.pem`), in a directory that is made.
pub(super) fn make(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let authority = authority("Sluice test authority")?;
    fs::write(dir.join("ca.pem"), authority.1)?;
    let addresses: Vec<String> = (1..=SERVERS).map(server_address).collect();
    sign(dir, "server", &addresses, &authority.0)?;
    sign(dir, "client", &[], &authority.0)?;
    sign(dir, "stranger", &[], &self::authority("nobody")?.0)
}

fn authority(name: &str) -> Result<(Issuer<'static, KeyPair>, String)> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), pem))
}

fn sign(dir: &Path, name: &str, addresses: &[String], by: &Issuer<'_, KeyPair>) -> Result<()> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    let addresses = addresses.iter().map(|address| Ok(SanType::IpAddress(address.parse()?)));
    params.subject_alt_names = addresses.collect::<Result<_>>()?;
    let key = KeyPair::generate()?;
    fs::write(dir.join(format!("{name}.pem")), params.signed_by(&key, by)?.pem())?;
    fs::write(dir.join(format!("{name}.key")), key.serialize_pem())?;
    Ok(())
}
