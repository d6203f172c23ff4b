//! TEST_STATEID. RFC 8881 §18.48.

use sluice_xdr::nfs4::{TEST_STATEID4args, TEST_STATEID4res, TEST_STATEID4resok, nfsstat4};

use crate::compound::context::from_wire;
use crate::compound::{Context, OpResult};
use crate::error::state_status;

/// Stateids looked at in one operation: what a request of the largest size can hold.
const MAX: usize = 1 << 16;

pub(crate) fn test_stateid(cx: &mut Context, args: TEST_STATEID4args) -> OpResult<TEST_STATEID4res> {
    if args.ts_stateids.len() > MAX {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    let client = cx.client()?;
    let files = &cx.server.files;
    let mut codes = Vec::with_capacity(args.ts_stateids.len());
    for wire in &args.ts_stateids {
        let stateid = from_wire(wire);
        // §18.48.3: special stateids, the current one among them, are never valid here.
        let verdict = match sluice_state::stateid::special(&stateid) {
            Ok(Some(_)) => Err(sluice_state::file::Error::BadStateid),
            Err(error) => Err(error),
            Ok(None) => cx.locate_of(client, &stateid).and_then(|at| match files.get(at.file) {
                Some(entry) => entry.peek(|file| file.test_stateid(client, &stateid)),
                None => Err(sluice_state::file::Error::BadStateid),
            }),
        };
        codes.push(verdict.map_or_else(|error| state_status(&error), |()| nfsstat4::NFS4_OK));
    }
    Ok(TEST_STATEID4res::NFS4_OK(TEST_STATEID4resok { tsr_status_codes: codes }))
}
