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
    /// Why the caller may not use the current filehandle (crate::exports).
    pub(crate) refused: Option<nfsstat4>,
    /// It may change nothing there.
    pub(crate) read_only: bool,
    /// The current filehandle is of a directory that only leads to exports.
    pub(crate) pseudo: bool,
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
    if row.flags.has(Flags::CURRENT) {
        export(row, facts)?;
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

/// What the export of the current filehandle lets this caller do.
fn export(row: &Row, facts: &Facts) -> Result<(), nfsstat4> {
    match facts.refused {
        // What only gives back is taken from whoever holds it; §2.6.3.1.1.5: which flavours are good is told in any.
        Some(nfsstat4::NFS4ERR_WRONGSEC) if row.flags.has(Flags::FLAVOURS) => {}
        Some(status) if !row.flags.has(Flags::RELEASES) => return Err(status),
        _ => {}
    }
    if facts.read_only && row.flags.has(Flags::CHANGES_FILES) {
        return Err(nfsstat4::NFS4ERR_ROFS);
    }
    // There are no files in such a directory, and nothing is kept of it.
    if facts.pseudo && !row.flags.has(Flags::PSEUDO) {
        return Err(nfsstat4::NFS4ERR_NOTSUPP);
    }
    Ok(())
}

/// Whether an operation that gave a filehandle the caller's flavour is no good for fails for it: not if a filehandle,
/// the question for flavours, or nothing follows, or what judges the flavour by itself (§2.6.3.1.1).
pub(crate) fn names_no_flavour(row: &Row, following: Option<&Row>) -> bool {
    row.flags.has(Flags::PUTS)
        && following.is_some_and(|next| {
            !next.flags.has(Flags::PUTS) && !next.flags.has(Flags::FLAVOURS) && !next.flags.has(Flags::WALKS)
        })
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
        Facts {
            index,
            count,
            in_session,
            has_current,
            has_saved,
            refused: None,
            read_only: false,
            pseudo: false,
            room: 1 << 20,
            cached_room: None,
        }
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
    #[test]
    fn what_gives_back_is_taken_from_whoever_may_not_use_the_export_any_more() {
        let refused = |status| Facts { has_current: true, refused: Some(status), ..facts(2, 3, true) };
        let gone = refused(nfsstat4::NFS4ERR_STALE);
        for op in [nfs_opnum4::OP_CLOSE, nfs_opnum4::OP_LAYOUTRETURN, nfs_opnum4::OP_DELEGRETURN] {
            assert_eq!(admitted(op, &gone), Ok(()));
        }
        for op in
            [nfs_opnum4::OP_READ, nfs_opnum4::OP_GETATTR, nfs_opnum4::OP_LAYOUTGET, nfs_opnum4::OP_SECINFO]
        {
            assert_eq!(admitted(op, &gone), Err(nfsstat4::NFS4ERR_STALE));
        }
        let flavour = refused(nfsstat4::NFS4ERR_WRONGSEC);
        assert_eq!(admitted(nfs_opnum4::OP_SECINFO_NO_NAME, &flavour), Ok(()));
        assert_eq!(admitted(nfs_opnum4::OP_LOOKUP, &flavour), Err(nfsstat4::NFS4ERR_WRONGSEC));
    }

    #[test]
    fn whatever_modifies_files_is_refused_where_all_is_read_only() {
        let read_only = Facts { has_current: true, has_saved: true, read_only: true, ..facts(2, 3, true) };
        for row in crate::compound::table::TABLE {
            let is_change = matches!(
                row.name,
                "CREATE"
                    | "LINK"
                    | "REMOVE"
                    | "RENAME"
                    | "SETATTR"
                    | "WRITE"
                    | "ALLOCATE"
                    | "CLONE"
                    | "COPY"
                    | "DEALLOCATE"
                    | "SETXATTR"
                    | "REMOVEXATTR"
            );
            let refused = admit(row, &read_only) == Err(nfsstat4::NFS4ERR_ROFS);
            assert_eq!(refused, is_change, "{row:?}");
        }
    }

    #[test]
    fn a_filehandle_of_a_wrong_flavour_fails_before_it_is_used() {
        let row = |op: nfs_opnum4| find(op.0, 2).unwrap();
        let put = row(nfs_opnum4::OP_PUTFH);
        assert!(names_no_flavour(put, Some(row(nfs_opnum4::OP_GETATTR))));
        assert!(!names_no_flavour(put, None));
        for op in [nfs_opnum4::OP_SECINFO, nfs_opnum4::OP_LOOKUP, nfs_opnum4::OP_PUTROOTFH] {
            assert!(!names_no_flavour(put, Some(row(op))));
        }
        assert!(!names_no_flavour(row(nfs_opnum4::OP_LOOKUP), Some(put)));
    }
}
