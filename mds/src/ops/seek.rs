//! SEEK. RFC 7862 §15.11.

use sluice_namespace::Inode;
use sluice_xdr::nfs4::{SEEK4args, SEEK4res, data_content4, nfsstat4, seek_res4};

use super::read::{Admitted, admit};
use crate::compound::{Context, OpResult};
use crate::dsctl;

pub(crate) async fn seek(cx: &mut Context, args: SEEK4args) -> OpResult<SEEK4res> {
    let data = match args.sa_what {
        data_content4::NFS4_CONTENT_DATA => true,
        data_content4::NFS4_CONTENT_HOLE => false,
        _ => return Err(nfsstat4::NFS4ERR_UNION_NOTSUPP.into()),
    };
    // All of it may be looked at. Of what is in the metadata nothing is.
    let ahead = |inode: &Inode| match inode.inline() {
        Some(_) => 0,
        None => inode.size().saturating_sub(args.sa_offset),
    };
    let ahead = cx.look(ahead).await?;
    // As long as it is looked at, nobody takes its data files away.
    let Admitted { held, inode, .. } = admit(cx, &args.sa_stateid, args.sa_offset, ahead).await?;
    let size = inode.size();
    // §15.11.3: at or beyond the end there is neither.
    if args.sa_offset >= size {
        return Err(nfsstat4::NFS4ERR_NXIO.into());
    }
    let found = match inode.layout() {
        // What is so small has no holes worth telling.
        _ if inode.inline().is_some() => data.then_some(args.sa_offset),
        Some(layout) => dsctl::seek(&cx.server, layout, args.sa_offset, size, data).await?,
        None if data => None,
        None => Some(args.sa_offset),
    };
    held.commit()?;
    let answer = match found {
        Some(offset) if offset < size => seek_res4 { sr_eof: false, sr_offset: offset },
        // The end of a file counts as a hole; for data it says that there is no more.
        _ => seek_res4 { sr_eof: true, sr_offset: size },
    };
    Ok(SEEK4res::NFS4_OK(answer))
}
