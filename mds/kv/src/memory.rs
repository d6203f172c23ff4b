//! The in-memory backend: a multi-version map, for tests and simulation.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::Env;

use crate::faults::{self, CommitFault, Faults};
use crate::history::History;
use crate::store::{Request, Shared, Store};
use crate::views::Views;
use crate::writes::half_open;
use crate::{Committed, KeyValue, KvError, Room, Versionstamp};

/// History kept for validation, in bytes.
const HISTORY: usize = 64 << 20;

/// Oldest first; absence is a value.
type Versions = Vec<(u64, Option<Bytes>)>;

#[derive(Debug)]
struct State {
    map: BTreeMap<Bytes, Versions>,
    history: History,
    views: Views<()>,
    /// Keys written more than once or cleared, with the version that did it: when every view has
    /// passed it, what it replaced goes.
    superseded: VecDeque<(u64, Bytes)>,
    version: u64,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct Memory {
    env: Env,
    state: Mutex<State>,
    faults: Mutex<Faults>,
}

impl Memory {
    /// Empty; its first version comes after `version`.
    pub(crate) fn new(env: Env, faults: Faults, version: u64) -> Self {
        Self::starting(env, faults, BTreeMap::new(), version)
    }

    fn starting(env: Env, faults: Faults, map: BTreeMap<Bytes, Versions>, version: u64) -> Self {
        let state = State {
            map,
            history: History::new(version, HISTORY),
            views: Views::new(version, ()),
            superseded: VecDeque::new(),
            version,
            closed: false,
        };
        Self { env, state: Mutex::new(state), faults: Mutex::new(faults) }
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    pub(crate) fn room(&self) -> Room {
        self.faults().room()
    }

    /// That it has no next incarnation yet.
    pub(crate) fn goes_on(&self) -> Result<(), KvError> {
        self.state.lock().open()
    }

    /// That no other server can have it, as far as a test says so.
    pub(crate) fn is_ours(&self) -> bool {
        self.goes_on().is_ok() && !self.faults().away
    }

    /// Completes when no other server can have it; an error: it has a next incarnation.
    pub(crate) async fn until_ours(&self) -> Result<(), KvError> {
        while !self.is_ours() {
            self.goes_on()?;
            self.env.clock.sleep(faults::LOOK).await;
        }
        Ok(())
    }

    /// Ends this incarnation, as a power loss would; the next one holds what was committed.
    pub(crate) fn crash(&self) -> Self {
        let mut state = self.state.lock();
        state.closed = true;
        let version = state.version;
        let map = state
            .map
            .iter()
            .filter_map(|(k, versions)| {
                let value = versions.last()?.1.clone()?;
                Some((k.clone(), vec![(version, Some(value))]))
            })
            .collect();
        Self::starting(self.env.clone(), *self.faults.lock(), map, version)
    }

    fn faults(&self) -> Faults {
        *self.faults.lock()
    }
}

fn at(versions: &Versions, version: u64) -> Option<&Bytes> {
    versions.iter().rev().find(|(v, _)| *v <= version).and_then(|(_, value)| value.as_ref())
}

impl State {
    fn open(&self) -> Result<(), KvError> {
        if self.closed { Err(KvError::Closed) } else { Ok(()) }
    }

    fn write(&mut self, key: Bytes, value: Option<Bytes>) {
        let version = self.version;
        let versions = self.map.entry(key.clone()).or_default();
        match versions.last_mut() {
            Some((v, present)) if *v == version => *present = value,
            _ => versions.push((version, value)),
        }
        self.superseded.push_back((version, key));
    }

    fn collect(&mut self, oldest: u64) {
        while let Some((version, _)) = self.superseded.front()
            && *version <= oldest
        {
            let Some((_, key)) = self.superseded.pop_front() else { return };
            let Some(versions) = self.map.get_mut(&key) else { continue };
            let seen = versions.iter().rposition(|(v, _)| *v <= oldest).unwrap_or(0);
            versions.drain(..seen);
            if let [(v, None)] = versions[..]
                && v <= oldest
            {
                self.map.remove(&key);
            }
        }
    }

    fn apply(&mut self, request: &Request<Shared<()>>, env: &Env) -> Result<Committed, KvError> {
        let at_version = request.view.as_ref().map_or(self.version, |v| v.version);
        self.history.validate(&request.reads, at_version)?;
        self.version += 1;
        let version = self.version;
        let stamp = Versionstamp::new(version, 0);
        for (begin, end) in &request.writes.cleared {
            let present: Vec<Bytes> = self
                .map
                .range::<[u8], _>(half_open(begin, end))
                .filter(|(_, v)| v.last().is_some_and(|(_, v)| v.is_some()))
                .map(|(k, _)| k.clone())
                .collect();
            for key in present {
                self.write(key, None);
            }
        }
        for (key, pending) in request.writes.entries.iter() {
            let base = self.map.get(key).and_then(|v| at(v, version));
            let value = pending.clone().resolve(base.map(|value| &**value), stamp);
            self.write(key.clone(), value);
        }
        let hashes: Vec<u64> = request.writes.hashes().collect();
        self.history.record(version, &request.writes, &hashes, &request.write_conflicts);
        let now = env.clock.now();
        self.views.publish(version, (), now);
        let oldest = self.views.oldest(now);
        self.history.trim(oldest);
        self.collect(oldest);
        Ok(Committed { version, versionstamp: Some(stamp), exact: true })
    }
}

impl Store for Memory {
    type View = Shared<()>;

    async fn view(&self) -> Result<Self::View, KvError> {
        let faults = self.faults();
        faults.delay(&self.env).await;
        faults.view(&self.env)?;
        let state = self.state.lock();
        state.open()?;
        Ok(state.views.newest().clone())
    }

    async fn get(&self, view: &Self::View, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        let faults = self.faults();
        faults.delay(&self.env).await;
        faults.read(&self.env)?;
        let state = self.state.lock();
        state.open()?;
        Ok(state.map.get(key).and_then(|v| at(v, view.version)).cloned())
    }

    async fn range(
        &self,
        view: &Self::View,
        begin: &[u8],
        end: &[u8],
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        let faults = self.faults();
        faults.delay(&self.env).await;
        faults.read(&self.env)?;
        let state = self.state.lock();
        state.open()?;
        let visible = state
            .map
            .range::<[u8], _>(half_open(begin, end))
            .filter_map(|(k, v)| Some((k.clone(), at(v, view.version)?.clone())));
        Ok(if reverse { visible.rev().take(limit).collect() } else { visible.take(limit).collect() })
    }

    async fn commit(&self, request: Request<Self::View>) -> Result<Committed, KvError> {
        let faults = self.faults();
        faults.delay(&self.env).await;
        let fault = faults.commit(&self.env)?;
        let committed = {
            let mut state = self.state.lock();
            state.open()?;
            state.apply(&request, &self.env)?
        };
        match fault {
            CommitFault::None => Ok(committed),
            CommitFault::UnknownApplied => Err(KvError::CommitUnknown),
        }
    }

    async fn flush(&self) -> Result<(), KvError> {
        self.state.lock().open()
    }

    async fn close(&self) -> Result<(), KvError> {
        self.state.lock().closed = true;
        Ok(())
    }
}
