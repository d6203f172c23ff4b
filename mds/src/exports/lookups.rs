//! What the name service of this host is asked: off the threads that serve, few questions at a time, and not for ever.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::Env;
use sluice_namespace::stable_storage::{ClientName, host_name};
use tokio::sync::Semaphore;

use super::rules::same;

/// How long an answer is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// And a turn for it.
const TURN: Duration = Duration::from_secs(60);
/// Questions at once: each takes a thread for as long as a name service takes.
const AT_ONCE: usize = 16;

/// The name service of this host. All of it may block for long.
pub trait Resolver: Debug + Send + Sync {
    /// All addresses of a host; none if there is no such host.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>>;

    /// What the owner of an address calls it, true or not; `None` if he does not call it anything.
    ///
    /// # Errors
    /// If it cannot be known now.
    fn name(&self, address: IpAddr) -> io::Result<Option<String>>;

    /// Whether a netgroup has a host: a name, or an address as text.
    ///
    /// # Errors
    /// If it cannot be known now, or there is no such netgroup.
    fn is_in(&self, netgroup: &str, host: &str) -> io::Result<bool>;
}

/// Who asks it.
#[derive(Debug)]
pub(crate) struct Lookups {
    resolver: Option<Arc<dyn Resolver>>,
    turns: Arc<Semaphore>,
}

/// What is known of a caller.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) name: Option<String>,
    pub(super) netgroups: BTreeMap<String, io::Result<bool>>,
}

impl Lookups {
    pub(crate) fn new(resolver: Option<Arc<dyn Resolver>>) -> Self {
        Self { resolver, turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Whether there is anybody to ask.
    pub(crate) fn can(&self) -> bool {
        self.resolver.is_some()
    }

    /// The addresses of a host, in order; none if there is no such host.
    ///
    /// # Errors
    /// It cannot be known now, or there are more than one host has.
    pub(super) async fn addresses(&self, env: &Env, host: String) -> io::Result<Vec<IpAddr>> {
        let found = self.ask(env, move |resolver| resolver.addresses(&host)).await?;
        let mut found: Vec<IpAddr> = found.into_iter().map(|address| address.to_canonical()).collect();
        found.sort_unstable();
        found.dedup();
        if found.len() > ClientName::ADDRESSES {
            return Err(io::Error::other(format!(
                "it has {} addresses, and an export takes {} of one host",
                found.len(),
                ClientName::ADDRESSES
            )));
        }
        Ok(found)
    }

    /// Who calls from an address, and in which of these netgroups that is.
    ///
    /// # Errors
    /// It cannot be known now.
    pub(super) async fn caller(
        &self,
        env: &Env,
        address: IpAddr,
        netgroups: Vec<String>,
    ) -> io::Result<Told> {
        self.ask(env, move |resolver| caller(resolver, address, netgroups)).await
    }

    /// That there is such a netgroup.
    ///
    /// # Errors
    /// There is none, or it cannot be known now.
    pub(super) async fn netgroup(&self, env: &Env, netgroup: String) -> io::Result<()> {
        // A name that no host has (RFC 6761 §6.4).
        self.ask(env, move |resolver| resolver.is_in(&netgroup, "sluice.invalid").map(drop)).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        env: &Env,
        question: impl FnOnce(&dyn Resolver) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let Some(resolver) = self.resolver.clone() else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "this server asks no name service"));
        };
        // Where every turn hangs, that is an answer, too.
        let turn = env.clock.timeout(TURN, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(silent()) };
        let place = Arc::new(Mutex::new(None));
        let answer = Arc::clone(&place);
        let work = env.spawn.blocking(Box::new(move || {
            *answer.lock() = Some(question(&*resolver));
            // Not before: nobody can stop it, and whoever waits may have gone.
            drop(turn);
        }));
        // Nobody looks at what comes later.
        let _ = env.clock.timeout(PATIENCE, work).await;
        let told = place.lock().take();
        told.unwrap_or_else(|| Err(silent()))
    }
}

/// Why nothing is known.
pub(super) fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the name service does not answer")
}

/// The owner of an address may call it what he likes: it has a name if the name has it.
fn caller(resolver: &dyn Resolver, address: IpAddr, netgroups: Vec<String>) -> io::Result<Told> {
    let mut name = None;
    if let Some(claimed) = resolver.name(address)? {
        // An address is no name: it would have itself.
        if let Some(claimed) = host_name(&claimed) {
            if resolver.addresses(&claimed)?.into_iter().any(|own| same(own, address)) {
                name = Some(claimed);
            } else {
                tracing::debug!(%address, claimed, "the name of a client does not have its address: it is not believed");
            }
        }
    }
    let is_in = |group: &str| -> io::Result<bool> {
        if let Some(name) = &name
            && resolver.is_in(group, name)?
        {
            return Ok(true);
        }
        resolver.is_in(group, &address.to_string())
    };
    let netgroups = netgroups.into_iter().map(|group| (is_in(&group), group)).map(|(is, group)| (group, is));
    let netgroups = netgroups.collect();
    Ok(Told { name, netgroups })
}
