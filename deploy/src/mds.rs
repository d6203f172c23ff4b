//! `sluice mds`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use sluice_env::Env;
use sluice_mds::{Config, Delegations, Mds};
use sluice_rpc::{ClusterKey, Limits, Server, Tcp, Transport};

use crate::metrics::mds::MdsSource;
use crate::{cli, logs, metrics, ports, stop, store, supervised};

/// How long calls in flight may take when the server is asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(options: cli::Mds) -> Result<()> {
    logs::start();
    let env = Env::system();
    let key = key(&options)?;
    let transport: Arc<dyn Transport> = Arc::new(Tcp);
    let limits = Limits::default();
    let db = store::open(&env, &options.data_dir, &options.store).await?;
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
        root_squash: tuning.root_squash,
        delegations: match tuning.delegations {
            cli::Delegations::Off => Delegations::Off,
            cli::Delegations::Read => Delegations::Read,
            cli::Delegations::Write => Delegations::ReadWrite,
        },
        delegation_quiet: Duration::from_secs(tuning.delegation_quiet.into()),
        layouts: !tuning.no_layouts,
        ..Config::default()
    }
}
