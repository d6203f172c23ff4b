//! The client's side of the back channel. RFC 8881 §20.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use sluice_env::BoxFuture;
use sluice_rpc::{Call, Frame, Program, Reply};
use sluice_xdr::nfs4::*;
use sluice_xdr::{from_bytes, to_frame};

use super::layout::Recalled;
use super::ops;
use super::session::Inner;

const LARGEST: usize = 4096;
/// Highest slot that the server may use.
const HIGHEST: u32 = 15;

#[derive(Debug, Default)]
pub(super) struct Callbacks {
    client: OnceLock<Weak<Inner>>,
    /// Sequence id of the last callback per slot.
    slots: Mutex<BTreeMap<u32, u32>>,
}

impl Callbacks {
    /// Callbacks are for this client from now on; before that they hear DELAY.
    pub(super) fn serve(&self, client: &Arc<Inner>) {
        let _ = self.client.set(Arc::downgrade(client));
    }

    fn compound(&self, args: CB_COMPOUND4args) -> CB_COMPOUND4res {
        let mut reply = CB_COMPOUND4res { status: nfsstat4::NFS4_OK, tag: args.tag, resarray: Vec::new() };
        let mut operations = args.argarray.into_iter();
        let Some(nfs_cb_argop4::OP_CB_SEQUENCE(sequence)) = operations.next() else {
            reply.status = nfsstat4::NFS4ERR_OP_NOT_IN_SESSION;
            return reply;
        };
        let first = self.sequence(&sequence);
        if let CB_SEQUENCE4res::Default(status) = first {
            reply.status = status;
        }
        reply.resarray.push(nfs_cb_resop4::OP_CB_SEQUENCE(first));
        for operation in operations {
            if reply.status != nfsstat4::NFS4_OK {
                break;
            }
            let (status, result) = self.operation(operation);
            reply.status = status;
            reply.resarray.push(result);
        }
        reply
    }

    /// No reply is kept, as ca_maxresponsesize_cached 0 announces: a repeated request hears so.
    fn sequence(&self, args: &CB_SEQUENCE4args) -> CB_SEQUENCE4res {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let last = slots.entry(args.csa_slotid.min(HIGHEST)).or_default();
        match args.csa_sequenceid.wrapping_sub(*last) {
            _ if args.csa_slotid > HIGHEST => CB_SEQUENCE4res::Default(nfsstat4::NFS4ERR_BADSLOT),
            0 => CB_SEQUENCE4res::Default(nfsstat4::NFS4ERR_RETRY_UNCACHED_REP),
            1 => {
                *last = args.csa_sequenceid;
                CB_SEQUENCE4res::NFS4_OK(CB_SEQUENCE4resok {
                    csr_sessionid: args.csa_sessionid,
                    csr_sequenceid: args.csa_sequenceid,
                    csr_slotid: args.csa_slotid,
                    csr_highest_slotid: HIGHEST,
                    csr_target_highest_slotid: HIGHEST,
                })
            }
            _ => CB_SEQUENCE4res::Default(nfsstat4::NFS4ERR_SEQ_MISORDERED),
        }
    }

    fn operation(&self, operation: nfs_cb_argop4) -> (nfsstat4, nfs_cb_resop4) {
        match operation {
            nfs_cb_argop4::OP_CB_LAYOUTRECALL(args) => {
                let clorr_status = self.recall(&args);
                let result = CB_LAYOUTRECALL4res { clorr_status };
                (clorr_status, nfs_cb_resop4::OP_CB_LAYOUTRECALL(result))
            }
            nfs_cb_argop4::OP_CB_RECALL(args) => {
                let status = self.recall_delegation(args.stateid);
                (status, nfs_cb_resop4::OP_CB_RECALL(CB_RECALL4res { status }))
            }
            nfs_cb_argop4::OP_CB_NOTIFY_LOCK(_) => {
                let cnlr_status = nfsstat4::NFS4_OK;
                (cnlr_status, nfs_cb_resop4::OP_CB_NOTIFY_LOCK(CB_NOTIFY_LOCK4res { cnlr_status }))
            }
            _ => {
                let rc = nfsstat4::NFS4ERR_OP_ILLEGAL;
                (rc, nfs_cb_resop4::OP_CB_ILLEGAL(CB_ILLEGAL4res { status: rc }))
            }
        }
    }

    /// Only read delegations are taken: there is nothing to flush before the return.
    fn recall_delegation(&self, stateid: stateid4) -> nfsstat4 {
        let Some(client) = self.client.get().and_then(Weak::upgrade) else {
            return nfsstat4::NFS4ERR_DELAY;
        };
        let Some(handle) = client.delegations.forget(stateid) else {
            return nfsstat4::NFS4ERR_BAD_STATEID;
        };
        let returning = Arc::clone(&client);
        client.env.spawn.spawn(Box::pin(async move {
            // A server that refuses the return revokes: nothing is left to do here.
            let _ = returning.patient(vec![ops::putfh(&handle), ops::delegreturn(stateid)]).await;
        }));
        nfsstat4::NFS4_OK
    }

    fn recall(&self, args: &CB_LAYOUTRECALL4args) -> nfsstat4 {
        let Some(client) = self.client.get().and_then(Weak::upgrade) else {
            return nfsstat4::NFS4ERR_DELAY;
        };
        let iomode = args.clora_iomode;
        let work: BoxFuture<'static, ()> = match &args.clora_recall {
            layoutrecall4::LAYOUTRECALL4_FILE(file) => {
                match client.layouts.recalled(&file.lor_fh, file.lor_stateid) {
                    Recalled::Unknown => return nfsstat4::NFS4ERR_NOMATCHING_LAYOUT,
                    Recalled::Asking => return nfsstat4::NFS4ERR_DELAY,
                    Recalled::Held => {}
                }
                let (client, handle) = (Arc::clone(&client), file.lor_fh.clone());
                Box::pin(async move {
                    // A server that refuses the return revokes: nothing is left to do here.
                    let _ = client.give_back(&handle).await;
                })
            }
            layoutrecall4::LAYOUTRECALL4_FSID(_) => {
                bulk(Arc::clone(&client), layoutreturn_type4::LAYOUTRETURN4_FSID, iomode)
            }
            layoutrecall4::LAYOUTRECALL4_ALL => {
                bulk(Arc::clone(&client), layoutreturn_type4::LAYOUTRETURN4_ALL, iomode)
            }
        };
        client.env.spawn.spawn(work);
        nfsstat4::NFS4_OK
    }
}

/// Every file, then the word that this was all (RFC 8881 §12.5.5.1).
fn bulk(client: Arc<Inner>, kind: layoutreturn_type4, iomode: layoutiomode4) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        for file in client.layouts.files() {
            let _ = client.give_back(&file).await;
        }
        let all = vec![ops::putrootfh(), ops::layoutreturn_bulk(kind, iomode)];
        let _ = client.patient(all).await;
    })
}

impl Program for Callbacks {
    fn number(&self) -> u32 {
        NFS4_CALLBACK
    }

    fn versions(&self) -> RangeInclusive<u32> {
        NFS_CB..=NFS_CB
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        let reply = match call.procedure {
            0 => Reply::Success(Frame::empty()),
            CB_COMPOUND => match from_bytes::<CB_COMPOUND4args>(call.args) {
                Ok(args) => to_frame(&self.compound(args), LARGEST).map_or(Reply::SystemErr, Reply::Success),
                Err(_) => Reply::GarbageArgs,
            },
            _ => Reply::ProcUnavail,
        };
        Box::pin(std::future::ready(reply))
    }
}
