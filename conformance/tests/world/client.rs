//! A client of both: NFSv4.2 at the metadata server, NFSv3 at the data servers its layouts name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use sluice_conformance::client::{Identity, Persistent, ops};
use sluice_env::Env;
use sluice_rpc::{AuthSys, Client as Dialler, Connection, Credential, Program, Transport};
use sluice_xdr::flexfiles::{ff_data_server4, ff_ioerr4, ff_layoutreturn4};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::*;
use sluice_xdr::{from_bytes, to_frame};

use crate::callbacks::{BackChannel, CALLBACKS, Hears};
use crate::stage::World;
use crate::storage::{Devices, Nfs3, Segment, address};

pub(crate) const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };
pub(crate) const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
pub(crate) const RO: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_READ;
const MINUTE: Duration = Duration::from_secs(60);

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) handle: nfs_fh4,
    pub(crate) stateid: stateid4,
}

/// One client with one session; one request at a time, and one that returns a layout meanwhile.
pub(crate) struct Client {
    pub(crate) env: Env,
    transport: Arc<dyn Transport>,
    connection: Arc<Connection>,
    recalls: Arc<Recalls>,
    session: sessionid4,
    /// Of both slots.
    sequences: Mutex<[u32; 2]>,
    devices: Mutex<Devices>,
}

/// Layout recalls received, and ends of copies, each answered NFS4_OK: what follows is the test's to do.
#[derive(Debug, Default)]
struct Recalls(Mutex<Vec<CB_LAYOUTRECALL4args>>, Mutex<Vec<CB_OFFLOAD4args>>);

impl Hears for Recalls {
    fn recall(&self, recall: CB_LAYOUTRECALL4args) -> nfsstat4 {
        self.0.lock().push(recall);
        nfsstat4::NFS4_OK
    }

    fn copied(&self, end: CB_OFFLOAD4args) {
        self.1.lock().push(end);
    }
}

/// A client whose requests are repeated on its session until they are answered.
pub(crate) async fn persistent(world: &World, name: &str, kernel: &str) -> Persistent {
    let (env, transport) = (world.env.clone(), world.net.host(name));
    let callbacks = Arc::new(BackChannel(Arc::new(Recalls::default())));
    Persistent::begin(env, transport, world.mds, Identity::new(name, kernel), callbacks).await.unwrap()
}

fn lookup(name: &str) -> nfs_argop4 {
    nfs_argop4::OP_LOOKUP(LOOKUP4args { objname: text(name) })
}

pub(crate) fn text(s: &str) -> Bytes {
    Bytes::copy_from_slice(s.as_bytes())
}

pub(crate) fn attributes(values: &Attributes) -> fattr4 {
    values.encode(&values.present()).unwrap()
}

fn channel(bytes: u32, operations: u32, requests: u32) -> channel_attrs4 {
    channel_attrs4 {
        ca_headerpadsize: 0,
        ca_maxrequestsize: bytes,
        ca_maxresponsesize: bytes,
        ca_maxresponsesize_cached: if operations > 2 { 7584 } else { 0 },
        ca_maxoperations: operations,
        ca_maxrequests: requests,
        ca_rdma_ird: Vec::new(),
    }
}

/// The server asks to come again.
pub(crate) fn later(status: nfsstat4) -> bool {
    matches!(status, nfsstat4::NFS4ERR_DELAY | nfsstat4::NFS4ERR_RECALLCONFLICT | nfsstat4::NFS4ERR_GRACE)
}

pub(crate) fn putfh(handle: &nfs_fh4) -> nfs_argop4 {
    nfs_argop4::OP_PUTFH(PUTFH4args { object: handle.clone() })
}

/// Whole pages, as Linux asks: the page that it must have does not reach into the next component.
pub(crate) fn layoutget(stateid: stateid4, iomode: layoutiomode4, offset: u64, length: u64) -> nfs_argop4 {
    let within = offset % 4096;
    nfs_argop4::OP_LAYOUTGET(LAYOUTGET4args {
        loga_signal_layout_avail: false,
        loga_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        loga_iomode: iomode,
        loga_offset: offset - within,
        loga_length: length.saturating_add(within),
        loga_minlength: length.min(4096),
        loga_stateid: stateid,
        loga_maxcount: 4096,
    })
}

pub(crate) fn layout_return(stateid: stateid4) -> nfs_argop4 {
    let what = layoutreturn_file4 {
        lrf_offset: 0,
        lrf_length: u64::MAX,
        lrf_stateid: stateid,
        lrf_body: Bytes::new(),
    };
    nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
        lora_reclaim: false,
        lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
        lora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
        lora_layoutreturn: layoutreturn4::LAYOUTRETURN4_FILE(what),
    })
}

pub(crate) fn segment(result: nfs_resop4) -> Segment {
    match result {
        nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok)) => {
            assert_eq!(ok.logr_layout.len(), 1, "stock clients use the first alone");
            Segment::new(&ok.logr_layout[0], ok.logr_stateid, ok.logr_return_on_close)
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn sizes(result: &nfs_resop4) -> (u64, u64) {
    match result {
        nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok)) => {
            let values = Attributes::decode(&ok.obj_attributes).unwrap();
            (values.size.unwrap(), values.change.unwrap())
        }
        other => panic!("{other:?}"),
    }
}

impl Client {
    /// Mounts from `host` as a kernel of this release.
    pub(crate) async fn mount(world: &World, host: &str, release: &str) -> Self {
        Self::mount_with(world, host, release, CREATE_SESSION4_FLAG_PERSIST).await
    }

    /// The same with these flags of its session.
    pub(crate) async fn mount_with(world: &World, host: &str, release: &str, flags: u32) -> Self {
        let recalls = Arc::new(Recalls::default());
        let transport = world.net.host(host);
        let program = Arc::new(BackChannel(Arc::clone(&recalls))) as Arc<dyn Program>;
        let dialler = Dialler::new(world.env.clone(), Arc::clone(&transport)).with_programs(vec![program]);
        let connection = dialler.dial(world.mds).await.unwrap();
        let mut client = Self {
            env: world.env.clone(),
            transport,
            connection,
            recalls,
            session: sessionid4::default(),
            sequences: Mutex::default(),
            devices: Mutex::new(BTreeMap::new()),
        };
        client.session = client.new_session(host, release, flags).await;
        client.ok(vec![nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false })]).await;
        client
    }

    /// A new connection to the metadata server; the session goes on.
    pub(crate) async fn reconnect(&mut self, world: &World) {
        let program = Arc::new(BackChannel(Arc::clone(&self.recalls))) as Arc<dyn Program>;
        let dialler = Dialler::new(world.env.clone(), Arc::clone(&self.transport));
        self.connection = dialler.with_programs(vec![program]).dial(world.mds).await.unwrap();
    }

    async fn new_session(&self, host: &str, release: &str, flags: u32) -> sessionid4 {
        let known = self.send(vec![nfs_argop4::OP_EXCHANGE_ID(EXCHANGE_ID4args {
            eia_clientowner: client_owner4 {
                co_verifier: verifier4(self.env.random.u64().to_be_bytes()),
                co_ownerid: text(&format!("Linux NFSv4.2 {host}")),
            },
            eia_flags: 0,
            eia_state_protect: state_protect4_a::SP4_NONE,
            eia_client_impl_id: vec![nfs_impl_id4 {
                nii_domain: text("kernel.org"),
                nii_name: text(&format!("Linux {release} #1 SMP x86_64")),
                nii_date: nfstime4::default(),
            }],
        })]);
        let known = match known.await.resarray.pop() {
            Some(nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(ok))) => ok,
            other => panic!("{other:?}"),
        };
        let made = self.send(vec![nfs_argop4::OP_CREATE_SESSION(CREATE_SESSION4args {
            csa_clientid: known.eir_clientid,
            csa_sequence: known.eir_sequenceid,
            csa_flags: flags | CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
            csa_fore_chan_attrs: channel(1_049_620, 8, 64),
            csa_back_chan_attrs: channel(4096, 2, 16),
            csa_cb_program: CALLBACKS,
            csa_sec_parms: vec![callback_sec_parms4::AUTH_SYS(authsys_parms {
                stamp: 7,
                machinename: text(host),
                uid: 0,
                gid: 0,
                gids: Vec::new(),
            })],
        })]);
        match made.await.resarray.pop() {
            Some(nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(ok))) => ok.csr_sessionid,
            other => panic!("{other:?}"),
        }
    }

    async fn send(&self, ops: Vec<nfs_argop4>) -> COMPOUND4res {
        let args = COMPOUND4args { tag: Bytes::new(), minorversion: 2, argarray: ops };
        let frame = to_frame(&args, 2 << 20).unwrap();
        let root = Credential::Sys(AuthSys::root("client"));
        from_bytes(self.connection.call(NFS4_PROGRAM, 4, 1, &root, frame, MINUTE).await.unwrap()).unwrap()
    }

    /// SEQUENCE and these operations, again while the server says DELAY or GRACE.
    pub(crate) async fn compound(&self, ops: Vec<nfs_argop4>) -> (nfsstat4, Vec<nfs_resop4>) {
        self.compound_in(0, ops).await
    }

    async fn compound_in(&self, slot: usize, ops: Vec<nfs_argop4>) -> (nfsstat4, Vec<nfs_resop4>) {
        loop {
            let (status, results) = self.once_in(slot, ops.clone()).await;
            if later(status) {
                self.env.clock.sleep(Duration::from_millis(100)).await;
                continue;
            }
            return (status, results);
        }
    }

    /// SEQUENCE and these operations.
    pub(crate) async fn once(&self, ops: Vec<nfs_argop4>) -> (nfsstat4, Vec<nfs_resop4>) {
        self.once_in(0, ops).await
    }

    async fn once_in(&self, slot: usize, ops: Vec<nfs_argop4>) -> (nfsstat4, Vec<nfs_resop4>) {
        let seqid = {
            let mut sequences = self.sequences.lock();
            sequences[slot] += 1;
            sequences[slot]
        };
        let mut all = vec![nfs_argop4::OP_SEQUENCE(SEQUENCE4args {
            sa_sessionid: self.session,
            sa_sequenceid: seqid,
            sa_slotid: u32::try_from(slot).unwrap(),
            sa_highest_slotid: 15,
            sa_cachethis: false,
        })];
        all.extend(ops);
        let mut reply = self.send(all).await;
        reply.resarray.remove(0);
        (reply.status, reply.resarray)
    }

    pub(crate) async fn ok(&self, ops: Vec<nfs_argop4>) -> Vec<nfs_resop4> {
        let (status, results) = self.compound(ops).await;
        assert_eq!(status, nfsstat4::NFS4_OK, "{:?}", results.last());
        results
    }

    pub(crate) fn open_ops(name: &str, access: u32) -> Vec<nfs_argop4> {
        let mode = attributes(&Attributes { mode: Some(0o644), ..Attributes::default() });
        let open = nfs_argop4::OP_OPEN(OPEN4args {
            seqid: 0,
            share_access: access | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            share_deny: OPEN4_SHARE_DENY_NONE,
            owner: state_owner4 { clientid: 0, owner: text("owner") },
            openhow: openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(mode)),
            claim: open_claim4::CLAIM_NULL(text(name)),
        });
        vec![nfs_argop4::OP_PUTROOTFH, open, nfs_argop4::OP_GETFH]
    }

    pub(crate) fn opened(results: &[nfs_resop4]) -> Opened {
        match results {
            [
                _,
                nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)),
                nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(fh)),
                ..,
            ] => Opened { handle: fh.object.clone(), stateid: open.stateid },
            other => panic!("{other:?}"),
        }
    }

    /// Opens a file of the root, making it if need be.
    pub(crate) async fn open(&self, name: &str) -> Opened {
        Self::opened(&self.ok(Self::open_ops(name, OPEN4_SHARE_ACCESS_BOTH)).await)
    }

    /// The same with a LAYOUTGET in the COMPOUND, on the current stateid, as Linux does for new files.
    pub(crate) async fn open_with_layout(&self, name: &str) -> (Opened, Segment) {
        let mut ops = Self::open_ops(name, OPEN4_SHARE_ACCESS_BOTH);
        ops.push(layoutget(CURRENT, RW, 0, u64::MAX));
        let mut results = self.ok(ops).await;
        let segment = segment(results.pop().unwrap());
        (Self::opened(&results), segment)
    }

    /// A file that is written to its data servers, told of, given back and closed.
    pub(crate) async fn put_whole(&self, name: &str, data: &[u8]) {
        let (file, segment) = self.open_with_layout(name).await;
        self.write(&segment, 0, data).await.unwrap();
        let last = u64::try_from(data.len()).unwrap() - 1;
        self.layout_commit(&file, segment.stateid, Some(last)).await.unwrap();
        self.layout_return(&file, segment.stateid).await;
        self.close(&file).await;
    }

    pub(crate) async fn close(&self, file: &Opened) {
        let close = nfs_argop4::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: file.stateid });
        self.ok(vec![putfh(&file.handle), close]).await;
    }

    /// A directory of root's, in `/` or in another one of it.
    pub(crate) async fn mkdir(&self, path: &[&str]) {
        let Some((name, parents)) = path.split_last() else { panic!("no name") };
        let mode = Attributes { mode: Some(0o755), ..Attributes::default() };
        let mut ops = vec![nfs_argop4::OP_PUTROOTFH];
        ops.extend(parents.iter().map(|name| lookup(name)));
        ops.push(ops::create(createtype4::NF4DIR, name.as_bytes(), &mode).unwrap());
        self.ok(ops).await;
    }

    /// What is in the root goes below a directory.
    pub(crate) async fn move_below(&self, name: &str, path: &[&str]) {
        let mut ops = vec![nfs_argop4::OP_PUTROOTFH, nfs_argop4::OP_SAVEFH];
        ops.extend(path.iter().map(|name| lookup(name)));
        ops.push(nfs_argop4::OP_RENAME(RENAME4args { oldname: text(name), newname: text(name) }));
        self.ok(ops).await;
    }

    /// Removes a file of the root.
    pub(crate) async fn remove(&self, name: &str) {
        let remove = nfs_argop4::OP_REMOVE(REMOVE4args { target: text(name) });
        self.ok(vec![nfs_argop4::OP_PUTROOTFH, remove]).await;
    }

    /// Opens it again at a metadata server that has begun anew.
    pub(crate) async fn reclaim(&self, file: &Opened) -> Opened {
        let open = nfs_argop4::OP_OPEN(OPEN4args {
            seqid: 0,
            share_access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            share_deny: OPEN4_SHARE_DENY_NONE,
            owner: state_owner4 { clientid: 0, owner: text("owner") },
            openhow: openflag4::Default(opentype4::OPEN4_NOCREATE),
            claim: open_claim4::CLAIM_PREVIOUS(open_delegation_type4::OPEN_DELEGATE_NONE),
        });
        Self::opened(&self.ok(vec![putfh(&file.handle), open, nfs_argop4::OP_GETFH]).await)
    }

    /// The last request had no answer: what is sent next takes its place.
    pub(crate) fn was_not_answered(&self) {
        self.sequences.lock()[0] -= 1;
    }

    /// One page of layout, as Linux asks.
    pub(crate) async fn layout(
        &self,
        file: &Opened,
        stateid: stateid4,
        iomode: layoutiomode4,
        at: u64,
    ) -> Segment {
        let mut results = self.ok(vec![putfh(&file.handle), layoutget(stateid, iomode, at, 4096)]).await;
        segment(results.pop().unwrap())
    }

    /// One LAYOUTGET, whatever it is answered.
    pub(crate) async fn try_layout(
        &self,
        file: &Opened,
        stateid: stateid4,
        iomode: layoutiomode4,
        at: u64,
    ) -> Result<Segment, nfsstat4> {
        let (status, mut results) =
            self.once(vec![putfh(&file.handle), layoutget(stateid, iomode, at, 4096)]).await;
        if status == nfsstat4::NFS4_OK { Ok(segment(results.pop().unwrap())) } else { Err(status) }
    }

    pub(crate) async fn layout_status(&self, file: &Opened, iomode: layoutiomode4, at: u64) -> nfsstat4 {
        self.compound(vec![putfh(&file.handle), layoutget(file.stateid, iomode, at, 4096)]).await.0
    }

    pub(crate) async fn layout_return(&self, file: &Opened, stateid: stateid4) -> nfsstat4 {
        self.layout_return_with(file, stateid, Bytes::new()).await
    }

    /// The same after a WRITE to this data server failed.
    pub(crate) async fn layout_return_failed(
        &self,
        file: &Opened,
        stateid: stateid4,
        at: &ff_data_server4,
    ) -> nfsstat4 {
        let error = device_error4 {
            de_deviceid: at.ffds_deviceid,
            de_status: nfsstat4::NFS4ERR_NXIO,
            de_opnum: nfs_opnum4::OP_WRITE,
        };
        let report = ff_ioerr4 {
            ffie_offset: 0,
            ffie_length: u64::MAX,
            ffie_stateid: at.ffds_stateid,
            ffie_errors: vec![error],
        };
        let body = ff_layoutreturn4 { fflr_ioerr_report: vec![report], ..ff_layoutreturn4::default() };
        self.layout_return_with(file, stateid, sluice_xdr::to_bytes(&body).unwrap()).await
    }

    async fn layout_return_with(&self, file: &Opened, stateid: stateid4, body: Bytes) -> nfsstat4 {
        let what =
            layoutreturn_file4 { lrf_offset: 0, lrf_length: u64::MAX, lrf_stateid: stateid, lrf_body: body };
        let op = nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
            lora_reclaim: false,
            lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
            lora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
            lora_layoutreturn: layoutreturn4::LAYOUTRETURN4_FILE(what),
        });
        // What waits for it may have the other slot.
        self.compound_in(1, vec![putfh(&file.handle), op]).await.0
    }

    /// As [`Self::commit_as_linux`], and then size and change attribute.
    pub(crate) async fn layout_commit(
        &self,
        file: &Opened,
        stateid: stateid4,
        last: Option<u64>,
    ) -> Result<(u64, u64), nfsstat4> {
        self.commit_as_linux(file, stateid, last).await?;
        Ok(self.stat(file).await)
    }

    /// LAYOUTCOMMIT with GETATTR in one COMPOUND. `last`: the last byte written.
    pub(crate) async fn commit_as_linux(
        &self,
        file: &Opened,
        stateid: stateid4,
        last: Option<u64>,
    ) -> Result<(), nfsstat4> {
        let op = ops::layoutcommit(stateid, last);
        let (status, results) = self.compound(vec![putfh(&file.handle), op, Self::getattr()]).await;
        if status != nfsstat4::NFS4_OK {
            return Err(status);
        }
        match results.last() {
            Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))) => {
                let values = Attributes::decode(&ok.obj_attributes).unwrap();
                assert_eq!(values.size, None, "Linux would cut its view of the file to it (ADR 0032)");
                Ok(())
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn getattr() -> nfs_argop4 {
        nfs_argop4::OP_GETATTR(GETATTR4args { attr_request: bitmap4::of(&[FATTR4_SIZE, FATTR4_CHANGE]) })
    }

    /// Size and change attribute.
    pub(crate) async fn stat(&self, file: &Opened) -> (u64, u64) {
        sizes(self.ok(vec![putfh(&file.handle), Self::getattr()]).await.last().unwrap())
    }

    pub(crate) async fn truncate(&self, file: &Opened, size: u64) {
        self.set(file, &Attributes { size: Some(size), ..Attributes::default() }).await;
    }

    async fn set(&self, file: &Opened, set: &Attributes) {
        let obj_attributes = attributes(set);
        let op = nfs_argop4::OP_SETATTR(SETATTR4args { stateid: file.stateid, obj_attributes });
        self.ok(vec![putfh(&file.handle), op]).await;
    }

    pub(crate) async fn set_mtime(&self, file: &Opened, seconds: i64) {
        let at = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds, nseconds: 0 });
        self.set(file, &Attributes { time_modify_set: Some(at), ..Attributes::default() }).await;
    }

    /// As touch(1) does it.
    pub(crate) async fn touch(&self, file: &Opened) {
        let now = settime4::Default(time_how4::SET_TO_SERVER_TIME4);
        self.set(file, &Attributes { time_modify_set: Some(now), ..Attributes::default() }).await;
    }

    /// The same with a GETATTR in the COMPOUND, as Linux sends it: size and seconds of mtime.
    pub(crate) async fn set_mtime_and_look(&self, file: &Opened, seconds: i64) -> (u64, i64) {
        let at = settime4::SET_TO_CLIENT_TIME4(nfstime4 { seconds, nseconds: 0 });
        let obj_attributes = attributes(&Attributes { time_modify_set: Some(at), ..Attributes::default() });
        let set = nfs_argop4::OP_SETATTR(SETATTR4args { stateid: file.stateid, obj_attributes });
        let attr_request = bitmap4::of(&[FATTR4_SIZE, FATTR4_TIME_MODIFY]);
        let look = nfs_argop4::OP_GETATTR(GETATTR4args { attr_request });
        match self.ok(vec![putfh(&file.handle), set, look]).await.pop() {
            Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))) => {
                let values = Attributes::decode(&ok.obj_attributes).unwrap();
                (values.size.unwrap(), values.time_modify.unwrap().seconds)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The last close as Linux does it, LAYOUTRETURN, GETATTR and CLOSE in one COMPOUND: the size seen.
    pub(crate) async fn return_and_close(&self, file: &Opened, stateid: stateid4) -> u64 {
        let close = nfs_argop4::OP_CLOSE(CLOSE4args { seqid: 0, open_stateid: file.stateid });
        let ops = vec![putfh(&file.handle), layout_return(stateid), Self::getattr(), close];
        let results = self.ok(ops).await;
        sizes(&results[results.len() - 2]).0
    }

    pub(crate) async fn mtime(&self, file: &Opened) -> i64 {
        let getattr =
            nfs_argop4::OP_GETATTR(GETATTR4args { attr_request: bitmap4::of(&[FATTR4_TIME_MODIFY]) });
        match self.ok(vec![putfh(&file.handle), getattr]).await.pop() {
            Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))) => {
                Attributes::decode(&ok.obj_attributes).unwrap().time_modify.unwrap().seconds
            }
            other => panic!("{other:?}"),
        }
    }

    /// READ through the metadata server.
    pub(crate) async fn proxied_read(&self, file: &Opened, offset: u64, count: u32) -> Bytes {
        let op = nfs_argop4::OP_READ(READ4args { stateid: file.stateid, offset, count });
        match self.ok(vec![putfh(&file.handle), op]).await.pop() {
            Some(nfs_resop4::OP_READ(READ4res::NFS4_OK(ok))) => ok.data,
            other => panic!("{other:?}"),
        }
    }

    /// READ through the metadata server; once.
    pub(crate) async fn try_read(&self, file: &Opened, offset: u64, count: u32) -> Result<Bytes, nfsstat4> {
        let op = nfs_argop4::OP_READ(READ4args { stateid: file.stateid, offset, count });
        let (status, mut results) = self.once(vec![putfh(&file.handle), op]).await;
        match results.pop() {
            Some(nfs_resop4::OP_READ(READ4res::NFS4_OK(ok))) => Ok(ok.data),
            _ => Err(status),
        }
    }

    /// WRITE through the metadata server; once.
    pub(crate) async fn proxied_write(&self, file: &Opened, offset: u64, data: &[u8]) -> nfsstat4 {
        self.once(vec![putfh(&file.handle), Self::write_op(file, offset, data)]).await.0
    }

    pub(crate) fn write_op(file: &Opened, offset: u64, data: &[u8]) -> nfs_argop4 {
        let (stateid, data) = (file.stateid, Bytes::copy_from_slice(data));
        nfs_argop4::OP_WRITE(WRITE4args { stateid, offset, stable: stable_how4::FILE_SYNC4, data })
    }

    /// The n-th copy that this client was told the end of.
    pub(crate) fn copy_end(&self, n: usize) -> Option<CB_OFFLOAD4args> {
        self.recalls.1.lock().get(n - 1).cloned()
    }

    /// The layout recalls received so far.
    pub(crate) fn recalls(&self) -> Vec<CB_LAYOUTRECALL4args> {
        self.recalls.0.lock().clone()
    }

    /// Waits for the n-th layout recall: its stateid.
    pub(crate) async fn recalled(&self, n: usize) -> (stateid4, bool) {
        loop {
            if let Some(recall) = self.recalls().get(n - 1) {
                let layoutrecall4::LAYOUTRECALL4_FILE(file) = &recall.clora_recall else {
                    panic!("{recall:?}")
                };
                assert_eq!((file.lor_offset, file.lor_length), (0, u64::MAX));
                return (file.lor_stateid, recall.clora_changed);
            }
            self.env.clock.sleep(Duration::from_millis(5)).await;
        }
    }

    /// The address of a device.
    pub(crate) async fn device(&self, id: deviceid4) -> SocketAddr {
        let op = nfs_argop4::OP_GETDEVICEINFO(GETDEVICEINFO4args {
            gdia_device_id: id,
            gdia_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
            gdia_maxcount: 65536,
            gdia_notify_types: bitmap4::of(&[1, 2]),
        });
        match self.ok(vec![op]).await.pop() {
            Some(nfs_resop4::OP_GETDEVICEINFO(GETDEVICEINFO4res::NFS4_OK(ok))) => {
                // Less, and Linux forgets the device with its last layout.
                assert_eq!(ok.gdir_notification.words(), [6]);
                address(ok.gdir_device_addr.da_addr_body)
            }
            other => panic!("{other:?}"),
        }
    }

    /// The connection to the data server of byte `offset`.
    pub(crate) async fn at(&self, segment: &Segment, offset: u64) -> Result<Nfs3, nfsstat3> {
        let id = segment.data_server(offset).ffds_deviceid;
        let known = self.devices.lock().get(&id).filter(|nfs| !nfs.is_closed()).cloned();
        if let Some(nfs) = known {
            return Ok(nfs);
        }
        let address = self.device(id).await;
        let nfs = Nfs3::dial(&self.env, Arc::clone(&self.transport), address).await;
        let nfs = nfs.ok_or(nfsstat3::NFS3ERR_SERVERFAULT)?;
        self.devices.lock().insert(id, nfs.clone());
        Ok(nfs)
    }

    /// Writes and commits straight at the data servers.
    pub(crate) async fn write(&self, segment: &Segment, offset: u64, data: &[u8]) -> Result<(), nfsstat3> {
        let end = offset + u64::try_from(data.len()).unwrap();
        let pieces = segment.pieces(offset..end);
        for piece in &pieces {
            let to = segment.data_server(piece.start);
            let nfs = self.at(segment, piece.start).await?;
            let bytes = Bytes::copy_from_slice(&data[index(piece, offset)]);
            let verifier = nfs.write(to, piece.start, bytes).await?;
            if nfs.commit(to).await? != verifier {
                // It restarted meanwhile: as if the connection had broken.
                return Err(nfsstat3::NFS3ERR_SERVERFAULT);
            }
        }
        Ok(())
    }

    /// Reads straight from the data servers, up to the end of the file.
    pub(crate) async fn read(&self, segment: &Segment, range: Range<u64>) -> Result<Bytes, nfsstat3> {
        let mut out = BytesMut::new();
        for piece in segment.pieces(range) {
            let mut at = piece.start;
            while at < piece.end {
                let count = u32::try_from(piece.end - at).unwrap();
                let nfs = self.at(segment, at).await?;
                let (data, eof) = nfs.read(segment.data_server(at), at, count).await?;
                out.extend_from_slice(&data);
                at += u64::try_from(data.len()).unwrap();
                assert!(eof || !data.is_empty(), "no data and no end is an EIO in Linux");
                if eof && at < piece.end {
                    // As O_DIRECT in Linux: the smallest end ends the read.
                    return Ok(out.freeze());
                }
            }
        }
        Ok(out.freeze())
    }
}

fn index(piece: &Range<u64>, from: u64) -> Range<usize> {
    usize::try_from(piece.start - from).unwrap()..usize::try_from(piece.end - from).unwrap()
}
