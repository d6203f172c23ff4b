//! A session that outlives its connections and the server's process: what was not answered is sent again, on the same
//! slot with the same sequence id, until it is. RFC 8881 §2.10.6.2.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_env::Env;
use sluice_rpc::{CallError, Client as Dialler, Connection, Program, Transport};
use sluice_xdr::nfs4::*;

use super::line::Line;
use super::session::{Identity, Owner, Raw, changes};
use super::slots::Slots;
use super::{Error, Result, ops};

/// First and longest pause before the next attempt to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Before a request that the server is still busy with is asked for again.
const BUSY: Duration = Duration::from_millis(20);
/// Slots that a client which forgets what it sent, and never uses their slots again, has left when it makes a new session.
const LEFT: usize = 16;
const NO_CALLBACKS: u32 = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;

/// How the server answered a request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: nfsstat4,
    /// Without SEQUENCE's.
    pub results: Vec<nfs_resop4>,
    /// SEQ4_STATUS_*
    pub flags: u32,
    /// How often it was sent.
    pub sent: u32,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The server does not know the session any more: whether the request was carried out nobody can say.
    #[error("the server has forgotten the session")]
    Session,
    /// What no server may answer to a request that is sent again.
    #[error("SEQUENCE was answered {0}")]
    Sequence(nfsstat4),
    #[error(transparent)]
    Other(#[from] Error),
}

/// What CREATE_SESSION gave.
#[derive(Debug)]
struct Session {
    client: clientid4,
    id: sessionid4,
    slots: Arc<Slots>,
    highest_slot: u32,
}

/// The connection in use, and whether the back channel is known to be on it.
#[derive(Debug, Default)]
struct Link {
    connection: Option<Arc<Connection>>,
    bound: bool,
}

/// A client with such a session. Nobody renews its lease but its requests.
#[derive(Debug)]
pub struct Persistent {
    env: Env,
    dialler: Dialler,
    mds: Mutex<SocketAddr>,
    identity: Identity,
    owner: Mutex<Owner>,
    link: tokio::sync::Mutex<Link>,
    session: Mutex<Arc<Session>>,
    /// For the control of a test: forget that a request was sent before, as a client without sessions does.
    forgetful: bool,
    /// Held by who makes a new session because the slots of the old one are used up.
    renewing: tokio::sync::Mutex<()>,
}

impl Persistent {
    /// Makes client ID and session, however long the server is away; `callbacks` serve its back channel. RECLAIM_COMPLETE
    /// is the caller's.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn begin(
        env: Env,
        transport: Arc<dyn Transport>,
        mds: SocketAddr,
        identity: Identity,
        callbacks: Arc<dyn Program>,
    ) -> Result<Self> {
        let dialler = Dialler::new(env.clone(), transport).with_programs(vec![callbacks]);
        let nothing = Session { client: 0, id: sessionid4::default(), slots: Slots::new(0), highest_slot: 0 };
        let client = Self {
            owner: Mutex::new(Owner::new(&env, &identity)),
            link: tokio::sync::Mutex::default(),
            session: Mutex::new(Arc::new(nothing)),
            forgetful: false,
            renewing: tokio::sync::Mutex::default(),
            env,
            dialler,
            mds: Mutex::new(mds),
            identity,
        };
        client.renew().await?;
        Ok(client)
    }

    /// As a client without sessions, which cannot tell the server that it has asked before.
    #[must_use]
    pub fn forgetful(mut self) -> Self {
        self.forgetful = true;
        self
    }

    /// The client ID.
    #[must_use]
    pub fn id(&self) -> clientid4 {
        self.session().client
    }

    /// As after a restart of the client: the server forgets all that it held.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn reboot(&self) -> Result<()> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner).restarted(&self.env);
        self.renew().await.map(drop)
    }

    /// A new session; whether the server still knew the client. What waits on the old session is lost.
    ///
    /// # Errors
    /// If the server refuses.
    pub async fn renew(&self) -> Result<bool> {
        loop {
            let (known, made) = match self.introduce().await {
                Ok(both) => both,
                Err(Error::Call(CallError::Timeout(_) | CallError::Closed | CallError::NotConnected(_))) => {
                    self.disconnect().await;
                    continue;
                }
                // The client record went, or another CREATE_SESSION came between.
                Err(Error::Status {
                    status:
                        nfsstat4::NFS4ERR_DELAY
                        | nfsstat4::NFS4ERR_STALE_CLIENTID
                        | nfsstat4::NFS4ERR_SEQ_MISORDERED,
                    ..
                }) => {
                    self.env.clock.sleep(BUSY).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let slots = made.csr_fore_chan_attrs.ca_maxrequests.clamp(1, self.identity.slots.max(1));
            let session = Session {
                client: known.eir_clientid,
                id: made.csr_sessionid,
                slots: Slots::new(slots),
                highest_slot: slots - 1,
            };
            let mut current = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            let same = current.client == session.client;
            *current = Arc::new(session);
            return Ok(same);
        }
    }

    /// Sends these operations behind a SEQUENCE of their own until they are answered.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn request(&self, ops: Vec<nfs_argop4>) -> Result<Answer, Lost> {
        let mut session = self.session();
        let cache = ops.iter().any(changes);
        let mut sent = 0;
        loop {
            if self.forgetful && session.slots.free() < LEFT.min(session.highest_slot as usize) {
                session = self.roomy(&session).await?;
            }
            let slot = session.slots.take().await.ok_or(Lost::Session)?;
            let outcome = loop {
                let mut all = Vec::with_capacity(ops.len() + 1);
                all.push(ops::sequence(session.id, slot.id(), slot.seqid(), session.highest_slot, cache));
                all.extend(ops.iter().cloned());
                sent += 1;
                let connection = self.connection().await;
                let raw = Raw { line: Line::Shared(Arc::clone(&connection)), identity: &self.identity };
                match raw.send(all).await {
                    // Still busy with it: the same again (§2.10.6.2). On another slot it would be another request.
                    Ok(reply)
                        if matches!(
                            reply.resarray.first(),
                            Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::Default(nfsstat4::NFS4ERR_DELAY)))
                        ) =>
                    {
                        self.env.clock.sleep(BUSY).await;
                        continue;
                    }
                    Ok(reply) => break Some(reply),
                    Err(Error::Call(CallError::Timeout(_) | CallError::Closed)) => connection.close(),
                    Err(Error::Call(CallError::NotConnected(_))) => {}
                    Err(error) => return Err(error.into()),
                }
                if self.forgetful {
                    break None;
                }
            };
            // The control: the next attempt is another request.
            let Some(mut reply) = outcome else { continue };
            match reply.resarray.first() {
                Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::NFS4_OK(ok))) => {
                    let flags = ok.sr_status_flags;
                    slot.done(true);
                    if flags & NO_CALLBACKS != 0 {
                        self.bind(&session).await;
                    }
                    if reply.status == nfsstat4::NFS4ERR_RETRY_UNCACHED_REP && !cache {
                        continue;
                    }
                    reply.resarray.remove(0);
                    return Ok(Answer { status: reply.status, results: reply.resarray, flags, sent });
                }
                Some(nfs_resop4::OP_SEQUENCE(SEQUENCE4res::Default(status))) => match *status {
                    nfsstat4::NFS4ERR_BADSESSION | nfsstat4::NFS4ERR_DEADSESSION => {
                        return Err(Lost::Session);
                    }
                    other => return Err(Lost::Sequence(other)),
                },
                _ => return Err(Error::Protocol("a reply without SEQUENCE").into()),
            }
        }
    }

    /// Another session than one whose slots are used up.
    async fn roomy(&self, used: &Arc<Session>) -> Result<Arc<Session>> {
        let _alone = self.renewing.lock().await;
        if Arc::ptr_eq(&self.session(), used) {
            self.renew().await?;
        }
        Ok(self.session())
    }

    /// The server's address is another one from the next connection on.
    pub fn moved_to(&self, mds: SocketAddr) {
        *self.mds.lock().unwrap_or_else(PoisonError::into_inner) = mds;
    }

    /// Ends the connection in use, as a network does; the next request makes another.
    pub async fn disconnect(&self) {
        if let Some(connection) = self.link.lock().await.connection.take() {
            connection.close();
        }
    }

    fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The live connection, made as often as it takes.
    async fn connection(&self) -> Arc<Connection> {
        let mut link = self.link.lock().await;
        let mut pause = PAUSE.0;
        loop {
            if let Some(connection) = link.connection.as_ref().filter(|connection| !connection.is_closed()) {
                return Arc::clone(connection);
            }
            let mds = *self.mds.lock().unwrap_or_else(PoisonError::into_inner);
            match self.dialler.dial(mds).await {
                Ok(connection) => *link = Link { connection: Some(connection), bound: false },
                Err(_) => {
                    self.env.clock.sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
            }
        }
    }

    /// One attempt at a client ID and a session.
    async fn introduce(&self) -> Result<(EXCHANGE_ID4resok, CREATE_SESSION4resok)> {
        let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let raw = Raw { line: Line::Shared(self.connection().await), identity: &self.identity };
        let known = raw.exchange_id(&owner).await?;
        let made = raw.create_session(&known).await?;
        Ok((known, made))
    }

    /// Callbacks come over this connection from now on (RFC 8881 §2.10.3.1). An error is heard of again.
    async fn bind(&self, session: &Session) {
        let mut link = self.link.lock().await;
        let Some(connection) = link.connection.clone().filter(|_| !link.bound) else { return };
        link.bound = true;
        drop(link);
        let args = BIND_CONN_TO_SESSION4args {
            bctsa_sessid: session.id,
            bctsa_dir: channel_dir_from_client4::CDFC4_FORE_OR_BOTH,
            bctsa_use_conn_in_rdma_mode: false,
        };
        let raw = Raw { line: Line::Shared(connection), identity: &self.identity };
        if raw.compound(vec![nfs_argop4::OP_BIND_CONN_TO_SESSION(args)]).await.is_err() {
            self.link.lock().await.bound = false;
        }
    }
}
