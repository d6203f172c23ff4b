//! FSINFO, RFC 1813 §3.3.19.

use std::sync::Arc;

use bytes::Bytes;
use sluice_rpc::{Connection, Reply};
use sluice_xdr::capability::Rights;
use sluice_xdr::from_bytes;
use sluice_xdr::nfs3::{FSF3_HOMOGENEOUS, FSINFO3args, FSINFO3res, FSINFO3resfail, FSINFO3resok, nfstime3};

use super::NO_ATTRIBUTES;
use crate::shared::{IO_MAX, Shared};

pub(super) async fn run(shared: &Arc<Shared>, from: Arc<Connection>, args: Bytes) -> Reply {
    let Ok(args) = from_bytes::<FSINFO3args>(args) else { return Reply::GarbageArgs };
    let result = match shared.admit(&from, &args.fsroot.data, Rights::NONE) {
        Ok(_) => FSINFO3res::NFS3_OK(FSINFO3resok {
            obj_attributes: NO_ATTRIBUTES,
            rtmax: IO_MAX,
            rtpref: IO_MAX,
            rtmult: 4096,
            wtmax: IO_MAX,
            wtpref: IO_MAX,
            wtmult: 4096,
            dtpref: 4096,
            maxfilesize: i64::MAX as u64,
            time_delta: nfstime3 { seconds: 0, nseconds: 1 },
            properties: FSF3_HOMOGENEOUS,
        }),
        Err(status) => FSINFO3res::Default(status, FSINFO3resfail { obj_attributes: NO_ATTRIBUTES }),
    };
    super::reply(&result)
}
