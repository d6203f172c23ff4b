//! GETATTR, RFC 1813 §3.3.1. Clients of a layout take attributes from the metadata server; this is for
//! tools and for the curious.

use std::sync::Arc;

use bytes::Bytes;
use sluice_rpc::{Connection, Reply};
use sluice_xdr::capability::Rights;
use sluice_xdr::from_bytes;
use sluice_xdr::nfs3::{
    GETATTR3args, GETATTR3res, GETATTR3resok, fattr3, ftype3, nfsstat3, nfstime3, specdata3,
};

use crate::error::nfs_status;
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, from: Arc<Connection>, args: Bytes) -> Reply {
    let Ok(args) = from_bytes::<GETATTR3args>(args) else { return Reply::GarbageArgs };
    let result = match attributes(shared, &from, &args).await {
        Ok(obj_attributes) => GETATTR3res::NFS3_OK(GETATTR3resok { obj_attributes }),
        Err(status) => GETATTR3res::Default(status),
    };
    super::reply(&result)
}

async fn attributes(
    shared: &Arc<Shared>,
    from: &Connection,
    args: &GETATTR3args,
) -> Result<fattr3, nfsstat3> {
    let access = shared.admit(from, &args.object.data, Rights::NONE)?.access;
    let stat = shared.store.stat(access.key).await.map_err(|error| nfs_status(&error))?;
    if stat.is_none() {
        shared.absent(&access)?;
    }
    let stat = stat.unwrap_or_default();
    let never = nfstime3 { seconds: 0, nseconds: 0 };
    Ok(fattr3 {
        type_: ftype3::NF3REG,
        mode: 0o600,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: stat.size,
        used: stat.allocated,
        rdev: specdata3 { specdata1: 0, specdata2: 0 },
        fsid: u64::from(shared.seals.store()),
        fileid: access.key.file,
        atime: never,
        mtime: never,
        ctime: never,
    })
}
