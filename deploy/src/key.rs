//! `sluice key`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use sluice_env::Env;
use sluice_rpc::{ClusterKey, KeyFile, Keys};
use sluice_xdr::control::{
    ADMIN_CLUSTER_KEYS, ADMIN_CLUSTER_KEYS_resok, ADMIN_KEYS, ADMIN_KEYS_args, ADMIN_KEYS_res,
    ADMIN_KEYS_resok, ctl_cluster_key, ctl_key, ctl_key_state,
};

use crate::cli::Key;
use crate::reach::Admin;
use crate::status::{table, text};

/// Between two looks how far a rotation is.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) async fn run(command: Key) -> Result<()> {
    match command {
        Key::New { file, json } => {
            let key = ClusterKey::generate(&Env::system());
            key.write(&file)?;
            told(&file, &KeyFile::Cluster(key.into()), json, "new cluster key, fingerprint");
        }
        Key::Renew { file, json } => {
            let keys = Keys::read(&file)?;
            if !keys.older().is_empty() {
                bail!(
                    "{} holds an older key already ({}): `sluice key forget` ends the replacement that was begun",
                    file.display(),
                    fingerprints(keys.older())
                );
            }
            let keys = keys.renewed(ClusterKey::generate(&Env::system()));
            keys.replace(&file)?;
            told(&file, &KeyFile::Cluster(keys), json, "new cluster key, fingerprint");
        }
        Key::Forget { file, json } => {
            let keys = Keys::read(&file)?;
            if keys.older().is_empty() {
                bail!(
                    "{} holds one cluster key ({}) and no older one",
                    file.display(),
                    keys.first().fingerprint()
                );
            }
            let first = Keys::from(keys.first().clone());
            first.replace(&file)?;
            told(&file, &KeyFile::Cluster(first), json, "the only cluster key is now");
        }
        Key::Monitor { cluster_key, file, json } => {
            let monitor = Keys::read(&cluster_key)?.first().monitor();
            monitor.write_monitor(&file)?;
            told(&file, &KeyFile::Monitor(monitor), json, "new monitoring key, fingerprint");
        }
        Key::Fingerprint { file, json } => {
            let keys = KeyFile::read(&file)?;
            if json {
                say!("{}", to_json(&file, &keys));
                return Ok(());
            }
            match &keys {
                KeyFile::Cluster(keys) => {
                    say!("{}", keys.first().fingerprint());
                    keys.older().iter().for_each(|key| say!("{} (older, accepted)", key.fingerprint()));
                }
                KeyFile::Monitor(key) => say!("{} (monitoring key)", key.fingerprint()),
            }
        }
        Key::List { reach, json } => {
            let admin = Admin::reach(&reach).await?;
            show(&ask(&admin, false).await?, Some(&cluster_keys(&admin).await), json);
        }
        Key::Rotate { reach, no_wait, json } => rotate(&Admin::reach(&reach).await?, !no_wait, json).await?,
    }
    Ok(())
}

fn told(file: &Path, keys: &KeyFile, json: bool, what: &str) {
    if json {
        say!("{}", to_json(file, keys));
        return;
    }
    say!("{}: {what} {}", file.display(), keys.first().fingerprint());
    if let KeyFile::Cluster(keys) = keys
        && !keys.older().is_empty()
    {
        say!("accepted, too: {}", fingerprints(keys.older()));
        say!(
            "bring this file to all servers, in any order; when `sluice key list` shows all data servers with the new"
        );
        say!("key, run `sluice key forget` on it and bring it to them again");
    }
}

fn fingerprints(keys: &[ClusterKey]) -> String {
    keys.iter().map(ClusterKey::fingerprint).collect::<Vec<_>>().join(", ")
}

/// Those of the metadata server; none, if it does not know the question yet.
async fn cluster_keys(admin: &Admin) -> Vec<ctl_cluster_key> {
    let told: Result<ADMIN_CLUSTER_KEYS_resok> = admin.call(ADMIN_CLUSTER_KEYS, &()).await;
    told.map(|told| told.keys).unwrap_or_default()
}

async fn ask(admin: &Admin, rotate: bool) -> Result<ADMIN_KEYS_resok> {
    match admin.call(ADMIN_KEYS, &ADMIN_KEYS_args { rotate }).await? {
        ADMIN_KEYS_res::CTL_OK(keys) => Ok(keys),
        ADMIN_KEYS_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

/// Waits until what was asked for is done, and the older keys are forgotten everywhere.
async fn rotate(admin: &Admin, wait: bool, json: bool) -> Result<()> {
    let mut keys = ask(admin, true).await?;
    if keys.joined && !json {
        say!("a new key was announced already, and is not in use yet: that one it is");
    }
    let mut told = String::new();
    while wait && !keys.waits_for.is_empty() {
        let waits_for = text(&keys.waits_for);
        if !json && waits_for != told {
            say!("waiting for {waits_for}");
            told = waits_for;
        }
        tokio::time::sleep(LOOK).await;
        let later =
            "the rotation goes on when the metadata server does; `sluice key list` shows how far it is";
        keys = ask(admin, false).await.context(later)?;
    }
    show(&keys, None, json);
    Ok(())
}

fn state(key: &ctl_key) -> String {
    match key.state {
        ctl_key_state::KEY_SEALS => format!("seals new handles, since epoch {}", key.epoch),
        ctl_key_state::KEY_OPENS => "good for older handles".to_owned(),
        ctl_key_state::KEY_ANNOUNCED => "announced, not yet used".to_owned(),
        _ => "unknown here: upgrade this command".to_owned(),
    }
}

fn show(keys: &ADMIN_KEYS_resok, cluster: Option<&[ctl_cluster_key]>, json: bool) {
    if json {
        let all: Vec<_> = keys.keys.iter().map(key_json).collect();
        let waits_for = text(&keys.waits_for);
        let (epoch, joined) = (keys.epoch, keys.joined);
        let mut shown = json!({ "epoch": epoch, "keys": all, "joined": joined, "waits_for": waits_for });
        if let Some(cluster) = cluster {
            shown["cluster_keys"] = cluster.iter().map(cluster_json).collect();
        }
        say!("{shown}");
        return;
    }
    let mut rows = vec![["KEY", "FINGERPRINT", "STATE"].map(str::to_owned)];
    rows.extend(keys.keys.iter().map(|key| [key.id.to_string(), text(&key.fingerprint), state(key)]));
    table(&rows);
    if !keys.waits_for.is_empty() {
        say!("waiting for {}", text(&keys.waits_for));
    }
    if let Some(cluster) = cluster.filter(|cluster| !cluster.is_empty()) {
        say!();
        let mut rows = vec![["CLUSTER KEY", "STATE", "DATA SERVERS"].map(str::to_owned)];
        rows.extend(cluster.iter().map(cluster_row));
        table(&rows);
    }
}

fn cluster_row(key: &ctl_cluster_key) -> [String; 3] {
    let by: Vec<String> = key.data_servers.iter().map(ToString::to_string).collect();
    let state = if key.shown { "shown" } else { "older, accepted" };
    let by = if by.is_empty() { "-".to_owned() } else { by.join(" ") };
    [text(&key.fingerprint), state.to_owned(), by]
}

fn cluster_json(key: &ctl_cluster_key) -> serde_json::Value {
    json!({ "fingerprint": text(&key.fingerprint), "shown": key.shown, "data_servers": key.data_servers })
}

fn key_json(key: &ctl_key) -> serde_json::Value {
    let state = match key.state {
        ctl_key_state::KEY_SEALS => "seals",
        ctl_key_state::KEY_OPENS => "opens",
        ctl_key_state::KEY_ANNOUNCED => "announced",
        _ => "unknown",
    };
    json!({ "id": key.id, "state": state, "epoch": key.epoch, "fingerprint": text(&key.fingerprint) })
}

/// The keys themselves are in their file alone.
fn to_json(file: &Path, keys: &KeyFile) -> serde_json::Value {
    let (kind, older) = match keys {
        KeyFile::Cluster(keys) => ("cluster", keys.older().iter().map(ClusterKey::fingerprint).collect()),
        KeyFile::Monitor(_) => ("monitor", Vec::new()),
    };
    json!({ "file": file, "kind": kind, "fingerprint": keys.first().fingerprint(), "older": older })
}
