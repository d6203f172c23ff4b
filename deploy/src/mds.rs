//! `sluice mds`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use sluice_env::Env;
use sluice_mds::{Config, Delegations, Mds, Names, Network, Rule, Squash};
use sluice_rpc::{ClusterKey, Limits, Server, Tcp, Transport};

use crate::metrics::mds::MdsSource;
use crate::store::Place;
use crate::{cli, descriptors, logs, metrics, ports, stop, supervised};

/// How long calls in flight may take when the server is asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(options: cli::Mds) -> Result<()> {
    logs::start();
    descriptors::raise();
    let env = Env::system();
    let key = key(&options)?;
    let transport: Arc<dyn Transport> = Arc::new(Tcp);
    let limits = Limits::default();
    let db = Place::new(&options.data_dir, &options.store).standby(options.standby).await_open(&env).await?;
    let mds = Mds::start(env.clone(), Arc::clone(&transport), db.clone(), config(&options.tuning)).await?;
    let server = Arc::new(
        Server::new(env.clone(), transport, limits, mds.plain_programs())
            .with_secure(key, mds.secure_programs()),
    );
    let listener = server
        .listen(options.listen)
        .await
        .map_err(|error| anyhow!(ports::explain("--listen", options.listen, &error)))?;
    tracing::info!(listen = %listener.local_addr(), data = %options.data_dir.display(), "metadata server ready");
    tell_exports(&mds, &options);
    env.spawn.spawn(Box::pin(Arc::clone(&server).serve(listener)));
    if let Some(address) = options.metrics {
        let source = MdsSource { mds: Arc::clone(&mds), server: Arc::clone(&server) };
        metrics::serve(address, Arc::new(source)).await?;
    }
    supervised::ready();
    let why = tokio::select! {
        why = stop::requested(options.child.stop_with_stdin) => why?,
        () = db.taken_over() => bail!("another metadata server has taken over this file system"),
    };
    tracing::info!(why, "metadata server stopping");
    supervised::stopping();
    server.shutdown(DRAIN).await;
    db.close().await?;
    Ok(())
}

fn key(options: &cli::Mds) -> Result<ClusterKey> {
    let file = options.key.clone().unwrap_or_else(|| options.data_dir.join("cluster.key"));
    Ok(ClusterKey::read(&file)?)
}

/// Whether a start with these options would find what it needs.
pub(crate) fn check(options: &cli::Mds) -> Result<()> {
    key(options).map(drop)
}

fn config(tuning: &cli::Tuning) -> Config {
    let lease = Duration::from_secs(tuning.lease.into());
    Config {
        lease,
        recall_timeout: (lease / 3).max(Duration::from_secs(1)),
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
        layouts: !tuning.no_layouts,
        version: crate::VERSION.to_owned(),
        ..Config::default()
    }
}

/// Says who may mount what: an administrator whose clients are refused looks here first.
fn tell_exports(mds: &Mds, options: &cli::Mds) {
    let exports = mds.exports();
    for export in &exports {
        let networks: Vec<String> = export.rules.iter().map(|rule| rule.network.to_string()).collect();
        let to = if networks.is_empty() { "nobody".to_owned() } else { networks.join(" ") };
        tracing::info!(path = export.path, to, "exported");
    }
    let loopback = |rule: &Rule| Network::LOOPBACK.iter().any(|own| own.covers(&rule.network));
    if exports.iter().all(|export| export.rules.iter().all(loopback)) {
        tracing::warn!(
            "only this host may mount anything: start with --allow NETWORK (key `allow`), or use `sluice export`"
        );
    }
    if exports.iter().any(|export| export.path == "/" && export.stored) && !options.tuning.allow.is_empty() {
        tracing::warn!("--allow does nothing: `sluice export set /` has taken its place");
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
