//! COMMIT through this server. RFC 8881 §18.3: what was written through it is stable already.

use sluice_xdr::nfs4::{COMMIT4args, COMMIT4res, COMMIT4resok};

use super::lock::must_be_file;
use super::read::bounded;
use crate::compound::{Context, OpResult};

pub(crate) async fn commit(cx: &mut Context, args: COMMIT4args) -> OpResult<COMMIT4res> {
    must_be_file(cx).await?;
    bounded(args.offset, args.count.into())?;
    Ok(COMMIT4res::NFS4_OK(COMMIT4resok { writeverf: cx.server.write_verifier() }))
}
