//! Random walks of three clients over one file, with everything that can happen to them.

use proptest::prelude::*;
use sluice_state::effect::{IoMode, RecallAnswer, RecallKind, RevokeReason, WaitToken};
use sluice_state::file::{FileSeed, Intent, LayoutFilter, Outcome, Prepared, Ticket};
use sluice_state::layout::ReturnMode;
use sluice_state::lock::LockKind;
use sluice_state::open::{Access, Deny, OpenRequest};
use sluice_state::times::Times;
use sluice_state::{ClientId, StateId};

use super::interleave::drain;
use super::world::{A, B, C, World, open_request, owner, range};

#[derive(Clone, Debug)]
enum Step {
    Start(ClientId, u8),
    Finish(usize, bool),
    Resume(usize),
    Cancel(usize),
    Lock(ClientId, u8, u8, bool, bool),
    Unlock(ClientId, u8, u8),
    Return(ClientId, u8),
    Recall(u8, bool),
    Answer(usize, u8),
    DelegationReturn(ClientId),
    Fence(usize),
    Failed(ClientId),
    Expire(ClientId),
    Break(ClientId),
    Tick(u8),
}

fn client() -> impl Strategy<Value = ClientId> {
    prop_oneof![Just(A), Just(B), Just(C)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (client(), 0u8..18).prop_map(|(c, k)| Step::Start(c, k)),
        8 => (0usize..8, prop::bool::weighted(0.8)).prop_map(|(i, ok)| Step::Finish(i, ok)),
        6 => (0usize..8).prop_map(Step::Resume),
        1 => (0usize..8).prop_map(Step::Cancel),
        3 => (client(), 0u8..20, 0u8..20, any::<bool>(), any::<bool>())
            .prop_map(|(c, a, b, w, blocks)| Step::Lock(c, a.min(b), a.max(b), w, blocks)),
        2 => (client(), 0u8..20, 0u8..20).prop_map(|(c, a, b)| Step::Unlock(c, a.min(b), a.max(b))),
        3 => (client(), 0u8..3).prop_map(|(c, m)| Step::Return(c, m)),
        1 => (0u8..3, any::<bool>()).prop_map(|(f, changed)| Step::Recall(f, changed)),
        3 => (0usize..4, 0u8..6).prop_map(|(i, a)| Step::Answer(i, a)),
        1 => client().prop_map(Step::DelegationReturn),
        3 => (0usize..4).prop_map(Step::Fence),
        2 => client().prop_map(Step::Failed),
        1 => client().prop_map(Step::Expire),
        1 => client().prop_map(Step::Break),
        2 => (0u8..40).prop_map(Step::Tick),
    ]
}

fn intent(w: &World, client: ClientId, kind: u8) -> Intent {
    let stateid = w.opens.get(&owner(client)).copied().unwrap_or(StateId::default());
    let (either, times) = (true, Some(Times { access: Some((5, 0)), modify: Some((5, 0)) }));
    match kind {
        0 => Intent::Open(OpenRequest { times, ..open_request(client, Access::BOTH, Deny::NONE) }),
        1 => Intent::Open(OpenRequest { either, ..open_request(client, Access::BOTH, Deny::NONE) }),
        2 => Intent::Open(OpenRequest { either, times, ..open_request(client, Access::READ, Deny::NONE) }),
        3 => Intent::Open(open_request(client, Access::WRITE, Deny::WRITE)),
        4 => Intent::Close { client, stateid },
        5 => Intent::Downgrade { client, stateid, access: Access::READ, deny: Deny::NONE },
        6 => Intent::Unlink { client, last_link: false },
        7 => Intent::SetAttributes { client },
        8 => Intent::SetSize { client, replace: false, fresh: false },
        9 => Intent::SetSize { client, replace: true, fresh: true },
        10 => w.layout_get(client, IoMode::Read),
        11 | 12 => w.layout_get(client, IoMode::ReadWrite),
        13 => w.layout_commit(client),
        14 => Intent::ProxyIo { client, write: true, exclusive: client == C },
        15 => Intent::Settle,
        16 => Intent::ClearRw,
        _ => Intent::Relayout,
    }
}

#[derive(Default)]
struct Walk {
    tickets: Vec<Ticket>,
    waiting: Vec<(Intent, WaitToken)>,
}

impl Walk {
    fn prepare(&mut self, w: &mut World, intent: Intent, token: Option<WaitToken>) {
        match w.prepare(&intent, token) {
            Prepared::Ticket(ticket) => self.tickets.push(ticket),
            Prepared::Wait(token) => self.waiting.push((intent, token)),
            Prepared::Deny(_) => {}
        }
    }

    fn take(&mut self, w: &mut World, step: Step) {
        match step {
            Step::Start(client, kind) => {
                let intent = intent(w, client, kind);
                self.prepare(w, intent, None);
            }
            Step::Finish(i, ok) if i < self.tickets.len() => {
                let outcome = if ok { Outcome::Committed } else { Outcome::Aborted };
                w.finish(self.tickets.swap_remove(i), outcome);
            }
            Step::Resume(i) => {
                let woken: Vec<usize> =
                    (0..self.waiting.len()).filter(|k| w.woken.contains(&self.waiting[*k].1)).collect();
                if let Some(at) = woken.get(i) {
                    let (intent, token) = self.waiting.swap_remove(*at);
                    self.prepare(w, intent, Some(token));
                }
            }
            Step::Cancel(i) if i < self.waiting.len() => w.cancel(self.waiting.swap_remove(i).1),
            Step::Lock(client, a, b, write, blocking) => {
                let kind = if write { LockKind::Write } else { LockKind::Read };
                let last = if b == 19 { u64::MAX } else { u64::from(b) };
                let _ = w.lock(client, kind, range(u64::from(a), last), blocking);
            }
            Step::Unlock(client, a, b) => {
                let _ = w.unlock(client, range(u64::from(a), u64::from(b)));
            }
            Step::Return(client, mode) => {
                let modes = [ReturnMode::Read, ReturnMode::ReadWrite, ReturnMode::Any];
                let _ = w.layout_return(client, modes[usize::from(mode)]);
            }
            Step::Recall(filter, changed) => {
                let filters = [LayoutFilter::Client(A), LayoutFilter::ReadWrite, LayoutFilter::All];
                w.recall_layouts(filters[usize::from(filter)], changed);
            }
            Step::Answer(i, answer) if i < w.recalls.len() => {
                let answers = [
                    RecallAnswer::Ok,
                    RecallAnswer::Delay,
                    RecallAnswer::NoMatching,
                    RecallAnswer::BadStateid,
                    RecallAnswer::OldStateid,
                    RecallAnswer::Unreachable,
                ];
                w.answer_at(i, answers[usize::from(answer)]);
            }
            Step::DelegationReturn(client) => {
                let _ = w.delegation_return(client);
            }
            Step::Fence(i) if i < w.fences.len() => w.fence_done(i),
            Step::Failed(client) => w.layout_failed(client),
            Step::Expire(client) => w.expire(client, RevokeReason::LeaseExpired),
            Step::Break(client) => w.break_state(client),
            Step::Tick(tenths) => {
                let next = w.now.plus_nanos(u64::from(tenths) * 500_000_000);
                w.tick_to(next);
            }
            _ => {}
        }
    }

    /// Lets everything in flight end; nothing may be stuck.
    fn settle_down(&mut self, w: &mut World) {
        for _ in 0..200 {
            while let Some(ticket) = self.tickets.pop() {
                w.finish(ticket, Outcome::Committed);
            }
            while let Some(at) = self.waiting.iter().position(|(_, token)| w.woken.contains(token)) {
                let (intent, token) = self.waiting.swap_remove(at);
                self.prepare(w, intent, Some(token));
            }
            if self.tickets.is_empty() && self.waiting.is_empty() {
                return;
            }
            if let Some(recall) = w.recalls.first().cloned() {
                match recall.kind {
                    RecallKind::Layout { .. } => drop(w.layout_return(recall.client, ReturnMode::Any)),
                    RecallKind::Delegation => drop(w.delegation_return(recall.client)),
                }
                w.recalls.retain(|r| *r != recall);
            } else if !w.fences.is_empty() {
                w.fence_done(0);
            } else if let Some(next) = w.file.next_deadline() {
                w.tick_to(next);
            }
        }
        panic!("stuck: {:?}\n{w:#?}", self.waiting);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_walks(
        steps in prop::collection::vec(step(), 1..160),
        row in any::<bool>(),
        delegations in any::<bool>(),
        unlink in prop::option::of(0usize..100),
        roc in any::<bool>(),
        made in any::<bool>(),
    ) {
        let mut w =
            if made { World::made() } else { World::new(FileSeed { rw_layout: row, orphan: false }) };
        w.policy.read_delegations = delegations;
        w.policy.write_delegations = delegations;
        w.policy.delegated_times = roc;
        w.policy.close_releases_locks = row;
        w.policy.return_on_close = roc;
        let mut walk = Walk::default();
        for (i, step) in steps.into_iter().enumerate() {
            if unlink == Some(i) {
                walk.prepare(&mut w, Intent::Unlink { client: B, last_link: true }, None);
            }
            walk.take(&mut w, step);
        }
        walk.settle_down(&mut w);
        drain(&mut w, "random walk");
    }
}
