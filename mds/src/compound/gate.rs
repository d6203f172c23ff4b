//! What is checked before an operation runs: position, filehandle, reply room. Pure.

use sluice_xdr::nfs4::nfsstat4;

use super::table::{Flags, Row};

/// The facts the gate judges by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Position in the COMPOUND, from 0.
    pub(crate) index: u32,
    /// Operations in the COMPOUND.
    pub(crate) count: u32,
    /// SEQUENCE came first.
    pub(crate) in_session: bool,
    pub(crate) has_current: bool,
    pub(crate) has_saved: bool,
    /// Bytes that the reply may still take, and may take if it is to be cached.
    pub(crate) room: usize,
    pub(crate) cached_room: Option<usize>,
}

/// Whether `row` may run now.
///
/// # Errors
/// The status that the operation gets instead of running.
pub(crate) fn admit(row: &Row, facts: &Facts) -> Result<(), nfsstat4> {
    position(row, facts)?;
    if row.flags.has(Flags::CURRENT) && !facts.has_current {
        return Err(nfsstat4::NFS4ERR_NOFILEHANDLE);
    }
    if row.flags.has(Flags::SAVED) && !facts.has_saved {
        return Err(nfsstat4::NFS4ERR_NOFILEHANDLE);
    }
    // What cannot be answered must not be done: RFC 8881 §2.10.6.4 has the limits judged per operation.
    if row.flags.has(Flags::MODIFIES) {
        if row.reply_max > facts.room {
            return Err(nfsstat4::NFS4ERR_REP_TOO_BIG);
        }
        if facts.cached_room.is_some_and(|room| row.reply_max > room) {
            return Err(nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE);
        }
    }
    Ok(())
}

/// RFC 8881 §18.46.3: SEQUENCE leads every COMPOUND but those of the operations that make sessions, and
/// those stand alone.
fn position(row: &Row, facts: &Facts) -> Result<(), nfsstat4> {
    if row.flags.has(Flags::SEQUENCE) {
        return if facts.index == 0 { Ok(()) } else { Err(nfsstat4::NFS4ERR_SEQUENCE_POS) };
    }
    if facts.in_session {
        // EXCHANGE_ID, CREATE_SESSION and BIND_CONN_TO_SESSION never follow a SEQUENCE (§18.35.3, §18.36.3, §18.34.3).
        if row.flags.has(Flags::ALONE) {
            return Err(nfsstat4::NFS4ERR_NOT_ONLY_OP);
        }
        return Ok(());
    }
    if !row.flags.has(Flags::SESSIONLESS) {
        return Err(nfsstat4::NFS4ERR_OP_NOT_IN_SESSION);
    }
    if facts.count != 1 {
        return Err(nfsstat4::NFS4ERR_NOT_ONLY_OP);
    }
    Ok(())
}
