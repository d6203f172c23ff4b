//! The table at the start of an incarnation: RFC 8881 §8.4.2, §2.10.6.5.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{
    Absent, Client, Clients, ClientsConfig, CreateSessionReply, OwnerEntry, Promised, session_entry,
};
use crate::grace::Grace;
use crate::ids::{BootEpoch, Time};
use crate::lease::{ClientShared, UseGauge, seq4_status};
use crate::recovery::{ClientRow, Forfeit, ServerRow, SessionRow};
use crate::session::Session;
use crate::slot::Slot;

/// A client found in stable storage.
#[derive(Debug)]
pub struct RestoredClient {
    /// Its row.
    pub row: ClientRow,
    /// Its persistent sessions.
    pub sessions: Vec<RestoredSession>,
}

/// A session found in stable storage.
#[derive(Debug)]
pub struct RestoredSession {
    /// Its row.
    pub row: SessionRow,
    /// The reply rows: slot number and [`Slot::restore`].
    pub slots: Vec<(u32, Slot)>,
}

impl Clients {
    /// A table without clients, for a server that never ran before.
    #[must_use]
    pub fn new(config: ClientsConfig, now: Time, epoch: BootEpoch) -> Self {
        Self::restore(config, now, epoch, ServerRow::default(), Vec::new()).0
    }

    /// The table of incarnation `epoch` from what the earlier ones left, and the sessions that go on.
    ///
    /// Grace begins at `now`. A client with a persistent session goes on with it: its lease starts anew
    /// and it is told RESTART_RECLAIM_NEEDED until its RECLAIM_COMPLETE. The client ID of any other is
    /// stale, as its sessions are; it comes back by EXCHANGE_ID and may reclaim all the same. Two rows of one owner (which no transaction writes) keep the one with
    /// the larger client ID.
    #[must_use]
    pub fn restore(
        config: ClientsConfig,
        now: Time,
        epoch: BootEpoch,
        server: ServerRow,
        mut clients: Vec<RestoredClient>,
    ) -> (Self, Vec<Session>) {
        clients.sort_by_key(|c| std::cmp::Reverse(c.row.id));
        let mut by_id = BTreeMap::new();
        let mut by_owner = BTreeMap::new();
        let mut pending = BTreeSet::new();
        let mut sessions = Vec::new();
        let mut absent = BTreeMap::new();
        let mut strangers = BTreeSet::new();
        for mut found in clients {
            found.sessions.retain(|s| s.row.id.client() == found.row.id);
            if by_owner.contains_key(&found.row.owner) || absent.contains_key(&found.row.owner) {
                continue;
            }
            let id = found.row.id;
            // §8.4.3: whoever did not complete a reclaim since the last grace period ended may have
            // lost its state to others.
            let completed = found.row.reclaimed_in >= server.grace_ended_in && found.row.reclaimed_in.0 > 0;
            let may_reclaim = completed && found.row.forfeits < Forfeit::Everything;
            if may_reclaim {
                pending.insert(id);
            }
            if found.sessions.is_empty() {
                absent.insert(found.row.owner.clone(), Absent { row: found.row, may_reclaim });
                continue;
            }
            let client = restore_client(&config, now, epoch, found, &mut sessions);
            client.shared.set_reclaim(false, may_reclaim);
            let entry = OwnerEntry { confirmed: Some(id), unconfirmed: None };
            if (config.is_stranger)(&client.row.owner) {
                strangers.insert(id);
            }
            by_owner.insert(client.row.owner.clone(), entry);
            by_id.insert(id, client);
        }
        let grace = Grace::start(now, epoch, config.lease_nanos, pending);
        let ended = server.grace_ended_in.0.saturating_add(1) >= epoch.0;
        let grace = if ended { grace } else { grace.after_another() };
        let mut table = Self {
            config,
            epoch,
            next_counter: 0,
            by_id,
            by_owner,
            absent,
            unconfirmed: BTreeSet::new(),
            strangers,
            promised: Promised::default(),
            grace,
            grace_over: None,
        };
        table.promised = table.count_promised();
        (table, sessions)
    }
}

fn restore_client(
    config: &ClientsConfig,
    now: Time,
    epoch: BootEpoch,
    found: RestoredClient,
    sessions: &mut Vec<Session>,
) -> Client {
    let RestoredClient { row, sessions: rows } = found;
    let shared = Arc::new(ClientShared::new(row.id, now));
    shared.raise_status(seq4_status::RESTART_RECLAIM_NEEDED);
    // A CREATE_SESSION whose reply was lost in the crash is retried: its result is in the row.
    let last = rows.iter().map(|s| &s.row).find(|s| s.id.counter().wrapping_add(1) == row.next_session);
    let last_create = last.map(|s| Ok(CreateSessionReply::of(s, row.create_seqid)));
    let mut entries = Vec::new();
    for RestoredSession { row, slots } in rows {
        let gauge = UseGauge::default();
        entries.push(session_entry(&row, gauge.clone()));
        let max_slots = config.channel.max_slots;
        sessions.push(Session::restore(row, shared.clone(), gauge, slots, max_slots));
    }
    let unaware = row.reclaimed_in.0.saturating_add(1) < epoch.0;
    let protection = row.protection;
    let mut client = Client {
        row,
        confirmed: true,
        created: now,
        last_create,
        creating: false,
        reclaiming: false,
        revoking: 0,
        forfeits_now: Forfeit::Nothing,
        unaware,
        told_since: None,
        sessions: entries,
        shared,
    };
    client.set_protection(protection);
    client
}
