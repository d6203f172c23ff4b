//! Calls toward clients. RFC 8881 §20, §2.10.3.1.
//!
//! | module | what |
//! | --- | --- |
//! | `wire` | CB_COMPOUND: its arguments, and what its reply says |
//! | `path` | back channels: choosing a session, its slot, a connection; sending again elsewhere |
//! | `probe` | whether a new session's back channel works at all |
//! | `queue` | recalls: those that wait for their turn, and the answers, told to the file's machine |
//! | this one | questions and notices |

mod path;
mod probe;
mod queue;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use sluice_namespace::FileHandle;
use sluice_state::ClientId;
use sluice_state::delegation::Writer;
use sluice_state::owner::LockOwner;
use sluice_state::pressure::Recallable;
use sluice_state::times::Times;
use sluice_xdr::nfs4::{
    Attributes, CB_GETATTR4args, CB_NOTIFY_LOCK4args, CB_OFFLOAD4args, CB_RECALL_ANY4args, FATTR4_CHANGE,
    FATTR4_SIZE, RCA4_TYPE_MASK_FF_LAYOUT_MAX, RCA4_TYPE_MASK_FF_LAYOUT_MIN, RCA4_TYPE_MASK_RDATA_DLG,
    RCA4_TYPE_MASK_WDATA_DLG, bitmap4, nfs_cb_argop4, nfs_fh4, nfsstat4, offload_info4, stable_how4,
    state_owner4, write_response4,
};

use path::Missed;
pub(crate) use probe::probe;
pub(crate) use queue::{Recalls, recall};
use wire::Said;

use crate::attr::delegated::{self, DELEGATED};
use crate::compound::context::to_wire;
use crate::copies::Job;
use crate::files::FileEntry;
use crate::metrics::add;
use crate::server::Mds;

/// How long the holder of a write delegation may take to say how long its file is. The client that asks waits.
const QUESTION: Duration = Duration::from_secs(3);
/// How long a notice that a client can do without is worth sending.
const NOTICE: Duration = Duration::from_secs(5);
/// Between two attempts to tell a client what it cannot hear now.
const NOT_NOW: Duration = Duration::from_millis(250);
/// The same of one that has not heard for a while.
const NOT_SOON: Duration = Duration::from_secs(4);

/// What the holder of a write delegation says of its file (CB_GETATTR, §10.4.3, §20.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) change: u64,
    pub(crate) size: u64,
    /// Where it answers for them (RFC 9754 §5).
    pub(crate) times: Times,
}

/// Asks a client about a file that it may be changing by itself; `None` when it does not say.
pub(crate) async fn ask(mds: &Arc<Mds>, entry: &FileEntry, writer: &Writer) -> Option<Told> {
    let client = writer.client;
    let data = bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE]);
    let asked = if writer.times { data.or(DELEGATED) } else { data };
    let operation =
        nfs_cb_argop4::OP_CB_GETATTR(CB_GETATTR4args { fh: handle(mds, entry, client), attr_request: asked });
    let said = path::call(mds, client, operation, QUESTION).await?;
    if said.status != nfsstat4::NFS4_OK {
        tracing::debug!(?client, status = ?said.status, file = entry.key.fileid.0, "CB_GETATTR");
        return None;
    }
    let told = Attributes::decode(&said.attributes?).ok()?;
    Some(Told { change: told.change?, size: told.size?, times: delegated::said(&told)? })
}

/// Tells a waiting lock-owner that its lock is free (CB_NOTIFY_LOCK, §20.11). A hint: the client asks for
/// the lock again by itself if it never arrives.
pub(crate) async fn notify_lock(mds: Arc<Mds>, entry: Arc<FileEntry>, owner: LockOwner) {
    let operation = nfs_cb_argop4::OP_CB_NOTIFY_LOCK(CB_NOTIFY_LOCK4args {
        cnla_fh: handle(&mds, &entry, owner.client),
        cnla_lock_owner: state_owner4 {
            clientid: owner.client.0,
            owner: bytes::Bytes::copy_from_slice(&owner.opaque),
        },
    });
    path::call(&mds, owner.client, operation, NOTICE).await;
}

/// Asks a client to keep no more than so many of what it holds (CB_RECALL_ANY, §20.6). It knows best which.
pub(crate) async fn recall_any(mds: Arc<Mds>, client: ClientId, what: Recallable, keep: u32) {
    let types: &[u32] = match what {
        // RFC 8435 §12.1: of either iomode.
        Recallable::Layouts => &[RCA4_TYPE_MASK_FF_LAYOUT_MIN, RCA4_TYPE_MASK_FF_LAYOUT_MAX],
        Recallable::Delegations => &[RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG],
    };
    let operation = nfs_cb_argop4::OP_CB_RECALL_ANY(CB_RECALL_ANY4args {
        craa_objects_to_keep: keep,
        craa_type_mask: bitmap4::of(types),
    });
    add(&mds.metrics.recalls_sent, 1);
    let said = path::call(&mds, client, operation, mds.config.recall_timeout).await;
    tracing::debug!(?client, ?what, keep, status = ?said.map(|said| said.status), "CB_RECALL_ANY");
}

/// Tells a client how its copy ended (CB_OFFLOAD, RFC 7862 §16.1), for as long as there is the client: Linux waits for it
/// without an end, and asks for the status only since 6.15.
pub(crate) async fn offloaded(mds: &Arc<Mds>, job: &Job, status: nfsstat4) {
    let coa_offload_info = match status {
        nfsstat4::NFS4_OK => offload_info4::NFS4_OK(write_response4 {
            wr_callback_id: Vec::new(),
            wr_count: job.copied(),
            wr_committed: stable_how4::FILE_SYNC4,
            wr_writeverf: mds.write_verifier(),
        }),
        status => offload_info4::Default(status, job.copied()),
    };
    let operation = nfs_cb_argop4::OP_CB_OFFLOAD(CB_OFFLOAD4args {
        coa_fh: nfs_fh4(mds.namespace.handles().to_wire(&job.target.handle)),
        coa_stateid: to_wire(&job.stateid),
        coa_offload_info,
    });
    let (clock, client) = (&mds.env.clock, job.caller.client);
    let mut pause = NOT_NOW;
    while mds.clients.is_alive(client) {
        match path::reach(mds, client, operation.clone(), mds.config.lease).await {
            Ok(Said { status: nfsstat4::NFS4ERR_DELAY, .. }) | Err(Missed::Unreached) => {}
            Ok(_) | Err(Missed::Refused) => return,
        }
        clock.sleep(pause).await;
        pause = (2 * pause).min(NOT_SOON);
    }
}

/// The file as this client names it.
fn handle(mds: &Mds, entry: &FileEntry, client: ClientId) -> nfs_fh4 {
    let handle = FileHandle { export: entry.export_of(client), inode: entry.key };
    nfs_fh4(mds.namespace.handles().to_wire(&handle))
}
