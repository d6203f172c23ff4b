//! Operations as they are sent, in one line each.

use bytes::Bytes;
use sluice_xdr::EncodeError;
use sluice_xdr::nfs4::*;

/// The stateid that the server sets itself within a COMPOUND. RFC 8881 §16.2.3.1.2.
pub const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };
/// The whole file.
pub const ALL: u64 = u64::MAX;
/// Largest layout body that a stock kernel takes.
const LAYOUT_BODY: u32 = 4096;

#[must_use]
pub fn putrootfh() -> nfs_argop4 {
    nfs_argop4::OP_PUTROOTFH
}

#[must_use]
pub fn putfh(handle: &nfs_fh4) -> nfs_argop4 {
    nfs_argop4::OP_PUTFH(PUTFH4args { object: handle.clone() })
}

#[must_use]
pub fn getfh() -> nfs_argop4 {
    nfs_argop4::OP_GETFH
}

#[must_use]
pub fn lookup(name: &[u8]) -> nfs_argop4 {
    nfs_argop4::OP_LOOKUP(LOOKUP4args { objname: Bytes::copy_from_slice(name) })
}

#[must_use]
pub fn getattr(wanted: bitmap4) -> nfs_argop4 {
    nfs_argop4::OP_GETATTR(GETATTR4args { attr_request: wanted })
}

/// # Errors
/// If a value is too long for the wire.
pub fn setattr(stateid: stateid4, attributes: &Attributes) -> Result<nfs_argop4, EncodeError> {
    let obj_attributes = attributes.encode(&attributes.present())?;
    Ok(nfs_argop4::OP_SETATTR(SETATTR4args { stateid, obj_attributes }))
}

/// # Errors
/// If a value is too long for the wire.
pub fn create(kind: createtype4, name: &[u8], attributes: &Attributes) -> Result<nfs_argop4, EncodeError> {
    let createattrs = attributes.encode(&attributes.present())?;
    Ok(nfs_argop4::OP_CREATE(CREATE4args {
        objtype: kind,
        objname: Bytes::copy_from_slice(name),
        createattrs,
    }))
}

#[must_use]
pub fn remove(name: &[u8]) -> nfs_argop4 {
    nfs_argop4::OP_REMOVE(REMOVE4args { target: Bytes::copy_from_slice(name) })
}

/// Within one directory, the current and the saved filehandle.
#[must_use]
pub fn rename(from: &[u8], to: &[u8]) -> nfs_argop4 {
    let (oldname, newname) = (Bytes::copy_from_slice(from), Bytes::copy_from_slice(to));
    nfs_argop4::OP_RENAME(RENAME4args { oldname, newname })
}

#[must_use]
pub fn close(stateid: stateid4) -> nfs_argop4 {
    nfs_argop4::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: stateid })
}

#[must_use]
pub fn delegreturn(stateid: stateid4) -> nfs_argop4 {
    nfs_argop4::OP_DELEGRETURN(DELEGRETURN4args { deleg_stateid: stateid })
}

#[must_use]
pub fn readdir(cookie: u64, verifier: verifier4, bytes: u32, wanted: bitmap4) -> nfs_argop4 {
    nfs_argop4::OP_READDIR(READDIR4args {
        cookie,
        cookieverf: verifier,
        dircount: bytes,
        maxcount: bytes,
        attr_request: wanted,
    })
}

/// What a stock kernel asks: the segment with `offset`, whatever its length.
#[must_use]
pub fn layoutget(stateid: stateid4, iomode: layoutiomode4, offset: u64) -> nfs_argop4 {
    nfs_argop4::OP_LAYOUTGET(LAYOUTGET4args {
        loga_signal_layout_avail: false,
        loga_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        loga_iomode: iomode,
        loga_offset: offset,
        loga_length: 4096,
        loga_minlength: 4096,
        loga_stateid: stateid,
        loga_maxcount: LAYOUT_BODY,
    })
}

/// `last`: offset of the last byte written, if any was.
#[must_use]
pub fn layoutcommit(stateid: stateid4, last: Option<u64>) -> nfs_argop4 {
    nfs_argop4::OP_LAYOUTCOMMIT(LAYOUTCOMMIT4args {
        loca_offset: 0,
        // Wraps to 0 without a last byte, as in Linux.
        loca_length: last.map_or(0, |last| last + 1),
        loca_reclaim: false,
        loca_stateid: stateid,
        loca_last_write_offset: last.map_or(newoffset4::FALSE, newoffset4::TRUE),
        loca_time_modify: newtime4::FALSE,
        loca_layoutupdate: layoutupdate4 {
            lou_type: layouttype4::LAYOUT4_FLEX_FILES,
            lou_body: Bytes::new(),
        },
    })
}

/// The whole file's layouts of `iomode`; `body` is an `ff_layoutreturn4`.
#[must_use]
pub fn layoutreturn(stateid: stateid4, iomode: layoutiomode4, body: Bytes) -> nfs_argop4 {
    let file = layoutreturn_file4 { lrf_offset: 0, lrf_length: ALL, lrf_stateid: stateid, lrf_body: body };
    nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
        lora_reclaim: false,
        lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        lora_iomode: iomode,
        lora_layoutreturn: layoutreturn4::LAYOUTRETURN4_FILE(file),
    })
}

/// After the files of a recall of everything (or of a file system) were returned. RFC 8881 §18.44.3.
#[must_use]
pub fn layoutreturn_bulk(kind: layoutreturn_type4, iomode: layoutiomode4) -> nfs_argop4 {
    nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
        lora_reclaim: false,
        lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        lora_iomode: iomode,
        lora_layoutreturn: layoutreturn4::Default(kind),
    })
}

#[must_use]
pub fn getdeviceinfo(device: deviceid4) -> nfs_argop4 {
    nfs_argop4::OP_GETDEVICEINFO(GETDEVICEINFO4args {
        gdia_device_id: device,
        gdia_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        gdia_maxcount: LAYOUT_BODY,
        gdia_notify_types: bitmap4::EMPTY,
    })
}

pub(super) fn sequence(session: sessionid4, slot: u32, seqid: u32, highest: u32, cache: bool) -> nfs_argop4 {
    nfs_argop4::OP_SEQUENCE(SEQUENCE4args {
        sa_sessionid: session,
        sa_sequenceid: seqid,
        sa_slotid: slot,
        sa_highest_slotid: highest,
        sa_cachethis: cache,
    })
}
