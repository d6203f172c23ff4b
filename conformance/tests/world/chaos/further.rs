//! What I/O workers do beyond plain reads and writes: the server copies for them, and they believe what they remember
//! as long as the file is delegated to them.

use std::collections::BTreeMap;

use sluice_conformance::client::ops;
use sluice_xdr::nfs4::*;

use super::host::{BOTH, Delegated, Held};
use super::io::{BLOCK, BLOCKS, FILES, Io, unknown, words};
use super::model::Value;
use super::work::{PLAIN, handle};
use crate::client::{CURRENT, later, putfh, text};

/// What CLONE shares at a time.
const PAGE: u64 = 4096;

impl Io {
    /// A file of this host's own that loses its name while it is open: its data stay as long as the host, and the server
    /// with it, remembers that it is open.
    pub(super) async fn nameless(&self) {
        let (host, shared) = (&self.host, &self.host.shared);
        let name = format!("nameless{}", shared.at());
        host.doing(1, format!("makes {name}"));
        let data = bytes::Bytes::from(shared.at().to_le_bytes().repeat(BLOCK as usize / 8));
        let round = host.round().await;
        if let Some(held) = self.make(&name).await
            && host.keeps(&held, round).await
        {
            let write = |held: &Held| {
                nfs_argop4::OP_WRITE(WRITE4args {
                    stateid: held.stateid,
                    offset: 0,
                    stable: stable_how4::FILE_SYNC4,
                    data: data.clone(),
                })
            };
            let written = self.with_nameless(write).await.is_some();
            host.doing(1, format!("removes {name}"));
            self.unlink(&name).await;
            host.idle().await;
            host.doing(1, format!("reads what was {name}"));
            let read = |held: &Held| {
                nfs_argop4::OP_READ(READ4args { stateid: held.stateid, offset: 0, count: BLOCK as u32 })
            };
            if written
                && let Some(nfs_resop4::OP_READ(READ4res::NFS4_OK(ok))) = self.with_nameless(read).await
            {
                assert!(ok.data == data, "{name} of {} holds something else", host.name);
            }
            let held = host.nameless.lock().take();
            if let Some(held) = held {
                host.ask(vec![putfh(&held.handle), ops::close(held.stateid)]).await;
            }
        } else {
            self.unlink(&name).await;
        }
    }

    /// The new file, open; `None` when nobody knows whether it is.
    async fn make(&self, name: &str) -> Option<Held> {
        let host = &self.host;
        let mode = Attributes { mode: Some(0o644), ..Attributes::default() };
        let how = createhow4::UNCHECKED4(crate::client::attributes(&mode));
        let claim = open_claim4::CLAIM_NULL(text(name));
        let open = super::host::open(&host.second_owner(), BOTH, claim, openflag4::OPEN4_CREATE(how));
        loop {
            let answer = host.once(vec![ops::putrootfh(), open.clone(), ops::getfh()]).await?;
            match (answer.results.get(1), handle(&answer.results)) {
                (Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))), Some(handle)) => {
                    return Some(Held { file: FILES, handle, stateid: open.stateid, lock: None });
                }
                _ if later(answer.status) => host.pause().await,
                // As many data servers as it is to have copies on are not to be had.
                _ if host.shared.has_no_room(answer.status) => return None,
                _ => panic!("{} makes {name}: {}", host.name, answer.status),
            }
        }
    }

    async fn unlink(&self, name: &str) {
        let answer = self.host.ask(vec![ops::putrootfh(), ops::remove(name.as_bytes())]).await;
        let gone = [nfsstat4::NFS4_OK, nfsstat4::NFS4ERR_NOENT];
        assert!(gone.contains(&answer.status), "{} removes {name}: {}", self.host.name, answer.status);
    }

    /// One operation on the file that is about to lose its name, or has lost it; `None` when it is open no more, or
    /// there is no room.
    async fn with_nameless(&self, op: impl Fn(&Held) -> nfs_argop4) -> Option<nfs_resop4> {
        let host = &self.host;
        loop {
            let held = host.nameless.lock().clone()?;
            let Some(mut answer) = host.once(vec![putfh(&held.handle), op(&held)]).await else { continue };
            match answer.status {
                nfsstat4::NFS4_OK => return answer.results.pop(),
                status if host.shared.has_no_room(status) => return None,
                status if later(status) || host.shared.blames_a_device(status) => host.pause().await,
                status if unknown(status) => {
                    let mut now = host.nameless.lock();
                    if now.as_ref().is_some_and(|now| now.stateid.other == held.stateid.other) {
                        now.take();
                    }
                    return None;
                }
                // What recovery has given up meanwhile may be gone.
                status => {
                    let now = host.nameless.lock().clone();
                    let same = now.is_some_and(|now| now.stateid.other == held.stateid.other);
                    assert!(!same, "{} has a file open: {status}", host.name);
                }
            }
        }
    }

    /// The server copies some block of another file into one of this host's own.
    pub(super) async fn copy(&self, file: usize) {
        let (host, shared) = (&self.host, &self.host.shared);
        let Some(own) = self.own() else { return };
        let source = usize::try_from(self.below(FILES as u64)).unwrap();
        let block = self.below(BLOCKS + 1);
        if source == file {
            return;
        }
        let id = shared.at();
        shared.blocks.began(file, own, id, Value::Of(source, block), id);
        host.forget_blocks(file);
        loop {
            host.doing(1, format!("copy file {source} block {block} to file {file} block {own}"));
            let held = self.holding(file).await;
            let from = shared.files.lock()[source].clone();
            let copy = nfs_argop4::OP_COPY(COPY4args {
                ca_src_stateid: stateid4::default(),
                ca_dst_stateid: held.stateid,
                ca_src_offset: self.range(block).start,
                ca_dst_offset: self.range(own).start,
                ca_count: BLOCK,
                ca_consecutive: true,
                ca_synchronous: true,
                ca_source_server: Vec::new(),
            });
            let ops = vec![putfh(&from), nfs_argop4::OP_SAVEFH, putfh(&held.handle), copy];
            let Some(answer) = host.once(ops).await else { continue };
            match (answer.status, answer.results.last()) {
                (_, Some(nfs_resop4::OP_COPY(COPY4res::NFS4_OK(ok)))) => {
                    // A file that ends there is copied as far as it goes.
                    let whole = ok.cr_response.wr_count == BLOCK;
                    let stable = ok.cr_response.wr_committed != stable_how4::UNSTABLE4;
                    shared.blocks.ended(file, own, id, shared.at(), whole && stable);
                    return;
                }
                // The source ends before.
                (nfsstat4::NFS4ERR_INVAL, _) => return,
                (status, _) if shared.has_no_room(status) => return,
                (status, _) if later(status) || shared.blames_a_device(status) => host.pause().await,
                (status, _) if unknown(status) => self.lost().await,
                (other, _) => panic!("{}: COPY: {other}", host.name),
            }
        }
    }

    /// A page of a file comes to share another one's, with the blocks of everybody there: never the one that is written under a lock.
    pub(super) async fn clone_page(&self, file: usize) {
        let (host, shared) = (&self.host, &self.host.shared);
        let source = usize::try_from(self.below(FILES as u64)).unwrap();
        let pages = self.pages();
        let (from, to) = (self.below(pages.len() as u64), 1 + self.below(pages.len() as u64 - 1));
        let (from, to) = (pages[usize::try_from(from).unwrap()], pages[usize::try_from(to).unwrap()]);
        if (source, from) == (file, to) {
            return;
        }
        let id = shared.at();
        let shares: Vec<(u64, u64)> = (0..=BLOCKS)
            .filter_map(|block| {
                let there = self.range(block).start.checked_sub(to).filter(|within| *within < PAGE)?;
                (0..=BLOCKS).find(|own| self.range(*own).start == from + there).map(|own| (block, own))
            })
            .collect();
        for (block, own) in &shares {
            shared.blocks.began(file, *block, id, Value::Of(source, *own), id);
        }
        host.forget_blocks(file);
        let op = |held: &Held| {
            nfs_argop4::OP_CLONE(CLONE4args {
                cl_src_stateid: stateid4::default(),
                cl_dst_stateid: held.stateid,
                cl_src_offset: from,
                cl_dst_offset: to,
                cl_count: PAGE,
            })
        };
        loop {
            host.doing(1, format!("clone file {source} from {from} to file {file} at {to}"));
            let held = self.holding(file).await;
            let handle = shared.files.lock()[source].clone();
            let ops = vec![putfh(&handle), nfs_argop4::OP_SAVEFH, putfh(&held.handle), op(&held)];
            let Some(answer) = host.once(ops).await else { continue };
            match answer.status {
                nfsstat4::NFS4_OK => break,
                // The source ends before; or it is not where this file is, and COPY is what helps.
                nfsstat4::NFS4ERR_INVAL | nfsstat4::NFS4ERR_XDEV => return,
                status if shared.has_no_room(status) => return,
                status if later(status) || shared.blames_a_device(status) => host.pause().await,
                status if unknown(status) => self.lost().await,
                other => panic!("{}: CLONE: {other}", host.name),
            }
        }
        let now = shared.at();
        shares.iter().for_each(|(block, _)| shared.blocks.ended(file, *block, id, now, true));
    }

    /// Where the pages with blocks begin, all blocks of a page of which there is one in all others; the first has the block that is
    /// written under a lock.
    fn pages(&self) -> Vec<u64> {
        let mut pages = BTreeMap::<u64, u64>::new();
        for block in 0..=BLOCKS {
            *pages.entry(self.range(block).start / PAGE * PAGE).or_default() += 1;
        }
        pages.into_iter().filter(|(_, blocks)| *blocks > 1).map(|(start, _)| start).collect()
    }

    /// A block of a file that nobody changes without saying so: what is remembered of it is believed.
    pub(super) async fn read_delegated(&self) {
        let (host, shared) = (&self.host, &self.host.shared);
        let file = usize::try_from(self.below(FILES as u64)).unwrap();
        let block = self.below(BLOCKS + 1);
        host.doing(1, format!("reads file {file} block {block} if it is delegated"));
        self.tell_of_revoked().await;
        let remembered = {
            let delegations = host.layouts.delegations.lock();
            delegations.held.get(&file).and_then(|held| held.remembered.get(&block).cloned())
        };
        if let Some(remembered) = remembered {
            if shared.env.clock.now() < shared.believes_until(&host.name) {
                let (from, to) = (shared.at(), shared.at());
                for word in remembered {
                    shared.blocks.check(
                        file,
                        block,
                        word,
                        from,
                        to,
                        (&format!("{} out of memory", host.name), false),
                    );
                }
            }
            return;
        }
        let known = host.layouts.delegations.lock().held.get(&file).map(|held| held.stateid);
        let stateid = match known {
            Some(stateid) => stateid,
            None => match self.ask_for(file).await {
                Some(stateid) => stateid,
                None => return,
            },
        };
        let handle = shared.files.lock()[file].clone();
        let from = shared.at();
        let read = READ4args { stateid, offset: self.range(block).start, count: BLOCK as u32 };
        let Some(answer) = host.once(vec![putfh(&handle), nfs_argop4::OP_READ(read)]).await else { return };
        let to = shared.at();
        match answer.results.last() {
            Some(nfs_resop4::OP_READ(READ4res::NFS4_OK(ok))) => {
                let found = words(&ok.data);
                for word in &found {
                    shared.blocks.check(file, block, *word, from, to, (&host.name, false));
                }
                let mut delegations = host.layouts.delegations.lock();
                if let Some(held) = delegations.held.get_mut(&file).filter(|held| held.stateid == stateid) {
                    held.remembered.insert(block, found.into_iter().collect());
                }
            }
            _ if unknown(answer.status) => {
                let mut delegations = host.layouts.delegations.lock();
                if delegations.held.get(&file).is_some_and(|held| held.stateid == stateid) {
                    delegations.held.remove(&file);
                }
            }
            _ => {}
        }
    }

    /// Opens the file to read it, hopes that it is delegated, and closes it.
    async fn ask_for(&self, file: usize) -> Option<stateid4> {
        let (host, shared) = (&self.host, &self.host.shared);
        host.layouts.delegations.lock().asking = Some(file);
        let claim = open_claim4::CLAIM_NULL(text(&format!("file{file}")));
        let owner = format!("{} reads", host.name);
        let access = OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WANT_READ_DELEG;
        let open = super::host::open(&owner, access, claim, PLAIN);
        let asked = host.once(vec![ops::putrootfh(), open, ops::close(CURRENT)]).await;
        let mut delegations = host.layouts.delegations.lock();
        if delegations.asking.take() != Some(file) {
            // It was restarted meanwhile.
            return None;
        }
        let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(opened))) = asked.as_ref()?.results.get(1) else {
            return None;
        };
        let open_delegation4::OPEN_DELEGATE_READ(given) = &opened.delegation else { return None };
        shared.say(&host.name, || format!("file {file} is delegated"));
        let held = Delegated { stateid: given.stateid, remembered: Default::default() };
        delegations.held.insert(file, held);
        Some(given.stateid)
    }

    /// As the flags of SEQUENCE ask for. RFC 8881 §8.5.
    async fn tell_of_revoked(&self) {
        let revoked = std::mem::take(&mut self.host.layouts.delegations.lock().revoked);
        for stateid in revoked {
            let free = nfs_argop4::OP_FREE_STATEID(FREE_STATEID4args { fsa_stateid: stateid });
            self.host.once(vec![free]).await;
        }
    }
}
