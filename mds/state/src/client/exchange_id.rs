//! EXCHANGE_ID: the nine cases of RFC 8881 §18.35.5.
//!
//! ```text
//!  update  confirmed record of the owner          case                     answer
//!  no      none, nothing unconfirmed              1 new owner              new unconfirmed
//!  no      same principal, same verifier          2 known client           that record, CONFIRMED_R
//!  no      other principal, live, state           3 collision              CLID_INUSE
//!  no      other principal, no state or expired   3 collision              old gone, new unconfirmed
//!  no      none, one unconfirmed                  4 replacement            new unconfirmed
//!  no      same principal, other verifier         5 client restart         new unconfirmed beside it
//!  yes     same principal, same verifier          6 update                 that record, CONFIRMED_R
//!  yes     none                                   7 nothing to update      NOENT
//!  yes     same principal, other verifier         8 wrong verifier         NOT_SAME
//!  yes     other principal                        9 wrong principal        PERM
//! ```
//!
//! Under SP4_MACH_CRED, if that was asked for, who comes without integrity is another principal.

use std::net::IpAddr;

use bytes::Bytes;

use super::protection::{Caller, Protection};
use super::{Client, Clients, Error, ImplementationId, MAX_OWNER, unconfirmed};
use crate::ids::{ClientId, Time, Verifier};
use crate::lease::LeaseState;
use crate::recovery::Effect;

/// `EXCHGID4_FLAG_*`
pub mod exchange_flags {
    /// `EXCHGID4_FLAG_SUPP_MOVED_REFER`
    pub const SUPP_MOVED_REFER: u32 = 0x1;
    /// `EXCHGID4_FLAG_SUPP_MOVED_MIGR`
    pub const SUPP_MOVED_MIGR: u32 = 0x2;
    /// `EXCHGID4_FLAG_BIND_PRINC_STATEID`
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    /// `EXCHGID4_FLAG_USE_NON_PNFS`
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    /// `EXCHGID4_FLAG_USE_PNFS_MDS`
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    /// `EXCHGID4_FLAG_USE_PNFS_DS`
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    /// `EXCHGID4_FLAG_UPD_CONFIRMED_REC_A`
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// `EXCHGID4_FLAG_CONFIRMED_R`
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// Every bit a client may send.
    pub const MASK_A: u32 = SUPP_MOVED_REFER
        | SUPP_MOVED_MIGR
        | BIND_PRINC_STATEID
        | USE_NON_PNFS
        | USE_PNFS_MDS
        | USE_PNFS_DS
        | UPD_CONFIRMED_REC_A;
}

/// `state_protect_how4`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateProtect {
    /// `SP4_NONE`
    None,
    /// `SP4_MACH_CRED`, and what is asked for.
    MachCred(Protection),
    /// `SP4_SSV`
    Ssv,
}

/// Arguments of EXCHANGE_ID.
#[derive(Clone, Debug)]
pub struct ExchangeId {
    /// `co_ownerid`
    pub owner: Bytes,
    /// `co_verifier`
    pub verifier: Verifier,
    /// Of the RPC call.
    pub caller: Caller,
    /// `eia_flags`
    pub flags: u32,
    /// `eia_state_protect`
    pub protect: StateProtect,
    /// `eia_client_impl_id`
    pub implementation: Option<ImplementationId>,
    /// Of the COMPOUND.
    pub minor_version: u32,
    /// Of the caller; in an update it says nothing.
    pub host: Option<IpAddr>,
}

/// Result of EXCHANGE_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeIdReply {
    /// `eir_clientid`
    pub client: ClientId,
    /// `eir_sequenceid`: what the next CREATE_SESSION must carry.
    pub seqid: u32,
    /// `eir_flags`
    pub flags: u32,
    /// `eir_state_protect`: SP4_MACH_CRED with these lists, or SP4_NONE.
    pub protection: Option<Protection>,
}

impl Clients {
    /// EXCHANGE_ID. `has_state(client)`: does it hold opens, locks, delegations or layouts?
    ///
    /// The effects are empty but for an update and for a collision that ends the old client. Errors:
    /// Inval, EncrAlgUnsupp, ClidInuse, Noent, NotSame, Perm, Delay.
    pub fn exchange_id(
        &mut self,
        now: Time,
        args: ExchangeId,
        has_state: &dyn Fn(ClientId) -> bool,
    ) -> Result<(ExchangeIdReply, Vec<Effect>), Error> {
        // §18.35.3: undefined bits, and CONFIRMED_R from a client, are refused.
        if args.flags & !exchange_flags::MASK_A != 0 || args.owner.len() > MAX_OWNER {
            return Err(Error::Inval);
        }
        match args.protect {
            StateProtect::None => {}
            // §18.35.3: who asks for it must come with RPCSEC_GSS, with integrity or privacy.
            StateProtect::MachCred(_) if !args.caller.sealed => return Err(Error::Inval),
            StateProtect::MachCred(_) => {}
            StateProtect::Ssv => return Err(Error::EncrAlgUnsupp),
        }
        let entry = self.by_owner.get(&args.owner).copied().unwrap_or_default();
        let confirmed = entry.confirmed.and_then(|id| self.by_id.get(&id));
        let update = args.flags & exchange_flags::UPD_CONFIRMED_REC_A != 0;
        // One that was ended and only waits for its last requests is no record to update.
        let confirmed = confirmed.filter(|c| !update || c.shared.renewed() != Time::NEVER);
        let same_principal = confirmed.is_some_and(|c| c.row.is_by(&args.caller));
        let same_verifier = confirmed.is_some_and(|c| c.row.verifier == args.verifier);
        let Some(old) = confirmed else {
            if update {
                // Case 7; an unconfirmed record stays as it is.
                return Err(Error::Noent);
            }
            // Case 3 across a restart: while the owner of the name can still come back to reclaim, it is
            // nobody else's.
            let absent = self.absent.get(&args.owner).filter(|a| a.may_reclaim);
            if self.grace.in_grace() && absent.is_some_and(|a| !a.row.is_by(&args.caller)) {
                return Err(Error::ClidInuse);
            }
            // Cases 1 and 4.
            return self.add_unconfirmed(now, args).map(|r| (r, Vec::new()));
        };
        let old_id = old.row.id;
        if update {
            return match (same_principal, same_verifier) {
                (false, _) => Err(Error::Perm),       // case 9
                (true, false) => Err(Error::NotSame), // case 8
                (true, true) => self.known(old_id, args),
            };
        }
        match (same_principal, same_verifier) {
            // Case 2.
            (true, true) if old.shared.lease(now, self.config.lease_nanos) != LeaseState::Dead => {
                self.known(old_id, args)
            }
            // Case 5, and a client that was ended but is not out of the table yet: the old record, if it
            // is alive, is discarded by CREATE_SESSION.
            (true, _) => self.add_unconfirmed(now, args).map(|r| (r, Vec::new())),
            (false, _) => self.collision(now, old_id, args, has_state),
        }
    }

    /// Cases 2 and 6: the record is the answer. What may change in it does.
    fn known(&mut self, id: ClientId, args: ExchangeId) -> Result<(ExchangeIdReply, Vec<Effect>), Error> {
        let role = self.config.role;
        let client = self.by_id.get_mut(&id).ok_or(Error::Delay)?;
        if args.implementation.is_some() {
            // Only advisory. It is durable with the next step of the client that is: a row of now, written after that, would
            // undo it.
            client.row.implementation = args.implementation;
        }
        Ok((reply(client, role), Vec::new()))
    }

    /// Case 3: another principal under the same owner.
    fn collision(
        &mut self,
        now: Time,
        old: ClientId,
        args: ExchangeId,
        has_state: &dyn Fn(ClientId) -> bool,
    ) -> Result<(ExchangeIdReply, Vec<Effect>), Error> {
        let lease_nanos = self.config.lease_nanos;
        let Some(client) = self.by_id.get(&old) else { return Err(Error::Delay) };
        if client.creating {
            return Err(Error::Delay);
        }
        // One that is protected keeps it for a lease, whatever it holds: it may be between two sessions.
        let idle = client.row.protection.is_none() && client.sessions.is_empty() && !has_state(old);
        // §18.35.5 case 3: the old client keeps the name unless it has no state or its lease is over.
        if !idle && !client.shared.kill_if_elapsed(now, lease_nanos) {
            return Err(Error::ClidInuse);
        }
        if client.shared.in_flight() > 0 {
            return Err(Error::Delay);
        }
        // Whatever can fail comes before the removal, whose effects must not be lost.
        self.make_way(&args.owner)?;
        let effects = self.remove(old);
        Ok((self.insert_unconfirmed(now, args), effects))
    }

    /// Cases 1, 4 and 5: a new unconfirmed record takes the place of another unconfirmed one.
    fn add_unconfirmed(&mut self, now: Time, args: ExchangeId) -> Result<ExchangeIdReply, Error> {
        self.make_way(&args.owner)?;
        Ok(self.insert_unconfirmed(now, args))
    }

    /// Removes the owner's unconfirmed record, and makes room for another one. Error: Delay when a
    /// CREATE_SESSION is confirming the record.
    fn make_way(&mut self, owner: &[u8]) -> Result<(), Error> {
        if let Some(stale) = self.by_owner.get(owner).and_then(|e| e.unconfirmed) {
            if self.by_id.get(&stale).is_some_and(|c| c.creating) {
                return Err(Error::Delay);
            }
            self.remove(stale);
        }
        self.make_room()
    }

    fn insert_unconfirmed(&mut self, now: Time, args: ExchangeId) -> ExchangeIdReply {
        let id = self.next_id();
        // The caller's bytes may be a slice of a whole request: keep a copy, not the request.
        let owner = Bytes::copy_from_slice(&args.owner);
        let protection = match args.protect {
            StateProtect::MachCred(asked) => Some(asked.granted(self.config.allowable)),
            StateProtect::None | StateProtect::Ssv => None,
        };
        let mut client = unconfirmed(id, now, owner.clone(), args.verifier, args.caller.principal);
        client.set_protection(protection);
        client.row.implementation = args.implementation;
        client.row.minor_version = args.minor_version;
        client.row.host = args.host;
        let answer = reply(&client, self.config.role);
        self.by_owner.entry(owner).or_default().unconfirmed = Some(id);
        self.unconfirmed.insert((now, id));
        self.by_id.insert(id, client);
        answer
    }

    /// Keeps the number of unconfirmed records bounded: anybody can send EXCHANGE_ID, so the oldest one
    /// gives way. Error: Delay when every one of them is being confirmed.
    fn make_room(&mut self) -> Result<(), Error> {
        if self.unconfirmed.len() < self.config.max_unconfirmed {
            return Ok(());
        }
        let idle = |id: &ClientId| self.by_id.get(id).is_some_and(|c| !c.creating);
        let oldest = self.unconfirmed.iter().map(|(_, id)| *id).find(idle);
        self.remove(oldest.ok_or(Error::Delay)?);
        Ok(())
    }
}

fn reply(client: &Client, role: u32) -> ExchangeIdReply {
    let confirmed = if client.confirmed { exchange_flags::CONFIRMED_R } else { 0 };
    ExchangeIdReply {
        client: client.row.id,
        seqid: client.row.create_seqid.wrapping_add(1),
        flags: role | confirmed,
        // Of a record that is known it stays what it was.
        protection: client.row.protection,
    }
}
