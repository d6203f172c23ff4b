//! COMMIT, RFC 1813 §3.3.21. Linux commits whole files; a range commits the whole file too, which is
//! more than asked and never less.

use std::sync::Arc;

use bytes::Bytes;
use sluice_rpc::{Connection, Reply};
use sluice_store::{StoreError, Verifier};
use sluice_xdr::capability::Rights;
use sluice_xdr::from_bytes;
use sluice_xdr::nfs3::{COMMIT3args, COMMIT3res, COMMIT3resfail, COMMIT3resok, nfsstat3, writeverf3};

use super::no_wcc;
use crate::error::{nfs_status, refused};
use crate::shared::Shared;

pub(super) async fn run(shared: &Arc<Shared>, from: Arc<Connection>, args: Bytes) -> Reply {
    let Ok(args) = from_bytes::<COMMIT3args>(args) else { return Reply::GarbageArgs };
    let result = match commit(shared, &from, &args).await {
        Ok(Verifier(verifier)) => {
            COMMIT3res::NFS3_OK(COMMIT3resok { file_wcc: no_wcc(), verf: writeverf3(verifier) })
        }
        Err(status) => COMMIT3res::Default(status, COMMIT3resfail { file_wcc: no_wcc() }),
    };
    super::reply(&result)
}

async fn commit(shared: &Arc<Shared>, from: &Connection, args: &COMMIT3args) -> Result<Verifier, nfsstat3> {
    let access = shared.admit(from, &args.file.data, Rights::WRITE)?.access;
    match shared.store.commit(access.key).await {
        Ok(verifier) => {
            shared.counters.committed();
            Ok(verifier)
        }
        Err(StoreError::Missing) => {
            // It was removed meanwhile: what was written to it is not told to be durable.
            shared.store.check(&access).map_err(refused)?;
            match shared.absent(&access) {
                Err(lost @ nfsstat3::NFS3ERR_IO) => Err(lost),
                // Its writes were unstable and a restart took the whole file back: the verifier says so, and
                // the client sends them again.
                _ => Ok(shared.store.verifier(access.key)),
            }
        }
        Err(error) => {
            shared.counters.error();
            Err(nfs_status(&error))
        }
    }
}
