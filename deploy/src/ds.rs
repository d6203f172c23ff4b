//! `sluice ds`.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use sluice_ds::{Config, DataServer, StartError};
use sluice_env::Env;
use sluice_rpc::{ClusterKey, Tcp};
use sluice_store::device::FileDevice;

use crate::{cli, durability, logs, ports, reach, stop};

/// How long calls in flight may take when the server is asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) async fn run(options: cli::Ds) -> Result<()> {
    logs::start();
    let mds = reach::resolve(&options.mds)?;
    let advertise = match options.advertise {
        Some(address) => address,
        None => reachable(options.listen, mds)?,
    };
    if advertise.ip().is_loopback() && !mds.ip().is_loopback() {
        bail!("{advertise} means nothing to clients on other hosts: give --advertise an address they reach");
    }
    std::fs::create_dir_all(&options.data_dir).with_context(|| {
        format!("cannot make {}: choose a writable --data-dir", options.data_dir.display())
    })?;
    let key_file = options.key.unwrap_or_else(|| options.data_dir.join("cluster.key"));
    let key = ClusterKey::read(&key_file)?;
    let mut config = Config::new(options.listen, options.data_dir.join("store"), mds, key);
    config.advertise = vec![advertise];
    config.store.create = options.new;
    std::fs::create_dir_all(&config.data_dir)
        .with_context(|| format!("cannot make {}", config.data_dir.display()))?;
    let (env, transport) = (Env::system(), Arc::new(Tcp));
    let server = if durability::unsafe_no_sync("ds") {
        let device = FileDevice::new(&config.data_dir)?.unsafe_no_sync();
        DataServer::start_on(env, transport, Arc::new(device), config).await
    } else {
        DataServer::start(env, transport, config).await
    };
    let server = server.map_err(explain)?;
    let why = stop::requested(options.child.stop_with_stdin).await?;
    tracing::info!(why, "data server stopping");
    server.shutdown(DRAIN).await;
    Ok(())
}

/// The address of this host that packets from the metadata server come back to.
fn reachable(listen: SocketAddr, mds: SocketAddr) -> Result<SocketAddr> {
    if !listen.ip().is_unspecified() {
        return Ok(listen);
    }
    let any: SocketAddr = if mds.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let socket = UdpSocket::bind(any).context("cannot ask for this host's address")?;
    socket.connect(mds).with_context(|| format!("no route to the metadata server {mds}"))?;
    Ok(SocketAddr::new(socket.local_addr()?.ip(), listen.port()))
}

fn explain(error: StartError) -> anyhow::Error {
    match error {
        StartError::Listen(address, error) => anyhow!(ports::explain(address, &error)),
        other => other.into(),
    }
}
