//! A realm of its own: a key distribution centre on the servers' first address, with keys for the metadata server, for clients' hosts
//! and for users.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::guest::command::output;
use crate::guest::lab::server_address;
use crate::guest::process::Group;

const REALM: &str = "SLUICE.TEST";
/// The metadata server's name; guests put it into /etc/hosts.
const SERVER: &str = "nas.sluice.test";
/// A user whom every Debian host has, with the uid 5 and the group 60.
const USER: &str = "games";

/// Ends with the case.
#[derive(Debug)]
pub(super) struct Kerberos {
    dir: PathBuf,
    _centre: Group,
}

impl Kerberos {
    /// Makes the realm in a directory that guests see as /share/kerberos: krb5.conf for all, server.keytab, client.keytab, and
    /// user.keytab of the user, root.keytab of root.
    pub(super) fn make(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let (at, here) = (server_address(1), dir.display());
        fs::write(
            dir.join("krb5.conf"),
            format!(
                "[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n \
                 dns_canonicalize_hostname = false\n udp_preference_limit = 1\n[realms]\n {REALM} = {{\n  kdc = {at}:88\n }}\n\
                 [domain_realm]\n .sluice.test = {REALM}\n"
            ),
        )?;
        fs::write(
            dir.join("kdc.conf"),
            format!(
                "[kdcdefaults]\n kdc_listen = {at}:88\n kdc_tcp_listen = {at}:88\n[realms]\n {REALM} = {{\n  database_name = {here}/principal\n  \
                 key_stash_file = {here}/stash\n  acl_file = {here}/acl\n }}\n"
            ),
        )?;
        let command = |program: &str, words: &[&str]| {
            let mut command = Command::new(program);
            command
                .args(words)
                .env("KRB5_CONFIG", dir.join("krb5.conf"))
                .env("KRB5_KDC_PROFILE", dir.join("kdc.conf"));
            command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
            command
        };
        output(command("kdb5_util", &["create", "-s", "-r", REALM, "-P", "of no use"]))
            .context("a realm wants the packages krb5-kdc, krb5-admin-server and krb5-user")?;
        for (principal, keytab) in [
            (format!("nfs/{SERVER}"), "server.keytab"),
            ("host/client.sluice.test".to_owned(), "client.keytab"),
            (USER.to_owned(), "user.keytab"),
            ("root".to_owned(), "root.keytab"),
        ] {
            let keytab = dir.join(keytab);
            output(command("kadmin.local", &["-q", &format!("addprinc -randkey {principal}")]))?;
            output(command("kadmin.local", &["-q", &format!("ktadd -k {} {principal}", keytab.display())]))?;
        }
        let log = File::create(dir.join("krb5kdc.log"))?;
        let mut centre = command("krb5kdc", &["-n"]);
        centre.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(Self { dir: dir.to_owned(), _centre: Group::spawn(centre)? })
    }

    /// Where the servers see it.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}
