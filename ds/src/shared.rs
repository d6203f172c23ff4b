//! What every part of a data server sees.

use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::Env;
use sluice_rpc::{Keyring, Server, Transport};
use sluice_store::Store;
use sluice_xdr::control::{ctl_health, ctl_protection};
use tokio::sync::Semaphore;

use crate::access::Seals;
use crate::contact::Contact;
use crate::control::link::MdsLink;
use crate::control::{DIGESTS, Orders};
use crate::counters::Counters;
use crate::logical_size::LogicalSizes;

/// Most bytes of one READ or WRITE; `rtmax` and `wtmax` of FSINFO.
pub(crate) const IO_MAX: u32 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Shared {
    // Constant.
    pub(crate) env: Env,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) store: Arc<Store>,
    /// With what other data servers are asked for data, if not in clear.
    pub(crate) sealed: Option<Keyring>,
    /// The most that connections of clients can be protected by.
    pub(crate) protection: ctl_protection,
    /// `IO_MAX` zero bytes, for holes; untouched pages of it cost no memory.
    pub(crate) zeros: Bytes,
    // Each guards itself.
    pub(crate) seals: Seals,
    pub(crate) contact: Contact,
    pub(crate) counters: Counters,
    pub(crate) sizes: LogicalSizes,
    pub(crate) mds: MdsLink,
    pub(crate) orders: Orders,
    /// Turns of those who have ranges digested.
    pub(crate) digests: Semaphore,
    /// As the last heartbeat said.
    pub(crate) health: Mutex<ctl_health>,
    /// Who serves clients.
    pub(crate) server: OnceLock<Weak<Server>>,
}

impl Shared {
    pub(crate) fn new(
        env: Env,
        transport: Arc<dyn Transport>,
        store: Arc<Store>,
        (sealed, protection): (Option<Keyring>, ctl_protection),
    ) -> Self {
        Self {
            mds: MdsLink::new(),
            env,
            transport,
            store,
            sealed,
            protection,
            zeros: vec![0; IO_MAX as usize].into(),
            seals: Seals::default(),
            contact: Contact::default(),
            counters: Counters::default(),
            sizes: LogicalSizes::default(),
            orders: Orders::default(),
            digests: Semaphore::new(DIGESTS),
            health: Mutex::new(ctl_health::HEALTH_OK),
            server: OnceLock::new(),
        }
    }

    /// Clients are told to wait from now on, as if contact were lost; those that wait for an answer ask again, and hear it too.
    pub(crate) fn give_up_clients(&self) {
        self.contact.revoked();
        if let Some(server) = self.server.get().and_then(Weak::upgrade) {
            server.close_connections();
        }
    }
}
