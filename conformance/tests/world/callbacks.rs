//! What a metadata server asks of a client over its session, taken apart and answered. RFC 8881 §20.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_rpc::{Call, Frame, Program, Reply};
use sluice_xdr::nfs4::*;
use sluice_xdr::{from_bytes, to_frame};

pub(crate) const CALLBACKS: u32 = 0x4000_0000;

/// Who hears. What somebody does not expect, is not asked of him.
pub(crate) trait Hears: std::fmt::Debug + Send + Sync + 'static {
    fn recall(&self, recall: CB_LAYOUTRECALL4args) -> nfsstat4;

    fn recall_delegation(&self, recall: CB_RECALL4args) -> nfsstat4 {
        panic!("an unexpected recall of a delegation: {recall:?}");
    }

    /// Somebody looks at a file that is delegated.
    fn attributes(&self, args: CB_GETATTR4args) -> CB_GETATTR4res {
        panic!("an unexpected question: {args:?}");
    }

    /// A copy in the background ended.
    fn copied(&self, end: CB_OFFLOAD4args) {
        panic!("an unexpected end of a copy: {end:?}");
    }

    /// Somebody else gave a lock back.
    fn lock_is_free(&self, args: CB_NOTIFY_LOCK4args) {
        panic!("an unexpected lock: {args:?}");
    }
}

/// The program that a session's back channel calls.
#[derive(Debug)]
pub(crate) struct BackChannel<T>(pub(crate) Arc<T>);

impl<T: Hears> Program for BackChannel<T> {
    fn number(&self) -> u32 {
        CALLBACKS
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        let reply = if call.procedure == 0 { Frame::empty() } else { self.answer(call.args) };
        Box::pin(std::future::ready(Reply::Success(reply)))
    }
}

impl<T: Hears> BackChannel<T> {
    fn answer(&self, args: Bytes) -> Frame {
        let args: CB_COMPOUND4args = from_bytes(args).unwrap();
        let mut status = nfsstat4::NFS4_OK;
        let mut resarray = Vec::new();
        for op in args.argarray {
            let (told, result) = self.operation(op);
            resarray.push(result);
            if told != nfsstat4::NFS4_OK {
                status = told;
                break;
            }
        }
        to_frame(&CB_COMPOUND4res { status, tag: Bytes::new(), resarray }, 65536).unwrap()
    }

    fn operation(&self, op: nfs_cb_argop4) -> (nfsstat4, nfs_cb_resop4) {
        let ok = nfsstat4::NFS4_OK;
        match op {
            nfs_cb_argop4::OP_CB_SEQUENCE(s) => {
                let resok = CB_SEQUENCE4resok {
                    csr_sessionid: s.csa_sessionid,
                    csr_sequenceid: s.csa_sequenceid,
                    csr_slotid: s.csa_slotid,
                    csr_highest_slotid: s.csa_highest_slotid,
                    csr_target_highest_slotid: s.csa_highest_slotid,
                };
                (ok, nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::NFS4_OK(resok)))
            }
            nfs_cb_argop4::OP_CB_LAYOUTRECALL(recall) => {
                let clorr_status = self.0.recall(recall);
                (clorr_status, nfs_cb_resop4::OP_CB_LAYOUTRECALL(CB_LAYOUTRECALL4res { clorr_status }))
            }
            nfs_cb_argop4::OP_CB_RECALL(recall) => {
                let status = self.0.recall_delegation(recall);
                (status, nfs_cb_resop4::OP_CB_RECALL(CB_RECALL4res { status }))
            }
            nfs_cb_argop4::OP_CB_GETATTR(args) => {
                let answer = self.0.attributes(args);
                let status = match &answer {
                    CB_GETATTR4res::NFS4_OK(_) => ok,
                    CB_GETATTR4res::Default(status) => *status,
                };
                (status, nfs_cb_resop4::OP_CB_GETATTR(answer))
            }
            nfs_cb_argop4::OP_CB_OFFLOAD(end) => {
                self.0.copied(end);
                (ok, nfs_cb_resop4::OP_CB_OFFLOAD(CB_OFFLOAD4res { cor_status: ok }))
            }
            nfs_cb_argop4::OP_CB_NOTIFY_LOCK(args) => {
                self.0.lock_is_free(args);
                (ok, nfs_cb_resop4::OP_CB_NOTIFY_LOCK(CB_NOTIFY_LOCK4res { cnlr_status: ok }))
            }
            other => panic!("an unexpected callback: {other:?}"),
        }
    }
}
