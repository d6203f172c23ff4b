//! A client ID, a session, and COMPOUNDs over its slots. RFC 8881 §18.35, §18.36, §2.10.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use sluice_env::Env;
use sluice_rpc::{AuthSys, CallError, Client as Dialler, Credential, Program, Transport};
use sluice_xdr::nfs4::*;
use sluice_xdr::{from_bytes, to_frame};

use super::callback::Callbacks;
use super::delegations::Delegations;
use super::layout::Layouts;
use super::line::{Bare, Line};
use super::slots::Slots;
use super::{Error, Result, ops};

/// Largest COMPOUND sent, in bytes: a 1 MiB WRITE and its headers.
const LARGEST: usize = (1 << 20) + 4096;
const COMPOUND_PROCEDURE: u32 = 1;
const VERSION: u32 = 4;
/// First and longest pause after NFS4ERR_DELAY and NFS4ERR_GRACE.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));

/// Who the client says it is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the host; also the client owner.
    pub host: String,
    /// Kernel release as `uname -r` prints it: servers choose encodings by it.
    pub kernel: String,
    /// Minor version, 1 or 2.
    pub minor: u32,
    /// Slots to ask for; the server may grant fewer.
    pub slots: u32,
    pub credential: Credential,
    /// How long one call may take.
    pub timeout: Duration,
}

impl Identity {
    /// Root on `host` over NFSv4.2, 64 slots, as a Linux of release `kernel`.
    #[must_use]
    pub fn new(host: &str, kernel: &str) -> Self {
        Self {
            host: host.to_owned(),
            kernel: kernel.to_owned(),
            minor: 2,
            slots: 64,
            credential: Credential::Sys(AuthSys::root(host)),
            timeout: Duration::from_secs(60),
        }
    }
}

/// A client with a session. Its lease is renewed until the last handle is dropped.
#[derive(Clone, Debug)]
pub struct Client {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) env: Env,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) identity: Identity,
    line: Line,
    id: clientid4,
    session: sessionid4,
    slots: Arc<Slots>,
    highest_slot: u32,
    root: nfs_fh4,
    lease: Duration,
    pub(super) layouts: Layouts,
    pub(super) delegations: Delegations,
    /// COMPOUNDs sent.
    compounds: AtomicU64,
}

impl Client {
    /// Makes a connection, a client ID and a session with a back channel, and ends reclaiming.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub async fn connect(
        env: Env,
        transport: Arc<dyn Transport>,
        mds: SocketAddr,
        identity: Identity,
    ) -> Result<Self> {
        let callbacks = Arc::new(Callbacks::default());
        let program = Arc::clone(&callbacks) as Arc<dyn Program>;
        let dialler = Dialler::new(env.clone(), Arc::clone(&transport)).with_programs(vec![program]);
        let line = Line::Shared(dialler.dial(mds).await?);
        let client = Self::on(env, transport, line, identity).await?;
        callbacks.serve(&client.inner);
        Ok(client)
    }

    /// As [`Client::connect`] on a bare socket, for who measures the server: one call at a time, no calls back.
    ///
    /// # Errors
    /// As there.
    pub async fn bare(env: Env, mds: SocketAddr, identity: Identity) -> Result<Self> {
        let refused = |error: std::io::Error| CallError::NotConnected(error.to_string());
        let line = Line::Bare(Arc::new(Bare::connect(mds, LARGEST).await.map_err(refused)?));
        Self::on(env, Arc::new(sluice_rpc::Tcp), line, identity).await
    }

    async fn on(env: Env, transport: Arc<dyn Transport>, line: Line, identity: Identity) -> Result<Self> {
        let raw = Raw { line, identity: &identity };
        let known = raw.exchange_id(&Owner::new(&env, &identity)).await?;
        let made = raw.create_session(&known).await?;
        let slots = made.csr_fore_chan_attrs.ca_maxrequests.clamp(1, identity.slots.max(1));
        let mut inner = Inner {
            line: raw.line,
            id: known.eir_clientid,
            session: made.csr_sessionid,
            slots: Slots::new(slots),
            highest_slot: slots - 1,
            root: nfs_fh4::default(),
            lease: Duration::ZERO,
            layouts: Layouts::default(),
            delegations: Delegations::default(),
            compounds: AtomicU64::new(0),
            env,
            transport,
            identity,
        };
        inner.begin().await?;
        let inner = Arc::new(inner);
        inner.env.spawn.spawn(Box::pin(keep_lease(
            inner.env.clone(),
            inner.lease / 3,
            Arc::downgrade(&inner),
        )));
        Ok(Self { inner })
    }

    /// The root of the file system.
    #[must_use]
    pub fn root(&self) -> &nfs_fh4 {
        &self.inner.root
    }

    /// Slots granted.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.inner.highest_slot + 1
    }

    /// COMPOUNDs sent to the metadata server so far.
    #[must_use]
    pub fn compounds(&self) -> u64 {
        self.inner.compounds.load(Ordering::Relaxed)
    }

    /// These operations behind a SEQUENCE of their own; all must succeed. Waits and sends them again while
    /// the server says DELAY or GRACE, so at most one of them may change anything, and those behind it must
    /// not be able to say so.
    ///
    /// # Errors
    /// [`Error::Status`] names the operation that failed.
    pub async fn compound(&self, ops: Vec<nfs_argop4>) -> Result<Vec<nfs_resop4>> {
        self.inner.patient(ops).await
    }

    /// As [`Client::compound`], sent once.
    ///
    /// # Errors
    /// As there; DELAY and GRACE too.
    pub async fn once(&self, ops: Vec<nfs_argop4>) -> Result<Vec<nfs_resop4>> {
        self.inner.once(ops).await
    }

    /// Gives up session and client ID; the connection goes with the last handle.
    ///
    /// # Errors
    /// If the server refuses, for instance because files are open.
    pub async fn leave(self) -> Result<()> {
        let inner = &self.inner;
        let raw = Raw { line: inner.line.clone(), identity: &inner.identity };
        let session = DESTROY_SESSION4args { dsa_sessionid: inner.session };
        raw.compound(vec![nfs_argop4::OP_DESTROY_SESSION(session)]).await?;
        let client = DESTROY_CLIENTID4args { dca_clientid: inner.id };
        raw.compound(vec![nfs_argop4::OP_DESTROY_CLIENTID(client)]).await?;
        inner.line.close();
        Ok(())
    }
}

impl Inner {
    async fn begin(&mut self) -> Result<()> {
        let complete = RECLAIM_COMPLETE4args { rca_one_fs: false };
        self.patient(vec![nfs_argop4::OP_RECLAIM_COMPLETE(complete)]).await?;
        let wanted = bitmap4::of(&[FATTR4_LEASE_TIME]);
        let found = self.patient(vec![ops::putrootfh(), ops::getfh(), ops::getattr(wanted)]).await?;
        let [
            _,
            nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(root)),
            nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(values)),
        ] = &found[..]
        else {
            return Err(Error::Protocol("PUTROOTFH GETFH GETATTR"));
        };
        self.root = root.object.clone();
        let lease = Attributes::decode(&values.obj_attributes)?.lease_time;
        self.lease = Duration::from_secs(lease.ok_or(Error::Protocol("no lease_time"))?.max(1).into());
        Ok(())
    }

    pub(super) async fn patient(&self, ops: Vec<nfs_argop4>) -> Result<Vec<nfs_resop4>> {
        let mut pause = PAUSE.0;
        loop {
            match self.once(ops.clone()).await {
                Err(Error::Status { status: nfsstat4::NFS4ERR_DELAY | nfsstat4::NFS4ERR_GRACE, .. }) => {
                    self.env.clock.sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                other => return other,
            }
        }
    }

    pub(super) async fn once(&self, ops: Vec<nfs_argop4>) -> Result<Vec<nfs_resop4>> {
        let mut reply = self.whole(ops).await?;
        succeeded(&reply)?;
        if reply.resarray.is_empty() {
            return Err(Error::Protocol("SEQUENCE without a result"));
        }
        reply.resarray.remove(0);
        Ok(reply.resarray)
    }

    /// COMPOUNDs that are under way together, each in a slot of its own; all must succeed.
    pub(super) async fn together(&self, compounds: Vec<Vec<nfs_argop4>>) -> Result<Vec<Vec<nfs_resop4>>> {
        // Waiting for the last with the others taken would be for ever.
        if compounds.len() > self.highest_slot as usize + 1 {
            return Err(Error::Protocol("fewer slots than calls"));
        }
        let (mut taken, mut frames) = (Vec::new(), Vec::new());
        for ops in compounds {
            let slot = self.slots.take().await.ok_or(Error::Protocol("the session is over"))?;
            let mut argarray = Vec::with_capacity(ops.len() + 1);
            let cache = ops.iter().any(changes);
            argarray.push(ops::sequence(self.session, slot.id(), slot.seqid(), self.highest_slot, cache));
            argarray.extend(ops);
            let args = COMPOUND4args { tag: Bytes::new(), minorversion: self.identity.minor, argarray };
            frames.push(to_frame(&args, LARGEST)?);
            taken.push(slot);
        }
        self.compounds.fetch_add(taken.len() as u64, Ordering::Relaxed);
        let target = (NFS4_PROGRAM, VERSION, COMPOUND_PROCEDURE);
        let (credential, timeout) = (&self.identity.credential, self.identity.timeout);
        let mut results = Vec::with_capacity(taken.len());
        for (slot, reply) in
            taken.into_iter().zip(self.line.together(target, credential, frames, timeout).await?)
        {
            let mut reply: COMPOUND4res = from_bytes(reply)?;
            slot.done(matches!(
                reply.resarray.first(),
                Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(_)))
            ));
            succeeded(&reply)?;
            reply.resarray.remove(0);
            results.push(reply.resarray);
        }
        Ok(results)
    }

    /// The reply as it came, SEQUENCE's result first.
    pub(super) async fn whole(&self, ops: Vec<nfs_argop4>) -> Result<COMPOUND4res> {
        let cache = ops.iter().any(changes);
        let slot = self.slots.take().await.ok_or(Error::Protocol("the session is over"))?;
        let mut all = Vec::with_capacity(ops.len() + 1);
        all.push(ops::sequence(self.session, slot.id(), slot.seqid(), self.highest_slot, cache));
        all.extend(ops);
        self.compounds.fetch_add(1, Ordering::Relaxed);
        let raw = Raw { line: self.line.clone(), identity: &self.identity };
        let reply = raw.send(all).await?;
        let seen = matches!(reply.resarray.first(), Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(_))));
        slot.done(seen);
        Ok(reply)
    }
}

/// Any COMPOUND renews the lease (RFC 8881 §8.3); this one does nothing else.
async fn keep_lease(env: Env, pause: Duration, client: Weak<Inner>) {
    loop {
        env.clock.sleep(pause).await;
        let Some(client) = client.upgrade() else { return };
        if client.line.is_closed() || client.once(Vec::new()).await.is_err() {
            return;
        }
    }
}

/// Operations whose replies a stock kernel asks the server to keep.
pub(super) fn changes(op: &nfs_argop4) -> bool {
    matches!(
        op,
        nfs_argop4::OP_OPEN(_)
            | nfs_argop4::OP_CLOSE(_)
            | nfs_argop4::OP_CREATE(_)
            | nfs_argop4::OP_REMOVE(_)
            | nfs_argop4::OP_RENAME(_)
            | nfs_argop4::OP_LINK(_)
            | nfs_argop4::OP_SETATTR(_)
    )
}

fn succeeded(reply: &COMPOUND4res) -> Result<()> {
    if reply.status == nfsstat4::NFS4_OK {
        return Ok(());
    }
    let op = reply.resarray.last().map_or(nfs_opnum4::OP_ILLEGAL, nfs_resop4::discriminant);
    Err(Error::Status { op, status: reply.status })
}

/// Who the server takes a client for: the same name and verifier are the same client (RFC 8881 §18.35).
#[derive(Clone, Debug)]
pub(super) struct Owner {
    name: Bytes,
    verifier: verifier4,
}

impl Owner {
    pub(super) fn new(env: &Env, identity: &Identity) -> Self {
        let mut name = format!("Linux NFSv4.{} {}", identity.minor, identity.host);
        // Two test clients of one name are still two clients.
        let _ = write!(name, "/{:016x}", env.random.u64());
        Self { name: name.into(), verifier: verifier4(env.random.array()) }
    }

    /// The same client, which remembers nothing.
    pub(super) fn restarted(&mut self, env: &Env) {
        self.verifier = verifier4(env.random.array());
    }
}

/// COMPOUNDs exactly as given.
pub(super) struct Raw<'a> {
    pub(super) line: Line,
    pub(super) identity: &'a Identity,
}

impl Raw<'_> {
    pub(super) async fn send(&self, ops: Vec<nfs_argop4>) -> Result<COMPOUND4res> {
        let args = COMPOUND4args { tag: Bytes::new(), minorversion: self.identity.minor, argarray: ops };
        let frame = to_frame(&args, LARGEST)?;
        let (credential, timeout) = (&self.identity.credential, self.identity.timeout);
        let target = (NFS4_PROGRAM, VERSION, COMPOUND_PROCEDURE);
        let call = self.line.call(target, credential, frame, timeout);
        Ok(from_bytes(call.await?)?)
    }

    pub(super) async fn compound(&self, ops: Vec<nfs_argop4>) -> Result<Vec<nfs_resop4>> {
        let reply = self.send(ops).await?;
        succeeded(&reply)?;
        Ok(reply.resarray)
    }

    pub(super) async fn exchange_id(&self, owner: &Owner) -> Result<EXCHANGE_ID4resok> {
        let args = EXCHANGE_ID4args {
            eia_clientowner: client_owner4 { co_verifier: owner.verifier, co_ownerid: owner.name.clone() },
            eia_flags: 0,
            eia_state_protect: state_protect4_a::SP4_NONE,
            eia_client_impl_id: vec![nfs_impl_id4 {
                nii_domain: Bytes::from_static(b"kernel.org"),
                nii_name: format!("Linux {} #1 SMP x86_64", self.identity.kernel).into(),
                nii_date: nfstime4::default(),
            }],
        };
        match self.compound(vec![nfs_argop4::OP_EXCHANGE_ID(args)]).await?.pop() {
            Some(nfs_resop4::OP_EXCHANGE_ID(EXCHANGE_ID4res::NFS4_OK(known))) => Ok(known),
            _ => Err(Error::Protocol("EXCHANGE_ID")),
        }
    }

    pub(super) async fn create_session(&self, known: &EXCHANGE_ID4resok) -> Result<CREATE_SESSION4resok> {
        let fore = channel_attrs4 {
            ca_headerpadsize: 0,
            ca_maxrequestsize: (1 << 20) + 1024,
            ca_maxresponsesize: (1 << 20) + 1024,
            ca_maxresponsesize_cached: 7584,
            ca_maxoperations: 8,
            ca_maxrequests: self.identity.slots.max(1),
            ca_rdma_ird: Vec::new(),
        };
        let back = channel_attrs4 {
            ca_maxrequestsize: 4096,
            ca_maxresponsesize: 4096,
            ca_maxresponsesize_cached: 0,
            ca_maxoperations: 2,
            ca_maxrequests: 16,
            ..fore.clone()
        };
        let back_channel = if self.line.has_callbacks() { CREATE_SESSION4_FLAG_CONN_BACK_CHAN } else { 0 };
        let args = CREATE_SESSION4args {
            csa_clientid: known.eir_clientid,
            csa_sequence: known.eir_sequenceid,
            csa_flags: CREATE_SESSION4_FLAG_PERSIST | back_channel,
            csa_fore_chan_attrs: fore,
            csa_back_chan_attrs: back,
            csa_cb_program: NFS4_CALLBACK,
            csa_sec_parms: vec![callback_sec_parms4::AUTH_SYS(authsys_parms {
                stamp: 0,
                machinename: self.identity.host.clone().into(),
                uid: 0,
                gid: 0,
                gids: Vec::new(),
            })],
        };
        match self.compound(vec![nfs_argop4::OP_CREATE_SESSION(args)]).await?.pop() {
            Some(nfs_resop4::OP_CREATE_SESSION(CREATE_SESSION4res::NFS4_OK(made))) => Ok(made),
            _ => Err(Error::Protocol("CREATE_SESSION")),
        }
    }
}
