//! Operations as clients send them, in one line each.

use bytes::Bytes;
use sluice_xdr::flexfiles::{ff_ioerr4, ff_layoutreturn4};
use sluice_xdr::nfs4::*;

pub const READ: u32 = OPEN4_SHARE_ACCESS_READ;
pub const WRITE: u32 = OPEN4_SHARE_ACCESS_WRITE;
pub const BOTH: u32 = OPEN4_SHARE_ACCESS_BOTH;
pub const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };
pub const ANONYMOUS: stateid4 = stateid4 { seqid: 0, other: [0; 12] };
pub const CALLBACK_PROGRAM: u32 = 0x4000_0000;

fn text(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}

pub fn exchange_id(owner: &[u8], verifier: [u8; 8], flags: u32) -> nfs_argop4 {
    nfs_argop4::OP_EXCHANGE_ID(EXCHANGE_ID4args {
        eia_clientowner: client_owner4 {
            co_verifier: verifier4(verifier),
            co_ownerid: Bytes::copy_from_slice(owner),
        },
        eia_flags: flags,
        eia_state_protect: state_protect4_a::SP4_NONE,
        eia_client_impl_id: vec![nfs_impl_id4 {
            nii_domain: text("kernel.org"),
            nii_name: text("Linux 6.18.3 #1 SMP x86_64"),
            nii_date: nfstime4::default(),
        }],
    })
}

/// What Linux asks for.
pub fn fore() -> channel_attrs4 {
    channel_attrs4 {
        ca_headerpadsize: 0,
        ca_maxrequestsize: 1_049_620,
        ca_maxresponsesize: 1_049_480,
        ca_maxresponsesize_cached: 7584,
        ca_maxoperations: 8,
        ca_maxrequests: 64,
        ca_rdma_ird: Vec::new(),
    }
}

pub fn back() -> channel_attrs4 {
    channel_attrs4 {
        ca_maxrequestsize: 4096,
        ca_maxresponsesize: 4096,
        ca_maxresponsesize_cached: 0,
        ca_maxoperations: 2,
        ca_maxrequests: 16,
        ..fore()
    }
}

pub fn create_session_args(client: u64, sequence: u32) -> CREATE_SESSION4args {
    CREATE_SESSION4args {
        csa_clientid: client,
        csa_sequence: sequence,
        csa_flags: CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
        csa_fore_chan_attrs: fore(),
        csa_back_chan_attrs: back(),
        csa_cb_program: CALLBACK_PROGRAM,
        csa_sec_parms: vec![callback_sec_parms4::AUTH_SYS(authsys_parms {
            stamp: 7,
            machinename: text("client"),
            uid: 0,
            gid: 0,
            gids: Vec::new(),
        })],
    }
}

pub fn create_session(client: u64, sequence: u32) -> nfs_argop4 {
    nfs_argop4::OP_CREATE_SESSION(create_session_args(client, sequence))
}

pub fn sequence(session: sessionid4, slot: u32, seqid: u32, cache: bool) -> nfs_argop4 {
    nfs_argop4::OP_SEQUENCE(SEQUENCE4args {
        sa_sessionid: session,
        sa_sequenceid: seqid,
        sa_slotid: slot,
        sa_highest_slotid: slot.max(15),
        sa_cachethis: cache,
    })
}

pub fn bind(session: sessionid4, direction: channel_dir_from_client4) -> nfs_argop4 {
    nfs_argop4::OP_BIND_CONN_TO_SESSION(BIND_CONN_TO_SESSION4args {
        bctsa_sessid: session,
        bctsa_dir: direction,
        bctsa_use_conn_in_rdma_mode: false,
    })
}

pub fn destroy_session(session: sessionid4) -> nfs_argop4 {
    nfs_argop4::OP_DESTROY_SESSION(DESTROY_SESSION4args { dsa_sessionid: session })
}

pub fn destroy_clientid(client: u64) -> nfs_argop4 {
    nfs_argop4::OP_DESTROY_CLIENTID(DESTROY_CLIENTID4args { dca_clientid: client })
}

pub fn reclaim_complete(one_fs: bool) -> nfs_argop4 {
    nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: one_fs })
}

pub fn test_stateid(stateids: &[stateid4]) -> nfs_argop4 {
    nfs_argop4::OP_TEST_STATEID(TEST_STATEID4args { ts_stateids: stateids.to_vec() })
}

pub fn free_stateid(stateid: stateid4) -> nfs_argop4 {
    nfs_argop4::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid: stateid })
}

pub fn putrootfh() -> nfs_argop4 {
    nfs_argop4::OP_PUTROOTFH
}

pub fn putfh(handle: &nfs_fh4) -> nfs_argop4 {
    nfs_argop4::OP_PUTFH(PUTFH4args { object: handle.clone() })
}

pub fn getfh() -> nfs_argop4 {
    nfs_argop4::OP_GETFH
}

pub fn savefh() -> nfs_argop4 {
    nfs_argop4::OP_SAVEFH
}

pub fn restorefh() -> nfs_argop4 {
    nfs_argop4::OP_RESTOREFH
}

pub fn lookup(name: &str) -> nfs_argop4 {
    nfs_argop4::OP_LOOKUP(LOOKUP4args { objname: text(name) })
}

pub fn lookupp() -> nfs_argop4 {
    nfs_argop4::OP_LOOKUPP
}

/// From the root to `path`.
pub fn walk(path: &str) -> Vec<nfs_argop4> {
    let names = path.split('/').filter(|name| !name.is_empty());
    std::iter::once(putrootfh()).chain(names.map(lookup)).collect()
}

pub fn getattr(numbers: &[u32]) -> nfs_argop4 {
    nfs_argop4::OP_GETATTR(GETATTR4args { attr_request: bitmap4::of(numbers) })
}

/// Attributes as they go over the wire.
pub fn fattr(attributes: &Attributes) -> fattr4 {
    attributes.encode(&attributes.present()).unwrap()
}

pub fn mode(bits: u32) -> Attributes {
    Attributes { mode: Some(bits), ..Attributes::default() }
}

pub fn size(bytes: u64) -> Attributes {
    Attributes { size: Some(bytes), ..Attributes::default() }
}

pub fn setattr(stateid: stateid4, attributes: &Attributes) -> nfs_argop4 {
    nfs_argop4::OP_SETATTR(SETATTR4args { stateid, obj_attributes: fattr(attributes) })
}

pub fn io_advise(stateid: stateid4) -> nfs_argop4 {
    nfs_argop4::OP_IO_ADVISE(IO_ADVISE4args {
        iaa_stateid: stateid,
        iaa_offset: 0,
        iaa_count: 0,
        iaa_hints: bitmap4::EMPTY,
    })
}

pub fn verify(attributes: &Attributes) -> nfs_argop4 {
    nfs_argop4::OP_VERIFY(VERIFY4args { obj_attributes: fattr(attributes) })
}

pub fn nverify(attributes: &Attributes) -> nfs_argop4 {
    nfs_argop4::OP_NVERIFY(NVERIFY4args { obj_attributes: fattr(attributes) })
}

pub fn access(bits: u32) -> nfs_argop4 {
    nfs_argop4::OP_ACCESS(ACCESS4args { access: bits })
}

pub fn create(kind: createtype4, name: &str, attributes: &Attributes) -> nfs_argop4 {
    nfs_argop4::OP_CREATE(CREATE4args { objtype: kind, objname: text(name), createattrs: fattr(attributes) })
}

pub fn symlink(name: &str, target: &str) -> nfs_argop4 {
    create(createtype4::NF4LNK(text(target)), name, &mode(0o777))
}

pub fn readlink() -> nfs_argop4 {
    nfs_argop4::OP_READLINK
}

pub fn remove(name: &str) -> nfs_argop4 {
    nfs_argop4::OP_REMOVE(REMOVE4args { target: text(name) })
}

pub fn rename(from: &str, to: &str) -> nfs_argop4 {
    nfs_argop4::OP_RENAME(RENAME4args { oldname: text(from), newname: text(to) })
}

pub fn link(name: &str) -> nfs_argop4 {
    nfs_argop4::OP_LINK(LINK4args { newname: text(name) })
}

pub fn readdir(cookie: u64, verifier: verifier4, maxcount: u32, numbers: &[u32]) -> nfs_argop4 {
    nfs_argop4::OP_READDIR(READDIR4args {
        cookie,
        cookieverf: verifier,
        dircount: maxcount,
        maxcount,
        attr_request: bitmap4::of(numbers),
    })
}

pub fn secinfo(name: &str) -> nfs_argop4 {
    nfs_argop4::OP_SECINFO(SECINFO4args { name: text(name) })
}

pub fn open_owner(name: &[u8]) -> open_owner4 {
    state_owner4 { clientid: 0, owner: Bytes::copy_from_slice(name) }
}

pub fn open_with(owner: &[u8], access: u32, deny: u32, openhow: openflag4, claim: open_claim4) -> nfs_argop4 {
    nfs_argop4::OP_OPEN(OPEN4args {
        seqid: 0,
        share_access: access,
        share_deny: deny,
        owner: open_owner(owner),
        openhow,
        claim,
    })
}

/// UNCHECKED, by name, mode 0644.
pub fn open_create(name: &str, owner: &[u8], access: u32, deny: u32) -> nfs_argop4 {
    let how = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&mode(0o644))));
    open_with(owner, access, deny, how, open_claim4::CLAIM_NULL(text(name)))
}

pub const NOCREATE: openflag4 = openflag4::Default(opentype4::OPEN4_NOCREATE);

pub fn open_name(name: &str, owner: &[u8], access: u32, deny: u32) -> nfs_argop4 {
    open_with(owner, access, deny, NOCREATE, open_claim4::CLAIM_NULL(text(name)))
}

pub fn open_fh(owner: &[u8], access: u32, deny: u32) -> nfs_argop4 {
    open_with(owner, access, deny, NOCREATE, open_claim4::CLAIM_FH)
}

pub fn open_previous(owner: &[u8], access: u32, deny: u32) -> nfs_argop4 {
    let claim = open_claim4::CLAIM_PREVIOUS(open_delegation_type4::OPEN_DELEGATE_NONE);
    open_with(owner, access, deny, NOCREATE, claim)
}

pub fn close(stateid: stateid4) -> nfs_argop4 {
    nfs_argop4::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: stateid })
}

pub fn downgrade(stateid: stateid4, access: u32, deny: u32) -> nfs_argop4 {
    nfs_argop4::OP_OPEN_DOWNGRADE(OPEN_DOWNGRADE4args {
        open_stateid: stateid,
        seqid: 0,
        share_access: access,
        share_deny: deny,
    })
}

pub fn lock_new(
    kind: nfs_lock_type4,
    open: stateid4,
    owner: &[u8],
    (offset, length): (u64, u64),
) -> nfs_argop4 {
    nfs_argop4::OP_LOCK(LOCK4args {
        locktype: kind,
        reclaim: false,
        offset,
        length,
        locker: locker4::TRUE(open_to_lock_owner4 {
            open_seqid: 0,
            open_stateid: open,
            lock_seqid: 0,
            lock_owner: open_owner(owner),
        }),
    })
}

/// The same as a reclaim.
pub fn reclaiming(op: nfs_argop4) -> nfs_argop4 {
    match op {
        nfs_argop4::OP_LOCK(args) => nfs_argop4::OP_LOCK(LOCK4args { reclaim: true, ..args }),
        other => other,
    }
}

pub fn lock_more(kind: nfs_lock_type4, lock: stateid4, (offset, length): (u64, u64)) -> nfs_argop4 {
    nfs_argop4::OP_LOCK(LOCK4args {
        locktype: kind,
        reclaim: false,
        offset,
        length,
        locker: locker4::FALSE(exist_lock_owner4 { lock_stateid: lock, lock_seqid: 0 }),
    })
}

pub fn lockt(kind: nfs_lock_type4, owner: &[u8], (offset, length): (u64, u64)) -> nfs_argop4 {
    nfs_argop4::OP_LOCKT(LOCKT4args { locktype: kind, offset, length, owner: open_owner(owner) })
}

pub fn locku(kind: nfs_lock_type4, lock: stateid4, (offset, length): (u64, u64)) -> nfs_argop4 {
    nfs_argop4::OP_LOCKU(LOCKU4args { locktype: kind, seqid: 0, lock_stateid: lock, offset, length })
}

pub fn delegreturn(stateid: stateid4) -> nfs_argop4 {
    nfs_argop4::OP_DELEGRETURN(DELEGRETURN4args { deleg_stateid: stateid })
}

pub fn layoutget(stateid: stateid4, iomode: layoutiomode4) -> nfs_argop4 {
    nfs_argop4::OP_LAYOUTGET(LAYOUTGET4args {
        loga_signal_layout_avail: false,
        loga_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        loga_iomode: iomode,
        loga_offset: 0,
        loga_length: u64::MAX,
        loga_minlength: 4096,
        loga_stateid: stateid,
        loga_maxcount: 4096,
    })
}

pub fn layouterror(layout: stateid4, device: deviceid4, status: nfsstat4) -> nfs_argop4 {
    let error = device_error4 { de_deviceid: device, de_status: status, de_opnum: nfs_opnum4::OP_WRITE };
    nfs_argop4::OP_LAYOUTERROR(LAYOUTERROR4args {
        lea_offset: 0,
        lea_length: u64::MAX,
        lea_stateid: layout,
        lea_errors: vec![error],
    })
}

/// The whole file, after a WRITE to this data server failed.
pub fn layoutreturn_failed(stateid: stateid4, device: deviceid4, status: nfsstat4) -> nfs_argop4 {
    let error = device_error4 { de_deviceid: device, de_status: status, de_opnum: nfs_opnum4::OP_WRITE };
    let report =
        ff_ioerr4 { ffie_offset: 0, ffie_length: u64::MAX, ffie_stateid: stateid, ffie_errors: vec![error] };
    let body = ff_layoutreturn4 { fflr_ioerr_report: vec![report], ..ff_layoutreturn4::default() };
    layoutreturn_with(stateid, layoutiomode4::LAYOUTIOMODE4_ANY, sluice_xdr::to_bytes(&body).unwrap())
}

/// The whole file, of one iomode or any.
pub fn layoutreturn(stateid: stateid4, iomode: layoutiomode4) -> nfs_argop4 {
    // No errors, no statistics.
    layoutreturn_with(stateid, iomode, Bytes::from_static(&[0; 8]))
}

fn layoutreturn_with(stateid: stateid4, iomode: layoutiomode4, body: Bytes) -> nfs_argop4 {
    nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
        lora_reclaim: false,
        lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        lora_iomode: iomode,
        lora_layoutreturn: layoutreturn4::LAYOUTRETURN4_FILE(layoutreturn_file4 {
            lrf_offset: 0,
            lrf_length: u64::MAX,
            lrf_stateid: stateid,
            lrf_body: body,
        }),
    })
}

/// LAYOUTCOMMIT of a file written up to `last`.
pub fn layoutcommit(layout: stateid4, last: u64) -> nfs_argop4 {
    nfs_argop4::OP_LAYOUTCOMMIT(LAYOUTCOMMIT4args {
        loca_offset: 0,
        loca_length: last + 1,
        loca_reclaim: false,
        loca_stateid: layout,
        loca_last_write_offset: newoffset4::TRUE(last),
        loca_time_modify: newtime4::FALSE,
        loca_layoutupdate: layoutupdate4 {
            lou_type: layouttype4::LAYOUT4_FLEX_FILES,
            lou_body: Bytes::new(),
        },
    })
}
