//! SP4_MACH_CRED: what of a client its own machine alone may do, and what that may do in place of its users (ADR 0044).
//! RFC 8881 §2.10.8.3, §18.35.

use sluice_state::ClientId;
use sluice_state::client::{Caller, ClientInfo, Guard, Operations, Protection};
use sluice_xdr::nfs4::{bitmap4, nfs_opnum4, nfsstat4, state_protect_ops4, state_protect4_r};

use super::SessionEntry;
use super::strangers::maker;
use crate::compound::Context;

/// What machines may do: to give back, to know what there is to give back, and to ask for flavours. Not WRITE: of a user who writes
/// under `krb5p` Linux would send the data with its machine's `krb5i`, in clear.
pub(crate) const ALLOWABLE: Operations = Operations::of(&[
    nfs_opnum4::OP_CLOSE.0,
    nfs_opnum4::OP_COMMIT.0,
    nfs_opnum4::OP_DELEGRETURN.0,
    nfs_opnum4::OP_LOCKU.0,
    nfs_opnum4::OP_OPEN_DOWNGRADE.0,
    nfs_opnum4::OP_SECINFO.0,
    nfs_opnum4::OP_FREE_STATEID.0,
    nfs_opnum4::OP_LAYOUTRETURN.0,
    nfs_opnum4::OP_SECINFO_NO_NAME.0,
    nfs_opnum4::OP_TEST_STATEID.0,
]);

/// The lists that a client asks for.
pub(crate) fn asked(wire: &state_protect_ops4) -> Protection {
    let set = |bits: &bitmap4| {
        let word = |at: usize| bits.words().get(at).copied().map_or(0, u64::from);
        Operations(word(0) | word(1) << 32)
    };
    Protection { enforced: set(&wire.spo_must_enforce), allowed: set(&wire.spo_must_allow) }
}

/// How a client is told what protects it.
pub(crate) fn told(protection: Option<Protection>) -> state_protect4_r {
    let Some(Protection { enforced, allowed }) = protection else { return state_protect4_r::SP4_NONE };
    let bits = |Operations(set)| {
        let mut bits = bitmap4::EMPTY;
        (0..u64::BITS).filter(|number| set >> number & 1 == 1).for_each(|number| bits.insert(number));
        bits
    };
    state_protect4_r::SP4_MACH_CRED(state_protect_ops4 {
        spo_must_enforce: bits(enforced),
        spo_must_allow: bits(allowed),
    })
}

impl Context {
    /// Who calls, and whether nobody can have changed the call.
    pub(crate) fn caller(&self) -> Caller {
        Caller { principal: self.principal(), sealed: self.is_sealed() }
    }

    /// Whether the caller may do this to a client that is perhaps protected.
    ///
    /// # Errors
    /// WRONG_CRED
    pub(crate) fn must_be_let(&self, operation: nfs_opnum4, guard: Option<&Guard>) -> Result<(), nfsstat4> {
        match guard {
            Some(guard) if !guard.admits(operation.0, &self.caller()) => Err(nfsstat4::NFS4ERR_WRONG_CRED),
            _ => Ok(()),
        }
    }

    /// Whether the caller may do this to a client outside its sessions. Of one that is not there the table says so.
    ///
    /// # Errors
    /// STALE_CLIENTID, as if there were none: who may not use it learns nothing of it. WRONG_CRED.
    pub(crate) fn must_be_let_to(&self, operation: nfs_opnum4, client: ClientId) -> Result<(), nfsstat4> {
        let known = self.server.clients.lock().info(self.server.now(), client);
        let Some(info) = known else { return Ok(()) };
        if !self.stands_for(maker(&info)) {
            return Err(nfsstat4::NFS4ERR_STALE_CLIENTID);
        }
        self.must_be_let(operation, info.guard().as_ref())
    }

    /// The same to one of its sessions.
    ///
    /// # Errors
    /// BADSESSION, WRONG_CRED.
    pub(crate) fn must_be_let_in(
        &self,
        operation: nfs_opnum4,
        session: &SessionEntry,
    ) -> Result<(), nfsstat4> {
        let bound = session.lock().is_bound(sluice_state::ConnectionId(self.connection.id()));
        if !bound && !self.may_bind(session) {
            return Err(nfsstat4::NFS4ERR_BADSESSION);
        }
        self.must_be_let(operation, session.guard.as_deref())
    }

    /// What the caller may do as the machine of the session's client.
    pub(crate) fn allowed_as_machine(&self) -> Option<Operations> {
        let guard = self.session.as_ref()?.entry.guard.as_deref()?;
        guard.is_machine(&self.caller()).then_some(guard.protection.allowed)
    }
}

/// Who may do what to a client, for its sessions.
pub(crate) fn of(info: Option<&ClientInfo>) -> Option<Box<Guard>> {
    info.and_then(ClientInfo::guard).map(Box::new)
}
