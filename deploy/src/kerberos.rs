//! Kerberos: the keytab of this host, and its users.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nix::unistd::User;
use sluice_env::Env;
use sluice_krb5::Krb5;
use sluice_rpc::{AuthSys, Gss};
use tokio::sync::Semaphore;

use crate::{accounts, cli, memory};

/// Contexts at most, where there is memory for them: one for each user of each host.
const CONTEXTS: u64 = 1 << 16;
/// Bytes that one takes, with what an Active Directory puts into tickets.
const CONTEXT: u64 = 16 << 10;
/// How long somebody who shows a ticket waits for a directory service.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions to it that may be open at once; beyond it nobody is asked.
const OPEN: usize = 16;

/// Clients are known by their tickets.
#[derive(Debug)]
pub(crate) struct Tickets {
    pub(crate) gss: Arc<Gss>,
    /// Of this server's key.
    pub(crate) realm: Option<String>,
}

/// Who knows clients by their tickets, if that is wanted.
///
/// # Errors
/// There is no library, or no key.
pub(crate) fn begin(env: &Env, options: &cli::Kerberos) -> Result<Option<Tickets>> {
    Ok(open(options)?.map(|krb5| Tickets {
        realm: krb5.realm(),
        gss: Gss::new(env.clone(), Arc::new(krb5), contexts(memory::limit())),
    }))
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
    let users = |name: &str| soon(name, PATIENCE, user);
    Ok(Some(Krb5::open(keytab, options.kerberos_library.as_deref(), Arc::new(users))?))
}

/// In an eighth of the memory that there is.
fn contexts(memory: Option<u64>) -> usize {
    let most = memory.map_or(CONTEXTS, |memory| (memory / 8 / CONTEXT).min(CONTEXTS));
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// What `ask` says of a name, or that it takes too long: a directory service that is away may not answer for minutes, and others with
/// tickets wait.
fn soon(
    name: &str,
    patience: Duration,
    ask: fn(&str) -> io::Result<Option<AuthSys>>,
) -> io::Result<Option<AuthSys>> {
    static ASKING: Semaphore = Semaphore::const_new(OPEN);
    let silent =
        || io::Error::new(io::ErrorKind::TimedOut, "the directory service of this host does not answer");
    let Ok(turn) = ASKING.try_acquire() else { return Err(silent()) };
    let (answer, told) = mpsc::channel();
    let name = name.to_owned();
    thread::Builder::new().name("user".to_owned()).spawn(move || {
        let _turn = turn;
        // Nobody may wait any more.
        let _ = answer.send(ask(&name));
    })?;
    told.recv_timeout(patience).unwrap_or_else(|_| Err(silent()))
}

/// The user of this host of that name, and his groups.
fn user(name: &str) -> io::Result<Option<AuthSys>> {
    let Some(user) = User::from_name(name)? else { return Ok(None) };
    let (uid, gid, gids) = (user.uid.as_raw(), user.gid.as_raw(), accounts::groups(&user)?);
    Ok(Some(AuthSys { uid, gid, gids, ..AuthSys::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_service_that_does_not_answer_is_not_waited_for() {
        const PATIENCE: Duration = Duration::from_millis(500);
        let never = |_: &str| {
            thread::sleep(Duration::from_secs(3600));
            Ok(None)
        };
        let silent =
            |asked: io::Result<Option<AuthSys>>| asked.unwrap_err().kind() == io::ErrorKind::TimedOut;
        let waiting: Vec<_> =
            (0..OPEN).map(|_| thread::spawn(move || soon("alice", PATIENCE, never))).collect();
        assert!(waiting.into_iter().all(|waiter| silent(waiter.join().unwrap())));
        // They are asking still, and nobody is asked beside them.
        assert!(silent(soon("root", Duration::from_secs(3600), user)));
    }

    #[test]
    fn a_server_with_little_memory_keeps_few_contexts() {
        assert_eq!(
            [contexts(None), contexts(Some(64 << 30)), contexts(Some(1 << 30))],
            [65_536, 65_536, 8192]
        );
    }

    #[test]
    fn a_name_is_a_user_of_this_host_or_nobody() {
        let root = user("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid, root.gids.contains(&0)), (0, 0, true));
        assert!(user("nobody-has-this-name").unwrap().is_none());
    }
}
