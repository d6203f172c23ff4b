//! `sluice mds`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use sluice_env::Env;
use sluice_kv::Database;
use sluice_mds::{
    Config, Delegations, Limits as Held, Mds, Names, Network, Owners, Protection, Rule, Squash, TellNames,
};
use sluice_namespace::LayoutPolicy;
use sluice_rpc::{Keyring, Limits, Listener, Server, Share, Tcp, Tls, Transport};
use tokio::sync::Notify;

use crate::accounts::Host;
use crate::kerberos::Tickets;
use crate::metrics::mds::{MdsSource, Waiting};
use crate::store::Place;
use crate::{
    certificates, cli, descriptors, kerberos, keys, logs, memory, metrics, ports, resolver, stop, supervised,
};

/// How long calls in flight may take when the server is asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Memory for metadata unless it is given: at least what other users of a store get by default, and at most what is of use to
/// some forty million files.
const CACHE: RangeInclusive<u64> = 320 << 20..=24 << 30;

pub(crate) async fn run(options: cli::Mds) -> Result<()> {
    logs::start();
    descriptors::raise();
    let env = Env::system();
    let mut keys = keys::follow(&key_file(&options))?;
    let mut certificate = certificates::follow(&options.tls)?;
    let tickets = kerberos::begin(&env, &options.kerberos)?;
    let realm = tickets.as_ref().and_then(|tickets| tickets.realm.as_deref());
    let owners = owners(options.tuning.owner_domain.as_deref(), realm, options.tuning.tell_names)?;
    let transport: Arc<dyn Transport> = Arc::new(Tcp);
    let cache = cache(options.tuning.metadata_cache, memory::limit());
    let waits = Arc::new(Notify::new());
    let standby = options.standby.then(|| Arc::clone(&waits));
    let place = Place::new(&options.data_dir, &options.store).standby(standby).cache(cache);
    // All that an administrator may have to put right is looked at before the store is taken over, which costs clients a
    // reclaim of what they hold.
    look(&place, &options)?;
    let scraped = metrics::bind(options.metrics)?;
    // A port that is taken shows now, not when the one that had the file system is gone.
    ports::free("--listen", options.listen)?;
    let source = Arc::new(Waiting::default());
    if let Some(listener) = scraped {
        metrics::serve(listener, Arc::clone(&source) as Arc<dyn metrics::Source>)?;
    }
    let waits_for = if options.standby {
        "standby: until no other metadata server has the file system"
    } else {
        "opening the metadata store"
    };
    let opened = supervised::patiently(waits_for, waits.notified(), place.await_open(&env));
    let db = meanwhile(opened, &mut keys, certificate.as_mut()).await?;
    let tls = certificate.as_ref().map(certificates::Followed::tls);
    if let Some(certificate) = certificate {
        tokio::spawn(certificate.on());
    }
    let trust = Trust { keys: keys.ring(), tls, tickets, owners };
    let begun = begin(&env, &transport, &place, &db, &options, trust).await;
    let server = match begun {
        Ok((mds, server)) => {
            source.serves(MdsSource { mds, server: Arc::clone(&server) });
            let accepting = Arc::clone(&server);
            tokio::spawn(keys.on(move || accepting.close_strangers()));
            server
        }
        Err(error) => {
            // Another one may be able to: it does not wait until this one has been silent for long, which, started again
            // each second, it never is.
            if let Err(error) = db.close().await {
                tracing::warn!(%error, "the metadata store is not closed");
            }
            return Err(error);
        }
    };
    supervised::ready();
    let why = tokio::select! {
        why = stop::requested(options.child.stop_with_stdin) => why?,
        () = db.taken_over() => bail!("another metadata server has taken over this file system"),
        error = db.failed() => bail!(
            "{}: {error}; free space there, or look at the device, and start this server again",
            place.name()
        ),
    };
    tracing::info!(why, "metadata server stopping");
    supervised::stopping();
    server.shutdown(DRAIN).await;
    db.close().await?;
    Ok(())
}

/// What `wait` comes to. A standby waits for months: what has been put in place of its keys and its certificate by then is in
/// force before it serves anybody.
async fn meanwhile<T>(
    wait: impl Future<Output = T>,
    keys: &mut keys::Followed,
    mut certificate: Option<&mut certificates::Followed>,
) -> T {
    let mut wait = pin!(wait);
    loop {
        let outcome = tokio::time::timeout(certificates::LOOK, &mut wait).await;
        // Nobody is connected yet who would have to be told.
        keys.again();
        if let Some(certificate) = &mut certificate {
            certificate.look();
        }
        if let Ok(outcome) = outcome {
            return outcome;
        }
    }
}

/// By what callers are known, and those whom they name.
struct Trust {
    keys: Keyring,
    tls: Option<Tls>,
    tickets: Option<Tickets>,
    owners: Option<Owners>,
}

/// Begins to serve the file system in `db`.
async fn begin(
    env: &Env,
    transport: &Arc<dyn Transport>,
    place: &Place,
    db: &Database,
    options: &cli::Mds,
    Trust { keys, tls, tickets, owners }: Trust,
) -> Result<(Arc<Mds>, Arc<Server>)> {
    place.check_room(env, db).await?;
    look_inside(place, db, options).await?;
    let listener = listen(&**transport, options).await?;
    // Who does not let clients speak in clear does not pass on what they said so.
    let sealed = tls.as_ref().map(|_| keys.clone());
    if let Some(Owners { domain, tell, .. }) = &owners {
        tracing::info!(domain, told = ?tell, "clients may name owners by this host's accounts");
    }
    let (kerberos, protection) = (tickets.is_some(), protection(tls.as_ref()));
    let config = Config { sealed, kerberos, protection, owners, ..config(&options.tuning) };
    let mds = Mds::start(env.clone(), Arc::clone(transport), db.clone(), config).await?;
    let most = env.process.descriptors().most;
    let limits = limits(memory::limit()).within(most, DESCRIPTORS.min(most / 2));
    let server = Server::new(env.clone(), Arc::clone(transport), limits, mds.plain_programs());
    let server =
        server.with_secure(keys, mds.secure_programs()).with_monitors(mds.monitor_programs()).with_tls(tls);
    let server = server.with_gss(tickets.map(|tickets| tickets.gss));
    let server = Arc::new(server);
    tracing::info!(listen = %listener.local_addr(), data = %options.data_dir.display(), "metadata server ready");
    tell_exports(&mds, options, protection);
    env.spawn.spawn(Box::pin(Arc::clone(&server).serve(listener)));
    Ok((mds, server))
}

/// What calls may hold, in a quarter of the memory that there is at most.
fn limits(memory: Option<u64>) -> Limits {
    let part = |of: u64| memory.map_or(usize::MAX, |all| usize::try_from(all / of).unwrap_or(usize::MAX));
    let usual = Limits::default();
    let less = |share: Share, most: usize| Share::fixed(share.base.min(most.max(LEAST_SHARE)));
    Limits {
        server_budget: less(usual.server_budget, part(4)),
        // Twice that, where peers owe replies.
        arriving: less(usual.arriving, part(32)),
        ..usual
    }
}

/// Descriptors for what is not a connection: the store, which fails for good where it cannot open a table, has up to a thousand.
const DESCRIPTORS: u64 = 1536;

/// Room for some dozens of the largest calls, whatever memory there is.
const LEAST_SHARE: usize = 64 << 20;

async fn listen(transport: &dyn Transport, options: &cli::Mds) -> Result<Box<dyn Listener>> {
    let listener = transport.listen(options.listen).await;
    listener.map_err(|error| anyhow!(ports::explain("--listen", options.listen, &error)))
}

/// Nobody asks a unit's first start whether it may make a file system, and a device that is not mounted looks like one. So
/// it says what it does, but to `up`, which remembers whether there was one.
fn look(place: &Place, options: &cli::Mds) -> Result<()> {
    options.store.fits(options.standby)?;
    let told = [options.key.as_deref(), options.config.as_deref()];
    place.check_found(options.existing, &told).map(drop)
}

/// The same of what is in the store: a name in a cluster may be mistyped, and a first start may have ended too early.
async fn look_inside(place: &Place, db: &Database, options: &cli::Mds) -> Result<()> {
    if !place.has_file_system(db, options.existing).await? && !options.child.stop_with_stdin {
        tracing::warn!(
            place = place.name(),
            "there is no metadata: a new file system is made. If there was one, stop this server: is the device mounted, or the name another one? Else say --existing (key `existing`) from now on"
        );
    }
    Ok(())
}

/// Bytes of memory for metadata: what is `given` in MiB, or a share of what this process may use.
fn cache(given: Option<u32>, memory: Option<u64>) -> u64 {
    match given {
        Some(mib) => u64::from(mib) << 20,
        None => (memory.unwrap_or(0) / 16 * 3).clamp(*CACHE.start(), *CACHE.end()),
    }
}

/// Bytes of replies that clients may have this server keep for them together. A Linux client asks for half a MiB, and uses
/// little of it.
fn replies(memory: Option<u64>) -> u64 {
    (memory.unwrap_or(0) / 4).max(Held::default().replies)
}

fn key_file(options: &cli::Mds) -> PathBuf {
    options.key.clone().unwrap_or_else(|| options.data_dir.join("cluster.key"))
}

/// Whether a start with these options would find what it needs.
pub(crate) fn check(options: &cli::Mds) -> Result<()> {
    options.store.fits(options.standby)?;
    options.store.check()?;
    keys::read(&key_file(options))?;
    certificates::check(&options.tls)?;
    kerberos::check(&options.kerberos)
}

/// How long clients have to give back what is recalled.
fn recall_timeout(lease: Duration) -> Duration {
    // Leases may be short; flushing what a layout was written under takes a busy client as long as ever, and to lose one layout
    // costs Linux all that it has.
    (lease / 3).max(Duration::from_secs(10))
}

fn config(tuning: &cli::Tuning) -> Config {
    let lease = Duration::from_secs(tuning.lease.into());
    Config {
        lease,
        recall_timeout: recall_timeout(lease),
        rebuild_after: Duration::from_secs(tuning.rebuild_after.into()),
        root_export: root_export(tuning),
        delegations: match tuning.delegations {
            cli::Delegations::Off => Delegations::Off,
            cli::Delegations::Read => Delegations::Read,
            cli::Delegations::Write => Delegations::ReadWrite,
            cli::Delegations::Times => Delegations::Times,
        },
        delegation_quiet: Duration::from_secs(tuning.delegation_quiet.into()),
        names: match tuning.names {
            cli::Names::Any => Names::Any,
            cli::Names::Utf8 => Names::Utf8,
        },
        accounts: match tuning.groups {
            cli::Groups::Client => None,
            cli::Groups::Host => Some(Arc::new(Host)),
        },
        resolver: Some(Arc::new(resolver::Host)),
        layouts: !tuning.no_layouts,
        policy: LayoutPolicy {
            inline: tuning.inline,
            mirrors: tuning.mirrors,
            ..LayoutPolicy::OF_NEW_FILE_SYSTEMS
        },
        limits: Held { replies: replies(memory::limit()), ..Held::default() },
        version: crate::VERSION.to_owned(),
        ..Config::default()
    }
}

/// Whose names clients may use: of the domain that is `given`, or, where tickets are taken, of the realm as it is customary.
fn owners(given: Option<&str>, realm: Option<&str>, tell: cli::TellNames) -> Result<Option<Owners>> {
    let tell = match tell {
        cli::TellNames::Nobody => TellNames::Nobody,
        cli::TellNames::Tickets => TellNames::Tickets,
        cli::TellNames::Everybody => TellNames::Everybody,
    };
    let domain = given.map(str::to_owned).or_else(|| realm.map(str::to_ascii_lowercase));
    let owners = domain.map(|domain| Owners { domain, accounts: Arc::new(Host), tell });
    if owners.is_none() && tell != TellNames::Nobody {
        bail!(
            "owners cannot be told by name (--tell-names) without a domain that the names are of: say --owner-domain, as Domain in clients' idmapd.conf"
        );
    }
    Ok(owners)
}

/// Says who may mount what: an administrator whose clients are refused looks here first.
fn tell_exports(mds: &Mds, options: &cli::Mds, protection: Protection) {
    let exports = mds.exports();
    for export in exports.iter().filter(|export| export.wants > protection) {
        let needed = match (protection, export.wants) {
            (Protection::None, Protection::Mutual) => "--tls-certificate, --tls-key and --tls-clients",
            (Protection::None, _) => "--tls-certificate and --tls-key",
            _ => "--tls-clients",
        };
        tracing::error!(
            path = export.path,
            needed,
            "this export wants more of connections (`--xprtsec`) than this server was started to give: these clients are refused"
        );
    }
    for export in &exports {
        let networks = export.rules.iter().map(|rule| rule.clients.to_string());
        let all: Vec<String> = networks.chain(export.names.iter().cloned()).collect();
        let to = if all.is_empty() { "nobody".to_owned() } else { all.join(" ") };
        tracing::info!(path = export.path, to, "exported");
    }
    if exports.iter().all(|export| export.rules.is_empty() && export.names.is_empty()) {
        tracing::warn!(
            "nobody may mount anything, not even this host: `sluice export add / --client NETWORK`"
        );
        return;
    }
    let loopback = |rule: &Rule| Network::LOOPBACK.iter().any(|own| own.covers(&rule.clients));
    if exports.iter().all(|export| export.rules.iter().all(loopback) && export.names.is_empty()) {
        tracing::warn!(
            "only this host may mount anything: start with --allow NETWORK (key `allow`), or use `sluice export`"
        );
    }
    if exports.iter().any(|export| export.path == "/" && export.stored) && !options.tuning.allow.is_empty() {
        tracing::warn!("--allow does nothing: `sluice export set /` has taken its place");
    }
}

/// The most that clients' connections can be protected by.
fn protection(tls: Option<&Tls>) -> Protection {
    match tls {
        None => Protection::None,
        Some(tls) if tls.believes_clients() => Protection::Mutual,
        Some(_) => Protection::Tls,
    }
}

/// The root, for this host and for whom it is allowed, until `sluice export` says otherwise.
fn root_export(tuning: &cli::Tuning) -> Vec<Rule> {
    let squash = if tuning.root_squash { Squash::Root } else { Squash::None };
    let mut networks: Vec<Network> =
        Network::LOOPBACK.into_iter().chain(tuning.allow.iter().copied()).collect();
    networks.sort();
    networks.dedup();
    networks.into_iter().map(|network| Rule { squash, ..Rule::new(network) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_the_domain_that_is_given_or_of_the_realm() {
        let domain =
            |given, realm| owners(given, realm, cli::TellNames::Nobody).unwrap().map(|owners| owners.domain);
        assert_eq!(domain(None, None), None);
        assert_eq!(domain(None, Some("EXAMPLE.COM")).as_deref(), Some("example.com"));
        for realm in [None, Some("EXAMPLE.COM")] {
            assert_eq!(domain(Some("lab.example.org"), realm).as_deref(), Some("lab.example.org"));
        }
        let told = owners(None, Some("EXAMPLE.COM"), cli::TellNames::Tickets).unwrap().unwrap();
        assert_eq!(told.tell, TellNames::Tickets);
        let error = owners(None, None, cli::TellNames::Everybody).unwrap_err().to_string();
        assert!(error.contains("--owner-domain"), "{error}");
    }

    #[test]
    fn memory_for_metadata_follows_the_machine() {
        let mib = |given, memory: u64| cache(given, Some(memory << 20)) >> 20;
        assert_eq!(
            [256, 1024, 2048, 24 << 10, 1 << 20].map(|memory| mib(None, memory)),
            [320, 320, 384, 4608, 24 << 10]
        );
        assert_eq!(cache(None, None) >> 20, 320);
        assert_eq!(mib(Some(100), 24 << 10), 100, "what is given is taken");
    }

    #[tokio::test]
    async fn what_is_put_in_place_while_a_standby_waits_is_in_force_when_it_serves() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let file = dir.join("cluster.key");
        let [first, second] = [(), ()].map(|()| sluice_rpc::ClusterKey::generate(&Env::system()));
        first.write(&file).unwrap();
        let put = certificates::tests::put;
        put(dir, 4, &["pem", "key"]);
        let options = cli::Tls {
            tls_certificate: Some(dir.join("pem")),
            tls_key: Some(dir.join("key")),
            ..cli::Tls::default()
        };
        let mut keys = keys::follow(&file).unwrap();
        let mut certificate = certificates::follow(&options).unwrap().unwrap();
        let wait = async {
            std::fs::remove_file(&file).unwrap();
            second.write(&file).unwrap();
            put(dir, 30, &["pem", "key"]);
            7
        };
        assert_eq!(meanwhile(wait, &mut keys, Some(&mut certificate)).await, 7);
        assert_eq!(keys.ring().keys(), second.into());
        assert!(!certificate.again() && certificate.is_good_for_long(), "the new one is shown");
    }

    #[test]
    fn a_short_lease_makes_no_short_recalls() {
        let of = |lease| recall_timeout(Duration::from_secs(lease)).as_secs();
        assert_eq!([5, 10, 30, 60, 90].map(of), [10, 10, 10, 20, 30]);
    }

    #[test]
    fn calls_hold_a_part_of_the_memory_there_is() {
        let mib = |memory: Option<u64>| {
            let limits = limits(memory.map(|memory| memory << 20));
            [limits.server_budget, limits.arriving].map(|share| share.base >> 20)
        };
        assert_eq!([None, Some(24 << 10)].map(mib), [[2048, 512]; 2]);
        assert_eq!(mib(Some(2048)), [512, 64]);
        assert_eq!(mib(Some(100)), [64, 64]);
    }

    #[test]
    fn replies_for_ten_thousand_clients_are_promised_and_more_where_there_is_memory() {
        let gib = |memory: Option<u64>| replies(memory.map(|memory| memory << 30)) >> 30;
        assert_eq!([None, Some(1), Some(24), Some(256)].map(gib), [4, 4, 6, 64]);
    }
}
