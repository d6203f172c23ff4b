//! A file of its own for each host, which only that one writes to, behind a write delegation: it grows in the host's memory, the server
//! asks how long it is whenever others look, and what was flushed is there. RFC 8881 §10.4.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_conformance::client::ops;
use sluice_xdr::nfs4::*;

use super::host::Host;
use super::io::unknown;
use super::model::At;
use crate::client::{later, putfh, text};

/// What it grows by.
const PART: u64 = 100;

/// This host's own file.
#[derive(Debug, Default)]
pub(crate) struct Mine {
    handle: nfs_fh4,
    open: Option<stateid4>,
    given: Option<Given>,
    /// As this host sees it, with what only it knows of.
    size: u64,
    /// What the server has for certain.
    flushed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    stateid: stateid4,
    change: u64,
}

/// What is known of one such file by whoever may look at it.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// It was so long in its owner's eyes at most.
    most: u64,
    /// From when on it was at least so long for everybody.
    least: Vec<(At, u64)>,
    /// What others saw under each change attribute.
    seen: BTreeMap<u64, (At, u64, Option<nfstime4>)>,
    /// When its owner forgot last what only it knew, and had told when it was asked.
    forgotten: At,
    pub(crate) handle: Option<nfs_fh4>,
}

pub(crate) type Sizes = Mutex<BTreeMap<String, Known>>;

impl Host {
    /// One step with the own file, or a look at others'.
    pub(crate) async fn mind(self: &Arc<Self>) {
        match self.shared.below(8) {
            0 | 1 => self.hold().await,
            2 | 3 => self.append(),
            4 => self.flush().await,
            5 => self.hand_back().await,
            _ => self.look_at_another().await,
        }
    }

    /// It is open, and delegated if the server likes.
    async fn hold(&self) {
        if self.mine.lock().open.is_some() {
            return;
        }
        self.doing(2, "opens its own");
        let mode = Attributes { mode: Some(0o644), ..Attributes::default() };
        let how = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(crate::client::attributes(&mode)));
        let claim = open_claim4::CLAIM_NULL(text(&format!("mine-{}", self.name)));
        let access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG;
        let open = super::host::open(&self.owner_of_mine(), access, claim, how);
        let look = ops::getattr(bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE]));
        let round = self.round().await;
        let Some(answer) = self.once(vec![ops::putrootfh(), open, ops::getfh(), look]).await else { return };
        let rounds = self.recovery().await;
        if answer.status == nfsstat4::NFS4_OK && *rounds == round {
            self.take(&answer.results[1..]);
        } else if answer.status != nfsstat4::NFS4_OK {
            let status = answer.status;
            let (full, fails) = (self.shared.has_no_room(status), self.shared.blames_a_device(status));
            assert!(later(status) || full || fails, "{} opens its own: {status}", self.name);
        }
    }

    /// What OPEN, GETFH and GETATTR said.
    fn take(&self, results: &[nfs_resop4]) {
        let [
            nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(opened)),
            nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(found)),
            nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(seen)),
        ] = results
        else {
            return;
        };
        let seen = Attributes::decode(&seen.obj_attributes).unwrap();
        let mut mine = self.mine.lock();
        mine.handle = found.object.clone();
        mine.open = Some(opened.stateid);
        mine.given = match &opened.delegation {
            open_delegation4::OPEN_DELEGATE_WRITE(given) => {
                Some(Given { stateid: given.stateid, change: seen.change.unwrap() })
            }
            _ => None,
        };
        mine.size = mine.size.max(seen.size.unwrap());
        mine.flushed = seen.size.unwrap();
        let mut all = self.shared.sizes.lock();
        let known = all.entry(self.name.clone()).or_default();
        known.handle = Some(found.object.clone());
        known.most = known.most.max(mine.size);
    }

    /// In its memory, if nobody can look past it.
    fn append(&self) {
        let mut mine = self.mine.lock();
        if mine.given.is_none() || self.shared.env.clock.now() >= self.shared.believes_until(&self.name) {
            return;
        }
        mine.size += PART;
        let mut all = self.shared.sizes.lock();
        let known = all.entry(self.name.clone()).or_default();
        known.most = known.most.max(mine.size);
    }

    /// What is in its memory is written, and durable.
    async fn flush(&self) {
        loop {
            let (handle, stateid, from, to) = {
                let mine = self.mine.lock();
                let stateid = mine.given.map(|given| given.stateid).or(mine.open);
                match stateid {
                    Some(stateid) if mine.flushed < mine.size => {
                        (mine.handle.clone(), stateid, mine.flushed, mine.size)
                    }
                    _ => return,
                }
            };
            self.shared.say(&self.name, || format!("flushes its own, {from} to {to}"));
            let data = Bytes::from(vec![1; usize::try_from(to - from).unwrap()]);
            let stable = stable_how4::FILE_SYNC4;
            let write = nfs_argop4::OP_WRITE(WRITE4args { stateid, offset: from, stable, data });
            let Some(answer) = self.once(vec![putfh(&handle), write]).await else { continue };
            let status = answer.status;
            match (status, answer.results.last()) {
                (_, Some(nfs_resop4::OP_WRITE(WRITE4res::NFS4_OK(ok)))) => {
                    let end = from + u64::from(ok.count);
                    let mut mine = self.mine.lock();
                    mine.flushed = mine.flushed.max(end);
                    let at = self.shared.at();
                    let mut all = self.shared.sizes.lock();
                    all.entry(self.name.clone()).or_default().least.push((at, end));
                }
                _ if self.shared.has_no_room(status) => return self.pause().await,
                _ if later(status) || self.shared.blames_a_device(status) => self.pause().await,
                _ if unknown(status) => {
                    let mut mine = self.mine.lock();
                    if mine.given.is_some_and(|given| given.stateid == stateid) {
                        mine.given = None;
                    } else if mine.open.is_some_and(|open| open == stateid) {
                        self.forget_mine(&mut mine);
                    }
                }
                _ => panic!("{} flushes its own: {status}", self.name),
            }
        }
    }

    /// The delegation, after what is under it; then the open.
    pub(super) async fn hand_back(&self) {
        self.doing(2, "gives its own back");
        self.flush().await;
        self.return_mine().await;
        let (handle, open) = {
            let mut mine = self.mine.lock();
            let open = if mine.flushed < mine.size { None } else { mine.open.take() };
            (mine.handle.clone(), open)
        };
        if let Some(open) = open {
            self.once(vec![putfh(&handle), ops::close(open)]).await;
        }
    }

    async fn return_mine(&self) {
        let (handle, given) = {
            let mut mine = self.mine.lock();
            let given = mine.given.filter(|_| mine.flushed >= mine.size);
            if given.is_some() {
                mine.given = None;
            }
            (mine.handle.clone(), given)
        };
        if let Some(given) = given {
            self.once(vec![putfh(&handle), ops::delegreturn(given.stateid)]).await;
        }
    }

    /// Whether it is this host's own file, which is recalled then.
    pub(super) fn recall_mine(self: &Arc<Self>, args: &CB_RECALL4args) -> Option<nfsstat4> {
        {
            let mine = self.mine.lock();
            let known = self.shared.sizes.lock().get(&self.name).and_then(|known| known.handle.clone());
            if known.as_ref() != Some(&args.fh) {
                return None;
            }
            if mine.given.is_none_or(|given| given.stateid.other != args.stateid.other) {
                return Some(nfsstat4::NFS4ERR_BAD_STATEID);
            }
        }
        let host = Arc::clone(self);
        self.shared.env.spawn.spawn(Box::pin(async move {
            host.flush().await;
            host.return_mine().await;
        }));
        Some(nfsstat4::NFS4_OK)
    }

    /// How long it is, as Linux says it: another change attribute as long as there is more to write.
    pub(super) fn attributes_of_mine(&self, args: &CB_GETATTR4args) -> CB_GETATTR4res {
        let mine = self.mine.lock();
        let Some(given) = mine.given.filter(|_| mine.handle == args.fh) else {
            return CB_GETATTR4res::Default(nfsstat4::NFS4ERR_BADHANDLE);
        };
        let change = given.change + u64::from(mine.flushed < mine.size);
        let values = Attributes { change: Some(change), size: Some(mine.size), ..Attributes::default() };
        CB_GETATTR4res::NFS4_OK(CB_GETATTR4resok { obj_attributes: crate::client::attributes(&values) })
    }

    /// What only this host knew is lost, or is the server's.
    fn forget_mine(&self, mine: &mut Mine) {
        self.shared.sizes.lock().entry(self.name.clone()).or_default().forgotten = self.shared.at();
        *mine = Mine { handle: mine.handle.clone(), ..Mine::default() };
    }

    /// It may be revoked.
    pub(super) fn doubt_mine(&self) -> Option<stateid4> {
        self.mine.lock().given.take().map(|given| given.stateid)
    }

    /// Everything that was held is gone.
    pub(super) fn lose_mine(&self) {
        self.forget_mine(&mut self.mine.lock());
    }

    /// The server was restarted.
    pub(super) async fn reclaim_mine(&self) {
        let (handle, open, had) = {
            let mine = self.mine.lock();
            (mine.handle.clone(), mine.open, mine.given.is_some())
        };
        if open.is_none() {
            return;
        }
        let delegation = match had {
            true => open_delegation_type4::OPEN_DELEGATE_WRITE,
            false => open_delegation_type4::OPEN_DELEGATE_NONE,
        };
        let claim = open_claim4::CLAIM_PREVIOUS(delegation);
        let how = openflag4::Default(opentype4::OPEN4_NOCREATE);
        let open = super::host::open(&self.owner_of_mine(), OPEN4_SHARE_ACCESS_BOTH, claim, how);
        let look = ops::getattr(bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE]));
        match self.patient(vec![putfh(&handle), open, ops::getfh(), look]).await {
            Some(answer) if answer.status == nfsstat4::NFS4_OK => self.take(&answer.results[1..]),
            // Grace is over, or the session is, too.
            _ => self.lose_mine(),
        }
    }

    fn owner_of_mine(&self) -> String {
        format!("{} mine", self.name)
    }

    /// Somebody else's: no shorter than what was flushed, no longer than its owner ever saw it, and the same as long as its change
    /// attribute is.
    async fn look_at_another(&self) {
        let others: Vec<(String, nfs_fh4)> = {
            let all = self.shared.sizes.lock();
            let others = all.iter().filter(|(name, _)| **name != self.name);
            others.filter_map(|(name, known)| Some((name.clone(), known.handle.clone()?))).collect()
        };
        if others.is_empty() {
            return;
        }
        let (name, handle) = &others[usize::try_from(self.shared.below(others.len() as u64)).unwrap()];
        self.doing(2, format!("looks at that of {name}"));
        let before = self.shared.rising.so_far(&handle.0);
        let from = self.shared.at();
        let wanted = bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_MODIFY]);
        let Some(answer) = self.once(vec![putfh(handle), ops::getattr(wanted)]).await else { return };
        let Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))) = answer.results.last() else {
            assert!(later(answer.status), "{} looks at that of {name}: {}", self.name, answer.status);
            return self.pause().await;
        };
        let seen = Attributes::decode(&ok.obj_attributes).unwrap();
        let (change, size) = (seen.change.unwrap(), seen.size.unwrap());
        self.shared.say(&self.name, || format!("  sees {size} bytes of {name}, change {change}"));
        self.shared.rising.seen(&handle.0, before, change);
        let mut all = self.shared.sizes.lock();
        let known = all.get_mut(name).unwrap();
        let least = known.least.iter().filter(|(at, _)| *at < from).map(|(_, size)| *size).max().unwrap_or(0);
        assert!(
            (least..=known.most).contains(&size),
            "{} sees {size} bytes of {name}'s, of which {least} were flushed and {} were there at most",
            self.name,
            known.most
        );
        // What the owner alone knew is not known to a server that was restarted until it is asked for again, nor ever after the owner has
        // forgotten it.
        let since = known.forgotten.max(self.shared.restarted.load(Ordering::Relaxed));
        if from > since {
            let seen = (from, size, seen.time_modify);
            let first = known.seen.entry(change).or_insert(seen);
            if first.0 < since {
                *first = seen;
            }
            assert_eq!(
                (first.1, first.2),
                (seen.1, seen.2),
                "that of {name} changed, and its change {change} did not"
            );
        }
    }
}

/// Alone with them, `host` sees the same twice, and nothing of what was flushed is missing.
pub(crate) async fn as_flushed(host: &Arc<Host>) {
    for _ in 0..8 {
        host.look_at_another().await;
    }
}
