//! Clients and sessions of this server: the state machines, their locks, their rows.

use std::sync::Arc;

use sluice_env::Env;
use sluice_kv::Database;
use sluice_namespace::FsError;
use sluice_state::file::Grace;
use sluice_state::{BootEpoch, ClientId, SessionId};

use crate::config::Config;
use crate::server::Mds;

/// The session of a COMPOUND under way, as SEQUENCE found it.
#[derive(Clone, Debug)]
pub(crate) struct SessionRef {
    pub(crate) client: ClientId,
    pub(crate) id: SessionId,
    pub(crate) slot: u32,
    pub(crate) seqid: u32,
}

/// All clients and sessions.
#[derive(Debug, Default)]
pub(crate) struct ClientTable {}

impl ClientTable {
    /// The clients and sessions of earlier incarnations, who may reclaim.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn load(_env: &Env, _db: &Database, _config: &Config, _epoch: BootEpoch) -> Result<Self, FsError> {
        Ok(Self {})
    }
}

impl Mds {
    /// Where this server stands in its grace period, for a client (`None`: for the server's own work).
    pub(crate) fn grace(&self, _client: Option<ClientId>) -> Grace {
        Grace::Over
    }

    /// May this client be given striped layouts (docs/DESIGN §6: Linux >= 6.18 on NFSv4.2)?
    pub(crate) fn client_takes_stripes(&self, _client: ClientId) -> bool {
        false
    }

    /// Removes a client and everything it holds (lease expired in conflict, or an administrator).
    pub(crate) async fn expel_client(self: &Arc<Self>, _client: ClientId) {}
}
