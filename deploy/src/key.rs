//! `sluice key`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::json;
use sluice_env::Env;
use sluice_rpc::ClusterKey;
use sluice_xdr::control::{
    ADMIN_KEYS, ADMIN_KEYS_args, ADMIN_KEYS_res, ADMIN_KEYS_resok, ctl_key, ctl_key_state,
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
            if json {
                say!("{}", to_json(&file, &key));
            } else {
                say!("{}: new cluster key, fingerprint {}", file.display(), key.fingerprint());
            }
        }
        Key::Fingerprint { file, json: true } => say!("{}", to_json(&file, &ClusterKey::read(&file)?)),
        Key::Fingerprint { file, json: false } => say!("{}", ClusterKey::read(&file)?.fingerprint()),
        Key::List { reach, json } => show(&ask(&Admin::reach(&reach).await?, false).await?, json),
        Key::Rotate { reach, no_wait, json } => rotate(&Admin::reach(&reach).await?, !no_wait, json).await?,
    }
    Ok(())
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
    show(&keys, json);
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

fn show(keys: &ADMIN_KEYS_resok, json: bool) {
    if json {
        let all: Vec<_> = keys.keys.iter().map(key_json).collect();
        let waits_for = text(&keys.waits_for);
        let (epoch, joined) = (keys.epoch, keys.joined);
        say!("{}", json!({ "epoch": epoch, "keys": all, "joined": joined, "waits_for": waits_for }));
        return;
    }
    let mut rows = vec![["KEY", "FINGERPRINT", "STATE"].map(str::to_owned)];
    rows.extend(keys.keys.iter().map(|key| [key.id.to_string(), text(&key.fingerprint), state(key)]));
    table(&rows);
    if !keys.waits_for.is_empty() {
        say!("waiting for {}", text(&keys.waits_for));
    }
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

/// The key itself is in its file alone.
fn to_json(file: &Path, key: &ClusterKey) -> serde_json::Value {
    json!({ "file": file, "fingerprint": key.fingerprint().to_string() })
}
