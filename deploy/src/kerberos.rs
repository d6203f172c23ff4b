//! Kerberos: the keytab of this host, and its users.

use std::ffi::CString;
use std::io;
use std::sync::Arc;

use anyhow::Result;
use nix::unistd::{Gid, User, getgrouplist};
use sluice_env::Env;
use sluice_krb5::Krb5;
use sluice_rpc::{AuthSys, Gss};

use crate::cli;

/// Who knows clients by their tickets, if that is wanted.
///
/// # Errors
/// There is no library, or no key.
pub(crate) fn begin(env: &Env, options: &cli::Kerberos) -> Result<Option<Arc<Gss>>> {
    Ok(open(options)?.map(|krb5| Gss::new(env.clone(), Arc::new(krb5))))
}

/// Whether a start with these options would find what it needs.
///
/// # Errors
/// As [`begin`].
pub(crate) fn check(options: &cli::Kerberos) -> Result<()> {
    open(options).map(drop)
}

fn open(options: &cli::Kerberos) -> Result<Option<Krb5>> {
    let Some(keytab) = &options.kerberos_keytab else { return Ok(None) };
    Ok(Some(Krb5::open(keytab, options.kerberos_library.as_deref(), Arc::new(user))?))
}

/// The user of this host of that name, and his groups.
fn user(name: &str) -> io::Result<Option<AuthSys>> {
    let Some(user) = User::from_name(name)? else { return Ok(None) };
    let groups = getgrouplist(&CString::new(user.name)?, user.gid)?;
    let gids = groups.into_iter().map(Gid::as_raw).collect();
    Ok(Some(AuthSys { uid: user.uid.as_raw(), gid: user.gid.as_raw(), gids, ..AuthSys::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_user_of_this_host_or_nobody() {
        let root = user("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid, root.gids.contains(&0)), (0, 0, true));
        assert!(user("nobody-has-this-name").unwrap().is_none());
    }
}
