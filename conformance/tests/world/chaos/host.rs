//! A client as a stock kernel is one: a session that is replayed, state that is reclaimed or opened anew, recalls that
//! are obeyed, I/O that goes to data servers again and again until it is done.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sluice_conformance::client::{Answer, Identity, Lost, Persistent, ops};
use sluice_env::{Env, Monotonic};
use sluice_rpc::SimNet;
use sluice_xdr::nfs4::*;

use super::mine::{Mine, Sizes};
use super::model::{At, Blocks, NEVER, Rising, Step};
use crate::callbacks::{BackChannel, Hears};
use crate::client::{later, layout_return, putfh};
use crate::stage::World;
use crate::storage::Segment;

const AGAIN: Duration = Duration::from_millis(100);

/// What all hosts share: what they know of each other is what the test knows.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) lease: Duration,
    trace: bool,
    order: AtomicU64,
    pub(crate) names: Mutex<Vec<Step>>,
    pub(crate) blocks: Blocks,
    pub(crate) rising: Rising,
    pub(crate) sizes: Sizes,
    /// When the metadata server was restarted last, or another one took over.
    pub(crate) restarted: AtomicU64,
    /// Who holds the lock on a file's locked block.
    pub(crate) locks: Mutex<BTreeMap<usize, String>>,
    /// When each host last sent what was answered.
    renewed: Mutex<BTreeMap<String, Monotonic>>,
    pub(crate) dirs: Mutex<[nfs_fh4; 2]>,
    pub(crate) files: Mutex<Vec<nfs_fh4>>,
    pub(crate) habits: Habits,
    /// Where the metadata server is, for who asks.
    pub(crate) mds: Mutex<SocketAddr>,
    /// A device has failed to flush, or has lost a data file.
    pub(crate) device_failed: AtomicBool,
    /// A device was full.
    pub(crate) device_full: AtomicBool,
    /// A directory had a limit, or `names1` was a tree of its own.
    pub(crate) limited: AtomicBool,
}

/// What is the same for all hosts of a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Blocks lie next to each other, so that a file may be kept in the metadata.
    pub(crate) together: bool,
    /// Files are not kept open, so that they are delegated to those who read.
    pub(crate) brief: bool,
}

impl Shared {
    pub(crate) fn new(env: Env, mds: SocketAddr, lease: Duration, habits: Habits) -> Arc<Self> {
        Arc::new(Self {
            env,
            lease,
            trace: std::env::var_os("SLUICE_CHAOS_TRACE").is_some(),
            order: 1.into(),
            names: Mutex::default(),
            blocks: Blocks::default(),
            rising: Rising::default(),
            sizes: Sizes::default(),
            restarted: 0.into(),
            locks: Mutex::default(),
            renewed: Mutex::default(),
            dirs: Mutex::default(),
            files: Mutex::default(),
            habits,
            mds: Mutex::new(mds),
            device_failed: false.into(),
            device_full: false.into(),
            limited: false.into(),
        })
    }

    /// The next position in the order of everything.
    pub(crate) fn at(&self) -> At {
        self.order.fetch_add(1, Ordering::Relaxed)
    }

    /// The metadata server is about to be another process, or is it now.
    pub(crate) fn restarts(&self, is: bool) {
        self.restarted.store(if is { NEVER } else { self.at() }, Ordering::Relaxed);
    }

    /// For who looks into a seed: `SLUICE_CHAOS_TRACE=1`.
    #[allow(clippy::print_stderr, reason = "asked for")]
    pub(crate) fn say(&self, who: &str, what: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("{:>10} ms  {who}: {}", self.env.clock.now().0 / 1_000_000, what());
        }
    }

    /// EIO or EROFS, in a world in which a device is to blame for it: whatever else fails, applications wait.
    pub(crate) fn blames_a_device(&self, status: nfsstat4) -> bool {
        let blames = [nfsstat4::NFS4ERR_IO, nfsstat4::NFS4ERR_ROFS].contains(&status);
        blames && self.device_failed.load(Ordering::Relaxed)
    }

    /// ENOSPC, where a device was full; EDQUOT, where there was a limit.
    pub(crate) fn has_no_room(&self, status: nfsstat4) -> bool {
        match status {
            nfsstat4::NFS4ERR_NOSPC => self.device_full.load(Ordering::Relaxed),
            nfsstat4::NFS4ERR_DQUOT => self.limited.load(Ordering::Relaxed),
            _ => false,
        }
    }

    /// What the host sent at `sent` was answered.
    fn answered(&self, host: &str, sent: Monotonic) {
        let mut renewed = self.renewed.lock();
        let last = renewed.entry(host.to_owned()).or_default();
        *last = sent.max(*last);
    }

    /// Until when a host may believe that it holds what it held.
    pub(crate) fn believes_until(&self, host: &str) -> Monotonic {
        self.renewed.lock().get(host).copied().unwrap_or_default() + self.lease
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.env.random.u64() % bound.max(1)
    }
}

/// The one file that a host has open, and what it holds of it.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) file: usize,
    pub(crate) handle: nfs_fh4,
    pub(crate) stateid: stateid4,
    pub(crate) lock: Option<(stateid4, u64, u64)>,
}

/// A file that nobody writes to without telling this host before.
#[derive(Debug)]
pub(crate) struct Delegated {
    pub(crate) stateid: stateid4,
    /// The words of each block that was read since.
    pub(crate) remembered: BTreeMap<u64, Vec<u64>>,
}

/// Delegations, which a recall takes away.
#[derive(Debug, Default)]
pub(crate) struct Delegations {
    pub(crate) held: BTreeMap<usize, Delegated>,
    /// The file whose OPEN is on its way.
    pub(crate) asking: Option<usize>,
    /// Revoked ones, which the server wants to hear of.
    pub(crate) revoked: Vec<stateid4>,
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) shared: Arc<Shared>,
    pub(crate) net: SimNet,
    pub(crate) session: Persistent,
    pub(crate) held: Mutex<Option<Held>>,
    /// Open, and without a name; or about to be.
    pub(crate) nameless: Mutex<Option<Held>>,
    pub(crate) layouts: Arc<Layouts>,
    pub(crate) devices: Mutex<crate::storage::Devices>,
    recovery: tokio::sync::Mutex<u64>,
    /// What its workers are at.
    pub(crate) doing: Mutex<[String; 3]>,
    pub(crate) mine: Mutex<Mine>,
}

/// The layout of the file that is open: I/O reads it, a return takes it away.
#[derive(Debug)]
pub(crate) struct Layouts {
    env: Env,
    pub(crate) current: tokio::sync::RwLock<Option<Segment>>,
    pub(crate) delegations: Mutex<Delegations>,
    /// Of which file, and whether an answer to LAYOUTGET is on its way.
    known: Mutex<(nfs_fh4, bool, bool)>,
    host: Mutex<std::sync::Weak<Host>>,
}

impl Layouts {
    /// `handle`'s layout is asked for, and then held or not.
    pub(crate) fn asking(&self, handle: &nfs_fh4, asking: bool, held: bool) {
        *self.known.lock() = (handle.clone(), asking, held);
    }

    pub(crate) fn gone(&self) {
        self.known.lock().2 = false;
    }
}

impl Hears for Layouts {
    fn recall(&self, args: CB_LAYOUTRECALL4args) -> nfsstat4 {
        let (handle, asking, held) = self.known.lock().clone();
        let file = match args.clora_recall {
            layoutrecall4::LAYOUTRECALL4_FILE(file) => file,
            other => panic!("a bulk recall: {other:?}"),
        };
        if file.lor_fh != handle || (!asking && !held) {
            return nfsstat4::NFS4ERR_NOMATCHING_LAYOUT;
        }
        if asking {
            return nfsstat4::NFS4ERR_DELAY;
        }
        let (host, stateid) = (self.host.lock().clone(), file.lor_stateid);
        self.env.spawn.spawn(Box::pin(async move {
            if let Some(host) = host.upgrade() {
                host.give_back(&handle, stateid).await;
            }
        }));
        nfsstat4::NFS4_OK
    }

    fn recall_delegation(&self, args: CB_RECALL4args) -> nfsstat4 {
        let Some(host) = self.host.lock().upgrade() else { return nfsstat4::NFS4ERR_DELAY };
        if let Some(told) = host.recall_mine(&args) {
            return told;
        }
        let file = host.shared.files.lock().iter().position(|handle| *handle == args.fh);
        let mut delegations = self.delegations.lock();
        let Some(file) = file else { return nfsstat4::NFS4ERR_BADHANDLE };
        match delegations.held.remove(&file) {
            Some(held) if held.stateid.other == args.stateid.other => {}
            Some(other) => {
                delegations.held.insert(file, other);
                return nfsstat4::NFS4ERR_BAD_STATEID;
            }
            None if delegations.asking == Some(file) => return nfsstat4::NFS4ERR_DELAY,
            None => return nfsstat4::NFS4ERR_BAD_STATEID,
        }
        self.env.spawn.spawn(Box::pin(async move {
            host.once(vec![putfh(&args.fh), ops::delegreturn(args.stateid)]).await;
        }));
        nfsstat4::NFS4_OK
    }

    fn attributes(&self, args: CB_GETATTR4args) -> CB_GETATTR4res {
        match self.host.lock().upgrade() {
            Some(host) => host.attributes_of_mine(&args),
            None => CB_GETATTR4res::Default(nfsstat4::NFS4ERR_DELAY),
        }
    }

    fn copied(&self, _: CB_OFFLOAD4args) {}

    /// Whoever waits for a lock asks again by himself.
    fn lock_is_free(&self, _: CB_NOTIFY_LOCK4args) {}
}

impl Host {
    pub(crate) async fn mount(world: &World, shared: &Arc<Shared>, name: &str, kernel: &str) -> Arc<Self> {
        let layouts = Arc::new(Layouts {
            env: world.env.clone(),
            current: tokio::sync::RwLock::default(),
            delegations: Mutex::default(),
            known: Mutex::default(),
            host: Mutex::default(),
        });
        let identity = Identity { timeout: Duration::from_secs(20), ..Identity::new(name, kernel) };
        let (env, transport) = (world.env.clone(), world.net.host(name));
        let callbacks = Arc::new(BackChannel(Arc::clone(&layouts)));
        let session = Persistent::begin(env, transport, world.mds, identity, callbacks).await.unwrap();
        let host = Arc::new(Self {
            name: name.to_owned(),
            shared: Arc::clone(shared),
            net: world.net.clone(),
            session,
            held: Mutex::default(),
            nameless: Mutex::default(),
            layouts,
            devices: Mutex::default(),
            recovery: tokio::sync::Mutex::new(0),
            doing: Mutex::default(),
            mine: Mutex::default(),
        });
        *host.layouts.host.lock() = Arc::downgrade(&host);
        host.complete().await;
        host
    }

    pub(crate) fn doing(&self, worker: usize, what: impl Into<String>) {
        let what = what.into();
        self.shared.say(&self.name, || what.clone());
        self.doing.lock()[worker] = what;
    }

    async fn complete(&self) {
        let op = nfs_argop4::OP_RECLAIM_COMPLETE(RECLAIM_COMPLETE4args { rca_one_fs: false });
        loop {
            match self.session.request(vec![op.clone()]).await {
                Ok(answer) if later(answer.status) => self.pause().await,
                Ok(answer) => {
                    let told = answer.status;
                    assert!(matches!(told, nfsstat4::NFS4_OK | nfsstat4::NFS4ERR_COMPLETE_ALREADY), "{told}");
                    return;
                }
                // Whoever asks next sees to it.
                Err(Lost::Session) => return,
                Err(error) => panic!("{}: RECLAIM_COMPLETE: {error}", self.name),
            }
        }
    }

    /// Until the next thing to do; sometimes for long.
    pub(crate) async fn idle(&self) {
        let most = if self.shared.below(8) == 0 { 8_000 } else { 400 };
        self.shared.env.clock.sleep(Duration::from_millis(self.shared.below(most))).await;
    }

    pub(crate) async fn pause(&self) {
        self.shared.env.clock.sleep(AGAIN).await;
    }

    /// One request, whatever it is answered; `None`: nobody knows what became of it. State is recovered on the way,
    /// as the server asks for it.
    pub(crate) async fn once(&self, ops: Vec<nfs_argop4>) -> Option<Answer> {
        let round = *self.recovery.lock().await;
        let now = self.shared.env.clock.now();
        match self.session.request(ops).await {
            Ok(answer) => {
                self.shared.say(&self.name, || told(&answer));
                self.shared.answered(&self.name, now);
                if answer.flags & SEQ4_STATUS_RECALLABLE_STATE_REVOKED != 0 {
                    self.believe_nothing();
                }
                if answer.flags & SEQ4_STATUS_RESTART_RECLAIM_NEEDED != 0 {
                    self.reclaim(round).await;
                }
                Some(answer)
            }
            Err(Lost::Session) => {
                self.start_over(round).await;
                None
            }
            Err(error) => panic!("{}: {error}", self.name),
        }
    }

    /// What was delegated is not any more, or may not be.
    fn believe_nothing(&self) {
        let mut delegations = self.layouts.delegations.lock();
        let lost = std::mem::take(&mut delegations.held);
        delegations.revoked.extend(lost.into_values().map(|held| held.stateid));
        // Its own file's may be among them: asked for anew, and freed.
        delegations.revoked.extend(self.doubt_mine());
    }

    /// Until it is answered, and not with DELAY or GRACE. Only for what may be done twice.
    pub(crate) async fn ask(&self, ops: Vec<nfs_argop4>) -> Answer {
        loop {
            match self.once(ops.clone()).await {
                Some(answer) if later(answer.status) => self.pause().await,
                Some(answer) => return answer,
                None => self.pause().await,
            }
        }
    }

    /// The server was restarted: what is open is opened again, what is locked locked.
    async fn reclaim(&self, round: u64) {
        let mut rounds = self.recovery.lock().await;
        if *rounds != round {
            return;
        }
        *rounds += 1;
        self.forget_layout().await;
        *self.layouts.delegations.lock() = Delegations::default();
        let held = self.held.lock().clone();
        if let Some(held) = held {
            let again = self.reclaim_open(&self.name, &held).await;
            *self.held.lock() = again;
        }
        let nameless = self.nameless.lock().clone();
        if let Some(held) = nameless {
            let again = self.reclaim_open(&self.second_owner(), &held).await;
            *self.nameless.lock() = again;
        }
        self.reclaim_mine().await;
        self.complete().await;
    }

    /// Nobody recovers, or asks whether anybody has, meanwhile.
    pub(super) async fn recovery(&self) -> tokio::sync::MutexGuard<'_, u64> {
        self.recovery.lock().await
    }

    /// How often it has recovered.
    pub(crate) async fn round(&self) -> u64 {
        *self.recovery.lock().await
    }

    /// Whether this file, opened in `round`, is reclaimed from now on: not if that was over meanwhile.
    pub(crate) async fn keeps(&self, held: &Held, round: u64) -> bool {
        let rounds = self.recovery.lock().await;
        if *rounds == round {
            *self.nameless.lock() = Some(held.clone());
        }
        *rounds == round
    }

    /// Of files that lose their names.
    pub(crate) fn second_owner(&self) -> String {
        format!("{} nameless", self.name)
    }

    async fn reclaim_open(&self, owner: &str, held: &Held) -> Option<Held> {
        let claim = open_claim4::CLAIM_PREVIOUS(open_delegation_type4::OPEN_DELEGATE_NONE);
        let open = open(owner, BOTH, claim, openflag4::Default(opentype4::OPEN4_NOCREATE));
        let answer = self.patient(vec![putfh(&held.handle), open]).await?;
        let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(opened))) = answer.results.get(1) else {
            // Grace is over: Linux opens it anew, without its locks.
            self.lost_lock(held);
            return None;
        };
        let mut again = Held { stateid: opened.stateid, lock: None, ..held.clone() };
        if let Some((_, offset, length)) = held.lock {
            let op = lock(&self.name, &again, offset, length, true);
            let answer = self.patient(vec![putfh(&held.handle), op]).await?;
            match answer.results.get(1) {
                Some(nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(ok))) => {
                    again.lock = Some((ok.lock_stateid, offset, length));
                }
                _ => self.lost_lock(held),
            }
        }
        Some(again)
    }

    pub(crate) async fn patient(&self, ops: Vec<nfs_argop4>) -> Option<Answer> {
        loop {
            match self.session.request(ops.clone()).await {
                Ok(answer) if later(answer.status) => self.pause().await,
                Ok(answer) => return Some(answer),
                Err(Lost::Session) => return None,
                Err(error) => panic!("{}: {error}", self.name),
            }
        }
    }

    pub(crate) fn lost_lock(&self, held: &Held) {
        let mut locks = self.shared.locks.lock();
        if locks.get(&held.file) == Some(&self.name) {
            locks.remove(&held.file);
        }
    }

    /// The session is gone. If the client is, too, so is all that it held.
    async fn start_over(&self, round: u64) {
        let mut rounds = self.recovery.lock().await;
        if *rounds != round {
            return;
        }
        *rounds += 1;
        let same = self.session.renew().await.unwrap();
        if !same {
            self.forget_layout().await;
            *self.layouts.delegations.lock() = Delegations::default();
            self.nameless.lock().take();
            self.lose_mine();
            if let Some(held) = self.held.lock().take() {
                self.lost_lock(&held);
            }
            self.complete().await;
        }
    }

    /// The machine is switched off and on: it remembers nothing, and the server is told so.
    pub(crate) async fn restart(&self) {
        let mut rounds = self.recovery.lock().await;
        *rounds += 1;
        self.net.crash(&self.name);
        self.forget_layout().await;
        *self.layouts.delegations.lock() = Delegations::default();
        self.nameless.lock().take();
        self.lose_mine();
        if let Some(held) = self.held.lock().take() {
            self.lost_lock(&held);
        }
        self.session.reboot().await.unwrap();
        self.complete().await;
    }

    /// Before it changes a file itself.
    pub(crate) fn forget_blocks(&self, file: usize) {
        if let Some(held) = self.layouts.delegations.lock().held.get_mut(&file) {
            held.remembered.clear();
        }
    }

    /// Without a word to the server.
    pub(crate) async fn forget_layout(&self) {
        self.layouts.gone();
        *self.layouts.current.write().await = None;
    }

    /// What a recall asks for, once the I/O under it has ended.
    async fn give_back(&self, handle: &nfs_fh4, stateid: stateid4) {
        let mut current = self.layouts.current.write().await;
        *current = None;
        self.layouts.gone();
        drop(current);
        self.once(vec![putfh(handle), layout_return(stateid)]).await;
    }
}

fn told(answer: &Answer) -> String {
    let last = answer.results.last().map_or(nfs_opnum4::OP_SEQUENCE, nfs_resop4::discriminant);
    format!("  {last} {} after {} sent, flags {:#x}", answer.status, answer.sent, answer.flags)
}

/// As hosts open files to write to them.
pub(crate) const BOTH: u32 = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;

pub(crate) fn open(owner: &str, share_access: u32, claim: open_claim4, how: openflag4) -> nfs_argop4 {
    nfs_argop4::OP_OPEN(OPEN4args {
        seqid: 0,
        share_access,
        share_deny: OPEN4_SHARE_DENY_NONE,
        owner: state_owner4 { clientid: 0, owner: owner.to_owned().into() },
        openhow: how,
        claim,
    })
}

/// A write lock of these bytes under the open.
pub(crate) fn lock(owner: &str, held: &Held, offset: u64, length: u64, reclaim: bool) -> nfs_argop4 {
    let owner = lock_owner4 { clientid: 0, owner: format!("{owner} locks").into() };
    let locker = locker4::TRUE(open_to_lock_owner4 {
        open_seqid: 0,
        open_stateid: held.stateid,
        lock_seqid: 0,
        lock_owner: owner,
    });
    let locktype = nfs_lock_type4::WRITE_LT;
    nfs_argop4::OP_LOCK(LOCK4args { locktype, reclaim, offset, length, locker })
}
