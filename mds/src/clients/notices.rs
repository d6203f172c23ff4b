//! Revoked layouts of which a client is to be told. Linux never frees a layout stateid: once the client has been told, the stateid is
//! forgotten, which it takes for the same (BAD_STATEID). One task waits for a client, however much was taken from it: a rack that lost
//! its power may be silent for a day.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_state::lease::{ClientShared, TOLD_AGAIN_NANOS};
use sluice_state::stateid::MAX_REVOKED_PER_CLIENT;
use sluice_state::{ClientId, StateId, Time};

use crate::server::Mds;

/// Of the SEQUENCEs that begin within so long after a revocation, or of those behind them the first, one tells of it in its reply.
const NOTICE_NANOS: u64 = TOLD_AGAIN_NANOS;

/// Who is to be told of what, and from when on a SEQUENCE has told it for certain; in that order.
type Owed = VecDeque<(Time, StateId)>;

#[derive(Debug, Default)]
pub(crate) struct Notices {
    owed: Mutex<BTreeMap<ClientId, Owed>>,
    /// Clients that somebody waits for to free delegations.
    watched: Mutex<BTreeSet<ClientId>>,
}

impl Notices {
    /// Whether somebody has to begin waiting for the client, which has something to free since right before.
    pub(crate) fn watch(&self, client: ClientId) -> bool {
        self.watched.lock().insert(client)
    }

    /// Whether nobody need wait for the client any more: it has nothing to free, or is gone.
    pub(super) fn let_be(&self, shared: &ClientShared) -> bool {
        let mut watched = self.watched.lock();
        let over = shared.delegation_revoked().is_none() || shared.is_dead();
        if over {
            watched.remove(&shared.id());
        }
        over
    }

    /// The client is to be told of this one, too. Whether somebody has to begin waiting for that.
    fn owe(&self, client: ClientId, late: Time, stateid: StateId) -> bool {
        let mut all = self.owed.lock();
        let begins = !all.contains_key(&client);
        let owed = all.entry(client).or_default();
        // What is older is remembered by nobody any more.
        if owed.len() >= MAX_REVOKED_PER_CLIENT {
            owed.pop_front();
        }
        owed.push_back((late, stateid));
        begins
    }

    /// What the client has been told of, by a SEQUENCE that began at `told`. `None`: it is owed nothing, and nobody need wait any more.
    fn told(&self, client: ClientId, told: Time) -> Option<Vec<StateId>> {
        let mut all = self.owed.lock();
        let owed = all.get_mut(&client)?;
        let known = owed.partition_point(|(late, _)| *late <= told);
        let told = owed.drain(..known).map(|(_, stateid)| stateid).collect();
        if owed.is_empty() && known == 0 {
            all.remove(&client);
            return None;
        }
        Some(told)
    }
}

impl Mds {
    /// A layout of the client was revoked: it is forgotten once the client has been told.
    pub(crate) fn forget_when_told(self: &Arc<Self>, shared: Arc<ClientShared>, stateid: StateId) {
        if self.notices.owe(shared.id(), self.now().plus_nanos(NOTICE_NANOS), stateid) {
            self.spawn(Arc::clone(self).tell(shared));
        }
    }

    async fn tell(self: Arc<Self>, shared: Arc<ClientShared>) {
        let client = shared.id();
        loop {
            // One that is gone needs to be told of nothing.
            let told = if shared.is_dead() { Time(u64::MAX) } else { shared.told() };
            let Some(told) = self.notices.told(client, told) else { return };
            if !told.is_empty() {
                {
                    let mut index = self.files.index();
                    for stateid in &told {
                        index.free_revoked(client, stateid);
                    }
                }
                self.quiet_revoked(client);
            }
            self.env.clock.sleep(Duration::from_nanos(NOTICE_NANOS)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stateid(n: u8) -> StateId {
        StateId { seqid: 1, other: [n; 12] }
    }

    #[test]
    fn one_waits_for_all_that_a_client_is_owed() {
        let (notices, client) = (Notices::default(), ClientId(7));
        assert!(notices.owe(client, Time(10), stateid(1)));
        assert!(!notices.owe(client, Time(10), stateid(2)) && !notices.owe(client, Time(20), stateid(3)));
        assert!(notices.owe(ClientId(8), Time(20), stateid(4)));
        assert_eq!(notices.told(client, Time(9)), Some(vec![]));
        assert_eq!(notices.told(client, Time(10)), Some(vec![stateid(1), stateid(2)]));
        assert_eq!(notices.told(client, Time(20)), Some(vec![stateid(3)]));
        // What came meanwhile is waited for by the same one.
        assert!(!notices.owe(client, Time(30), stateid(5)));
        assert_eq!(notices.told(client, Time(30)), Some(vec![stateid(5)]));
        assert_eq!(notices.told(client, Time(31)), None);
        assert!(notices.owe(client, Time(40), stateid(6)));
    }

    #[test]
    fn no_more_is_owed_than_is_remembered() {
        let (notices, client) = (Notices::default(), ClientId(7));
        for at in 0..2 * MAX_REVOKED_PER_CLIENT as u64 {
            notices.owe(client, Time(at), stateid(1));
        }
        assert_eq!(notices.told(client, Time(u64::MAX)).unwrap().len(), MAX_REVOKED_PER_CLIENT);
    }
}
