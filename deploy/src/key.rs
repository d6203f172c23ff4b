//! `sluice key`.

use std::path::Path;

use anyhow::Result;
use serde_json::json;
use sluice_env::Env;
use sluice_rpc::ClusterKey;

use crate::cli::Key;

pub(crate) fn run(command: &Key) -> Result<()> {
    match command {
        Key::New { file, json } => {
            let key = ClusterKey::generate(&Env::system());
            key.write(file)?;
            if *json {
                say!("{}", to_json(file, &key));
            } else {
                say!("{}: new cluster key, fingerprint {}", file.display(), key.fingerprint());
            }
        }
        Key::Fingerprint { file, json: true } => say!("{}", to_json(file, &ClusterKey::read(file)?)),
        Key::Fingerprint { file, json: false } => say!("{}", ClusterKey::read(file)?.fingerprint()),
    }
    Ok(())
}

/// The key itself is in its file alone.
fn to_json(file: &Path, key: &ClusterKey) -> serde_json::Value {
    json!({ "file": file, "fingerprint": key.fingerprint().to_string() })
}
