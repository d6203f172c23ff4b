//! `sluice key`.

use anyhow::Result;
use sluice_env::Env;
use sluice_rpc::ClusterKey;

use crate::cli::Key;

pub(crate) fn run(command: &Key) -> Result<()> {
    match command {
        Key::New { file } => {
            let key = ClusterKey::generate(&Env::system());
            key.write(file)?;
            say!("{}: new cluster key, fingerprint {}", file.display(), key.fingerprint());
        }
        Key::Fingerprint { file } => say!("{}", ClusterKey::read(file)?.fingerprint()),
    }
    Ok(())
}
