//! What OPEN says about delegations. RFC 8881 §18.16.3, §10.4.

use sluice_state::delegation::{DelegationKind, Grant};
use sluice_xdr::nfs4::*;

use crate::compound::context::to_wire;

/// The delegation granted, or why none was, if the client asked in a way that wants to know.
pub(in crate::ops) fn wire(share_access: u32, grant: Option<&Grant>) -> open_delegation4 {
    let nobody = nfsace4 {
        type_: ACE4_ACCESS_ALLOWED_ACE_TYPE,
        flag: 0,
        access_mask: 0,
        // §10.4.4: nobody may be let in by the client alone: it asks with ACCESS.
        who: bytes::Bytes::new(),
    };
    match grant {
        Some(Grant { kind: DelegationKind::Read, stateid, .. }) => {
            open_delegation4::OPEN_DELEGATE_READ(open_read_delegation4 {
                stateid: to_wire(stateid),
                recall: false,
                permissions: nobody,
            })
        }
        Some(Grant { kind: DelegationKind::Write, stateid, times }) => {
            let write = open_write_delegation4 {
                stateid: to_wire(stateid),
                recall: false,
                // §10.4.1: what was written is flushed with the close all the same: no space is set aside for
                // it, and a recall need not wait long.
                space_limit: nfs_space_limit4::NFS_LIMIT_SIZE(0),
                permissions: nobody,
            };
            match times {
                false => open_delegation4::OPEN_DELEGATE_WRITE(write),
                true => open_delegation4::OPEN_DELEGATE_WRITE_ATTRS_DELEG(write),
            }
        }
        None => none(share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK),
    }
}

/// §18.16.3: a client that said what it wants hears why it does not get it.
fn none(want: u32) -> open_delegation4 {
    let why = match want {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => return open_delegation4::OPEN_DELEGATE_NONE,
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => {
            open_none_delegation4::Default(why_no_delegation4::WND4_NOT_WANTED)
        }
        OPEN4_SHARE_ACCESS_WANT_CANCEL => open_none_delegation4::Default(why_no_delegation4::WND4_CANCELLED),
        _ => open_none_delegation4::WND4_RESOURCE(false),
    };
    open_delegation4::OPEN_DELEGATE_NONE_EXT(why)
}
