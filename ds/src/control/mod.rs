//! The data server's half of the control program: it dials the metadata server, registers, keeps in
//! contact, reports, and on the same connection takes orders.

mod allocate;
mod capacity;
mod checksum;
mod clone;
mod copy;
mod damage;
mod digest;
mod epoch;
mod fence;
mod health;
mod heartbeat;
mod hole;
mod inventory;
mod key;
pub(crate) mod link;
mod logical_size;
mod machine;
mod orders;
mod program;
pub(crate) mod protection;
mod register;
mod remove;
mod report;
mod scrub;
mod seek;
mod space;
mod stat;
mod tide;
mod transfer;
mod truncate;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluice_rpc::{Client, Connection};
use sluice_store::FileKey;
use sluice_xdr::control::{ctl_address, ctl_data_file};
use tokio::sync::watch;

pub(crate) use digest::AT_ONCE as DIGESTS;
pub(crate) use orders::Orders;

use crate::shared::Shared;
use crate::whereabouts::Whereabouts;
use link::LinkError;
use program::DataServerProgram;
use register::Registered;

/// Shortest and longest pause before the metadata server is tried again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long a name that had addresses before may take to be looked up. Where the metadata server was it may be still.
const LOOK: Duration = Duration::from_secs(1);

/// How long one round of connecting to all addresses may take, and the least time for each.
const DIAL: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(2));

/// What registration says about this server.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) incarnation: [u8; 16],
    pub(crate) addresses: Vec<ctl_address>,
    pub(crate) version: String,
    /// The most isolation time accepted, whatever the metadata server allows.
    pub(crate) isolation: Duration,
}

/// Keeps in contact with the metadata server at the first of the addresses of `mds` that answers, until `stop`.
pub(crate) async fn run(
    shared: Arc<Shared>,
    client: Client,
    mds: Arc<dyn Whereabouts>,
    identity: Identity,
    mut stop: watch::Receiver<bool>,
) {
    let program = Arc::new(DataServerProgram::new(Arc::clone(&shared)));
    let client = client.with_programs(vec![program]);
    let forever = keep_contact(&shared, &client, mds.as_ref(), &identity);
    tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => {}
        () = forever => {}
    }
    shared.mds.clear();
}

async fn keep_contact(shared: &Arc<Shared>, client: &Client, mds: &dyn Whereabouts, identity: &Identity) {
    let mut failures = 0u32;
    let mut told = Told::default();
    let mut known = Vec::new();
    let mut looking = None;
    loop {
        let look = looking.get_or_insert_with(|| mds.look());
        let looked = match known.is_empty() {
            true => Ok(look.await),
            false => shared.env.clock.timeout(LOOK, look).await,
        };
        // What takes longer a later round will see.
        if let Ok(looked) = looked {
            looking = None;
            match looked {
                Ok(found) => known = found,
                Err(error) if told.is_news(None, &error) => {
                    tracing::warn!(%error, "cannot find the metadata server's host: retrying");
                }
                Err(_) => {}
            }
        }
        // Whoever registered without it would be sent clients.
        heartbeat::device_answers(shared).await;
        let each = (DIAL.0 / u32::try_from(known.len()).unwrap_or(u32::MAX).max(1)).max(DIAL.1);
        let client = client.clone().with_connect_timeout(each);
        for addr in known.iter().copied() {
            let (was_registered, error) = contact(shared, &client, addr, identity).await;
            shared.mds.clear();
            if shared.mds.is_last() {
                // Who stops a whole installation need not be told that its metadata server went first.
                tracing::debug!(mds = %addr, %error, "contact with the metadata server ended");
                return;
            }
            if was_registered {
                failures = 0;
                told = Told::default();
                match error {
                    LinkError::KeyReplaced => {
                        tracing::info!(mds = %addr, "coming again with another cluster key")
                    }
                    error => tracing::warn!(mds = %addr, %error, "contact with the metadata server lost"),
                }
            } else if told.is_news(Some(addr), &error) {
                tracing::warn!(mds = %addr, %error, "cannot register with the metadata server: retrying");
            }
        }
        let pause = PAUSE.0.saturating_mul(1 << failures.min(10)).min(PAUSE.1);
        failures = failures.saturating_add(1);
        let jitter = shared.env.random.u64() % 256;
        shared.env.clock.sleep(pause.mul_f64(1.0 + jitter as f64 / 1024.0)).await;
    }
}

/// What went wrong last, by address; without one, when looking for addresses. It is said once, not at every attempt.
#[derive(Debug, Default)]
struct Told(BTreeMap<Option<SocketAddr>, String>);

impl Told {
    fn is_news(&mut self, at: Option<SocketAddr>, error: &dyn std::error::Error) -> bool {
        let error = error.to_string();
        self.0.insert(at, error.clone()).is_none_or(|before| before != error)
    }
}

/// One connection from dialling to its end. True if it got as far as being registered.
async fn contact(
    shared: &Arc<Shared>,
    client: &Client,
    addr: SocketAddr,
    identity: &Identity,
) -> (bool, LinkError) {
    let connection = match client.dial(addr).await {
        Ok(connection) => connection,
        Err(error) => return (false, error.into()),
    };
    let registered = match register::run(shared, &connection, identity).await {
        Ok(registered) => registered,
        Err(error) => {
            connection.close();
            return (false, error);
        }
    };
    tracing::info!(mds = %addr, store_id = registered.store_id, "registered with the metadata server");
    shared.mds.set(&connection);
    let error = stay(shared, client, &connection, identity, registered).await;
    connection.close();
    (true, error)
}

/// From a registration to the first heartbeat, which says that the fences of the registration hold: mirrors here are made equal
/// only then, and their writers wait for that.
const FIRST: Duration = Duration::from_millis(100);

/// How long new data files are gathered for one report. Nobody waits for it.
const GATHER: Duration = Duration::from_secs(1);

/// Heartbeats and reports while the connection lasts; registers again on it when asked to. They go beside each other: a report
/// that is long, or taken slowly, keeps no heartbeat waiting.
async fn stay(
    shared: &Arc<Shared>,
    client: &Client,
    connection: &Arc<Connection>,
    identity: &Identity,
    mut registered: Registered,
) -> LinkError {
    loop {
        let error = tokio::select! {
            biased;
            () = connection.closed() => return LinkError::Closed,
            error = heartbeats(shared, connection, &registered) => error,
            error = damages(shared, connection, registered.heartbeat) => error,
            error = reports(shared, connection) => error,
            error = tide::run(shared, connection, registered.tides) => error,
            error = key::replaced(shared, client, connection) => error,
        };
        if !matches!(error, LinkError::RegisterAgain) {
            return error;
        }
        match register::run(shared, connection, identity).await {
            Ok(again) => registered = again,
            Err(error) => return error,
        }
    }
}

async fn heartbeats(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    registered: &Registered,
) -> LinkError {
    let mut next = shared.env.clock.now() + FIRST.min(registered.heartbeat);
    loop {
        shared.env.clock.sleep_until(next).await;
        next = shared.env.clock.now() + registered.heartbeat;
        if let Err(error) = heartbeat::run(shared, connection, registered).await {
            return error;
        }
    }
}

/// Looks for damage as often as there are heartbeats.
async fn damages(shared: &Arc<Shared>, connection: &Arc<Connection>, pause: Duration) -> LinkError {
    let mut told = None;
    loop {
        shared.env.clock.sleep(pause).await;
        if let Err(error) = damage::run(shared, connection, &mut told).await {
            return error;
        }
    }
}

async fn reports(shared: &Arc<Shared>, connection: &Arc<Connection>) -> LinkError {
    let materialised = shared.store.materialised();
    loop {
        match report::run(shared, connection).await {
            Ok(Some(pause)) => shared.env.clock.sleep(pause).await,
            Ok(None) => {
                materialised.notified().await;
                shared.env.clock.sleep(GATHER).await;
            }
            Err(error) => return error,
        }
    }
}

/// The wire's name of a data file.
pub(crate) fn wire_file(key: FileKey, generation: u16) -> ctl_data_file {
    ctl_data_file { file: key.file, slot: key.slot.into(), generation: generation.into() }
}

/// Our name of the wire's data file; `None` when slot or generation exceed what a filehandle holds.
pub(crate) fn data_file(file: &ctl_data_file) -> Option<(FileKey, u16)> {
    let slot = u16::try_from(file.slot).ok()?;
    Some((FileKey { file: file.file, slot }, u16::try_from(file.generation).ok()?))
}
