//! Random interleavings of random transactions against the model.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use sluice_kv::{KeyRange, KvError, Transaction};

use crate::Fixture;
use crate::model::{Model, Op, Record, Seen, check, op, perform};

const CASES: usize = 300;

#[derive(Clone, Debug)]
struct Case {
    scripts: Vec<Vec<Op>>,
    /// Which of the unfinished transactions takes the next step.
    schedule: Vec<usize>,
}

fn case() -> impl Strategy<Value = Case> {
    let scripts = prop::collection::vec(prop::collection::vec(op(), 1..7), 2..6);
    (scripts, prop::collection::vec(0usize..60, 0..40))
        .prop_map(|(scripts, schedule)| Case { scripts, schedule })
}

struct Running {
    tx: Transaction,
    read_at: u64,
    rest: std::vec::IntoIter<Op>,
    steps: Vec<(Op, Seen)>,
}

impl Running {
    async fn finish(self) -> Result<Record, String> {
        let committed = match self.tx.commit().await {
            Ok(committed) => Some(committed),
            Err(KvError::Conflict) => None,
            Err(error) => return Err(error.to_string()),
        };
        Ok(Record { read_at: self.read_at, steps: self.steps, committed })
    }
}

/// Runs one case from an empty store; returns how many transactions conflicted.
async fn run(f: &Fixture, case: &Case) -> Result<usize, String> {
    let mut wipe = f.db.begin();
    wipe.clear_range(&KeyRange::all());
    wipe.commit().await.map_err(|e| e.to_string())?;
    let mut waiting = case.scripts.clone().into_iter();
    let mut running: Vec<Running> = Vec::new();
    let mut records = Vec::new();
    let mut schedule = case.schedule.iter().copied().chain(std::iter::repeat(0));
    while waiting.len() + running.len() > 0 {
        let choice = schedule.next().unwrap_or(0) % (waiting.len() + running.len());
        if choice >= running.len() {
            let Some(script) = waiting.next() else { continue };
            let tx = f.db.begin();
            let read_at = tx.read_version().await.map_err(|e| e.to_string())?;
            running.push(Running { tx, read_at, rest: script.into_iter(), steps: Vec::new() });
        } else if let Some(op) = running[choice].rest.next() {
            let seen = perform(&mut running[choice].tx, &op).await.map_err(|e| e.to_string())?;
            running[choice].steps.push((op, seen));
        } else {
            records.push(running.swap_remove(choice).finish().await?);
        }
    }
    let model = check(&Model::new(), &records)?;
    let stored = f.db.begin().range(&KeyRange::all(), 100, false).await.map_err(|e| e.to_string())?;
    let expected: Vec<_> = model.into_iter().collect();
    if stored != expected {
        return Err(format!("the store ends with {stored:?}, the model with {expected:?}"));
    }
    Ok(records.iter().filter(|r| r.committed.is_none()).count())
}

pub(crate) async fn random_interleavings_are_serialisable(f: Fixture) {
    let mut runner = TestRunner::deterministic();
    let (mut conflicts, mut total) = (0, 0);
    for _ in 0..CASES {
        let mut tree = case().new_tree(&mut runner).unwrap();
        let first = tree.current();
        total += first.scripts.len();
        match run(&f, &first).await {
            Ok(n) => conflicts += n,
            Err(error) => {
                let (case, error) = shrink(&f, &mut tree, (first, error)).await;
                panic!("{error}\nsmallest case: {case:#?}");
            }
        }
    }
    // A validator that refuses everything, or nothing, would pass the check above.
    assert!(conflicts * 20 > total && conflicts * 2 < total, "{conflicts} conflicts of {total}");
}

/// The smallest failing case found.
async fn shrink(
    f: &Fixture,
    tree: &mut impl ValueTree<Value = Case>,
    first: (Case, String),
) -> (Case, String) {
    let mut smallest = first;
    let mut more = tree.simplify();
    for _ in 0..2000 {
        if !more {
            break;
        }
        let case = tree.current();
        more = match run(f, &case).await {
            Err(error) => {
                smallest = (case, error);
                tree.simplify()
            }
            Ok(_) => tree.complicate(),
        };
    }
    smallest
}
