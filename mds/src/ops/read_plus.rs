//! READ_PLUS. RFC 7862 §15.10: a READ through this server that tells holes from data.

use bytes::Bytes;
use sluice_namespace::Layout;
use sluice_xdr::nfs4::{
    READ_PLUS4args, READ_PLUS4res, data_info4, data4, nfsstat4, read_plus_content, read_plus_res4,
};

use super::read::{Admitted, admit, done};
use crate::attr::get::MAX_IO;
use crate::compound::{Context, OpResult};
use crate::dsctl;

/// Bytes of the result around the segments: number, status, eof, how many.
const AROUND: u64 = 16;
/// Bytes of a segment around its data, and padding; a hole has no more.
const SEGMENT: u64 = 20 + 4;
/// Segments of one reply. Each is a question or two to a data server; what they leave out is asked for again.
const MOST: usize = 16;

pub(crate) async fn read_plus(cx: &mut Context, args: READ_PLUS4args) -> OpResult<READ_PLUS4res> {
    let admitted = admit(cx, &args.rpa_stateid, args.rpa_offset, args.rpa_count.into()).await?;
    let Admitted { held, inode, inline } = admitted;
    let end = inode.size().min(args.rpa_offset.saturating_add(args.rpa_count.into()));
    let mut room = u64::try_from(cx.reply_room).unwrap_or(0).saturating_sub(AROUND);
    let (mut at, mut data, mut contents) = (args.rpa_offset, 0, Vec::new());
    if let Some(bytes) = &inline {
        // Whole: what is so small has no holes worth telling.
        let length = room.saturating_sub(SEGMENT).min(MAX_IO).min(end.saturating_sub(at));
        let d_data = bytes.slice(..bytes.len().min(usize::try_from(length).unwrap_or(0)));
        data = u64::try_from(d_data.len()).unwrap_or(0);
        if data > 0 {
            contents.push(read_plus_content::NFS4_CONTENT_DATA(data4 { d_offset: at, d_data }));
        }
        at += data;
    }
    while inline.is_none() && at < end && contents.len() < MOST && room > SEGMENT {
        let (hole, upto) = extent(cx, inode.layout(), at, end).await?;
        let upto = if hole { upto } else { upto.min(at + (room - SEGMENT).min(MAX_IO - data)) };
        if upto == at {
            break;
        }
        room -= SEGMENT;
        if hole {
            let rpc_hole = data_info4 { di_offset: at, di_length: upto - at };
            contents.push(read_plus_content::NFS4_CONTENT_HOLE(rpc_hole));
        } else {
            let d_data = bytes(cx, inode.layout(), at, upto).await?;
            data += upto - at;
            room -= upto - at;
            contents.push(read_plus_content::NFS4_CONTENT_DATA(data4 { d_offset: at, d_data }));
        }
        at = upto;
    }
    done(cx, held, data, inline.is_some())?;
    // §15.10.3: the end is the end of the file, also when nothing of it was asked for.
    Ok(READ_PLUS4res::NFS4_OK(read_plus_res4 { rpr_eof: at >= inode.size(), rpr_contents: contents }))
}

/// Whether there is a hole at `at`, and where it ends, or the data do; `end` at the latest.
async fn extent(cx: &Context, layout: Option<&Layout>, at: u64, end: u64) -> Result<(bool, u64), nfsstat4> {
    // Size without data: a file that was only extended.
    let Some(layout) = layout else { return Ok((true, end)) };
    let data = dsctl::seek(&cx.server, layout, at, end, true).await?.unwrap_or(end).clamp(at, end);
    if data > at {
        return Ok((true, data));
    }
    let hole = dsctl::seek(&cx.server, layout, at, end, false).await?.unwrap_or(end).min(end);
    // Made between the two questions: it reads as zeros.
    Ok((false, if hole > at { hole } else { end }))
}

async fn bytes(cx: &Context, layout: Option<&Layout>, from: u64, upto: u64) -> Result<Bytes, nfsstat4> {
    let Some(layout) = layout else { return Err(nfsstat4::NFS4ERR_SERVERFAULT) };
    let length = u32::try_from(upto - from).map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)?;
    dsctl::read(&cx.server, layout, from, length).await
}
