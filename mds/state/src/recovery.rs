//! What must reach stable storage, as plain structs, and the effects that carry it: RFC 8881 §8.4.2,
//! §8.4.3, §2.10.6.5.
//!
//! The rows of a client and of its sessions survive a restart, so that a session continues across it
//! and the reply cache keeps its promise. Opens, locks and layouts do not: they are reclaimed.

use std::net::IpAddr;

use bytes::Bytes;

use crate::client::{Caller, ImplementationId, Principal, Protection, operation};
use crate::ids::{BootEpoch, ClientId, SessionId, Verifier};
use crate::session::{BackChannelParams, ChannelAttrs};

/// Stable record of a confirmed client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRow {
    /// The client.
    pub id: ClientId,
    /// `co_ownerid`, at most [`crate::client::MAX_OWNER`] bytes.
    pub owner: Bytes,
    /// `co_verifier`: a different one is another incarnation of the client (§18.35.5 case 5).
    pub verifier: Verifier,
    /// Who established it.
    pub principal: Principal,
    /// Kernel identification, when sent.
    pub implementation: Option<ImplementationId>,
    /// Minor version it was established with.
    pub minor_version: u32,
    /// Sequence number of its last CREATE_SESSION.
    pub create_seqid: u32,
    /// Number the next session gets.
    pub next_session: u32,
    /// Incarnation in which it last sent RECLAIM_COMPLETE; epoch 0 = never. §8.4.3: it may reclaim after
    /// a restart only if this is not older than the last grace period that ended ([`ServerRow`]).
    pub reclaimed_in: BootEpoch,
    /// What was taken from it, and it has not freed yet, it is not given back after a restart.
    pub forfeits: Forfeit,
    /// From where it was established; `None` in a row of a release that did not say so.
    pub host: Option<IpAddr>,
    /// Under SP4_MACH_CRED; `None`: SP4_NONE, and in a row of a release that had no other.
    pub protection: Option<Protection>,
}

impl ClientRow {
    /// Whether it is its own principal that comes with EXCHANGE_ID.
    pub(crate) fn is_by(&self, caller: &Caller) -> bool {
        let enforced = self.protection.is_some_and(|p| p.enforced.has(operation::EXCHANGE_ID));
        self.principal == caller.principal && (caller.sealed || !enforced)
    }
}

/// What a client may not reclaim: others may have had it since, and changed what it believes to be as it left it (§8.4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Forfeit {
    /// It may reclaim all that it says it had.
    #[default]
    Nothing,
    /// A delegation was taken from it.
    Delegations,
    /// An administrator broke opens or locks of it: which, only memory knew.
    Everything,
}

/// Stable record of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// The session.
    pub id: SessionId,
    /// Negotiated fore channel.
    pub fore: ChannelAttrs,
    /// Negotiated back channel.
    pub back: ChannelAttrs,
    /// Callback program and security.
    pub back_params: BackChannelParams,
    /// SESSION4_PERSIST was granted. Only such sessions get a row.
    pub persist: bool,
    /// A back channel was asked for: after a restart the client is told that it is down.
    pub back_wanted: bool,
}

/// The one row about the server itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerRow {
    /// The last incarnation whose grace period ended; epoch 0 = none yet.
    pub grace_ended_in: BootEpoch,
}

/// What the caller must do after a step, in this order.
///
/// The `Persist*` and `Forget*` effects of one step belong in one transaction, which is durable before the
/// others are applied and before the reply is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the row.
    PersistClient(Box<ClientRow>),
    /// Delete the client's row. §8.4.3, first edge condition: durable *before* any state that the
    /// client held is given to somebody else, or the client could reclaim it after a restart.
    ForgetClient(ClientId),
    /// Write the row.
    PersistSession(Box<SessionRow>),
    /// Delete the session's row and the reply rows of its slots.
    ForgetSession(SessionId),
    /// Write the row, then call [`crate::grace::Grace::ended`].
    PersistServer(ServerRow),
    /// Take the session out of the session map and call [`crate::session::Session::kill`] on it; outgoing callbacks move to
    /// another session of the client, if there is one.
    DropSession(SessionId),
    /// Drop every open, lock, delegation and layout of the client (fencing read-write layouts).
    ReleaseState(ClientId),
}

impl Effect {
    /// Belongs in the transaction (as opposed to memory).
    #[must_use]
    pub fn is_durable(&self) -> bool {
        match self {
            Self::PersistClient(_)
            | Self::ForgetClient(_)
            | Self::PersistSession(_)
            | Self::ForgetSession(_)
            | Self::PersistServer(_) => true,
            Self::DropSession(_) | Self::ReleaseState(_) => false,
        }
    }
}
