//! The keys that capabilities are sealed with: showing and replacing them (docs/adr/0024); and which cluster keys are in use
//! (docs/adr/0031).

use std::net::SocketAddr;

use sluice_namespace::stable_storage::{CapabilityEpochs, CapabilityKey};
use sluice_rpc::{ClusterKey, Connection, Keyring};
use sluice_xdr::control::*;

use super::Admin;
use crate::dsctl::epochs;

impl Admin {
    pub(super) async fn keys(&self, args: ADMIN_KEYS_args, from: SocketAddr) -> ADMIN_KEYS_res {
        let mut joined = false;
        if args.rotate {
            tracing::info!(%from, "an administrator asks for a new key for capabilities");
            match epochs::rotate(&self.mds).await {
                Ok(ours) => joined = !ours,
                Err(error) => {
                    let why = format!("the metadata store does not answer: {error}");
                    return ADMIN_KEYS_res::Default(ctl_status::CTL_ERR_AGAIN, why.into());
                }
            }
        }
        let epochs = self.mds.data_servers.epochs();
        ADMIN_KEYS_res::CTL_OK(ADMIN_KEYS_resok {
            epoch: epochs.current,
            oldest_epoch: epochs.oldest,
            keys: epochs.keys.iter().map(|key| wire(&epochs, key)).collect(),
            joined,
            waits_for: epochs::waits_for(&self.mds).into(),
        })
    }

    /// The cluster keys of this server, as it that serves `asking` has them, and who has shown which.
    pub(super) fn cluster_keys(&self, asking: &Connection) -> ADMIN_CLUSTER_KEYS_resok {
        let Some(keys) = asking.keyring().map(Keyring::keys) else {
            return ADMIN_CLUSTER_KEYS_resok::default();
        };
        let stores = self.mds.data_servers.all();
        let here = stores.iter().filter_map(|store| Some((store.id.0, store.connection()?)));
        let here: Vec<_> = here.collect();
        let wire = |key: &ClusterKey| {
            let by = here.iter().filter(|(_, at)| at.shown().is_some_and(|shown| shown.key == *key));
            ctl_cluster_key {
                fingerprint: key.fingerprint().into(),
                shown: key == keys.first(),
                data_servers: by.map(|(id, _)| u32::from(*id)).collect(),
            }
        };
        ADMIN_CLUSTER_KEYS_resok { keys: keys.iter().map(wire).collect() }
    }
}

fn wire(epochs: &CapabilityEpochs, key: &CapabilityKey) -> ctl_key {
    let announced = key.epoch == CapabilityKey::ANNOUNCED;
    let state = match epochs.sealing() {
        _ if announced => ctl_key_state::KEY_ANNOUNCED,
        Some(sealing) if sealing.id == key.id => ctl_key_state::KEY_SEALS,
        _ => ctl_key_state::KEY_OPENS,
    };
    ctl_key {
        id: key.id.into(),
        state,
        epoch: if announced { 0 } else { key.epoch },
        fingerprint: ClusterKey::from_bytes(key.key).fingerprint().to_string().into(),
    }
}
