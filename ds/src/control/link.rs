//! The way to the metadata server, for whoever needs to ask it something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_rpc::{CallError, ConnectError, Connection, Credential};
use sluice_xdr::control::{SLUICE_CONTROL, SLUICE_CONTROL_V1, ctl_status};
use sluice_xdr::{Decode, Encode, from_bytes, to_frame};

/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Largest call: a registration or report with full lists is far below.
const CALL_MAX: usize = 1 << 20;

/// Why the metadata server could not be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("the connection was closed")]
    Closed,
    #[error("not registered")]
    NotRegistered,
    #[error("it has been putting us off for too long")]
    Undecided,
    #[error("the device of this server hangs: nobody is served before it answers")]
    Hangs,
    #[error("it wants a new registration")]
    RegisterAgain,
    #[error("the cluster key has been replaced")]
    KeyReplaced,
    #[error("it refuses this store: {0} ({1:?})")]
    Refused(String, ctl_status),
    #[error(
        "its metadata is older than what this store has obeyed: a copy of before, that `sluice meta adopt` was not run on? (or a metadata server that was replaced answered)"
    )]
    Old,
    #[error("{0}")]
    Store(#[from] sluice_store::StoreError),
}

#[derive(Debug)]
pub(crate) struct MdsLink {
    connection: Mutex<Option<Arc<Connection>>>,
    /// This server is about to stop: there will be no other connection.
    last: AtomicBool,
}

impl MdsLink {
    pub(crate) fn new() -> Self {
        Self { connection: Mutex::new(None), last: AtomicBool::new(false) }
    }

    pub(crate) fn make_last(&self) {
        self.last.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_last(&self) -> bool {
        self.last.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, connection: &Arc<Connection>) {
        *self.connection.lock() = Some(Arc::clone(connection));
    }

    pub(crate) fn clear(&self) {
        *self.connection.lock() = None;
    }

    pub(crate) fn is_up(&self) -> bool {
        self.connection.lock().as_ref().is_some_and(|connection| !connection.is_closed())
    }

    /// Calls the metadata server we are registered with.
    pub(crate) async fn call<A: Encode, R: Decode>(&self, procedure: u32, args: &A) -> Result<R, LinkError> {
        let connection = self.connection.lock().clone().ok_or(LinkError::NotRegistered)?;
        call(&connection, procedure, args).await
    }
}

/// One call of SLUICE_CONTROL.
pub(crate) async fn call<A: Encode, R: Decode>(
    connection: &Connection,
    procedure: u32,
    args: &A,
) -> Result<R, LinkError> {
    let args = to_frame(args, CALL_MAX).map_err(CallError::from)?;
    let reply = connection
        .call(SLUICE_CONTROL, SLUICE_CONTROL_V1, procedure, &Credential::None, args, PATIENCE)
        .await?;
    Ok(from_bytes(reply).map_err(CallError::from)?)
}
