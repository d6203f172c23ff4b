//! Who calls: what is known of hosts by name, asked for when they come and every few minutes while they are there.
//!
//! ```text
//! no entry ─ a call ─► asked for: the call waits, others too ─ told ─► told ─ no answer for an hour ─► not told
//!                           └─ no answer for half a minute ─► not told: no access by names; asked for again
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use sluice_env::{Env, Monotonic};
use sluice_state::ClientId;
use sluice_state::client::ClientInfo;
use tokio::sync::watch;

use super::lookups::{PATIENCE, Told};
use super::peer::{Origin, Peer, Who};
use super::table::Table;
use crate::clients::strangers;
use crate::server::Mds;

/// An answer is used for so long before it is asked for anew. What changes meanwhile is seen late by as much.
pub(super) const FRESH: Duration = Duration::from_secs(300);
/// A name service that is away: what it said last of a caller is used for so long.
const USABLE: Duration = Duration::from_secs(3600);
/// After a failure it is asked again no sooner than this.
pub(super) const AGAIN: Duration = Duration::from_secs(30);
/// The same while somebody waits to be let in.
const SOON: Duration = Duration::from_secs(2);
/// Who cannot be told for so long has no access by a name; until then he is told to come again.
const DOUBT: Duration = Duration::from_secs(30);
/// Who has not called for so long, and has no client, is forgotten.
const IDLE: Duration = Duration::from_secs(900);
/// Between two looks at them.
pub(super) const TICK: Duration = Duration::from_secs(10);
/// Callers that are remembered at most, some 500 bytes each with a few netgroups: an IPv6 network has room for more.
const MOST: usize = 1 << 16;
/// Between two looks for those who make way.
const SWEEP: Duration = Duration::from_secs(1);
/// Questions begun at one look.
const AT_ONE_LOOK: usize = 4096;

/// Who is to come again: it is not known yet who he is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotYet;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    known: RwLock<BTreeMap<IpAddr, Entry>>,
    /// When room was last made.
    swept: Mutex<Option<Monotonic>>,
}

/// What is known of a caller.
#[derive(Debug, Default)]
struct Entry {
    /// As it is judged.
    peer: Arc<Peer>,
    /// Its name, if it has one, and when that was told.
    name: Option<(Option<String>, Monotonic)>,
    netgroups: BTreeMap<String, (bool, Monotonic)>,
    /// Since when something that matters is not told.
    doubt: Option<Monotonic>,
    /// No question before this.
    not_before: Monotonic,
    /// When somebody was last asked.
    asked: Monotonic,
    /// Ends when the question under way is over.
    asking: Option<watch::Receiver<()>>,
    /// It called since the last look.
    used: AtomicBool,
    last_used: Monotonic,
    trouble: Option<String>,
}

/// What is shown of a caller.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) address: IpAddr,
    pub(crate) who: Option<Who>,
    /// So long ago its name was told.
    pub(crate) told_seconds: Option<u64>,
    /// Why it cannot be told now.
    pub(crate) trouble: Option<String>,
}

impl Entry {
    fn is_asked_for(&self) -> bool {
        self.asking.as_ref().is_some_and(|over| over.has_changed().is_ok())
    }

    fn who(&self) -> Option<Who> {
        let (name, _) = self.name.as_ref()?;
        let netgroups = self.netgroups.iter().map(|(group, (is, _))| (group.clone(), *is)).collect();
        Some(Who { name: name.clone(), netgroups })
    }

    fn is_told(&self, netgroups: &BTreeSet<String>) -> bool {
        self.name.is_some() && netgroups.iter().all(|group| self.netgroups.contains_key(group))
    }

    /// All that matters was told no longer ago than this.
    fn is_fresh(&self, netgroups: &BTreeSet<String>, now: Monotonic) -> bool {
        let fresh = |when: Monotonic| now - when < FRESH;
        let has = |group: &String| self.netgroups.get(group).is_some_and(|(_, when)| fresh(*when));
        self.name.as_ref().is_some_and(|(_, when)| fresh(*when)) && netgroups.iter().all(has)
    }

    /// What was told too long ago is not known any more; whether there was such.
    fn forget(&mut self, now: Monotonic) -> bool {
        let usable = |when: Monotonic| now - when < USABLE;
        let before = self.netgroups.len();
        self.netgroups.retain(|_, (_, when)| usable(*when));
        let name_ended = self.name.as_ref().is_some_and(|(_, when)| !usable(*when));
        if name_ended {
            self.name = None;
        }
        name_ended || self.netgroups.len() < before
    }
}

impl Callers {
    /// How a caller is judged by a table of exports, if that is known.
    fn judged(&self, address: IpAddr, version: u64) -> Option<Arc<Peer>> {
        let known = self.known.read();
        let entry = known.get(&address).filter(|entry| entry.peer.is_of(version))?;
        // Many processors have it in their caches.
        if !entry.used.load(Ordering::Relaxed) {
            entry.used.store(true, Ordering::Relaxed);
        }
        Some(Arc::clone(&entry.peer))
    }

    /// How it was judged last.
    pub(super) fn peer(&self, address: IpAddr) -> Option<Arc<Peer>> {
        self.known.read().get(&address.to_canonical()).map(|entry| Arc::clone(&entry.peer))
    }

    /// Judges a caller by a table, if it is told who he is, or was not for too long.
    fn judge(&self, address: IpAddr, table: &Table, now: Monotonic) -> Result<Option<Arc<Peer>>, NotYet> {
        let netgroups = table.netgroups();
        let mut known = self.known.write();
        // Nobody is remembered beside so many.
        let Some(entry) = known.get_mut(&address) else { return Err(NotYet) };
        let peer = Arc::new(Peer::new(entry.who(), table));
        match entry.doubt {
            _ if entry.is_told(&netgroups) => entry.doubt = None,
            // What is not told of him makes no difference.
            _ if table.tells(&Origin { address, peer: Some(Arc::clone(&peer)) }) => {}
            // He was asked about, in vain.
            Some(since) if now - since >= DOUBT && entry.trouble.is_some() => {}
            _ => return Err(NotYet),
        }
        entry.peer = Arc::clone(&peer);
        Ok(Some(peer))
    }

    /// All of them are judged by another table, but those of whom more must be asked.
    pub(super) fn judge_anew(&self, table: &Table) {
        let netgroups = table.netgroups();
        for entry in self.known.write().values_mut().filter(|entry| entry.is_told(&netgroups)) {
            entry.peer = Arc::new(Peer::new(entry.who(), table));
        }
    }

    /// What is known is how the caller is judged from now on; how before and how now.
    fn replace(&self, address: IpAddr, table: &Table) -> Option<(Arc<Peer>, Arc<Peer>)> {
        let mut known = self.known.write();
        let entry = known.get_mut(&address)?;
        let now = Arc::new(Peer::new(entry.who(), table));
        Some((std::mem::replace(&mut entry.peer, Arc::clone(&now)), now))
    }

    /// Those remembered, for people.
    pub(crate) fn shown(&self, now: Monotonic) -> Vec<Shown> {
        let known = self.known.read();
        let one = |(address, entry): (&IpAddr, &Entry)| Shown {
            address: *address,
            who: entry.who(),
            told_seconds: entry.name.as_ref().map(|(_, when)| (now - *when).as_secs()),
            trouble: entry.trouble.clone(),
        };
        known.iter().map(one).collect()
    }

    /// No export has rules for which they matter, but one may be about to have some: those who have just been asked about stay.
    fn rest(&self, now: Monotonic) {
        if !self.known.read().is_empty() {
            self.known.write().retain(|_, entry| {
                entry.doubt = None;
                entry.is_asked_for() || now - entry.asked < FRESH
            });
        }
    }
}

impl Mds {
    /// What is known now of whoever calls from an address.
    pub(crate) fn origin(&self, address: IpAddr) -> Origin {
        Origin { address, peer: self.callers.peer(address) }
    }

    /// The exports that hold now, and what is known of a caller that matters for them. Waits for a name service, at first.
    ///
    /// # Errors
    /// That does not answer.
    pub(crate) async fn caller(self: &Arc<Self>, address: IpAddr) -> Result<(Arc<Table>, Origin), NotYet> {
        let table = self.exports.now();
        if !table.asks() || !self.lookups.can() {
            return Ok((table, Origin::address(address)));
        }
        if let Some(peer) = self.callers.judged(address.to_canonical(), table.version()) {
            return Ok((table, Origin { address, peer: Some(peer) }));
        }
        // Whom networks settle needs no name.
        let plain = Origin::address(address);
        if table.tells(&plain) {
            return Ok((table, plain));
        }
        Box::pin(self.introduced(table, address)).await
    }

    async fn introduced(
        self: &Arc<Self>,
        table: Arc<Table>,
        address: IpAddr,
    ) -> Result<(Arc<Table>, Origin), NotYet> {
        let caller = address.to_canonical();
        if let Some(mut over) = self.ask_about(caller, table.netgroups(), false) {
            // It never says anything: it ends.
            drop(self.env.clock.timeout(PATIENCE, over.changed()).await);
        }
        let peer = self.callers.judge(caller, &table, self.env.clock.now())?;
        Ok((table, Origin { address, peer }))
    }

    /// The end of a question about a caller, which is begun unless one is under way, or unless all is told already and it is not
    /// `anew`. `None`: there is none, one has just failed, or there are too many.
    fn ask_about(
        self: &Arc<Self>,
        address: IpAddr,
        netgroups: BTreeSet<String>,
        anew: bool,
    ) -> Option<watch::Receiver<()>> {
        let now = self.env.clock.now();
        let (done, over) = watch::channel(());
        {
            let mut known = self.callers.known.write();
            if known.len() >= MOST && !known.contains_key(&address) {
                let mut swept = self.callers.swept.lock();
                if swept.is_none_or(|last| now - last >= SWEEP) {
                    *swept = Some(now);
                    // Those who are nobody by name, or of whom nobody can tell anything: it costs a look-up to know them again.
                    let is_somebody = |who: Who| who.name.is_some() || who.netgroups.values().any(|is| *is);
                    known.retain(|_, entry| entry.is_asked_for() || entry.who().is_some_and(is_somebody));
                }
                if known.len() >= MOST {
                    return None;
                }
            }
            let entry = known.entry(address).or_insert_with(|| Entry { last_used: now, ..Entry::default() });
            if !entry.is_told(&netgroups) {
                entry.doubt.get_or_insert(now);
            } else if !anew {
                return None;
            }
            if entry.is_asked_for() {
                return entry.asking.clone();
            }
            if now < entry.not_before {
                return None;
            }
            (entry.asked, entry.asking) = (now, Some(over.clone()));
        }
        let mds = Arc::clone(self);
        self.spawn(async move {
            let told = mds.lookups.caller(&mds.env, address, netgroups.into_iter().collect()).await;
            mds.told(address, told).await;
            drop(done);
        });
        Some(over)
    }

    /// Takes an answer in.
    async fn told(self: &Arc<Self>, address: IpAddr, told: std::io::Result<Told>) {
        let (now, table) = (self.env.clock.now(), self.exports.now());
        let is_other = {
            let mut known = self.callers.known.write();
            let Some(entry) = known.get_mut(&address) else { return };
            let before = entry.trouble.take();
            entry.asking = None;
            match told {
                Ok(told) => {
                    entry.name = Some((told.name, now));
                    for (group, is) in told.netgroups {
                        match is {
                            Ok(is) => _ = entry.netgroups.insert(group, (is, now)),
                            Err(error) => entry.trouble = Some(format!("@{group}: {error}")),
                        }
                    }
                }
                Err(error) => entry.trouble = Some(error.to_string()),
            }
            let in_doubt = entry.doubt.is_some_and(|since| now - since < DOUBT);
            if let Some(trouble) = &entry.trouble {
                entry.not_before = now + if in_doubt { SOON } else { AGAIN };
                if before.is_none() {
                    let known = entry.name.is_some();
                    tracing::warn!(
                        %address,
                        trouble,
                        known,
                        "a client cannot be looked up by name: what is known of it holds for an hour. Is the name service of this host up?"
                    );
                }
            }
            let is_told = entry.is_told(&table.netgroups());
            if is_told {
                entry.doubt = None;
            }
            let was_told = entry.peer.who.is_some();
            if is_told && !was_told {
                entry.peer = Arc::new(Peer::new(entry.who(), &table));
            }
            was_told && entry.peer.who != entry.who()
        };
        if is_other {
            self.known_otherwise(&[address]).await;
        }
    }

    /// Callers are others by name than they were: what they may not have any more is taken back, as when exports change.
    async fn known_otherwise(self: &Arc<Self>, addresses: &[IpAddr]) {
        if addresses.is_empty() {
            return;
        }
        // One after the other: what a change of exports takes away from whom a caller was, and what is taken away from whom he is.
        let _changing = self.exports.changing.lock().await;
        let table = self.exports.now();
        let mut less: BTreeMap<IpAddr, BTreeSet<u32>> = BTreeMap::new();
        for address in addresses {
            let Some((was, is)) = self.callers.replace(*address, &table) else { continue };
            if was.decides_as(&is) {
                continue;
            }
            tracing::info!(%address, was = ?was.who, is = ?is.who, "a client is another one by name");
            let [was, is] = [was, is].map(|peer| Origin { address: *address, peer: Some(peer) });
            let exports = table.all().map(|export| export.id);
            let narrower: BTreeSet<u32> =
                exports.filter(|id| table.narrows(&table, *id, &was, &is)).collect();
            if !narrower.is_empty() {
                less.insert(*address, narrower);
            }
        }
        if !less.is_empty() {
            self.take_back_from_all(self.clients_at(&less)).await;
        }
    }

    /// Clients that call from one of these addresses, or could when they come back, with what is said of it.
    fn clients_at(&self, addresses: &BTreeMap<IpAddr, BTreeSet<u32>>) -> BTreeMap<ClientId, BTreeSet<u32>> {
        let one = |info: ClientInfo| {
            let exports: BTreeSet<u32> = match self.client_address(info.id) {
                Some(from) => addresses.get(&from.to_canonical()).cloned().unwrap_or_default(),
                None => {
                    let sessions = self.clients.sessions_of(info.id);
                    let may_be = |from: IpAddr| sessions.iter().all(|session| session.may_be_from(from));
                    let those = addresses.iter().filter(|(from, _)| may_be(**from));
                    those.flat_map(|(_, exports)| exports).copied().collect()
                }
            };
            (info.id, exports)
        };
        let clients = self.client_infos().into_iter().filter(|info| info.confirmed);
        clients.map(one).filter(|(_, exports)| !exports.is_empty()).collect()
    }

    /// From where clients call, and were made: whose one is matters as long as it is there, from wherever it calls now.
    fn client_addresses(&self) -> BTreeSet<IpAddr> {
        let infos = self.client_infos();
        let here = infos.iter().filter_map(|info| self.client_address(info.id));
        let makers = infos.iter().filter_map(strangers::maker);
        here.chain(makers).map(|address| address.to_canonical()).collect()
    }

    /// Asks about everybody who is remembered, and all who have clients and are not settled by networks, and waits for the answers, but
    /// not for long. Of whom all is told already it asks if that is to be `anew`.
    pub(super) async fn ask_about_all(
        self: &Arc<Self>,
        netgroups: &BTreeSet<String>,
        is_settled: impl Fn(&Origin) -> bool,
        anew: bool,
    ) {
        if !self.lookups.can() {
            return;
        }
        let mut all = self.client_addresses();
        all.retain(|address| !is_settled(&Origin::address(*address)));
        all.extend(self.callers.known.read().keys());
        let begin = |address: &IpAddr| self.ask_about(*address, netgroups.clone(), anew);
        let over: Vec<_> = all.iter().filter_map(begin).collect();
        let wait = async {
            for mut over in over {
                let _ = over.changed().await;
            }
        };
        let _ = self.env.clock.timeout(PATIENCE, wait).await;
    }

    /// Looks for those to ask about anew, and those to forget.
    pub(super) async fn look_at_callers(self: &Arc<Self>, table: &Table) {
        let now = self.env.clock.now();
        if !table.asks() {
            return self.callers.rest(now);
        }
        let (netgroups, here) = (table.netgroups(), self.client_addresses());
        let new: Vec<IpAddr> = {
            let known = self.callers.known.read();
            let settled = |address: &IpAddr| table.tells(&Origin::address(*address));
            let new = here.iter().filter(|address| !known.contains_key(address) && !settled(address));
            new.take(AT_ONE_LOOK).copied().collect()
        };
        for address in new {
            drop(self.ask_about(address, netgroups.clone(), false));
        }
        let (mut ended, mut due) = (Vec::new(), Vec::new());
        self.callers.known.write().retain(|address, entry| {
            if std::mem::take(entry.used.get_mut()) {
                entry.last_used = now;
            }
            if now - entry.last_used >= IDLE && !here.contains(address) && !entry.is_asked_for() {
                return false;
            }
            if entry.forget(now) {
                ended.push(*address);
            }
            if !entry.is_fresh(&netgroups, now) && due.len() < AT_ONE_LOOK {
                due.push(*address);
            }
            true
        });
        self.known_otherwise(&ended).await;
        for address in due {
            drop(self.ask_about(address, netgroups.clone(), true));
        }
    }
}

/// Runs for the life of the server.
pub(crate) async fn run(mds: Arc<Mds>) {
    let env: Env = mds.env.clone();
    loop {
        let table = mds.exports.now();
        mds.look_at_hosts(&table).await;
        mds.look_at_callers(&mds.exports.now()).await;
        env.clock.sleep(TICK).await;
    }
}
