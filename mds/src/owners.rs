//! Owners by name, as clients send them: `name@domain` (RFC 8881 §5.9). Linux does so with `sec=krb5`, and with
//! `nfs4_disable_idmapping=N`. The names are those of this host's accounts. What is kept is numbers; [`told`] says what is told.

mod told;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use sluice_env::Env;
use sluice_rpc::Sparing;
use sluice_xdr::nfs4::*;

use crate::accounts::{Accounts, Answers, PATIENCE, Question, Unknown};
use crate::attr::get::numeric;
pub use told::TellNames;
pub(crate) use told::{Numbered, whose};

/// Whose names clients may use.
#[derive(Clone, Debug)]
pub struct Owners {
    /// What stands behind the @, in any case.
    pub domain: String,
    pub accounts: Arc<dyn Accounts>,
    /// Who is told them.
    pub tell: TellNames,
}

/// Longest name that is asked for: what a name of a user may have on Linux (LOGIN_NAME_MAX).
const LONGEST: usize = 255;

/// Attributes that may hold names.
const NAMED: bitmap4 = bitmap4::of(&[FATTR4_OWNER, FATTR4_OWNER_GROUP, FATTR4_ACL, FATTR4_DACL]);

/// Whose number is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Named {
    User(Arc<str>),
    Group(Arc<str>),
}

impl Question for Named {
    type Answer = u32;
    /// With the longest names 8 MB.
    const MOST: usize = 1 << 14;

    fn ask(&self, accounts: &dyn Accounts) -> io::Result<Option<u32>> {
        match self {
            Self::User(name) => accounts.user(name),
            Self::Group(name) => accounts.group(name),
        }
    }

    fn unanswered(&self, error: &io::Error, known: bool) {
        tracing::warn!(
            name = ?self,
            %error,
            known,
            "this host cannot tell whose name this is: a client that names an owner so waits. Is its directory service up?"
        );
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Names {
    /// `None`: numbers alone are taken.
    host: Option<Host>,
    /// Names that were refused, for the log.
    refused: Sparing,
}

#[derive(Debug)]
struct Host {
    domain: String,
    answers: Arc<Answers<Named>>,
    tell: TellNames,
    told: Arc<Answers<Numbered>>,
}

impl Names {
    pub(crate) fn new(owners: Option<Owners>) -> Self {
        let host = |Owners { domain, accounts, tell }| Host {
            domain,
            answers: Answers::new(Arc::clone(&accounts)),
            tell,
            told: Answers::new(accounts),
        };
        Self { host: owners.map(host), refused: Sparing::default() }
    }

    /// `given`, which came from there, with the numbers of whom it names. What is no name at all stays, for whoever reads it to judge.
    ///
    /// # Errors
    /// BADOWNER for a name of another domain, or that nobody here has; DELAY while it cannot be told.
    pub(crate) async fn numbered(&self, env: &Env, from: IpAddr, given: &fattr4) -> Result<fattr4, nfsstat4> {
        if given.attrmask.and(NAMED).is_empty() {
            return Ok(given.clone());
        }
        // However many it has: those that were told by then are known when the client comes again.
        let told = env.clock.timeout(PATIENCE, Box::pin(self.replace(env, from, given))).await;
        told.unwrap_or(Err(nfsstat4::NFS4ERR_DELAY))
    }

    async fn replace(&self, env: &Env, from: IpAddr, given: &fattr4) -> Result<fattr4, nfsstat4> {
        // What cannot be read has no names.
        let Ok(mut values) = Attributes::decode(given) else { return Ok(given.clone()) };
        if let Some(owner) = &mut values.owner {
            self.number((env, from), owner, false).await?;
        }
        if let Some(group) = &mut values.owner_group {
            self.number((env, from), group, true).await?;
        }
        let dacl = values.dacl.iter_mut().flat_map(|dacl| &mut dacl.na41_aces);
        for ace in values.acl.iter_mut().flatten().chain(dacl) {
            let by_group = ace.flag & ACE4_IDENTIFIER_GROUP != 0;
            self.number((env, from), &mut ace.who, by_group).await?;
        }
        values.encode(&given.attrmask).map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)
    }

    /// Puts the number of whom `text` names in its place.
    async fn number(
        &self,
        (env, from): (&Env, IpAddr),
        text: &mut Bytes,
        by_group: bool,
    ) -> Result<(), nfsstat4> {
        let Some((name, domain)) = parts(text) else { return Ok(()) };
        let Some(host) = &self.host else {
            return Err(self.refuse(env, text, "only numbers are taken; --owner-domain has names taken"));
        };
        if !domain.eq_ignore_ascii_case(&host.domain) {
            return Err(self.refuse(
                env,
                text,
                "it is of another domain; what is Domain in idmapd.conf there?",
            ));
        }
        if !is_askable(name) {
            return Err(self.refuse(env, text, "nobody can have it"));
        }
        let named = if by_group { Named::Group(name.into()) } else { Named::User(name.into()) };
        match host.answers.get(env, from, &named).await {
            Ok(Some(id)) => *text = numeric(id),
            Ok(None) => return Err(self.refuse(env, text, "nobody has it on this host")),
            Err(Unknown) => return Err(nfsstat4::NFS4ERR_DELAY),
        }
        Ok(())
    }

    fn refuse(&self, env: &Env, text: &Bytes, why: &str) -> nfsstat4 {
        if let Some(unsaid) = self.refused.says(env.clock.now()) {
            let name = String::from_utf8_lossy(text);
            let domain = self.host.as_ref().map(|host| host.domain.as_str());
            tracing::warn!(?name, domain, unsaid, "a client's name of an owner is refused: {why}");
        }
        nfsstat4::NFS4ERR_BADOWNER
    }
}

/// Name and domain. `None`: it is a number, or special (§6.2.1.5), or nothing at all.
fn parts(text: &[u8]) -> Option<(&str, &str)> {
    // Names of some directory services have an @ of their own.
    let (name, domain) = std::str::from_utf8(text).ok()?.rsplit_once('@')?;
    (!name.is_empty() && !domain.is_empty()).then_some((name, domain))
}

/// Whether an account may have that name: nobody is asked about what could mean something else to a directory service's files.
fn is_askable(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len()) && !name.contains(|c: char| c.is_control() || c == ':')
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Has users of all names that begin with "u", with their length for a number.
    #[derive(Debug, Default)]
    struct Directory {
        asked: AtomicUsize,
    }

    impl Accounts for Directory {
        fn groups(&self, _: u32) -> io::Result<Option<Vec<u32>>> {
            Ok(None)
        }

        fn user(&self, name: &str) -> io::Result<Option<u32>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Ok(name.starts_with('u').then(|| u32::try_from(name.len()).unwrap()))
        }

        fn group(&self, _: &str) -> io::Result<Option<u32>> {
            Ok(None)
        }

        fn name_of_user(&self, _: u32) -> io::Result<Option<String>> {
            Ok(None)
        }

        fn name_of_group(&self, _: u32) -> io::Result<Option<String>> {
            Ok(None)
        }
    }

    fn host() -> (Arc<Directory>, Names, Env) {
        let directory = Arc::new(Directory::default());
        let accounts: Arc<dyn Accounts> = Arc::clone(&directory) as _;
        let names =
            Names::new(Some(Owners { domain: "example.com".to_owned(), accounts, tell: TellNames::Nobody }));
        (directory, names, Env::simulated(1))
    }

    async fn of((_, names, env): &(Arc<Directory>, Names, Env), name: &str) -> Result<String, nfsstat4> {
        let mut text = Bytes::copy_from_slice(name.as_bytes());
        names.number((env, HERE), &mut text, false).await?;
        Ok(String::from_utf8(text.to_vec()).unwrap())
    }

    #[test]
    fn a_name_ends_at_the_last_at_and_what_has_no_domain_is_none() {
        assert_eq!(parts(b"a@b.c"), Some(("a", "b.c")));
        assert_eq!(parts(b"a@ad@b.c"), Some(("a@ad", "b.c")));
        for none in [&b"7"[..], b"fred", b"OWNER@", b"@b.c", b"@", b"", b"\xff@b.c"] {
            assert_eq!(parts(none), None, "{none:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_asked_for_once_in_a_while_and_what_nobody_can_have_never() {
        let world = host();
        for _ in 0..3 {
            assert_eq!(of(&world, "uma@Example.COM").await, Ok("3".to_owned()));
        }
        assert_eq!(world.0.asked.load(Ordering::Relaxed), 1);
        let long = format!("{}@example.com", "u".repeat(LONGEST + 1));
        for bad in [&long[..], "u:x@example.com", "u\n@example.com", "u\0@example.com", "uma@example.org"] {
            assert_eq!(of(&world, bad).await, Err(nfsstat4::NFS4ERR_BADOWNER), "{bad:?}");
        }
        assert_eq!(world.0.asked.load(Ordering::Relaxed), 1);
        world.2.clock.sleep(Duration::from_secs(301)).await;
        assert_eq!(of(&world, "uma@example.com").await, Ok("3".to_owned()));
        assert_eq!(world.0.asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_there_are_not_do_not_fill_the_memory() {
        let world = host();
        of(&world, "uma@example.com").await.unwrap();
        for n in 0..Named::MOST {
            assert_eq!(of(&world, &format!("x{n}@example.com")).await, Err(nfsstat4::NFS4ERR_BADOWNER));
        }
        let known = world.1.host.as_ref().unwrap().answers.count();
        assert!(known <= Named::MOST, "{known}");
        let asked = world.0.asked.load(Ordering::Relaxed);
        assert_eq!(of(&world, "uma@example.com").await, Ok("3".to_owned()));
        assert_eq!(world.0.asked.load(Ordering::Relaxed), asked, "who is known is remembered");
    }
}
