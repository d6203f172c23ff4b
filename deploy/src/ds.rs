//! `sluice ds`.

use std::fs::{self, DirBuilder, Permissions};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use sluice_ds::{Config, DataServer, StartError};
use sluice_env::Env;
use sluice_rpc::{Keys, Tcp};
use sluice_store::device::FileDevice;
use sluice_store::{StoreError, SumOptions};

use crate::metrics::ds::DsSource;
use crate::{
    certificates, cli, descriptors, durability, keys, logs, metrics, owner, ports, reach, servers, stop,
    supervised,
};

/// How long calls in flight may take when the server is asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Memory that was not needed for so long is given back to the system.
const REST: Duration = Duration::from_secs(2);

/// The store is its owner's alone: it holds what clients may not all read.
const PRIVATE: u32 = 0o700;

/// `sluice ds` itself, or what is done about data servers.
pub(crate) async fn run(options: cli::Ds) -> Result<()> {
    match options {
        cli::Ds::Run(options) => serve(&options.serve, options.new).await,
        cli::Ds::Do(command) => servers::run(command).await,
    }
}

async fn serve(options: &cli::Serve, new: bool) -> Result<()> {
    sluice_env::large_pages_for_data_only();
    tokio::spawn(give_back_memory());
    logs::start();
    descriptors::raise();
    let scraped = metrics::bind(options.metrics)?;
    let server = start(options, new).await?;
    if let Some(listener) = scraped {
        metrics::serve(listener, Arc::new(DsSource(Arc::clone(&server))))?;
    }
    supervised::ready();
    let why = stop::requested(options.child.stop_with_stdin).await?;
    tracing::info!(why, "data server stopping");
    supervised::stopping();
    server.shutdown(DRAIN).await;
    Ok(())
}

/// For the life of the process.
async fn give_back_memory() {
    loop {
        tokio::time::sleep(REST).await;
        sluice_env::give_back_memory();
    }
}

/// Starts the server; `new`: it may make its store.
pub(crate) async fn start(options: &cli::Serve, new: bool) -> Result<Arc<DataServer>> {
    let (addresses, advertise) = addresses(options)?;
    if only_here(options.listen, &advertise) {
        let told: Vec<String> = advertise.iter().map(ToString::to_string).collect();
        tracing::warn!(
            "clients are told {}, by which each host means itself: for clients on other hosts give --advertise (key `advertise`); the metadata server is called {}, which stands for a loopback address here",
            told.join(", "),
            options.mds
        );
    }
    let keys = keys::follow(&key_file(options))?;
    let certificate = certificates::follow(&options.tls)?;
    owner::may_use_store(&options.data_dir)?;
    let dir = store_dir(&options.data_dir, new)?;
    let store = dir.clone();
    let mut config = Config::new(options.listen, dir, addresses[0], keys.ring());
    config.mds = Arc::new(reach::Name::new(&options.mds));
    config.advertise = advertise;
    config.tls = certificate.as_ref().map(certificates::Followed::tls);
    config.version = crate::VERSION.to_owned();
    config.store.create = new;
    config.store.inline_threads = callers();
    config.store.checksums = options.sums.checksums;
    config.store.sums = sum_options(&options.sums);
    let (env, transport) = (Env::system(), Arc::new(Tcp));
    let server = if durability::unsafe_no_sync("ds") {
        let device = FileDevice::new(&config.data_dir)?.unsafe_no_sync();
        DataServer::start_on(env, transport, Arc::new(device), config).await
    } else {
        DataServer::start(env, transport, config).await
    };
    let server = server.map_err(explain)?;
    // Not before it is known to be ours.
    keep_private(&store);
    let server = Arc::new(server);
    let serving = Arc::clone(&server);
    // Its own way to the metadata server looks at the ring itself.
    tokio::spawn(keys.on(move || serving.close_strangers()));
    if let Some(certificate) = certificate {
        tokio::spawn(certificate.on());
    }
    Ok(server)
}

/// Threads that may do small things at the device themselves. There is one more: a device that hangs does not stop it.
pub(crate) fn callers() -> usize {
    Env::system().process.processors()
}

/// Releases of old made it as the umask had it.
fn keep_private(store: &Path) {
    let tighten = || -> std::io::Result<()> {
        match fs::metadata(store)?.permissions().mode() & 0o077 {
            0 => Ok(()),
            _ => fs::set_permissions(store, Permissions::from_mode(PRIVATE)),
        }
    };
    if let Err(error) = tighten() {
        let dir = store.display();
        tracing::warn!(%dir, %error, "others may look into the store: make its directory its owner's, mode 0700");
    }
}

/// The directory of a new store, with those above it, which are made as any other.
pub(crate) fn make_store(dir: &Path) -> std::io::Result<()> {
    dir.parent().map_or(Ok(()), fs::create_dir_all)?;
    match DirBuilder::new().mode(PRIVATE).create(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Whether a store was made in a data directory: its superblock comes last.
///
/// # Errors
/// Nobody may look there.
pub(crate) fn has_store(data_dir: &Path) -> Result<bool> {
    let superblock = data_dir.join("store/superblock");
    superblock.try_exists().with_context(|| format!("cannot look at {}", superblock.display()))
}

/// Where the store is; made only for a new one: what is missing is a device that is not mounted, most likely, and below its
/// mount point nothing is to be left behind.
fn store_dir(data_dir: &Path, new: bool) -> Result<PathBuf> {
    let dir = data_dir.join("store");
    if new {
        make_store(&dir)
            .with_context(|| format!("cannot make {}: choose a writable --data-dir", dir.display()))?;
    } else if !dir.try_exists().with_context(|| format!("cannot look at {}", dir.display()))? {
        return Err(StoreError::Absent(dir.display().to_string()).into());
    }
    Ok(dir)
}

fn sum_options(given: &cli::Sums) -> SumOptions {
    let default = SumOptions::default();
    let days = |days: u32| Duration::from_secs(u64::from(days) * 24 * 3600);
    SumOptions {
        rate: given.scrub_rate.map_or(default.rate, |mib| u64::from(mib) << 20),
        interval: given.scrub_days.map_or(default.interval, days),
        ..default
    }
}

fn key_file(options: &cli::Serve) -> PathBuf {
    options.key.clone().unwrap_or_else(|| options.data_dir.join("cluster.key"))
}

pub(crate) fn keys(options: &cli::Serve) -> Result<Keys> {
    keys::read(&key_file(options))
}

/// Whether a start with these options would find what it needs. The device is not looked at: it is mounted
/// later, perhaps.
pub(crate) fn check(options: &cli::Serve) -> Result<()> {
    addresses(options)?;
    certificates::check(&options.tls)?;
    keys(options).map(drop)
}

/// The metadata server's addresses, and what clients are told of this server's.
pub(crate) fn addresses(options: &cli::Serve) -> Result<(Vec<SocketAddr>, Vec<SocketAddr>)> {
    let mds = reach::resolve(&options.mds)?;
    let advertise = if options.advertise.is_empty() {
        vec![reachable_by_any(options.listen, &mds)?]
    } else {
        options.advertise.clone()
    };
    let is_here = mds.iter().all(|mds| mds.ip().is_loopback());
    for address in &advertise {
        if address.ip().is_unspecified() || address.ip().is_loopback() && !is_here {
            bail!(
                "{address} means nothing to clients on other hosts: give --advertise an address they reach"
            );
        }
    }
    Ok((mds, advertise))
}

/// Whether other hosts are let in and told an address that leads them to themselves. Of a data server on the metadata server's
/// host this is what comes of a name in /etc/hosts, and right if all clients are there, too.
fn only_here(listen: SocketAddr, advertise: &[SocketAddr]) -> bool {
    !listen.ip().is_loopback() && advertise.iter().any(|address| address.ip().is_loopback())
}

/// As [`reachable`], by the first of the metadata server's addresses that there is a way to.
fn reachable_by_any(listen: SocketAddr, mds: &[SocketAddr]) -> Result<SocketAddr> {
    let mut all = mds.iter().map(|mds| reachable(listen, *mds));
    let first = all.next().context("the metadata server has no address")?;
    first.or_else(|error| all.find_map(Result::ok).ok_or(error))
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
        StartError::Listen(address, error) => anyhow!(ports::explain("--listen", address, &error)),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(mds: &str, listen: &str, advertise: &[&str]) -> Result<Vec<String>, String> {
        let options = cli::Serve {
            config: None,
            mds: mds.to_owned(),
            data_dir: "/nowhere".into(),
            listen: listen.parse().unwrap(),
            advertise: advertise.iter().map(|address| address.parse().unwrap()).collect(),
            key: None,
            metrics: None,
            tls: cli::Tls::default(),
            sums: cli::Sums::default(),
            child: cli::Child { stop_with_stdin: false },
        };
        let (_, all) = addresses(&options).map_err(|error| error.to_string())?;
        Ok(all.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_address_that_means_each_host_itself_is_warned_of() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        assert!(only_here(at("[::]:2050"), &[at("127.0.1.1:2050")]));
        assert!(only_here(at("0.0.0.0:2050"), &[at("192.0.2.2:2050"), at("[::1]:2050")]));
        assert!(!only_here(at("127.0.0.1:2050"), &[at("127.0.0.1:2050")]), "nobody else is let in");
        assert!(!only_here(at("[::]:2050"), &[at("192.0.2.2:2050")]));
    }

    #[test]
    fn nothing_is_made_where_a_device_may_not_be_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("disk1");
        let error = store_dir(&missing, false).unwrap_err().to_string();
        assert!(error.contains("is the device mounted?"), "{error}");
        assert!(!missing.exists());
        let made = store_dir(&missing, true).unwrap();
        assert!(made.is_dir());
        let mode = || fs::metadata(&made).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(), 0o700);
        fs::set_permissions(&made, Permissions::from_mode(0o755)).unwrap();
        keep_private(&made);
        assert_eq!(mode(), 0o700, "as of a release of old");
        assert_eq!(store_dir(&missing, false).unwrap(), made);
    }

    #[test]
    fn clients_are_told_an_address_that_means_something_to_them() {
        assert_eq!(told("127.0.0.1", "[::]:2050", &[]).unwrap(), ["127.0.0.1:2050"]);
        assert_eq!(told("127.0.0.1", "127.0.0.2:2050", &[]).unwrap(), ["127.0.0.2:2050"]);
        assert_eq!(told("192.0.2.1", "192.0.2.2:2050", &[]).unwrap(), ["192.0.2.2:2050"]);
        let several = ["192.0.2.2:1", "192.0.2.3:1"];
        assert_eq!(told("192.0.2.1", "[::]:2050", &several).unwrap(), several);
        for (listen, advertise) in [
            ("127.0.0.1:2050", &[][..]),
            ("[::]:2050", &["192.0.2.2:1", "127.0.0.1:2050"][..]),
            ("[::]:2050", &["0.0.0.0:2050"][..]),
        ] {
            let error = told("192.0.2.1", listen, advertise).unwrap_err();
            assert!(error.contains("give --advertise"), "{error}");
        }
    }
}
