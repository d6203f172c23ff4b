//! What an operation is given: the filehandles and stateids of its COMPOUND, the session, the caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_env::BoxFuture;
use sluice_kv::Attempt;
use sluice_namespace::{Credential, FileHandle, FsError, Inode, Request};
use sluice_rpc::{Call, Connection};
use sluice_state::client::Principal;
use sluice_state::stateid::{Special, special};
use sluice_state::{ClientId, StateId};
use sluice_xdr::nfs4::{nfs_resop4, nfsstat4, stateid4};

use super::OpError;
use super::record::Recorder;
use crate::clients::SessionRef;
use crate::error::state_status;
use crate::files::{FileEntry, Moment, file_id};
use crate::server::Mds;

/// One COMPOUND under way.
#[derive(Debug)]
pub(crate) struct Context {
    // Constant for the COMPOUND.
    pub(crate) server: Arc<Mds>,
    pub(crate) connection: Arc<Connection>,
    /// 1 or 2.
    pub(crate) minor: u32,
    /// When it came: what is known of data servers from later is news enough for it.
    pub(crate) came: Moment,
    /// As the client sent it, for principals.
    pub(crate) wire_credential: sluice_rpc::Credential,
    /// After squashing, for permissions.
    pub(crate) who: Credential,
    /// Set by SEQUENCE.
    pub(crate) session: Option<SessionRef>,
    /// Set by SEQUENCE on a persistent session.
    pub(crate) recorder: Option<Recorder>,
    // Changed by operations.
    pub(crate) current: Option<FileHandle>,
    pub(crate) saved: Option<FileHandle>,
    pub(crate) current_stateid: Option<StateId>,
    pub(crate) saved_stateid: Option<StateId>,
    // Changed by the loop.
    /// Operations in the COMPOUND.
    pub(crate) count: u32,
    /// Position of the running operation.
    pub(crate) index: u32,
    /// Bytes that its result may take.
    pub(crate) reply_room: usize,
    /// Position of the last operation that modified something.
    pub(crate) modified: u32,
    /// What the running operation's transaction led to before a restart; the rest of it is in memory and is
    /// to be done again.
    pub(crate) done_before: Option<Box<nfs_resop4>>,
    /// A transaction may have committed or not, and the store does not say.
    in_doubt: AtomicBool,
    /// The current file's inode as an operation of this COMPOUND just saw it, with that operation's position:
    /// LOOKUP, GETFH, GETATTR read the store once.
    known: Option<(u32, Inode)>,
}

impl Context {
    pub(crate) fn new(server: Arc<Mds>, call: &Call, minor: u32) -> Self {
        let who = squash(&call.credential, &server);
        Self {
            came: server.moment(),
            server,
            connection: Arc::clone(&call.connection),
            minor,
            wire_credential: call.credential.clone(),
            who,
            session: None,
            recorder: None,
            current: None,
            saved: None,
            current_stateid: None,
            saved_stateid: None,
            count: 0,
            index: 0,
            reply_room: 0,
            modified: 0,
            done_before: None,
            in_doubt: AtomicBool::new(false),
            known: None,
        }
    }

    /// The current filehandle. The gate has seen to it that operations which need one have one.
    pub(crate) fn current(&self) -> Result<FileHandle, nfsstat4> {
        self.current.ok_or(nfsstat4::NFS4ERR_NOFILEHANDLE)
    }

    pub(crate) fn saved(&self) -> Result<FileHandle, nfsstat4> {
        self.saved.ok_or(nfsstat4::NFS4ERR_NOFILEHANDLE)
    }

    /// A new current filehandle; the current stateid ends with the old one (RFC 8881 §16.2.3.1.2).
    pub(crate) fn set_current(&mut self, handle: FileHandle) {
        self.current = Some(handle);
        self.current_stateid = None;
        self.known = None;
    }

    /// As [`Context::set_current`], with the inode as this operation sees it.
    pub(crate) fn set_current_known(&mut self, inode: Inode) {
        let export = self.current.map_or(0, |handle| handle.export);
        self.set_current(FileHandle { export, inode: inode.key });
        self.known = Some((self.index, inode));
    }

    /// The current file's inode: what an operation of this COMPOUND saw, unless something was modified
    /// since, or else what the store says.
    ///
    /// # Errors
    /// STALE and what the store says.
    pub(crate) async fn inode(&mut self) -> Result<Inode, OpError> {
        if let Some((seen, inode)) = &self.known
            && *seen >= self.modified
        {
            return Ok(inode.clone());
        }
        let key = self.current()?.inode;
        let namespace = &self.server.namespace;
        let inode =
            self.server.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await?;
        self.known = Some((self.index, inode.clone()));
        Ok(inode)
    }

    /// Runs the transaction that carries out the running operation; it says [`Context::record`] what the
    /// client is answered, and so resolves an unknown result.
    ///
    /// # Errors
    /// What `op` says, or the store.
    pub(crate) async fn write<'env, T, F>(&self, op: F) -> Result<(T, u64), FsError>
    where
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, FsError>>,
    {
        let Some(recorder) = &self.recorder else { return self.server.write(op).await };
        let done = self.server.write_known(recorder.key(), op).await;
        if matches!(&done, Err(FsError::Kv(error)) if error.maybe_committed()) {
            self.in_doubt.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Any answer could be wrong: there must be none.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// Forgets what was seen of the current file.
    pub(crate) fn forget_inode(&mut self) {
        self.known = None;
    }

    /// The session's client. Only EXCHANGE_ID and its like run without one.
    pub(crate) fn client(&self) -> Result<ClientId, nfsstat4> {
        self.session.as_ref().map(|session| session.client).ok_or(nfsstat4::NFS4ERR_OP_NOT_IN_SESSION)
    }

    /// The client has a back channel that works, as far as is known.
    pub(crate) fn can_be_called(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.entry.shared.back_channels() > 0)
    }

    /// The stateid that the client means: the current one, if it says so (RFC 8881 §16.2.3.1.2).
    pub(crate) fn stateid(&self, wire: &stateid4) -> Result<StateId, nfsstat4> {
        let given = from_wire(wire);
        match special(&given).map_err(|error| state_status(&error))? {
            Some(Special::Current) => self.current_stateid.ok_or(nfsstat4::NFS4ERR_BAD_STATEID),
            Some(Special::Invalid) => Err(nfsstat4::NFS4ERR_BAD_STATEID),
            _ => Ok(given),
        }
    }

    /// The file whose state an ordinary stateid of this client names; it must be the current one.
    ///
    /// # Errors
    /// BAD_STATEID and its kin.
    pub(crate) fn state_entry(&self, stateid: &StateId) -> Result<Arc<FileEntry>, OpError> {
        let at = self.server.files.locate(self.client()?, stateid)?;
        if at.file != file_id(&self.current()?.inode) {
            return Err(nfsstat4::NFS4ERR_BAD_STATEID.into());
        }
        self.server.files.get(at.file).ok_or_else(|| nfsstat4::NFS4ERR_BAD_STATEID.into())
    }

    /// Who calls, as client records tell callers apart.
    pub(crate) fn principal(&self) -> Principal {
        match &self.wire_credential {
            sluice_rpc::Credential::Sys(sys) => {
                Principal::Sys { uid: sys.uid, machine: bytes::Bytes::copy_from_slice(&sys.machine_name) }
            }
            _ => Principal::None,
        }
    }

    /// Who asks the namespace, and when.
    pub(crate) fn request<'a>(&'a self, directory: sluice_namespace::DirectoryUpdate) -> Request<'a> {
        Request { who: &self.who, now: self.server.env.clock.wall(), directory }
    }
}

/// A stateid as the state machines name it.
pub(crate) fn from_wire(wire: &stateid4) -> StateId {
    StateId { seqid: wire.seqid, other: wire.other }
}

/// A stateid as it goes over the wire.
pub(crate) fn to_wire(stateid: &StateId) -> stateid4 {
    stateid4 { seqid: stateid.seqid, other: stateid.other }
}

fn squash(credential: &sluice_rpc::Credential, server: &Mds) -> Credential {
    let (uid, gid) = server.config.anonymous;
    match credential {
        sluice_rpc::Credential::Sys(sys) if sys.uid == 0 && server.config.root_squash => {
            Credential { uid, gid, gids: Vec::new() }
        }
        sluice_rpc::Credential::Sys(sys) => Credential { uid: sys.uid, gid: sys.gid, gids: sys.gids.clone() },
        _ => Credential { uid, gid, gids: Vec::new() },
    }
}
