//! What a client's own machine gives back where its ticket is of a flavour that the export does not take: under SP4_MACH_CRED it was
//! promised that it may (RFC 8881 §2.10.8.3). To CLOSE a file it must say which, with PUTFH, and Linux asks for its attributes in
//! between.

use sluice_state::client::Operations;
use sluice_xdr::nfs4::{nfs_argop4, nfs_opnum4};
use sluice_xdr::{Decode, Reader};

use super::Context;
use super::table::{Flags, Row};

/// Those for which a file has to be named.
const GIVING_BACK: Operations = Operations::of(&[
    nfs_opnum4::OP_CLOSE.0,
    nfs_opnum4::OP_COMMIT.0,
    nfs_opnum4::OP_DELEGRETURN.0,
    nfs_opnum4::OP_LAYOUTRETURN.0,
    nfs_opnum4::OP_LOCKU.0,
    nfs_opnum4::OP_OPEN_DOWNGRADE.0,
]);

impl Context {
    /// Whether an operation runs though the caller's flavour is not good there. `reader` stands before it or right behind it, with
    /// `left` operations from there on.
    pub(super) fn is_excused(&mut self, row: &Row, reader: &Reader, left: u32) -> bool {
        // It was promised nothing of connections (ADR 0045).
        if self.is_exposed() {
            return false;
        }
        let Some(allowed) = self.allowed_as_machine() else { return false };
        if allowed.has(row.op.0) {
            return true;
        }
        let around = row.flags.has(Flags::PUTS) || row.op == nfs_opnum4::OP_GETATTR;
        if !around {
            return false;
        }
        // Once it has begun, to the end: some ask for attributes behind what they give back.
        self.excused = self.excused || is_ahead(reader, left, allowed.and(GIVING_BACK));
        self.excused
    }
}

/// Whether one of these operations is among the next.
fn is_ahead(reader: &Reader, left: u32, wanted: Operations) -> bool {
    let mut ahead = Reader::new(reader.rest());
    for _ in 0..left {
        match Reader::new(ahead.rest()).u32() {
            Ok(number) if wanted.has(number) => return true,
            Ok(_) if nfs_argop4::decode(&mut ahead).is_ok() => {}
            _ => return false,
        }
    }
    false
}
