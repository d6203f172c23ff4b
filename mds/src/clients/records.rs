//! Rows of clients and sessions to and from the namespace's records.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut, Bytes, BytesMut};
use sluice_env::{BoxFuture, Wall};
use sluice_kv::{Database, RunLimits, Transaction};
use sluice_namespace::FsError;
use sluice_namespace::stable_storage::{
    CallbackSecurity, Channel, ClientGuard, ClientHost, ClientRecord, Implementation, ServerRecord,
    SessionRecord, clear_client, clear_client_guard, clear_client_host, clear_session, client_guards,
    client_hosts, clients, put_client, put_client_guard, put_client_host, put_server, put_session, replies,
    server, sessions,
};
use sluice_state::client::{
    ImplementationId, Operations, Principal, Protection, RestoredClient, RestoredSession,
};
use sluice_state::recovery::{ClientRow, Effect, Forfeit, ServerRow, SessionRow};
use sluice_state::session::{BackChannelParams, CbSecurity, ChannelAttrs};
use sluice_state::slot::Slot;
use sluice_state::{BootEpoch, ClientId, SessionId, Verifier};

/// Rows read in one transaction.
const PAGE: usize = 1000;

/// Writes or clears the row of a durable effect.
pub(super) fn write(txn: &mut Transaction, effect: &Effect) {
    match effect {
        Effect::PersistClient(row) => {
            put_client(txn, &client_record(row));
            if let Some(host) = row.host {
                put_client_host(txn, &ClientHost { client: row.id.0, host });
            }
            if let Some(Protection { enforced, allowed }) = row.protection {
                let guard = ClientGuard { client: row.id.0, enforced: enforced.0, allowed: allowed.0 };
                put_client_guard(txn, &guard);
            }
        }
        Effect::ForgetClient(client) => clear_client(txn, client.0),
        Effect::PersistSession(row) => put_session(txn, &session_record(row)),
        Effect::ForgetSession(session) => clear_session(txn, &session.0),
        Effect::PersistServer(row) => put_server(txn, &ServerRecord { grace_ended_in: row.grace_ended_in.0 }),
        Effect::DropSession(_) | Effect::ReleaseState(_) => {}
    }
}

/// Everything earlier incarnations left. Reply rows without a session, hosts and protection without a client are cleared, in transactions
/// that `guard`, a key and its value, holds to this incarnation.
pub(super) async fn load(
    db: &Database,
    guard: &(Bytes, Bytes),
) -> Result<(ServerRow, Vec<RestoredClient>), FsError> {
    let row = db.run_read(RunLimits::default(), |txn| Box::pin(async move { server(&txn).await })).await?;
    let mut found: Vec<RestoredClient> = Vec::new();
    loop {
        let after = found.last().map(|client| client.row.id.0);
        let page = db
            .run_read(RunLimits::default(), |txn| Box::pin(async move { clients(&txn, after, PAGE).await }))
            .await?;
        let more = page.len() == PAGE;
        found.extend(
            page.into_iter().map(|record| RestoredClient { row: client_row(record), sessions: Vec::new() }),
        );
        if !more {
            break;
        }
    }
    load_beside(
        db,
        guard,
        &mut found,
        |txn, after| Box::pin(client_hosts(txn, after, PAGE)),
        |of: &ClientHost| of.client,
        |row, of| row.host = Some(of.host),
        clear_client_host,
    )
    .await?;
    load_beside(
        db,
        guard,
        &mut found,
        |txn, after| Box::pin(client_guards(txn, after, PAGE)),
        |of: &ClientGuard| of.client,
        |row, of| {
            let (enforced, allowed) = (Operations(of.enforced), Operations(of.allowed));
            row.protection = Some(Protection { enforced, allowed });
        },
        clear_client_guard,
    )
    .await?;
    let mut sessions = load_sessions(db).await?;
    load_replies(db, guard, &mut sessions).await?;
    // Both are in the order of client IDs.
    for (id, session) in sessions {
        if let Ok(at) = found.binary_search_by_key(&id.client(), |client| client.row.id)
            && let Some(client) = found.get_mut(at)
        {
            client.sessions.push(session);
        }
    }
    Ok((ServerRow { grace_ended_in: BootEpoch(row.grace_ended_in) }, found))
}

/// Rows beside those of clients, each with the client that it is of; `found` in the order of their IDs. Those of clients that a release
/// before forgot are cleared.
async fn load_beside<R: Send>(
    db: &Database,
    guard: &(Bytes, Bytes),
    found: &mut [RestoredClient],
    page: impl for<'a> Fn(&'a Transaction, Option<u64>) -> BoxFuture<'a, Result<Vec<R>, FsError>> + Sync,
    of: impl Fn(&R) -> u64,
    put: impl Fn(&mut ClientRow, &R),
    clear: fn(&mut Transaction, u64),
) -> Result<(), FsError> {
    let (mut after, page) = (None, &page);
    loop {
        let rows =
            db.run_read(RunLimits::default(), |txn| Box::pin(async move { page(&txn, after).await })).await?;
        after = rows.last().map(&of);
        let mut stray = Vec::new();
        for row in &rows {
            let at = found.binary_search_by_key(&of(row), |known| known.row.id.0);
            match at.ok().and_then(|at| found.get_mut(at)) {
                Some(known) => put(&mut known.row, row),
                None => stray.push(of(row)),
            }
        }
        forget(db, guard, &stray, clear).await?;
        if rows.len() < PAGE {
            return Ok(());
        }
    }
}

/// Clears rows of clients that there are no more.
async fn forget(
    db: &Database,
    guard: &(Bytes, Bytes),
    clients: &[u64],
    clear: fn(&mut Transaction, u64),
) -> Result<(), FsError> {
    if clients.is_empty() {
        return Ok(());
    }
    let limits = RunLimits::default().guarded_by(guard.0.clone(), guard.1.clone()).idempotent();
    db.run::<_, FsError, _>(limits, |mut txn| {
        Box::pin(async move {
            clients.iter().for_each(|client| clear(&mut txn, *client));
            Ok(())
        })
    })
    .await?;
    Ok(())
}

async fn load_sessions(db: &Database) -> Result<BTreeMap<SessionId, RestoredSession>, FsError> {
    let mut all = BTreeMap::new();
    let mut after: Option<[u8; 16]> = None;
    loop {
        let page = db
            .run_read(RunLimits::default(), |txn| {
                Box::pin(async move { sessions(&txn, after.as_ref(), PAGE).await })
            })
            .await?;
        let more = page.len() == PAGE;
        after = page.last().map(|record| record.id);
        for record in page {
            let row = session_row(record);
            all.insert(row.id, RestoredSession { row, slots: Vec::new() });
        }
        if !more {
            return Ok(all);
        }
    }
}

/// The slots of the sessions. Only what tells a retry is kept in memory; its results are read when it comes.
async fn load_replies(
    db: &Database,
    guard: &(Bytes, Bytes),
    found: &mut BTreeMap<SessionId, RestoredSession>,
) -> Result<(), FsError> {
    let mut after: Option<([u8; 16], u32)> = None;
    loop {
        let page = db
            .run_read(RunLimits::default(), |txn| {
                let after = after.as_ref().map(|(session, slot)| (session, *slot));
                Box::pin(async move { replies(&txn, after, PAGE).await })
            })
            .await?;
        let more = page.len() == PAGE;
        after = page.last().map(|(session, slot, _)| (*session, *slot));
        let mut stray = BTreeSet::new();
        for (session, slot, row) in page {
            match found.get_mut(&SessionId(session)) {
                Some(of) => of.slots.push((slot, Slot::restore(row.seqid, row.fingerprint))),
                // A request that ran while its client was being given up.
                None => drop(stray.insert(session)),
            }
        }
        clear_stray(db, guard, &stray).await?;
        if !more {
            return Ok(());
        }
    }
}

async fn clear_stray(
    db: &Database,
    guard: &(Bytes, Bytes),
    stray: &BTreeSet<[u8; 16]>,
) -> Result<(), FsError> {
    if stray.is_empty() {
        return Ok(());
    }
    let limits = RunLimits::default().guarded_by(guard.0.clone(), guard.1.clone()).idempotent();
    db.run::<_, FsError, _>(limits, |mut txn| {
        Box::pin(async move {
            stray.iter().for_each(|session| clear_session(&mut txn, session));
            Ok(())
        })
    })
    .await?;
    Ok(())
}

fn client_record(row: &ClientRow) -> ClientRecord {
    ClientRecord {
        id: row.id.0,
        owner: row.owner.clone(),
        verifier: row.verifier.0,
        principal: principal_bytes(&row.principal),
        implementation: row.implementation.as_ref().map(|implementation| Implementation {
            domain: implementation.domain.clone(),
            name: implementation.name.clone(),
            date: Wall { seconds: implementation.date.0, nanos: implementation.date.1 },
        }),
        minor_version: row.minor_version,
        create_seqid: row.create_seqid,
        next_session: row.next_session,
        reclaimed_in: row.reclaimed_in.0,
        revoked: row.forfeits > Forfeit::Nothing,
        broken: row.forfeits == Forfeit::Everything,
    }
}

fn client_row(record: ClientRecord) -> ClientRow {
    ClientRow {
        id: ClientId(record.id),
        owner: record.owner,
        verifier: Verifier(record.verifier),
        principal: principal(&record.principal),
        implementation: record.implementation.map(|implementation| ImplementationId {
            domain: implementation.domain,
            name: implementation.name,
            date: (implementation.date.seconds, implementation.date.nanos),
        }),
        minor_version: record.minor_version,
        create_seqid: record.create_seqid,
        next_session: record.next_session,
        reclaimed_in: BootEpoch(record.reclaimed_in),
        forfeits: match (record.broken, record.revoked) {
            (true, _) => Forfeit::Everything,
            (false, true) => Forfeit::Delegations,
            (false, false) => Forfeit::Nothing,
        },
        host: None,
        protection: None,
    }
}

/// One tag byte, then: nothing; uid and machine name; the GSS name.
fn principal_bytes(principal: &Principal) -> Bytes {
    let mut out = BytesMut::new();
    match principal {
        Principal::None => out.put_u8(0),
        Principal::Sys { uid, machine } => {
            out.put_u8(1);
            out.put_u32(*uid);
            out.put_slice(machine);
        }
        Principal::Gss(name) => {
            out.put_u8(2);
            out.put_slice(name);
        }
    }
    out.freeze()
}

fn principal(bytes: &[u8]) -> Principal {
    match bytes {
        [1, a, b, c, d, machine @ ..] => Principal::Sys {
            uid: u32::from_be_bytes([*a, *b, *c, *d]),
            machine: Bytes::copy_from_slice(machine),
        },
        [2, name @ ..] => Principal::Gss(Bytes::copy_from_slice(name)),
        _ => Principal::None,
    }
}

fn channel(attrs: &ChannelAttrs) -> Channel {
    let ChannelAttrs { max_request, max_response, max_response_cached, max_ops, max_requests } = *attrs;
    Channel { max_request, max_response, max_response_cached, max_ops, max_requests }
}

fn attrs(channel: Channel) -> ChannelAttrs {
    let Channel { max_request, max_response, max_response_cached, max_ops, max_requests } = channel;
    ChannelAttrs { max_request, max_response, max_response_cached, max_ops, max_requests }
}

fn session_record(row: &SessionRow) -> SessionRecord {
    let callback_security = match &row.back_params.security {
        None | Some(CbSecurity::Gss) => None,
        Some(CbSecurity::None) => Some(CallbackSecurity::None),
        Some(CbSecurity::Sys { stamp, machine, uid, gid, gids }) => Some(CallbackSecurity::Sys {
            stamp: *stamp,
            machine_name: machine.clone(),
            uid: *uid,
            gid: *gid,
            gids: gids.clone(),
        }),
    };
    SessionRecord {
        id: row.id.0,
        fore: channel(&row.fore),
        back: channel(&row.back),
        callback_program: row.back_params.program,
        callback_security,
        persist: row.persist,
        back_wanted: row.back_wanted,
    }
}

fn session_row(record: SessionRecord) -> SessionRow {
    let security = record.callback_security.map(|security| match security {
        CallbackSecurity::None => CbSecurity::None,
        CallbackSecurity::Sys { stamp, machine_name, uid, gid, gids } => {
            CbSecurity::Sys { stamp, machine: machine_name, uid, gid, gids }
        }
    });
    SessionRow {
        id: SessionId(record.id),
        fore: attrs(record.fore),
        back: attrs(record.back),
        back_params: BackChannelParams { program: record.callback_program, security },
        persist: record.persist,
        back_wanted: record.back_wanted,
    }
}
