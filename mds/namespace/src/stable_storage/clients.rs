//! Client and session records, reply rows (RFC 8881 §8.4.2, §2.10.6.5).

use std::net::{IpAddr, Ipv6Addr};

use bytes::Bytes;
use sluice_env::Wall;
use sluice_kv::{Transaction, Versionstamp};

use super::exports::bits;
use super::{Row, decode_list, decode_option, encode_list, encode_option, get, list};
use crate::codec::{Reader, Writer};
use crate::error::FsError;
use crate::inode::STAMP_OFFSET;
use crate::keys::{self, SessionId};

/// What a client said it runs (RFC 8881 §3.3.21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Implementation {
    pub domain: Bytes,
    pub name: Bytes,
    pub date: Wall,
}

/// A confirmed client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRecord {
    pub id: u64,
    pub owner: Bytes,
    pub verifier: [u8; 8],
    /// Who established it, in the server's own encoding.
    pub principal: Bytes,
    pub implementation: Option<Implementation>,
    pub minor_version: u32,
    /// Sequence number of its last CREATE_SESSION.
    pub create_seqid: u32,
    /// Number its next session gets.
    pub next_session: u32,
    /// Boot epoch in which it last sent RECLAIM_COMPLETE; 0 never.
    pub reclaimed_in: u32,
    /// A delegation was taken from it since, and it may not have heard of that.
    pub revoked: bool,
    /// So were opens or locks, by an administrator.
    pub broken: bool,
}

/// From where a client was established. A row of its own, which releases before do not know, and leave behind of clients they forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientHost {
    pub client: u64,
    pub host: IpAddr,
}

/// What SP4_MACH_CRED has been granted to a client. A row of its own, as [`ClientHost`]; without one it is under SP4_NONE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientGuard {
    pub client: u64,
    /// Operations that only the client's principal may do, a bit for each number.
    pub enforced: u64,
    /// Those that it may do for its users.
    pub allowed: u64,
}

/// `revoked` and `broken`, beside `reclaimed_in`. Releases before read a late epoch, which may reclaim as well.
const REVOKED: u32 = 1 << 31;
const BROKEN: u32 = 1 << 30;

/// One direction of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channel {
    pub max_request: u32,
    pub max_response: u32,
    pub max_response_cached: u32,
    pub max_ops: u32,
    pub max_requests: u32,
}

/// How callbacks authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallbackSecurity {
    None,
    Sys { stamp: u32, machine_name: Bytes, uid: u32, gid: u32, gids: Vec<u32> },
}

/// A persistent session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    pub id: SessionId,
    pub fore: Channel,
    pub back: Channel,
    pub callback_program: u32,
    /// `None`: none of those offered is spoken.
    pub callback_security: Option<CallbackSecurity>,
    pub persist: bool,
    pub back_wanted: bool,
}

/// The reply to the last mutating operation of a slot: the reply cache after a restart, and the
/// witness of an unknown commit result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyRow {
    /// Of the transaction that wrote it; zero in one to be written. It completes change attributes
    /// that were pending when `results` was encoded.
    pub stamp: Versionstamp,
    pub seqid: u32,
    /// Which operation of the COMPOUND, from 0.
    pub op_index: u32,
    /// Of the request, to tell a retry from another request (RFC 8881 §2.10.6.1.3.1).
    pub fingerprint: u64,
    /// Results so far, in the server's own encoding.
    pub results: Bytes,
}

/// What the server remembers of its own incarnations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerRecord {
    /// The last boot epoch whose grace period ended; 0 none.
    pub grace_ended_in: u32,
}

impl Row for ClientRecord {
    const WHAT: &'static str = "client record";
    fn encode(&self, w: &mut Writer) {
        w.u64(self.id).bytes(&self.owner).raw(&self.verifier).bytes(&self.principal);
        encode_option(w, self.implementation.as_ref(), |i, w| {
            w.bytes(&i.domain).bytes(&i.name).wall(i.date);
        });
        w.u32(self.minor_version).u32(self.create_seqid).u32(self.next_session);
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        w.u32(self.reclaimed_in | flag(self.revoked, REVOKED) | flag(self.broken, BROKEN));
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let mut row = Self {
            id: r.u64()?,
            owner: r.bytes()?,
            verifier: r.array()?,
            principal: r.bytes()?,
            implementation: decode_option(r, |r| {
                Ok(Implementation { domain: r.bytes()?, name: r.bytes()?, date: r.wall()? })
            })?,
            minor_version: r.u32()?,
            create_seqid: r.u32()?,
            next_session: r.u32()?,
            reclaimed_in: r.u32()?,
            revoked: false,
            broken: false,
        };
        row.revoked = row.reclaimed_in & REVOKED != 0;
        row.broken = row.reclaimed_in & BROKEN != 0;
        row.reclaimed_in &= !(REVOKED | BROKEN);
        Ok(row)
    }
}

impl Row for ClientHost {
    const WHAT: &'static str = "host of a client";
    fn encode(&self, w: &mut Writer) {
        w.u64(self.client).raw(&bits(self.host).to_be_bytes());
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self { client: r.u64()?, host: IpAddr::V6(Ipv6Addr::from(r.array::<16>()?)).to_canonical() })
    }
}

impl Row for ClientGuard {
    const WHAT: &'static str = "protection of a client";
    fn encode(&self, w: &mut Writer) {
        w.u64(self.client).u64(self.enforced).u64(self.allowed);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self { client: r.u64()?, enforced: r.u64()?, allowed: r.u64()? })
    }
}

impl Channel {
    fn encode(self, w: &mut Writer) {
        w.u32(self.max_request).u32(self.max_response).u32(self.max_response_cached);
        w.u32(self.max_ops).u32(self.max_requests);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            max_request: r.u32()?,
            max_response: r.u32()?,
            max_response_cached: r.u32()?,
            max_ops: r.u32()?,
            max_requests: r.u32()?,
        })
    }
}

impl CallbackSecurity {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::None => {
                w.u8(0);
            }
            Self::Sys { stamp, machine_name, uid, gid, gids } => {
                w.u8(1).u32(*stamp).bytes(machine_name).u32(*uid).u32(*gid);
                encode_list(w, gids, |g, w| {
                    w.u32(*g);
                });
            }
        }
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        match r.u8()? {
            0 => Ok(Self::None),
            1 => Ok(Self::Sys {
                stamp: r.u32()?,
                machine_name: r.bytes()?,
                uid: r.u32()?,
                gid: r.u32()?,
                gids: decode_list(r, Reader::u32)?,
            }),
            _ => Err(r.corrupt()),
        }
    }
}

impl Row for SessionRecord {
    const WHAT: &'static str = "session record";
    fn encode(&self, w: &mut Writer) {
        w.raw(&self.id);
        self.fore.encode(w);
        self.back.encode(w);
        w.u32(self.callback_program);
        encode_option(w, self.callback_security.as_ref(), CallbackSecurity::encode);
        w.bool(self.persist).bool(self.back_wanted);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self {
            id: r.array()?,
            fore: Channel::decode(r)?,
            back: Channel::decode(r)?,
            callback_program: r.u32()?,
            callback_security: decode_option(r, CallbackSecurity::decode)?,
            persist: r.bool()?,
            back_wanted: r.bool()?,
        })
    }
}

impl Row for ReplyRow {
    const WHAT: &'static str = "reply row";
    fn room(&self) -> usize {
        1 + self.stamp.0.len() + 4 + 4 + 8 + self.results.len()
    }
    fn encode(&self, w: &mut Writer) {
        w.raw(&self.stamp.0).u32(self.seqid).u32(self.op_index).u64(self.fingerprint).raw(&self.results);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        let stamp = Versionstamp(r.array()?);
        let (seqid, op_index, fingerprint) = (r.u32()?, r.u32()?, r.u64()?);
        Ok(Self { stamp, seqid, op_index, fingerprint, results: r.take_rest() })
    }
}

impl Row for ServerRecord {
    const WHAT: &'static str = "server record";
    fn encode(&self, w: &mut Writer) {
        w.u32(self.grace_ended_in);
    }
    fn decode(r: &mut Reader) -> Result<Self, FsError> {
        Ok(Self { grace_ended_in: r.u32()? })
    }
}

pub async fn client(txn: &Transaction, id: u64) -> Result<Option<ClientRecord>, FsError> {
    get(txn, &keys::by_u64(keys::CLIENT, id)).await
}
pub fn put_client(txn: &mut Transaction, record: &ClientRecord) {
    txn.set(keys::by_u64(keys::CLIENT, record.id), record.to_bytes());
}
pub fn clear_client(txn: &mut Transaction, id: u64) {
    txn.clear(keys::by_u64(keys::CLIENT, id));
    clear_client_host(txn, id);
    clear_client_guard(txn, id);
}
/// Clients after id `after`.
pub async fn clients(
    txn: &Transaction,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<ClientRecord>, FsError> {
    list(txn, &keys::from_u64(keys::CLIENT, after), limit).await
}

pub fn put_client_host(txn: &mut Transaction, row: &ClientHost) {
    txn.set(keys::by_u64(keys::CLIENT_HOST, row.client), row.to_bytes());
}
pub fn clear_client_host(txn: &mut Transaction, id: u64) {
    txn.clear(keys::by_u64(keys::CLIENT_HOST, id));
}
/// Hosts of clients after id `after`.
pub async fn client_hosts(
    txn: &Transaction,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<ClientHost>, FsError> {
    list(txn, &keys::from_u64(keys::CLIENT_HOST, after), limit).await
}

pub fn put_client_guard(txn: &mut Transaction, row: &ClientGuard) {
    txn.set(keys::by_u64(keys::CLIENT_GUARD, row.client), row.to_bytes());
}
pub fn clear_client_guard(txn: &mut Transaction, id: u64) {
    txn.clear(keys::by_u64(keys::CLIENT_GUARD, id));
}
/// How clients after id `after` are protected.
pub async fn client_guards(
    txn: &Transaction,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<ClientGuard>, FsError> {
    list(txn, &keys::from_u64(keys::CLIENT_GUARD, after), limit).await
}

pub async fn session(txn: &Transaction, id: &SessionId) -> Result<Option<SessionRecord>, FsError> {
    get(txn, &keys::session(id)).await
}
pub fn put_session(txn: &mut Transaction, record: &SessionRecord) {
    txn.set(keys::session(&record.id), record.to_bytes());
}
/// Deletes a session with its reply rows.
pub fn clear_session(txn: &mut Transaction, id: &SessionId) {
    txn.clear(keys::session(id));
    txn.clear_range(&keys::replies(id));
}
/// Sessions after `after`; the id begins with the client's, so a client's sessions stand together.
pub async fn sessions(
    txn: &Transaction,
    after: Option<&SessionId>,
    limit: usize,
) -> Result<Vec<SessionRecord>, FsError> {
    let whole = keys::table(keys::SESSION);
    let range = after.map_or_else(|| whole.clone(), |id| keys::after(&keys::session(id), &whole));
    list(txn, &range, limit).await
}

/// The key of a reply row, for resolving an unknown commit result.
pub fn reply_key(session: &SessionId, slot: u32) -> Bytes {
    keys::reply(session, slot)
}
pub async fn reply(txn: &Transaction, session: &SessionId, slot: u32) -> Result<Option<ReplyRow>, FsError> {
    get(txn, &keys::reply(session, slot)).await
}
/// Writes a reply row; the commit stamps it, so that it also tells the commit version of an
/// operation whose result was unknown.
pub fn put_reply(txn: &mut Transaction, session: &SessionId, slot: u32, row: &ReplyRow) {
    txn.set_versionstamped_value(keys::reply(session, slot), row.to_bytes(), STAMP_OFFSET);
}
/// Reply rows of all sessions after that of `after`, a session's together and by slot.
pub async fn replies(
    txn: &Transaction,
    after: Option<(&SessionId, u32)>,
    limit: usize,
) -> Result<Vec<(SessionId, u32, ReplyRow)>, FsError> {
    let whole = keys::table(keys::REPLY);
    let range = match after {
        Some((id, slot)) => keys::after(&keys::reply(id, slot), &whole),
        None => whole,
    };
    let rows = txn.range(&range, limit, false).await?;
    rows.into_iter()
        .map(|(key, value)| {
            let mut r = Reader::new("reply key", key);
            r.take(1)?;
            let (session, slot) = (r.array()?, r.u32()?);
            r.finish()?;
            Ok((session, slot, ReplyRow::from_bytes(value)?))
        })
        .collect()
}

pub async fn server(txn: &Transaction) -> Result<ServerRecord, FsError> {
    Ok(get(txn, &keys::single(keys::SERVER)).await?.unwrap_or_default())
}
pub fn put_server(txn: &mut Transaction, record: &ServerRecord) {
    txn.set(keys::single(keys::SERVER), record.to_bytes());
}
