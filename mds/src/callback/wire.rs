//! CB_COMPOUND of CB_SEQUENCE and one operation: what Linux takes at most. RFC 8881 §20.2, §20.9. Pure.

use bytes::Bytes;
use sluice_state::SessionId;
use sluice_state::effect::Call;
use sluice_state::session::CbTicket;
use sluice_xdr::nfs4::{
    CB_COMPOUND4args, CB_COMPOUND4res, CB_GETATTR4res, CB_SEQUENCE4args, CB_SEQUENCE4res, fattr4,
    nfs_cb_argop4, nfs_cb_resop4, nfsstat4, referring_call_list4, referring_call4, sessionid4,
};
use sluice_xdr::{DecodeError, EncodeError, Frame, from_bytes, to_frame};

/// What is asked of a client.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) operation: nfs_cb_argop4,
    /// Requests of the client that it comes after.
    pub(super) after: Vec<Call>,
}

impl From<nfs_cb_argop4> for Message {
    fn from(operation: nfs_cb_argop4) -> Self {
        Self { operation, after: Vec::new() }
    }
}

/// What the client said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) status: nfsstat4,
    /// Of CB_GETATTR.
    pub(super) attributes: Option<fattr4>,
}

/// What the client did with a callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It ran the operation, with this result.
    Answered(Said),
    /// It ran the operation when it was sent before, and has not kept the result.
    Forgotten,
    /// Not now: the same again later.
    Later,
    /// It knows no such session.
    NoSession,
    /// It finds the slot or its sequence number wrong.
    BadSlot,
    /// It did not take the request at all.
    Refused(nfsstat4),
}

/// The arguments, encoded. `room` is the largest request of the back channel in bytes.
///
/// # Errors
/// It does not fit.
pub(super) fn request(
    minor: u32,
    session: SessionId,
    ticket: &CbTicket,
    message: &Message,
    room: usize,
) -> Result<Frame, EncodeError> {
    let sequence = CB_SEQUENCE4args {
        csa_sessionid: sessionid4(session.0),
        csa_sequenceid: ticket.seqid,
        csa_slotid: ticket.slot,
        csa_highest_slotid: ticket.highest_slot,
        // Recalls may be sent twice: nothing need be kept for a retry.
        csa_cachethis: false,
        csa_referring_call_lists: by_session(&message.after),
    };
    let compound = CB_COMPOUND4args {
        tag: Bytes::new(),
        minorversion: minor,
        // §20.2.3: of NFSv4.0 only.
        callback_ident: 0,
        argarray: vec![nfs_cb_argop4::OP_CB_SEQUENCE(sequence), message.operation.clone()],
    };
    to_frame(&compound, room)
}

/// §2.10.6.3. In the order that they are in: Linux waits for one after the other, half a second each, and not for those behind one
/// that it is not answered.
fn by_session(calls: &[Call]) -> Vec<referring_call_list4> {
    let mut lists: Vec<referring_call_list4> = Vec::new();
    for call in calls {
        let session = sessionid4(call.session.0);
        let one = referring_call4 { rc_sequenceid: call.sequence, rc_slotid: call.slot };
        match lists.iter_mut().find(|list| list.rcl_sessionid == session) {
            Some(list) => list.rcl_referring_calls.push(one),
            None => {
                lists.push(referring_call_list4 { rcl_sessionid: session, rcl_referring_calls: vec![one] })
            }
        }
    }
    lists
}

/// Judges a reply.
///
/// # Errors
/// It cannot be decoded.
pub(super) fn judge(reply: Bytes) -> Result<Verdict, DecodeError> {
    let reply: CB_COMPOUND4res = from_bytes(reply)?;
    let attributes = match reply.resarray.get(1) {
        Some(nfs_cb_resop4::OP_CB_GETATTR(CB_GETATTR4res::NFS4_OK(ok))) => Some(ok.obj_attributes.clone()),
        _ => None,
    };
    let sequence = match reply.resarray.first() {
        // §16.2.3: the status of the whole is that of the last operation, which is ours.
        Some(nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::NFS4_OK(_))) => {
            return Ok(match reply.status {
                nfsstat4::NFS4ERR_RETRY_UNCACHED_REP => Verdict::Forgotten,
                status => Verdict::Answered(Said { status, attributes }),
            });
        }
        Some(nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::Default(status))) => *status,
        _ => reply.status,
    };
    Ok(match sequence {
        nfsstat4::NFS4ERR_DELAY => Verdict::Later,
        nfsstat4::NFS4ERR_RETRY_UNCACHED_REP => Verdict::Forgotten,
        nfsstat4::NFS4ERR_BADSESSION => Verdict::NoSession,
        nfsstat4::NFS4ERR_BADSLOT
        | nfsstat4::NFS4ERR_BAD_HIGH_SLOT
        | nfsstat4::NFS4ERR_SEQ_MISORDERED
        | nfsstat4::NFS4ERR_SEQ_FALSE_RETRY => Verdict::BadSlot,
        status => Verdict::Refused(status),
    })
}

#[cfg(test)]
mod tests {
    use sluice_xdr::nfs4::{
        CB_LAYOUTRECALL4args, CB_RECALL4args, CB_RECALL4res, CB_SEQUENCE4resok, layoutiomode4,
        layoutrecall_file4, layoutrecall4, layouttype4, nfs_fh4,
    };
    use sluice_xdr::to_bytes;

    use super::*;

    fn reply(status: nfsstat4, resarray: Vec<nfs_cb_resop4>) -> Bytes {
        to_bytes(&CB_COMPOUND4res { status, tag: Bytes::new(), resarray }).unwrap()
    }

    fn sequence(status: nfsstat4) -> nfs_cb_resop4 {
        nfs_cb_resop4::OP_CB_SEQUENCE(match status {
            nfsstat4::NFS4_OK => CB_SEQUENCE4res::NFS4_OK(CB_SEQUENCE4resok::default()),
            status => CB_SEQUENCE4res::Default(status),
        })
    }

    #[test]
    fn the_result_of_the_operation_is_the_answer() {
        for status in [nfsstat4::NFS4_OK, nfsstat4::NFS4ERR_BAD_STATEID, nfsstat4::NFS4ERR_DELAY] {
            let recalled = nfs_cb_resop4::OP_CB_RECALL(CB_RECALL4res { status });
            let bytes = reply(status, vec![sequence(nfsstat4::NFS4_OK), recalled]);
            assert_eq!(judge(bytes), Ok(Verdict::Answered(Said { status, attributes: None })));
        }
    }

    #[test]
    fn a_failed_cb_sequence_says_what_to_do_next() {
        for (status, verdict) in [
            (nfsstat4::NFS4ERR_DELAY, Verdict::Later),
            (nfsstat4::NFS4ERR_RETRY_UNCACHED_REP, Verdict::Forgotten),
            (nfsstat4::NFS4ERR_BADSESSION, Verdict::NoSession),
            (nfsstat4::NFS4ERR_SEQ_MISORDERED, Verdict::BadSlot),
            (nfsstat4::NFS4ERR_SEQ_FALSE_RETRY, Verdict::BadSlot),
            (nfsstat4::NFS4ERR_BADSLOT, Verdict::BadSlot),
            (nfsstat4::NFS4ERR_TOO_MANY_OPS, Verdict::Refused(nfsstat4::NFS4ERR_TOO_MANY_OPS)),
        ] {
            assert_eq!(judge(reply(status, vec![sequence(status)])), Ok(verdict), "{status:?}");
        }
    }

    #[test]
    fn an_uncached_repetition_was_run_before() {
        let status = nfsstat4::NFS4ERR_RETRY_UNCACHED_REP;
        let second = nfs_cb_resop4::OP_CB_RECALL(CB_RECALL4res { status });
        assert_eq!(judge(reply(status, vec![sequence(nfsstat4::NFS4_OK), second])), Ok(Verdict::Forgotten));
    }

    #[test]
    fn a_reply_without_results_is_a_refusal() {
        let status = nfsstat4::NFS4ERR_MINOR_VERS_MISMATCH;
        assert_eq!(judge(reply(status, Vec::new())), Ok(Verdict::Refused(status)));
    }

    #[test]
    fn bytes_that_are_no_reply_are_an_error() {
        let mut longer = reply(nfsstat4::NFS4_OK, vec![sequence(nfsstat4::NFS4_OK)]).to_vec();
        longer.push(0);
        assert!(judge(longer.into()).is_err());
        assert!(judge(Bytes::from_static(b"\0\0")).is_err());
    }

    #[test]
    fn the_largest_recall_fits_the_least_back_channel() {
        let recall = nfs_cb_argop4::OP_CB_RECALL(CB_RECALL4args::default());
        let ticket = CbTicket { slot: 1, seqid: 2, highest_slot: 1 };
        let room = usize::try_from(sluice_state::session::MIN_BACK_REQUEST).unwrap();
        let lor_fh = nfs_fh4(Bytes::from_static(&[7; 128]));
        let file = layoutrecall_file4 { lor_fh, ..layoutrecall_file4::default() };
        let layout = nfs_cb_argop4::OP_CB_LAYOUTRECALL(CB_LAYOUTRECALL4args {
            clora_type: layouttype4::LAYOUT4_FLEX_FILES,
            clora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
            clora_changed: true,
            clora_recall: layoutrecall4::LAYOUTRECALL4_FILE(file),
        });
        let after = [1, 2].map(|n| Call { session: SessionId([n; 16]), slot: 3, sequence: 4 }).to_vec();
        for message in [recall.into(), Message { operation: layout, after }] {
            assert!(request(1, SessionId([0; 16]), &ticket, &message, room).is_ok());
            assert!(request(1, SessionId([0; 16]), &ticket, &message, 32).is_err());
        }
    }

    #[test]
    fn calls_are_told_by_session_and_in_order() {
        let call = |session, slot, sequence| Call { session: SessionId([session; 16]), slot, sequence };
        let told = by_session(&[call(1, 5, 9), call(2, 0, 1), call(1, 4, 3)]);
        let of = |n: usize| {
            let calls = told[n].rcl_referring_calls.iter();
            (
                told[n].rcl_sessionid.0,
                calls.map(|call| (call.rc_slotid, call.rc_sequenceid)).collect::<Vec<_>>(),
            )
        };
        assert_eq!((of(0), of(1)), (([1; 16], vec![(5, 9), (4, 3)]), ([2; 16], vec![(0, 1)])));
        assert!(by_session(&[]).is_empty() && told.len() == 2);
    }
}
