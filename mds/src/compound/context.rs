//! What an operation is given: the filehandles and stateids of its COMPOUND, the session, the caller.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_kv::Attempt;
use sluice_namespace::stable_storage::{NOBODY, Protection};
use sluice_namespace::{Credential, FileHandle, FsError, Inode, InodeKey, LayoutPolicy, Name, Request};
use sluice_rpc::{Call, Connection};
use sluice_state::client::Principal;
use sluice_state::file::Error;
use sluice_state::stateid::{Located, Special, special};
use sluice_state::{ClientId, StateId, StateKind};
use sluice_xdr::nfs4::{nfs_resop4, nfsstat4, stateid4};

use super::OpError;
use super::record::Recorder;
use crate::attr;
use crate::clients::SessionRef;
use crate::error::state_status;
use crate::exports::{Origin, Place, Standing, Table, protection, table};
use crate::files::{FileEntry, Moment, file_id};
use crate::layout::grant::Way;
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
    /// What clients may use, as of when it came.
    pub(crate) exports: Arc<Table>,
    /// Where the client calls from, and who that is.
    pub(crate) from: Origin,
    /// Set by SEQUENCE.
    pub(crate) session: Option<SessionRef>,
    /// Set by SEQUENCE on a persistent session.
    pub(crate) recorder: Option<Recorder>,
    // Changed by operations.
    current: Option<FileHandle>,
    /// What the caller may do with the current filehandle.
    standing: Option<Standing>,
    /// After squashing as the current export says, for permissions.
    pub(crate) who: Credential,
    pub(crate) saved: Option<FileHandle>,
    pub(crate) current_stateid: Option<StateId>,
    pub(crate) saved_stateid: Option<StateId>,
    /// The caller is the client's machine, and what it does is what it was promised that it may.
    pub(super) excused: bool,
    // Changed by the loop.
    /// Operations in the COMPOUND.
    pub(crate) count: u32,
    /// Position of the running operation.
    pub(crate) index: u32,
    /// Bytes that its result may take.
    pub(crate) reply_room: usize,
    /// The same of a reply that is to be cached.
    pub(crate) cached_room: Option<usize>,
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
    /// Position of the operation that last said what it had made of the current file.
    left: Option<u32>,
    /// The file that an operation of this COMPOUND has made, with that operation's position.
    made: Option<(u32, InodeKey)>,
    /// Position of the last operation behind which a size would be taken for too new, and whether nobody else's changes are in what
    /// it left.
    of_writer: Option<(u32, bool)>,
}

impl Context {
    pub(crate) fn new(
        server: Arc<Mds>,
        call: &Call,
        (exports, from): (Arc<Table>, Origin),
        minor: u32,
    ) -> Self {
        Self {
            came: server.moment(),
            exports,
            from,
            server,
            connection: Arc::clone(&call.connection),
            minor,
            wire_credential: call.credential.clone(),
            standing: None,
            who: nobody(),
            session: None,
            recorder: None,
            current: None,
            saved: None,
            current_stateid: None,
            saved_stateid: None,
            excused: false,
            count: 0,
            index: 0,
            reply_room: 0,
            cached_room: None,
            modified: 0,
            done_before: None,
            in_doubt: AtomicBool::new(false),
            known: None,
            left: None,
            made: None,
            of_writer: None,
        }
    }

    /// The current filehandle. The gate has seen to it that operations which need one have one.
    pub(crate) fn current(&self) -> Result<FileHandle, nfsstat4> {
        self.current.ok_or(nfsstat4::NFS4ERR_NOFILEHANDLE)
    }

    pub(crate) fn saved(&self) -> Result<FileHandle, nfsstat4> {
        self.saved.ok_or(nfsstat4::NFS4ERR_NOFILEHANDLE)
    }

    /// A component of the request as a name in a directory.
    ///
    /// # Errors
    /// As [`attr::name`].
    pub(crate) fn name<'a>(&self, component: &'a [u8]) -> Result<Name<'a>, nfsstat4> {
        attr::name(self.server.config.names, component)
    }

    /// The current filehandle if there is one, for the record of the reply.
    pub(crate) fn current_or_none(&self) -> Option<FileHandle> {
        self.current
    }

    /// A new current filehandle; the current stateid ends with the old one (RFC 8881 §16.2.3.1.2). Whether the
    /// caller may use it is judged here, once, and said by the gate to what follows.
    pub(crate) fn set_current(&mut self, handle: FileHandle) {
        let judged = self.standing.is_some_and(|standing| standing.export == handle.export);
        if !judged || handle.export == FileHandle::PSEUDO_EXPORT {
            let caller = (&self.wire_credential, protection::of(&self.connection));
            let standing = self.exports.judge(&handle, &self.from, caller);
            self.who = match &standing.verdict {
                Ok(rule) => table::squash(&self.wire_credential, rule),
                Err(_) => nobody(),
            };
            self.standing = Some(standing);
        }
        self.current = Some(handle);
        self.current_stateid = None;
        self.known = None;
    }

    /// There is no current filehandle any more.
    pub(crate) fn clear_current(&mut self) {
        self.current = None;
        self.current_stateid = None;
        self.known = None;
    }

    /// The call's connection is protected by less than the current filehandle's export wants.
    pub(super) fn is_exposed(&self) -> bool {
        self.standing.as_ref().is_some_and(|standing| standing.exposed)
    }

    /// As [`Context::set_current`], with the inode as this operation sees it, in the same export.
    pub(crate) fn set_current_known(&mut self, inode: Inode) {
        let export = self.export();
        self.set_current(FileHandle { export, inode: inode.key });
        self.left(inode);
    }

    /// As [`Context::set_current_known`], by walking: where another export begins that the caller may use, that is
    /// where it is now (§7.4).
    ///
    /// # Errors
    /// WRONGSEC.
    pub(crate) fn enter(&mut self, inode: Inode) -> Result<(), nfsstat4> {
        let export = self.exports.crossing(&inode.key, &self.from);
        let Some(export) = export.filter(|export| *export != self.export()) else {
            self.set_current_known(inode);
            return Ok(());
        };
        self.set_current(FileHandle { export, inode: inode.key });
        self.known = Some((self.index, inode));
        self.refused().map_or(Ok(()), Err)
    }

    /// The current filehandle by walking through directories that only lead to exports.
    ///
    /// # Errors
    /// WRONGSEC; STALE when the table has no such place.
    pub(crate) fn go(&mut self, place: Place) -> Result<(), nfsstat4> {
        let handle = match place {
            Place::Pseudo(inode) => FileHandle { export: FileHandle::PSEUDO_EXPORT, inode },
            Place::Export(id) => {
                let inode = self.exports.get(id).ok_or(nfsstat4::NFS4ERR_STALE)?.root;
                FileHandle { export: id, inode }
            }
        };
        self.set_current(handle);
        self.refused().map_or(Ok(()), Err)
    }

    fn export(&self) -> u32 {
        self.current.map_or(FileHandle::ROOT_EXPORT, |handle| handle.export)
    }

    /// Why the caller may not use the current filehandle.
    pub(crate) fn refused(&self) -> Option<nfsstat4> {
        self.current?;
        self.standing?.verdict.err()
    }

    /// The caller may change nothing through the export of the current filehandle.
    pub(crate) fn is_read_only(&self) -> bool {
        self.current.is_some()
            && self.standing.is_some_and(|standing| standing.verdict.is_ok_and(|rule| rule.read_only))
    }

    /// How data of the current file would go between this client and data servers: as the export wants it of all connections, and
    /// under TLS at least where the caller has what he says protected, and is under TLS here.
    pub(crate) fn way(&self) -> Way {
        let rule = self.standing.and_then(|standing| standing.verdict.ok());
        let wants = rule.filter(|_| self.current.is_some()).map_or(Protection::None, |rule| rule.wants);
        let wants = if self.is_sealed() { wants.max(Protection::Tls) } else { wants };
        Way { wants, in_clear: self.session.as_ref().is_some_and(|session| session.entry.in_clear) }
    }

    /// The current filehandle is of a directory that only leads to exports; its key.
    pub(crate) fn pseudo(&self) -> Option<InodeKey> {
        let pseudo = |handle: &FileHandle| handle.export == FileHandle::PSEUDO_EXPORT;
        self.current.filter(pseudo).map(|handle| handle.inode)
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
        let inode = pin!(self.read_inode()).await?;
        if self.pseudo().is_none() {
            self.known = Some((self.index, inode.clone()));
        }
        Ok(inode)
    }

    /// What `look` finds in what [`Context::inode`] would give, which is not copied.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn look<T>(&mut self, look: impl FnOnce(&Inode) -> T) -> Result<T, OpError> {
        if let Some((seen, inode)) = &self.known
            && *seen >= self.modified
        {
            return Ok(look(inode));
        }
        let inode = pin!(self.read_inode()).await?;
        let found = look(&inode);
        self.give_back(inode);
        Ok(found)
    }

    /// What the store, or the table of exports, says of the current file.
    async fn read_inode(&self) -> Result<Inode, OpError> {
        if let Some(key) = self.pseudo() {
            return self.exports.inode(&key, &self.from).ok_or_else(|| nfsstat4::NFS4ERR_STALE.into());
        }
        let key = self.current()?.inode;
        let namespace = &self.server.namespace;
        if let Some(found) = namespace.getattr_now(&self.server.db, &key) {
            return Ok(found?);
        }
        // Hardly ever but for directories: not everybody's future shall have room for it.
        let read = self.server.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await }));
        Ok(Box::pin(read).await?)
    }

    /// As [`Context::inode`], not copied: the next operation reads it again unless it is given back.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn take_inode(&mut self) -> Result<Inode, OpError> {
        match self.known.take() {
            Some((seen, inode)) if seen >= self.modified => Ok(inode),
            _ => pin!(self.read_inode()).await,
        }
    }

    /// Gives back what [`Context::take_inode`] gave in the running operation, which has modified nothing.
    pub(crate) fn give_back(&mut self, inode: Inode) {
        // Who may see a directory that only leads to exports, and what it shows, is asked each time.
        if self.pseudo().is_none() {
            self.known = Some((self.index, inode));
        }
    }

    /// The policy for what is made in the current directory; the default for what is none.
    ///
    /// # Errors
    /// STALE and what the store says.
    pub(crate) async fn policy(&self) -> Result<LayoutPolicy, OpError> {
        let of = |inode: &Inode| inode.directory_node().map(|node| node.policy).unwrap_or_default();
        match &self.known {
            Some((seen, inode)) if *seen >= self.modified => return Ok(of(inode)),
            _ if self.pseudo().is_some() => return Ok(of(&Box::pin(self.read_inode()).await?)),
            _ => {}
        }
        let key = self.current()?.inode;
        let namespace = &self.server.namespace;
        if let Some(found) = namespace.policy_now(&self.server.db, &key) {
            return Ok(found?);
        }
        let read = self.server.read(|txn| Box::pin(async move { namespace.policy(&txn, &key).await }));
        Ok(Box::pin(read).await?)
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
        self.write_known(recorder.key(), op).await
    }

    /// As [`Context::write`], for a transaction that must not be left alone with its result unknown: where there is no
    /// record, `witness` says.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn write_witnessed<'env, T, F>(&self, witness: Bytes, op: F) -> Result<(T, u64), FsError>
    where
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, FsError>>,
    {
        let Some(recorder) = &self.recorder else { return self.server.write_known(witness, op).await };
        self.write_known(recorder.key(), op).await
    }

    async fn write_known<'env, T, F>(&self, recorded: Bytes, op: F) -> Result<(T, u64), FsError>
    where
        F: for<'t> FnMut(Attempt<'t, 'env>) -> BoxFuture<'t, Result<T, FsError>>,
    {
        let done = self.server.write_known(recorded, op).await;
        if done.as_ref().is_err_and(FsError::maybe_committed) {
            self.in_doubt.store(true, Ordering::Relaxed);
        }
        done
    }

    /// Any answer could be wrong: there must be none.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed)
    }

    /// The running operation has read the current file's inode.
    pub(crate) fn saw(&mut self, inode: &Inode) {
        self.known = Some((self.index, inode.clone()));
    }

    /// The running operation has made this file.
    pub(crate) fn has_made(&mut self, file: InodeKey) {
        self.made = Some((self.index, file));
    }

    /// This COMPOUND has made the file and changed nothing since: nobody can have finished anything with the file before
    /// the COMPOUND came, so the file as it was made is as new as anything that may be shown.
    pub(crate) fn just_made(&self, file: &InodeKey) -> bool {
        self.made.is_some_and(|(position, made)| made == *file && position >= self.modified)
    }

    /// The client is writing to the current file, and takes a size that comes right behind the running operation for newer
    /// than all that it has written since it asked, and the change for its own: if `alone`, it is (ADR 0032).
    pub(crate) fn is_of_writer(&mut self, alone: bool) {
        self.of_writer = Some((self.index, alone));
    }

    /// The running operation is right behind such a one, and of the same file; whether the change is the client's own.
    pub(crate) fn is_behind_writer(&self) -> Option<bool> {
        self.of_writer.filter(|(position, _)| position + 1 == self.index).map(|(_, alone)| alone)
    }

    /// What the running operation's transaction has made of the current file: Linux asks for its attributes next.
    pub(crate) fn left(&mut self, inode: Inode) {
        self.known = Some((self.index, inode));
        self.left = Some(self.index);
    }

    /// The running operation has changed files: what it saw may be of before that. What it left is not.
    pub(crate) fn changed(&mut self) {
        if self.left != Some(self.index) {
            self.known = None;
        }
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

    /// The stateid that the client means: the current one, if it says so (RFC 8881 §16.2.3.1.2). That one stands for the
    /// newest (§8.2.3): what the client does beside this COMPOUND may have moved its seqid.
    ///
    /// # Errors
    /// BAD_STATEID for special ones that are not defined, and where there is no current one.
    pub(crate) fn stateid(&self, wire: &stateid4) -> Result<StateId, nfsstat4> {
        let stateid = self.exact_stateid(wire)?;
        let current = matches!(special(&from_wire(wire)), Ok(Some(Special::Current)));
        // Only by its seqid a return of layouts is told from one that has heard of later ones (§12.5.3).
        let newest = current && stateid.kind() != Some(StateKind::Layout);
        Ok(if newest { stateid.with_seqid(0) } else { stateid })
    }

    /// As [`Context::stateid`], for CLOSE and OPEN_DOWNGRADE, which are of the open as the client knows it (§8.2.3).
    ///
    /// # Errors
    /// As there.
    pub(crate) fn exact_stateid(&self, wire: &stateid4) -> Result<StateId, nfsstat4> {
        let given = from_wire(wire);
        match special(&given).map_err(|error| state_status(&error))? {
            Some(Special::Current) => self.current_stateid.ok_or(nfsstat4::NFS4ERR_BAD_STATEID),
            Some(Special::Invalid) => Err(nfsstat4::NFS4ERR_BAD_STATEID),
            _ => Ok(given),
        }
    }

    /// Where the state is that an ordinary stateid of this client names.
    ///
    /// # Errors
    /// STALE_STATEID for one of before a restart, while the client may still reclaim. What it has not reclaimed then is gone, and
    /// BAD_STATEID has it open the file anew: told STALE_STATEID, Linux sees that its lease is good, and comes with the same again.
    pub(crate) fn locate(&self, stateid: &StateId) -> Result<Located, OpError> {
        Ok(self.locate_of(self.client()?, stateid)?)
    }

    /// The same of a client that is known, as the state machines say it.
    pub(crate) fn locate_of(&self, client: ClientId, stateid: &StateId) -> Result<Located, Error> {
        let reclaimed =
            || self.session.as_ref().is_some_and(|session| session.entry.shared.reclaim_complete());
        match self.server.files.locate(client, stateid) {
            Err(Error::StaleStateid) if reclaimed() => Err(Error::BadStateid),
            located => located,
        }
    }

    /// The file whose state an ordinary stateid of this client names; it must be the current one.
    ///
    /// # Errors
    /// BAD_STATEID and its kin.
    pub(crate) fn state_entry(&self, stateid: &StateId) -> Result<Arc<FileEntry>, OpError> {
        let at = self.locate(stateid)?;
        if at.file != file_id(&self.current()?.inode) {
            return Err(nfsstat4::NFS4ERR_BAD_STATEID.into());
        }
        self.server.files.get(at.file).ok_or_else(|| nfsstat4::NFS4ERR_BAD_STATEID.into())
    }

    /// Who calls, as client records tell callers apart.
    pub(crate) fn principal(&self) -> Principal {
        match &self.wire_credential {
            sluice_rpc::Credential::Sys(sys) => {
                Principal::Sys { uid: sys.uid, machine: Bytes::copy_from_slice(&sys.machine_name) }
            }
            sluice_rpc::Credential::Gss(caller) => {
                Principal::Gss(Bytes::copy_from_slice(caller.principal.as_bytes()))
            }
            _ => Principal::None,
        }
    }

    /// Whether the caller has what he says protected by Kerberos, on a connection that is not. What goes to data servers goes as this
    /// connection does (Linux speaks TLS with them if it does so here), and no ticket protects it.
    pub(crate) fn is_sealed_in_clear(&self) -> bool {
        self.is_sealed() && self.connection.encrypted().is_none()
    }

    /// Whether the caller has what he says protected by Kerberos.
    pub(crate) fn is_sealed(&self) -> bool {
        let sluice_rpc::Credential::Gss(caller) = &self.wire_credential else { return false };
        caller.service > sluice_rpc::Service::None
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

/// Before anything is known of a caller's rights.
fn nobody() -> Credential {
    Credential { uid: NOBODY, gid: NOBODY, gids: Vec::new() }
}
