//! Finding and loading the client library, once for the life of the process.

use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use libloading::Library;

use crate::entry::{self, Api};

/// Names for the loader's search path: the first is what the official packages install.
const NAMES: [&str; 2] = ["libfdb_c.so", "libfdb_c.so.7"];

#[derive(Debug)]
struct Loaded {
    api: Api,
    from: PathBuf,
}

static LOADED: OnceLock<Loaded> = OnceLock::new();

/// Why there is no client library.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LoadError {
    /// Each path with the loader's answer.
    #[error("FoundationDB client library not found; tried {}", .tried.join("; "))]
    NotFound { tried: Vec<String> },
    /// It is a library of another kind, or too old.
    #[error("{} is not a FoundationDB client library of version 7.3: {what}", path.display())]
    Incomplete { path: PathBuf, what: String },
    /// Only one library can be loaded, ever: its network is never started again.
    #[error("the FoundationDB client library {} is loaded already", path.display())]
    Another { path: PathBuf },
}

/// Loads the client library from `path`, or from the loader's search path. Asking again for the same is harmless.
pub fn load(path: Option<&Path>) -> Result<(), LoadError> {
    if let Some(loaded) = LOADED.get() {
        return match path {
            Some(path) if path != loaded.from => Err(LoadError::Another { path: loaded.from.clone() }),
            _ => Ok(()),
        };
    }
    let candidates: Vec<PathBuf> = match path {
        Some(path) => vec![path.to_owned()],
        None => NAMES.iter().map(PathBuf::from).collect(),
    };
    let mut tried = Vec::new();
    for from in candidates {
        // SAFETY: loading runs the library's initialisers. It is the operator who names the library, or who owns
        // the loader's search path, exactly as for a library that is linked; the official one's initialisers ask
        // nothing of the process.
        match unsafe { Library::new(&from) } {
            Ok(library) => {
                let api = Api::resolve(library)
                    .map_err(|what| LoadError::Incomplete { path: from.clone(), what })?;
                // Of two that load at once one wins; the other's library stays loaded unused.
                LOADED.get_or_init(|| Loaded { api, from });
                return Ok(());
            }
            Err(error) => tried.push(format!("{} ({error})", from.display())),
        }
    }
    Err(LoadError::NotFound { tried })
}

/// Where the library in use came from.
pub fn loaded_from() -> Option<&'static Path> {
    LOADED.get().map(|l| l.from.as_path())
}

pub(crate) fn api() -> Option<&'static Api> {
    LOADED.get().map(|l| &l.api)
}

/// The thread that runs the network.
static NETWORK: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);

/// Sets up the network and runs it on a thread of its own until the process exits. After the network's options and
/// before any database; once.
pub fn run_network_forever() -> Result<(), String> {
    // SAFETY: takes no pointers; called out of order or twice it answers with an error.
    let code = unsafe { entry::fdb_setup_network() };
    if code != 0 {
        return Err(message(code));
    }
    let run = || {
        // SAFETY: takes no pointers; the network is set up, and this is the only thread that runs it. Nobody stops
        // it before the process exits, so that no callback and no future ever meets a network that has gone.
        let code = unsafe { entry::fdb_run_network() };
        if code != 0 {
            // Every answer that is awaited would never come: better no process than one that hangs for ever.
            std::process::abort();
        }
    };
    let thread =
        std::thread::Builder::new().name("foundationdb".to_owned()).spawn(run).map_err(|e| e.to_string())?;
    *NETWORK.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    Ok(())
}

unsafe extern "C" {
    /// C11 §7.22.4.2.
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Stops the network when the process exits. What was registered last runs first: so this is called when the library has
/// been used, and has made and registered the variables that its network needs to the end.
pub fn stop_at_exit() {
    // SAFETY: the function given lives as long as the program, takes nothing and does not unwind. If it is refused, it is as
    // if nobody had asked.
    let _refused = unsafe { atexit(stop_network) };
}

/// Ends the network for good. Nothing of the library may be waited for any more, or begun. Before the process exits: then
/// the library's own variables are destroyed, and a network still at work would fall over them.
pub extern "C" fn stop_network() {
    let Some(thread) = NETWORK.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    // SAFETY: takes no pointers; the network runs, or has ended.
    let code = unsafe { entry::fdb_stop_network() };
    if code == 0 {
        // It ended as it was told, or aborted the process.
        drop(thread.join());
    }
}

fn message(code: crate::fdb_error_t) -> String {
    // SAFETY: takes no pointers; what it returns is a string with an end that is never freed.
    let text = unsafe { CStr::from_ptr(entry::fdb_get_error(code)) };
    format!("FoundationDB: {} ({code})", text.to_string_lossy())
}
