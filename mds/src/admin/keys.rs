//! The keys that capabilities are sealed with: showing and replacing them (docs/adr/0024).

use std::net::SocketAddr;

use sluice_namespace::stable_storage::{CapabilityEpochs, CapabilityKey};
use sluice_rpc::ClusterKey;
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
