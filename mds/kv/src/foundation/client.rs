//! The client library of this process: loaded, its network thread started once and stopped never.

use std::path::{Path, PathBuf};

use foundationdb::api::{FdbApiBuilder, get_max_api_version};
use foundationdb::options::NetworkOption;
use foundationdb_sys as sys;
use parking_lot::Mutex;

use super::tls::{RELOAD, Tls};
use super::{FoundationOptions, failure};
use crate::KvError;

/// The network thread is one for the process, with one set of options, and its set-up can be tried once only.
enum Network {
    Running(Tls),
    Failed(KvError),
}

static NETWORK: Mutex<Option<Network>> = Mutex::new(None);

/// The database of `options`. Asks the cluster nothing yet.
pub(crate) fn connect(options: &FoundationOptions) -> Result<foundationdb::Database, KvError> {
    sys::load(options.library.as_deref()).map_err(|e| KvError::NoClient { what: e.to_string() })?;
    start(&options.tls)?;
    let path = match &options.cluster_file {
        None => None,
        Some(file) => {
            // The library would only say that it cannot, and not before it is asked something.
            std::fs::File::open(file).map_err(|e| no_cluster(file, &e.to_string()))?;
            let text = file.to_str().filter(|t| !t.contains('\0'));
            Some(text.ok_or_else(|| no_cluster(file, "its path is not text"))?)
        }
    };
    foundationdb::Database::new(path).map_err(failure::of_call)
}

/// To be called last by a process that may have used FoundationDB: its client must not be at work when the process ends.
/// Everything that waits for a cluster waits for ever from now on.
pub fn end_client() {
    sys::stop_network();
}

fn no_cluster(file: &Path, why: &str) -> KvError {
    KvError::NoClient { what: format!("cannot read the FoundationDB cluster file {}: {why}", file.display()) }
}

fn start(tls: &Tls) -> Result<(), KvError> {
    let mut network = NETWORK.lock();
    match &*network {
        Some(Network::Running(settings)) if settings == tls => return Ok(()),
        Some(Network::Running(_)) => {
            return Err(KvError::NoClient { what: "FoundationDB is in use with other TLS settings".into() });
        }
        Some(Network::Failed(error)) => return Err(error.clone()),
        None => {}
    }
    let started = set_up(tls);
    *network = Some(match &started {
        Ok(()) => Network::Running(tls.clone()),
        Err(error) => Network::Failed(error.clone()),
    });
    started
}

fn set_up(tls: &Tls) -> Result<(), KvError> {
    let (wanted, known) = (i64::from(sys::FDB_API_VERSION), i64::from(get_max_api_version()));
    if known < wanted {
        let library = sys::loaded_from().unwrap_or(Path::new("the library")).display();
        let what = format!("{library} knows version {known} of FoundationDB's API, and {wanted} is needed");
        return Err(KvError::NoClient { what });
    }
    let mut builder = FdbApiBuilder::default().build().map_err(failure::of_call)?;
    for option in options(tls) {
        builder = builder.set_option(option).map_err(failure::of_call)?;
    }
    sys::run_network_forever().map_err(|what| KvError::NoClient { what })
}

fn options(tls: &Tls) -> Vec<NetworkOption> {
    // One version of the client is enough, and it answers sooner without the layer that chooses among several.
    let mut options = vec![NetworkOption::DisableMultiVersionClientApi];
    options.push(NetworkOption::Knob(format!("tls_cert_refresh_delay_seconds={}", RELOAD.as_secs())));
    let path = |file: &Option<PathBuf>| file.as_ref().map(|file| file.to_string_lossy().into_owned());
    options.extend(path(&tls.certificate).map(NetworkOption::TLSCertPath));
    options.extend(path(&tls.key).map(NetworkOption::TLSKeyPath));
    options.extend(path(&tls.ca).map(NetworkOption::TLSCaPath));
    options.extend(tls.verify_peers.clone().map(String::into_bytes).map(NetworkOption::TLSVerifyPeers));
    options
}
