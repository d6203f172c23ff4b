//! FSSTAT, RFC 1813 §3.3.18.

use std::sync::Arc;

use bytes::Bytes;
use sluice_rpc::{Connection, Reply};
use sluice_xdr::capability::Rights;
use sluice_xdr::from_bytes;
use sluice_xdr::nfs3::{FSSTAT3args, FSSTAT3res, FSSTAT3resfail, FSSTAT3resok, nfsstat3};

use super::NO_ATTRIBUTES;
use crate::error::nfs_status;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, from: Arc<Connection>, args: Bytes) -> Reply {
    let Ok(args) = from_bytes::<FSSTAT3args>(args) else { return Reply::GarbageArgs };
    let result = match space(shared, &from, &args).await {
        Ok(ok) => FSSTAT3res::NFS3_OK(ok),
        Err(status) => FSSTAT3res::Default(status, FSSTAT3resfail { obj_attributes: NO_ATTRIBUTES }),
    };
    super::reply(&result)
}

async fn space(
    shared: &Arc<Shared>,
    from: &Connection,
    args: &FSSTAT3args,
) -> Result<FSSTAT3resok, nfsstat3> {
    shared.admit(from, &args.fsroot.data, Rights::NONE)?;
    let capacity = shared.store.capacity().await.map_err(|error| nfs_status(&error))?;
    Ok(FSSTAT3resok {
        obj_attributes: NO_ATTRIBUTES,
        tbytes: capacity.total,
        fbytes: capacity.free,
        abytes: capacity.free,
        tfiles: capacity.inodes,
        ffiles: capacity.inodes_free,
        afiles: capacity.inodes_free,
        invarsec: 0,
    })
}
