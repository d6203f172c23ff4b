//! A naive serial store, and transactions as scripts whose observations can be replayed on it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use proptest::prelude::*;
use sluice_kv::{AtomicOp, Committed, KeyRange, KeyValue, KvError, Transaction};

pub(crate) const KEYS: u8 = 8;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Get { key: u8, snapshot: bool },
    Range { begin: u8, end: u8, limit: usize, reverse: bool, snapshot: bool },
    Set { key: u8, value: u8 },
    Clear { key: u8 },
    ClearRange { begin: u8, end: u8 },
    Atomic { op: AtomicOp, key: u8, operand: u8 },
    Stamp { key: u8 },
}

pub(crate) fn op() -> impl Strategy<Value = Op> {
    let key = 0..KEYS;
    let atomic =
        prop_oneof![Just(AtomicOp::Add), Just(AtomicOp::Max), Just(AtomicOp::Min), Just(AtomicOp::ByteMax)];
    prop_oneof![
        3 => (key.clone(), prop::bool::weighted(0.2)).prop_map(|(key, snapshot)| Op::Get { key, snapshot }),
        3 => (0..KEYS, 0..=KEYS, 1usize..5, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(begin, end, limit, reverse, snapshot)| Op::Range { begin, end: end.max(begin), limit, reverse, snapshot }
        ),
        3 => (key.clone(), 0u8..4).prop_map(|(key, value)| Op::Set { key, value }),
        1 => key.clone().prop_map(|key| Op::Clear { key }),
        1 => (0..KEYS, 0..=KEYS).prop_map(|(a, b)| Op::ClearRange { begin: a.min(b), end: a.max(b) }),
        1 => (atomic, key.clone(), 0u8..4).prop_map(|(op, key, operand)| Op::Atomic { op, key, operand }),
        1 => key.prop_map(|key| Op::Stamp { key }),
    ]
}

fn name(key: u8) -> Bytes {
    Bytes::copy_from_slice(&[b'a' + key])
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Nothing,
    Value(Option<Bytes>),
    Pairs(Vec<KeyValue>),
    Unreadable,
}

/// Performs one operation on a real transaction.
pub(crate) async fn perform(tx: &mut Transaction, op: &Op) -> Result<Seen, KvError> {
    let seen = match *op {
        Op::Get { key, snapshot: false } => tx.get(&name(key)).await.map(Seen::Value),
        Op::Get { key, snapshot: true } => tx.snapshot_get(&name(key)).await.map(Seen::Value),
        Op::Range { begin, end, limit, reverse, snapshot } => {
            let range = KeyRange::new(name(begin), name(end));
            let pairs = if snapshot {
                tx.snapshot_range(&range, limit, reverse).await
            } else {
                tx.range(&range, limit, reverse).await
            };
            pairs.map(Seen::Pairs)
        }
        Op::Set { key, value } => {
            tx.set(name(key), vec![value]);
            Ok(Seen::Nothing)
        }
        Op::Clear { key } => {
            tx.clear(name(key));
            Ok(Seen::Nothing)
        }
        Op::ClearRange { begin, end } => {
            tx.clear_range(&KeyRange::new(name(begin), name(end)));
            Ok(Seen::Nothing)
        }
        Op::Atomic { op, key, operand } => {
            tx.atomic(op, name(key), vec![operand]);
            Ok(Seen::Nothing)
        }
        Op::Stamp { key } => {
            tx.set_versionstamped_value(name(key), vec![0; 10], 0);
            Ok(Seen::Nothing)
        }
    };
    match seen {
        Err(KvError::Unreadable) => Ok(Seen::Unreadable),
        other => other,
    }
}

fn is_snapshot(op: &Op) -> bool {
    matches!(op, Op::Get { snapshot: true, .. } | Op::Range { snapshot: true, .. })
}

/// A transaction that ran: what it did, what it saw, what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) read_at: u64,
    pub(crate) steps: Vec<(Op, Seen)>,
    pub(crate) committed: Option<Committed>,
}

pub(crate) type Model = BTreeMap<Bytes, Bytes>;

/// One transaction on the model: operations take effect at once, except that a stamp hides its key.
struct Serial {
    map: Model,
    stamp: [u8; 10],
    hidden: BTreeSet<Bytes>,
}

impl Serial {
    fn put(&mut self, key: Bytes, value: Vec<u8>) {
        self.hidden.remove(&key);
        self.map.insert(key, value.into());
    }

    fn remove(&mut self, key: &Bytes) {
        self.hidden.remove(key);
        self.map.remove(key);
    }

    fn atomic(&mut self, op: AtomicOp, key: Bytes, operand: u8) {
        let present = self.map.get(&key).cloned();
        let low = present.as_ref().and_then(|v| v.first().copied());
        let value = match op {
            AtomicOp::Add => vec![low.unwrap_or(0).wrapping_add(operand)],
            AtomicOp::Max => vec![low.unwrap_or(0).max(operand)],
            AtomicOp::Min => vec![low.map_or(operand, |v| v.min(operand))],
            AtomicOp::ByteMax => present.map_or(vec![operand], |v| v.to_vec().max(vec![operand])),
        };
        self.map.insert(key, value.into());
    }

    fn range(&self, begin: u8, end: u8, limit: usize, reverse: bool) -> Seen {
        let inside = self.map.iter().filter(|(k, _)| **k >= name(begin) && **k < name(end));
        let mut all: Vec<_> = inside.map(|(k, v)| (k.clone(), v.clone())).collect();
        if reverse {
            all.reverse();
        }
        all.truncate(limit);
        if all.iter().any(|(k, _)| self.hidden.contains(k)) { Seen::Unreadable } else { Seen::Pairs(all) }
    }

    fn perform(&mut self, op: &Op) -> Seen {
        match *op {
            Op::Get { key, .. } if self.hidden.contains(&name(key)) => return Seen::Unreadable,
            Op::Get { key, .. } => return Seen::Value(self.map.get(&name(key)).cloned()),
            Op::Range { begin, end, limit, reverse, .. } => return self.range(begin, end, limit, reverse),
            Op::Set { key, value } => self.put(name(key), vec![value]),
            Op::Clear { key } => self.remove(&name(key)),
            Op::ClearRange { begin, end } => (begin..end).for_each(|k| self.remove(&name(k))),
            Op::Atomic { op, key, operand } => self.atomic(op, name(key), operand),
            Op::Stamp { key } => {
                self.put(name(key), self.stamp.to_vec());
                self.hidden.insert(name(key));
            }
        }
        Seen::Nothing
    }
}

/// Runs `record` alone on `model`; an error tells the first observation that differs.
fn replay(model: &Model, record: &Record, snapshots: bool) -> Result<Model, String> {
    let stamp = record.committed.and_then(|c| c.versionstamp).map_or([0xee; 10], |s| s.0);
    let mut serial = Serial { map: model.clone(), stamp, hidden: BTreeSet::new() };
    for (i, (op, seen)) in record.steps.iter().enumerate() {
        let expected = serial.perform(op);
        if expected != *seen && (snapshots || !is_snapshot(op)) {
            return Err(format!("step {i}, {op:?}: saw {seen:?}, expected {expected:?} in {record:#?}"));
        }
    }
    Ok(serial.map)
}

/// Whether the history of `records` is strictly serialisable in the order of the versionstamps and
/// every transaction, committed or not, saw one version. Returns the final state.
pub(crate) fn check(start: &Model, records: &[Record]) -> Result<Model, String> {
    let mut order: Vec<_> = records.iter().filter_map(|r| Some((r.committed?.versionstamp?, r))).collect();
    order.sort_by_key(|(stamp, _)| *stamp);
    if order.windows(2).any(|w| w[0].0 == w[1].0) {
        return Err("two transactions have one versionstamp".into());
    }
    let mut model = start.clone();
    let mut states = BTreeMap::from([(0, model.clone())]);
    for (stamp, record) in &order {
        model = replay(&model, record, false).map_err(|e| format!("in commit order: {e}"))?;
        states.insert(stamp.version(), model.clone());
    }
    for record in records {
        let at = states.range(..=record.read_at).next_back().map_or(start, |(_, m)| m);
        replay(at, record, true).map_err(|e| format!("at its read version: {e}"))?;
    }
    Ok(model)
}
