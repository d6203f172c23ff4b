//! COPY. RFC 7862 §15.2: from the saved file to the current one, both of this server.

use sluice_namespace::{Kind, MAX_FILE_SIZE};
use sluice_state::StateId;
use sluice_state::stateid::{Special, special};
use sluice_xdr::nfs4::{
    COPY4args, COPY4res, COPY4resok, copy_requirements4, nfs_resop4, nfsstat4, stable_how4, stateid4,
    write_response4,
};

use super::read::bounded;
use crate::compound::context::{from_wire, to_wire};
use crate::compound::{Context, OpError, OpResult};
use crate::copies::step::{Commit, Step, step};
use crate::copies::{Caller, End, job};
use crate::error::state_status;
use crate::exports::protection;
use crate::layout::settle;

pub(crate) async fn copy(cx: &mut Context, args: COPY4args) -> OpResult<COPY4res> {
    // §15.2.3: from another server; COPY_NOTIFY is declined, so that no client has reason to ask.
    if !args.ca_source_server.is_empty() {
        return Err(nfsstat4::NFS4ERR_NOTSUPP.into());
    }
    let from = (&args.ca_src_stateid, args.ca_src_offset);
    let (caller, source, target) = ends(cx, from, (&args.ca_dst_stateid, args.ca_dst_offset)).await?;
    // §15.2.3: the two MUST be different files. Linux reads and writes within one file.
    if source.handle.inode == target.handle.inode {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    settle::settle_size(&cx.server, &source.handle.inode).await?;
    let size = settle::inode(&cx.server, source.handle.inode).await?.size();
    let count = range(&args, size)?;
    bounded(target.offset, count)?;
    if count == 0 {
        return Ok(answer(cx, 0));
    }
    let at_once = cx.server.config.copy_at_once;
    if !args.ca_synchronous && count > at_once && cx.can_be_called() {
        let begun = job::begin(&cx.server, caller.clone(), source.clone(), target.clone(), count);
        // Too many under way: a part now, as for a client that cannot be called. It is told how much, and asks again.
        if let Some(stateid) = begun {
            return Ok(begun_answer(cx, &stateid));
        }
    }
    let next = Step {
        client: caller.client,
        source: source.handle.inode,
        source_offset: source.offset,
        target: target.handle.inode,
        offset: target.offset,
        length: count,
        most: at_once,
    };
    let result = |copied| nfs_resop4::OP_COPY(answer(cx, copied));
    let copied = step(&cx.server, &next, &Commit::Operation(cx, &result)).await?;
    Ok(answer(cx, copied))
}

/// The current stateid of a source is the one that was saved with it (RFC 8881 §16.2.3.1.2), the newest of it (§8.2.3).
fn saved_stateid(cx: &Context, wire: &stateid4) -> Result<StateId, nfsstat4> {
    let given = from_wire(wire);
    match special(&given).map_err(|error| state_status(&error))? {
        Some(Special::Current) => {
            cx.saved_stateid.map(|saved| saved.with_seqid(0)).ok_or(nfsstat4::NFS4ERR_BAD_STATEID)
        }
        Some(Special::Invalid) => Err(nfsstat4::NFS4ERR_BAD_STATEID),
        _ => Ok(given),
    }
}

/// From where and to where, and who asks: for whom both are files, the one to be read and the other to be written.
///
/// # Errors
/// What the exports, the state and the modes say; WRONG_TYPE.
pub(super) async fn ends(
    cx: &mut Context,
    (source, source_offset): (&stateid4, u64),
    (target, offset): (&stateid4, u64),
) -> Result<(Caller, End, End), OpError> {
    let caller = Caller {
        client: cx.client()?,
        from: cx.from.address,
        credential: cx.wire_credential.clone(),
        over: protection::of(&cx.connection),
    };
    let source = End { handle: cx.saved()?, stateid: saved_stateid(cx, source)?, offset: source_offset };
    let target = End { handle: cx.current()?, stateid: cx.stateid(target)?, offset };
    // The gate has judged the current filehandle alone.
    caller.permit_use(&cx.server, &source)?;
    let from = settle::inode(&cx.server, source.handle.inode).await?;
    // §15.2.3.
    if from.kind() != Kind::File || cx.inode().await?.kind() != Kind::File {
        return Err(nfsstat4::NFS4ERR_WRONG_TYPE.into());
    }
    caller.permit(&cx.server, &source, false).await?;
    caller.permit(&cx.server, &target, true).await?;
    Ok((caller, source, target))
}

/// How many bytes. §15.2.3: 0 is up to the end; beyond the end there is nothing to ask for.
fn range(args: &COPY4args, size: u64) -> Result<u64, nfsstat4> {
    let end = args.ca_src_offset.checked_add(args.ca_count).filter(|end| *end <= MAX_FILE_SIZE);
    if end.is_none_or(|end| end > size) {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    Ok(if args.ca_count == 0 { size - args.ca_src_offset } else { args.ca_count })
}

fn answer(cx: &Context, copied: u64) -> COPY4res {
    respond(
        write_response4 {
            wr_callback_id: Vec::new(),
            wr_count: copied,
            // Every step is durable and its size is committed: there is nothing left to commit.
            wr_committed: stable_how4::FILE_SYNC4,
            wr_writeverf: cx.server.write_verifier(),
        },
        true,
    )
}

fn begun_answer(cx: &Context, stateid: &StateId) -> COPY4res {
    respond(
        write_response4 {
            wr_callback_id: vec![to_wire(stateid)],
            wr_count: 0,
            wr_committed: stable_how4::FILE_SYNC4,
            wr_writeverf: cx.server.write_verifier(),
        },
        false,
    )
}

fn respond(cr_response: write_response4, synchronous: bool) -> COPY4res {
    // What is counted is always a beginning of the range.
    let cr_requirements = copy_requirements4 { cr_consecutive: true, cr_synchronous: synchronous };
    COPY4res::NFS4_OK(COPY4resok { cr_response, cr_requirements })
}
