//! Model check: every interleaving, two operations at a time, of prepare, finish (committed or aborted),
//! recall answers, deadlines and fences, from several starting states. Stateless search: a path is a list of
//! choices, replayed from the start.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use sluice_state::effect::{IoMode, RecallAnswer, RecallKind, RevokeReason, WaitToken};
use sluice_state::file::{Error, FileSeed, Grace, Intent, LayoutFilter, Outcome, Prepared, Reply, Ticket};
use sluice_state::layout::ReturnMode;
use sluice_state::lock::LockKind;
use sluice_state::open::{Access, Claim, Deny, OpenRequest};
use sluice_state::{ClientId, StateId, Time};

use super::world::{A, B, C, World, open_request, range};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    OpenRead,
    OpenEither,
    OpenWrite,
    OpenExclusive,
    /// As a client that is recalled claims what it opened by itself.
    OpenClaimed,
    Close,
    Unlink,
    SetAttributes,
    Truncate,
    Replace,
    LayoutRead,
    LayoutWrite,
    LayoutCommit,
    LayoutReturn,
    ProxyRead,
    ProxyWrite,
    ProxyExclusive,
    Relayout,
    Settle,
    ClearRw,
    Lock,
    Recall,
    DelegationReturn,
    DelegationRecall,
    Expire,
    /// The server dies; what was in flight had not reached the store.
    Crash,
    /// The server dies; what was in flight is on the store, but nobody heard of it.
    CrashCommitted,
}

const OPS: [Op; 27] = [
    Op::OpenRead,
    Op::OpenEither,
    Op::OpenWrite,
    Op::OpenExclusive,
    Op::OpenClaimed,
    Op::Close,
    Op::Unlink,
    Op::SetAttributes,
    Op::Truncate,
    Op::Replace,
    Op::LayoutRead,
    Op::LayoutWrite,
    Op::LayoutCommit,
    Op::LayoutReturn,
    Op::ProxyRead,
    Op::ProxyWrite,
    Op::ProxyExclusive,
    Op::Relayout,
    Op::Settle,
    Op::ClearRw,
    Op::Lock,
    Op::Recall,
    Op::DelegationReturn,
    Op::DelegationRecall,
    Op::Expire,
    Op::Crash,
    Op::CrashCommitted,
];

impl Op {
    /// The intent, or `None` for an operation without a transaction.
    fn intent(self, world: &World, client: ClientId) -> Option<Intent> {
        let stateid = world.opens.get(&super::world::owner(client)).copied().unwrap_or(StateId::default());
        Some(match self {
            Self::OpenRead => Intent::Open(open_request(client, Access::READ, Deny::NONE)),
            Self::OpenEither => {
                Intent::Open(OpenRequest { either: true, ..open_request(client, Access::READ, Deny::NONE) })
            }
            Self::OpenWrite => Intent::Open(open_request(client, Access::WRITE, Deny::NONE)),
            Self::OpenExclusive => Intent::Open(open_request(client, Access::BOTH, Deny::BOTH)),
            Self::OpenClaimed => {
                let stateid = world.delegations.get(&client).map(|grant| grant.stateid).unwrap_or_default();
                let claim = Claim::Delegation { stateid };
                Intent::Open(OpenRequest { claim, ..open_request(client, Access::BOTH, Deny::NONE) })
            }
            Self::Close => Intent::Close { client, stateid },
            Self::Unlink => Intent::Unlink { client, last_link: true },
            Self::SetAttributes => Intent::SetAttributes { client },
            Self::Truncate => Intent::SetSize { client, replace: false, fresh: false },
            Self::Replace => Intent::SetSize { client, replace: true, fresh: true },
            Self::LayoutRead => world.layout_get(client, IoMode::Read),
            Self::LayoutWrite => world.layout_get(client, IoMode::ReadWrite),
            Self::LayoutCommit => world.layout_commit(client),
            Self::ProxyRead => Intent::ProxyIo { client, write: false, exclusive: false },
            Self::ProxyWrite => Intent::ProxyIo { client, write: true, exclusive: false },
            Self::ProxyExclusive => Intent::ProxyIo { client, write: true, exclusive: true },
            Self::Relayout => Intent::Relayout,
            Self::Settle => Intent::Settle,
            Self::ClearRw => Intent::ClearRw,
            Self::LayoutReturn
            | Self::Lock
            | Self::Recall
            | Self::DelegationReturn
            | Self::DelegationRecall
            | Self::Expire
            | Self::Crash
            | Self::CrashCommitted => {
                return None;
            }
        })
    }

    fn immediate(self, world: &mut World, client: ClientId) {
        match self {
            Self::LayoutReturn => drop(world.layout_return(client, ReturnMode::Any)),
            Self::Lock => drop(world.lock(client, LockKind::Write, range(0, 9), true)),
            Self::Recall => world.recall_layouts(LayoutFilter::All, true),
            Self::DelegationReturn => drop(world.delegation_return(client)),
            Self::DelegationRecall => world.recall_delegation(client),
            Self::Expire => world.expire(client, RevokeReason::LeaseExpired),
            other => panic!("{other:?} has a transaction"),
        }
    }
}

#[derive(Debug)]
enum Step {
    Start,
    Waiting(Intent, WaitToken),
    Ticket(Ticket),
    Done,
}

#[derive(Debug)]
struct Actor {
    op: Op,
    client: ClientId,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Go(usize),
    Abort(usize),
    Answer(usize, Answer),
    Fence(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Return,
    Forgotten,
    TooLate,
}

fn choices(world: &World, actors: &[Actor]) -> Vec<Choice> {
    let mut all = Vec::new();
    for (i, actor) in actors.iter().enumerate() {
        match &actor.step {
            Step::Start => all.push(Choice::Go(i)),
            Step::Waiting(_, token) if world.woken.contains(token) => all.push(Choice::Go(i)),
            Step::Ticket(_) => all.extend([Choice::Go(i), Choice::Abort(i)]),
            _ => {}
        }
    }
    for (i, recall) in world.recalls.iter().enumerate() {
        all.push(Choice::Answer(i, Answer::Return));
        if matches!(recall.kind, RecallKind::Layout { .. }) {
            all.push(Choice::Answer(i, Answer::Forgotten));
        }
    }
    if !world.recalls.is_empty() {
        all.push(Choice::Answer(0, Answer::TooLate));
    }
    all.extend((0..world.fences.len()).map(Choice::Fence));
    all
}

fn go(world: &mut World, actor: &mut Actor) {
    actor.step = match std::mem::replace(&mut actor.step, Step::Done) {
        Step::Start => match actor.op.intent(world, actor.client) {
            Some(intent) => prepare(world, intent, None),
            None => {
                actor.op.immediate(world, actor.client);
                Step::Done
            }
        },
        Step::Waiting(intent, token) => prepare(world, intent, Some(token)),
        Step::Ticket(ticket) => {
            world.finish(ticket, Outcome::Committed);
            Step::Done
        }
        Step::Done => Step::Done,
    };
}

fn prepare(world: &mut World, intent: Intent, token: Option<WaitToken>) -> Step {
    match world.prepare(&intent, token) {
        Prepared::Ticket(ticket) => Step::Ticket(ticket),
        Prepared::Wait(token) => Step::Waiting(intent, token),
        Prepared::Deny(_) => Step::Done,
    }
}

/// The server starts again: tickets, queue and state are gone, the store is not.
fn crash(world: &mut World, actors: &mut [Actor], committed: bool) {
    for actor in actors {
        if let Step::Ticket(ticket) = std::mem::replace(&mut actor.step, Step::Done)
            && committed
        {
            world.store(&ticket);
        }
    }
    world.restart();
}

fn take(world: &mut World, actors: &mut [Actor], choice: Choice) {
    match choice {
        Choice::Go(i) if matches!(actors[i].op, Op::Crash | Op::CrashCommitted) => {
            let committed = actors[i].op == Op::CrashCommitted;
            crash(world, actors, committed);
        }
        Choice::Go(i) => go(world, &mut actors[i]),
        Choice::Abort(i) => {
            if let Step::Ticket(ticket) = std::mem::replace(&mut actors[i].step, Step::Done) {
                world.finish(ticket, Outcome::Aborted);
            }
        }
        Choice::Answer(i, answer) => {
            let recall = world.recalls[i].clone();
            match (answer, recall.kind) {
                (Answer::Return, RecallKind::Layout { .. }) => {
                    world.layout_return(recall.client, ReturnMode::Any).unwrap();
                }
                (Answer::Return, RecallKind::Delegation) => {
                    let done = world.delegation_return(recall.client);
                    assert!(done.is_ok(), "{done:?} {recall:?}\n{world:#?}");
                }
                (Answer::Forgotten, _) => world.answer_at(i, RecallAnswer::NoMatching),
                (Answer::TooLate, _) => {
                    // The deadline of a write delegation is the latest.
                    let late = world.now.plus_nanos(3 * world.policy.recall_timeout);
                    world.tick_to(late);
                }
            }
        }
        Choice::Fence(i) => world.fence_done(i),
    }
}

/// Starting states. In all of them A and B may hold something before the two operations meet.
const SETUPS: usize = 13;

fn setup(which: usize) -> World {
    let mut world = match which {
        9 => World::made(),
        _ => World::new(FileSeed { rw_layout: which == 8, orphan: false }),
    };
    // A deadline is a recall's, never a queue's: then a lost wake-up shows as a deadlock.
    world.policy.wait = u64::MAX;
    world.policy.read_delegations = which == 6;
    world.policy.write_delegations = matches!(which, 10..=12);
    let open = |world: &mut World, client| {
        world.open(client, Access::BOTH, Deny::NONE).unwrap();
    };
    match which {
        0 => {}
        1 | 9 => open(&mut world, A),
        2 => {
            open(&mut world, A);
            world.layout(A, IoMode::ReadWrite).unwrap();
        }
        3 => {
            open(&mut world, A);
            open(&mut world, B);
            world.layout(A, IoMode::ReadWrite).unwrap();
            world.layout(B, IoMode::ReadWrite).unwrap();
        }
        4 => {
            open(&mut world, A);
            open(&mut world, B);
            world.layout(A, IoMode::ReadWrite).unwrap();
            world.layout(B, IoMode::Read).unwrap();
            world.lock(A, LockKind::Write, range(5, 20), false).unwrap();
        }
        5 => {
            // The row is idle, an orphan is open at A.
            open(&mut world, A);
            world.layout(A, IoMode::ReadWrite).unwrap();
            world.layout_return(A, ReturnMode::Any).unwrap();
            world.run(&Intent::Unlink { client: B, last_link: true }).unwrap();
        }
        6 => {
            // Read delegations at A and B.
            world.open(A, Access::READ, Deny::NONE).unwrap();
            world.open(B, Access::READ, Deny::NONE).unwrap();
        }
        10 => {
            // A write delegation at A, which has the file open.
            open(&mut world, A);
        }
        11 => {
            // A write delegation at A, which writes and has closed the file.
            open(&mut world, A);
            world.layout(A, IoMode::ReadWrite).unwrap();
            world.close(A).unwrap();
        }
        12 => {
            // The same of an orphan, under recall.
            open(&mut world, A);
            world.layout(A, IoMode::ReadWrite).unwrap();
            world.close(A).unwrap();
            world.run(&Intent::Unlink { client: A, last_link: true }).unwrap();
            world.recall_delegation(A);
        }
        7 => {
            // A's layout is being fenced.
            open(&mut world, A);
            open(&mut world, B);
            world.layout(A, IoMode::ReadWrite).unwrap();
            world.recall_layouts(LayoutFilter::All, false);
            world.answer(A, RecallAnswer::NoMatching);
        }
        _ => {
            open(&mut world, A);
            open(&mut world, B);
        }
    }
    world
}

/// Runs one path; returns how many choices there were at each of its steps. Stops where another path has been.
fn run(which: usize, ops: [(Op, ClientId); 2], path: &[usize], seen: &mut BTreeSet<u64>) -> Vec<usize> {
    let mut world = setup(which);
    let mut actors = ops.map(|(op, client)| Actor { op, client, step: Step::Start });
    let mut widths = Vec::new();
    loop {
        let all = choices(&world, &actors);
        let Some(choice) = all.get(path.get(widths.len()).copied().unwrap_or(0)) else { break };
        widths.push(all.len());
        world.replaying = widths.len() < path.len();
        take(&mut world, &mut actors, *choice);
        if widths.len() >= path.len() && !seen.insert(fingerprint(&world, &actors)) {
            return widths;
        }
        assert!(widths.len() < 64, "does not end: {ops:?} from {which}\n{world:#?}");
    }
    for actor in &actors {
        assert!(
            matches!(actor.step, Step::Done),
            "stuck: {actor:?} of {ops:?} from {which}, {path:?}\n{world:#?}"
        );
    }
    drain(&mut world, &format!("{ops:?} from {which}, {path:?}"));
    widths
}

fn fingerprint(world: &World, actors: &[Actor]) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.fingerprint(&mut hasher);
    for actor in actors {
        match &actor.step {
            Step::Start => 0.hash(&mut hasher),
            Step::Waiting(_, token) => token.hash(&mut hasher),
            Step::Ticket(ticket) => ticket.id().hash(&mut hasher),
            Step::Done => 1.hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Everybody leaves in order; then nothing may be left behind.
pub(crate) fn drain(world: &mut World, what: &str) {
    while !world.fences.is_empty() {
        world.fence_done(0);
    }
    for client in [A, B, C] {
        world.expire(client, RevokeReason::Admin);
        while !world.fences.is_empty() {
            world.fence_done(0);
        }
    }
    if world.file.needs_settle() {
        assert_eq!(world.run(&Intent::Settle), Ok(Reply::Done), "{what}");
    }
    world.tick_to(Time::NEVER);
    match world.run(&Intent::ClearRw) {
        Ok(Reply::Done) | Err(Error::Delay) => {}
        other => panic!("{other:?}: {what}"),
    }
    assert!(world.file.is_collectable() || !world.row, "the row outlives everybody: {what}\n{world:#?}");
    assert!(world.file.is_idle(), "something is left: {what}\n{world:#?}");
    // After a crash an unlinked file that was closed is garbage, which no state machine is made for.
    let crashed = world.grace != Grace::Over;
    assert!(crashed || world.file.is_collectable() == (world.collected == 1), "{what}\n{world:#?}");
    assert!(world.collected <= 1, "collected twice: {what}\n{world:#?}");
}

fn every_path(which: usize, ops: [(Op, ClientId); 2]) -> usize {
    let mut path: Vec<usize> = Vec::new();
    let mut seen = BTreeSet::new();
    let mut runs = 0;
    loop {
        let widths = run(which, ops, &path, &mut seen);
        runs += 1;
        path.resize(widths.len(), 0);
        // The next path: advance the last choice that has a sibling.
        loop {
            let Some(last) = path.pop() else { return runs };
            if last + 1 < widths[path.len()] {
                path.push(last + 1);
                break;
            }
        }
    }
}

fn pairs(which: usize) {
    let mut runs = 0;
    for (i, first) in OPS.into_iter().enumerate() {
        for (k, second) in OPS.into_iter().enumerate() {
            for other in [A, B] {
                // Two operations of one client are the same pair either way round.
                if other == A && k < i {
                    continue;
                }
                runs += every_path(which, [(first, A), (second, other)]);
            }
        }
    }
    assert!(runs > OPS.len() * OPS.len() * 2, "setup {which}: {runs} paths, nothing was interleaved");
}

macro_rules! setups {
    ($($name:ident $which:literal)*) => {
        $(#[test]
        fn $name() {
            pairs($which);
        })*

        #[test]
        fn every_setup_is_searched() {
            assert_eq!([$($which),*].len(), SETUPS);
        }
    };
}

setups! {
    from_nothing 0
    from_one_open 1
    from_one_writer 2
    from_two_writers 3
    from_a_writer_with_locks_and_a_reader 4
    from_an_open_orphan 5
    from_read_delegations 6
    from_a_fence 7
    from_an_unclean_row 8
    from_a_file_just_made 9
    from_a_write_delegation 10
    from_a_write_delegation_and_a_layout 11
    from_a_write_delegation_of_an_orphan 12
}
