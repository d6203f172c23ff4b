//! Hosts that exports have rules for by name: their addresses, looked up when a rule is made and every few minutes, and kept with the
//! rule, so that neither a restart nor a name service that is away changes who is let in.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use sluice_env::Monotonic;
use sluice_namespace::stable_storage::{ClientName, Export, Rule};
use tokio::task::JoinSet;

use super::Origin;
use super::callers::{AGAIN, FRESH};
use super::change::{Refusal, Rules, sound};
use super::lookups::{PATIENCE, silent};
use super::rules::Exported;
use super::table::Table;
use crate::server::Mds;

/// What is known of how hosts were looked up.
#[derive(Debug, Default)]
pub(crate) struct Hosts(Mutex<BTreeMap<String, News>>);

/// Of one host.
#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    /// When it was last asked for.
    pub(crate) asked: Monotonic,
    /// When that was last answered.
    pub(crate) told: Option<Monotonic>,
    pub(crate) trouble: Option<String>,
}

impl Hosts {
    pub(crate) fn of(&self, host: &str) -> Option<News> {
        self.0.lock().get(host).cloned()
    }

    /// Notes how a question ended.
    fn note(&self, host: &str, now: Monotonic, answer: &io::Result<Vec<IpAddr>>) {
        let mut all = self.0.lock();
        let news = all.entry(host.to_owned()).or_default();
        news.asked = now;
        let before = news.trouble.take();
        match answer {
            Ok(_) => news.told = Some(now),
            Err(error) => {
                news.trouble = Some(error.to_string());
                if before.is_none() {
                    tracing::warn!(
                        host,
                        %error,
                        "a host of an export cannot be looked up: it keeps the addresses that it had. Is the name service of this host up?"
                    );
                }
            }
        }
    }

    /// Whether it is time to ask for it.
    fn is_due(&self, host: &str, now: Monotonic) -> bool {
        let all = self.0.lock();
        let Some(news) = all.get(host) else { return true };
        now - news.asked >= if news.trouble.is_some() { AGAIN } else { FRESH }
    }

    fn forget_others(&self, hosts: &BTreeSet<String>) {
        self.0.lock().retain(|host, _| hosts.contains(host));
    }
}

/// Hosts that a table has rules for by name.
pub(crate) fn hosts(table: &Table) -> BTreeMap<String, Vec<IpAddr>> {
    let rules = table.all().flat_map(|export| &export.named);
    rules.filter_map(|rule| host(rule).map(|(name, known)| (name.clone(), known.clone()))).collect()
}

fn host(rule: &Rule<ClientName>) -> Option<(&String, &Vec<IpAddr>)> {
    match &rule.clients {
        ClientName::Host { name, addresses } => Some((name, addresses)),
        _ => None,
    }
}

impl Mds {
    /// Rules, with what must be known before they hold: addresses of hosts, that there are such netgroups, and of those who are at work
    /// who they are, where that matters. What the export has already stays as it is.
    ///
    /// # Errors
    /// There is no such host or netgroup, or nobody can tell.
    pub(super) async fn looked_up(
        self: &Arc<Self>,
        path: &[u8],
        Rules { networks, named }: Rules,
    ) -> Result<Rules, Refusal> {
        let table = self.exports.now();
        let export = table.all().find(|export| export.path == path);
        let known: Vec<&Rule<ClientName>> =
            export.map(|export| export.named.iter().collect()).unwrap_or_default();
        let known_host = |name: &str| {
            known.iter().find_map(|rule| host(rule).filter(|(known, _)| *known == name).map(|(_, all)| all))
        };
        let new = |rule: &Rule<ClientName>| {
            host(rule).map(|(name, _)| name).filter(|name| known_host(name).is_none()).cloned()
        };
        let mut found = self.addresses_of(named.iter().filter_map(new).collect()).await;
        let mut rules = Vec::with_capacity(named.len());
        for rule in named {
            let Some((name, _)) = host(&rule) else {
                rules.push(rule);
                continue;
            };
            let addresses = match (known_host(name), found.remove(name)) {
                (Some(known), _) => known.clone(),
                (None, Some(Ok(addresses))) if addresses.is_empty() => {
                    return Err(Refusal::NoHost(name.clone()));
                }
                (None, Some(Ok(addresses))) => addresses,
                (None, Some(Err(error))) => return Err(Refusal::Untold(name.clone(), error.to_string())),
                (None, None) => return Err(Refusal::Twice(name.clone())),
            };
            rules.push(rule.of(ClientName::Host { name: name.clone(), addresses }));
        }
        let mut netgroups = table.netgroups();
        let before = netgroups.len();
        for rule in &rules {
            if let ClientName::Netgroup(group) = &rule.clients
                && !netgroups.contains(group)
            {
                let told = self.lookups.netgroup(&self.env, group.clone()).await;
                told.map_err(|error| Refusal::NoNetgroup(group.clone(), error.to_string()))?;
                netgroups.insert(group.clone());
            }
        }
        let rules = Rules { networks, named: rules };
        let to_be = Exported::of(&rules);
        // Who is at work goes on without a pause, and is not taken for somebody else.
        if to_be.asks() {
            let is_settled = |from: &Origin| to_be.tells(from, table.version());
            self.ask_about_all(&netgroups, is_settled, netgroups.len() > before).await;
        }
        Ok(rules)
    }

    /// The addresses of hosts, as a name service has them now.
    async fn addresses_of(
        self: &Arc<Self>,
        hosts: BTreeSet<String>,
    ) -> BTreeMap<String, io::Result<Vec<IpAddr>>> {
        let mut questions = JoinSet::new();
        for host in hosts.clone() {
            let mds = Arc::clone(self);
            questions.spawn(async move {
                let answer = mds.lookups.addresses(&mds.env, host.clone()).await;
                (host, answer)
            });
        }
        let mut answers = BTreeMap::new();
        let gather = async {
            while let Some(answer) = questions.join_next().await {
                answers.extend(answer);
            }
        };
        // Those before them may have taken all turns for as long.
        let _ = self.env.clock.timeout(PATIENCE * 2, gather).await;
        for host in hosts {
            answers.entry(host).or_insert_with(|| Err(silent()));
        }
        let now = self.env.clock.now();
        answers.iter().for_each(|(host, answer)| self.hosts.note(host, now, answer));
        answers
    }

    /// Asks for hosts whose time has come.
    pub(super) async fn look_at_hosts(self: &Arc<Self>, table: &Table) {
        let (now, hosts) = (self.env.clock.now(), hosts(table));
        let all: BTreeSet<String> = hosts.into_keys().collect();
        self.hosts.forget_others(&all);
        let due: BTreeSet<String> = all.into_iter().filter(|host| self.hosts.is_due(host, now)).collect();
        self.look_up_hosts(due).await;
    }

    /// Looks everything up that exports have by name, now.
    pub(crate) async fn look_up_all(self: &Arc<Self>) {
        let table = self.exports.now();
        self.look_up_hosts(hosts(&table).into_keys().collect()).await;
        if table.asks() {
            self.ask_about_all(&table.netgroups(), |from| table.tells(from), true).await;
        }
    }

    async fn look_up_hosts(self: &Arc<Self>, hosts: BTreeSet<String>) {
        if hosts.is_empty() || !self.lookups.can() {
            return;
        }
        let answers = self.addresses_of(hosts).await;
        let found: BTreeMap<String, Vec<IpAddr>> =
            answers.into_iter().filter_map(|(host, answer)| Some((host, answer.ok()?))).collect();
        let mut doubtful = self.exports.changing.lock().await;
        if let Err(error) = self.moved_hosts(&found, &mut doubtful).await {
            tracing::warn!(
                %error,
                "hosts of exports may have other addresses, and the metadata store does not say what is written down of them: that holds once it does"
            );
        }
        self.settle_later(*doubtful);
    }

    /// Hosts that have other addresses now are let in from there, and not from where they were.
    async fn moved_hosts(
        self: &Arc<Self>,
        found: &BTreeMap<String, Vec<IpAddr>>,
        doubtful: &mut bool,
    ) -> Result<(), Refusal> {
        let before = self.as_stored(doubtful).await?;
        let mut moved = false;
        for export in before.all() {
            let mut row: Export = export.clone();
            for rule in &mut row.named {
                if let ClientName::Host { name, addresses } = &mut rule.clients
                    && let Some(now) = found.get(name).filter(|now| *now != addresses)
                {
                    tracing::info!(host = %name, before = ?addresses, ?now, "a host of an export has other addresses");
                    addresses.clone_from(now);
                }
            }
            if row.named == export.named {
                continue;
            }
            // It keeps those that it has.
            if let Err(error) = sound(&row) {
                tracing::warn!(export = row.id, %error, "hosts of an export have other addresses, and they are too many");
                continue;
            }
            (*doubtful, moved) = (true, true);
            self.store(Some(&row), row.id).await?;
        }
        if moved {
            self.reload(&before).await?;
            *doubtful = false;
        }
        Ok(())
    }
}
