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
        // BIND_CONN_TO_SESSION never follows a SEQUENCE (§18.34.3); EXCHANGE_ID and CREATE_SESSION, which may
        // come from a client that has a session already, do (§18.35.3, §18.36.3).
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

#[cfg(test)]
mod tests {
    use sluice_xdr::nfs4::nfs_opnum4;

    use super::*;
    use crate::compound::table::find;

    fn facts(index: u32, count: u32, in_session: bool) -> Facts {
        let (has_current, has_saved) = (false, false);
        Facts { index, count, in_session, has_current, has_saved, room: 1 << 20, cached_room: None }
    }

    fn admitted(op: nfs_opnum4, facts: &Facts) -> Result<(), nfsstat4> {
        admit(find(op.0, 2).unwrap(), facts)
    }

    /// pynfs EID1b, CSESS2, EID8, CSESS23.
    #[test]
    fn what_makes_sessions_stands_alone_or_follows_sequence() {
        for op in [nfs_opnum4::OP_EXCHANGE_ID, nfs_opnum4::OP_CREATE_SESSION] {
            assert_eq!(admitted(op, &facts(0, 1, false)), Ok(()));
            assert_eq!(admitted(op, &facts(1, 2, true)), Ok(()));
            assert_eq!(admitted(op, &facts(0, 2, false)), Err(nfsstat4::NFS4ERR_NOT_ONLY_OP));
        }
        let bind = nfs_opnum4::OP_BIND_CONN_TO_SESSION;
        assert_eq!(admitted(bind, &facts(0, 1, false)), Ok(()));
        assert_eq!(admitted(bind, &facts(1, 2, true)), Err(nfsstat4::NFS4ERR_NOT_ONLY_OP));
    }

    #[test]
    fn sequence_leads_and_leads_alone() {
        assert_eq!(admitted(nfs_opnum4::OP_SEQUENCE, &facts(0, 3, false)), Ok(()));
        assert_eq!(
            admitted(nfs_opnum4::OP_SEQUENCE, &facts(1, 3, true)),
            Err(nfsstat4::NFS4ERR_SEQUENCE_POS)
        );
        assert_eq!(
            admitted(nfs_opnum4::OP_PUTROOTFH, &facts(0, 1, false)),
            Err(nfsstat4::NFS4ERR_OP_NOT_IN_SESSION)
        );
    }

    #[test]
    fn what_changes_something_must_have_room_for_its_result() {
        let row = find(nfs_opnum4::OP_CREATE.0, 2).unwrap();
        let ample = Facts { has_current: true, ..facts(1, 2, true) };
        assert_eq!(admit(row, &ample), Ok(()));
        let short = Facts { room: row.reply_max - 1, ..ample };
        assert_eq!(admit(row, &short), Err(nfsstat4::NFS4ERR_REP_TOO_BIG));
        let uncached = Facts { cached_room: Some(row.reply_max - 1), ..ample };
        assert_eq!(admit(row, &uncached), Err(nfsstat4::NFS4ERR_REP_TOO_BIG_TO_CACHE));
    }
}
