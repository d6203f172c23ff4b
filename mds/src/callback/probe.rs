//! CB_NULL, RFC 8881 §20.1: asks a client's callback service for a sign of life when it begins a session.

use std::sync::Arc;

use sluice_rpc::CallError;
use sluice_xdr::Frame;

use super::path::{CALLBACK_VERSION, REPLY, credential};
use crate::clients::SessionEntry;
use crate::server::Mds;

/// The null procedure of every RPC program.
const CB_NULL: u32 = 0;

/// Calls a new session back. A client that cannot be called, or not by the program it named, hears so in its next
/// SEQUENCE (§18.46.3, CB_PATH_DOWN_SESSION), and not only when it is given something that must be recalled.
pub(crate) async fn probe(mds: Arc<Mds>, session: Arc<SessionEntry>) {
    let (id, params) = {
        let mut state = session.lock();
        let Some(connection) = state.back_connection() else { return };
        (connection, state.back().params.clone())
    };
    let Some(connection) = mds.clients.connection(id) else { return };
    let credential = credential(&params);
    let reply = connection
        .call(params.program, CALLBACK_VERSION, CB_NULL, &credential, Frame::default(), REPLY)
        .await;
    let Err(error) = reply else { return };
    if !matches!(error, CallError::Closed) {
        let client = session.shared.id();
        tracing::warn!(
            ?client,
            program = params.program,
            "a client's callback service does not answer: {error}"
        );
    }
    session.lock().back_channel_lost(id);
}
