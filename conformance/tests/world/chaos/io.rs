//! The other worker: it reads and writes blocks of files, straight at data servers or through the metadata server,
//! cuts files off, and takes a lock.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use sluice_conformance::client::ops;
use sluice_xdr::flexfiles::{ff_ioerr4, ff_layoutreturn4};
use sluice_xdr::nfs3::nfsstat3;
use sluice_xdr::nfs4::*;

use super::host::{Held, Host, lock};
use super::model::Value;
use super::work::open_file;
use crate::client::{RW, attributes, later, putfh};
use crate::stage::UNIT;
use crate::storage::{Nfs3, Segment, address};

pub(crate) const FILES: usize = 3;
/// Blocks with one writer each; the one after them is written under a lock.
pub(crate) const BLOCKS: u64 = 12;
const LOCKED: u64 = BLOCKS;
pub(super) const BLOCK: u64 = 1024;
/// Parts of the file, on different data servers if it is wide.
const PARTS: u64 = 4;

/// Why I/O did not happen.
#[derive(Debug)]
enum Failed {
    /// What was open is open no more.
    State,
    /// No layout, or one that leads nowhere: the metadata server may do it.
    Direct,
    /// There is no room.
    Full,
}

/// Where a block is in its file: the locked one is in front of all cuts.
fn range(block: u64, together: bool) -> Range<u64> {
    let at = match (block, together) {
        (LOCKED, true) => 0,
        (block, true) => (block + 1) * BLOCK,
        (LOCKED, false) => BLOCKS / PARTS * BLOCK,
        (block, false) => block % PARTS * UNIT + block / PARTS * BLOCK,
    };
    at..at + BLOCK
}

pub(crate) struct Io {
    pub(crate) host: Arc<Host>,
    /// This host's number, and how many there are.
    pub(crate) who: (u64, u64),
}

impl Io {
    pub(super) fn below(&self, bound: u64) -> u64 {
        self.host.shared.below(bound)
    }

    pub(super) fn range(&self, block: u64) -> Range<u64> {
        range(block, self.host.shared.habits.together)
    }

    /// Whether the next I/O tries data servers first. What is together would not stay in the metadata for long.
    fn direct(&self) -> bool {
        match self.host.shared.habits.together {
            true => self.below(16) == 0,
            false => self.below(4) > 0,
        }
    }

    pub(crate) async fn step(&mut self) {
        let brief = self.host.shared.habits.brief;
        if brief && self.below(3) > 0 {
            return self.read_delegated().await;
        }
        let Some(held) = self.held().await else { return };
        match self.below(29) {
            0..=6 => self.write_own(held.file).await,
            7..=12 => {
                let block = self.below(BLOCKS + 1);
                self.read(held.file, block).await;
            }
            13 => self.truncate(held.file).await,
            14..=16 => self.locked(&held).await,
            17 => self.stat(&held).await,
            18..=19 => self.copy(held.file).await,
            20 => self.nameless().await,
            21..=24 => self.space(held.file).await,
            25..=26 => self.clone_page(held.file).await,
            _ => self.close(&held).await,
        }
        let held = self.host.held.lock().clone();
        if let Some(held) = held.filter(|_| brief) {
            self.close(&held).await;
        }
    }

    /// The file that is open, or that is opened.
    async fn held(&self) -> Option<Held> {
        if let Some(held) = self.host.held.lock().clone() {
            return Some(held);
        }
        let file = usize::try_from(self.below(FILES as u64)).unwrap();
        self.reopen(file).await
    }

    async fn reopen(&self, file: usize) -> Option<Held> {
        self.host.doing(1, format!("open {file}"));
        let held = open_file(&self.host, file).await?;
        *self.host.held.lock() = Some(held.clone());
        Some(held)
    }

    /// This file open, however often it takes.
    pub(super) async fn holding(&self, file: usize) -> Held {
        loop {
            match self.host.held.lock().clone() {
                Some(held) if held.file == file => return held,
                _ => {}
            }
            self.reopen(file).await;
        }
    }

    pub(super) async fn lost(&self) {
        self.host.forget_layout().await;
        let held = self.host.held.lock().take();
        if let Some(held) = held {
            self.host.lost_lock(&held);
        }
        self.host.pause().await;
    }

    pub(crate) async fn close(&self, held: &Held) {
        self.host.doing(1, "close");
        let mut ops = vec![putfh(&held.handle)];
        let layout = self.host.layouts.current.write().await.take();
        self.host.layouts.gone();
        ops.extend(layout.map(|layout| crate::client::layout_return(layout.stateid)));
        ops.push(ops::close(held.stateid));
        self.host.ask(ops).await;
        self.host.held.lock().take();
    }

    async fn stat(&self, held: &Held) {
        self.host.doing(1, "stat");
        let before = self.host.shared.rising.so_far(&held.handle.0);
        let look = vec![putfh(&held.handle), ops::getattr(bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE]))];
        if let [.., nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))] = &self.host.ask(look).await.results[..]
        {
            let change = Attributes::decode(&ok.obj_attributes).unwrap().change.unwrap();
            self.host.shared.rising.seen(&held.handle.0, before, change);
        }
    }

    /// One of the blocks that nobody else writes.
    pub(super) fn own(&self) -> Option<u64> {
        let (me, all) = self.who;
        Some(self.below(BLOCKS.div_ceil(all)) * all + me).filter(|block| *block < BLOCKS)
    }

    async fn write_own(&self, file: usize) {
        if let Some(block) = self.own() {
            self.write(file, block, false).await;
        }
    }

    /// One block, until it is stable; under a lock, until the lock is lost.
    async fn write(&self, file: usize, block: u64, locked: bool) {
        let shared = &self.host.shared;
        let id = shared.at();
        shared.blocks.began(file, block, id, Value::Is(id), id);
        self.host.forget_blocks(file);
        shared.say(&self.host.name, || format!("writes {id}"));
        let data = Bytes::from(id.to_le_bytes().repeat(BLOCK as usize / 8));
        let mut direct = self.direct();
        loop {
            self.host.doing(1, format!("write file {file} block {block} direct {direct}"));
            let held = self.holding(file).await;
            if locked && held.lock.is_none() {
                return;
            }
            let done = match direct {
                true => self.write_direct(&held, block, &data).await,
                false => self.write_proxied(&held, block, &data).await,
            };
            shared.say(&self.host.name, || format!("  {done:?}"));
            match done {
                Ok(()) => {
                    shared.blocks.ended(file, block, id, shared.at(), true);
                    return;
                }
                // Nobody is promised anything, and it may be there in part.
                Err(Failed::Full) => return,
                Err(Failed::State) => self.lost().await,
                Err(Failed::Direct) => {
                    direct = !direct;
                    self.host.pause().await;
                }
            }
        }
    }

    async fn write_proxied(&self, held: &Held, block: u64, data: &Bytes) -> Result<(), Failed> {
        let write = nfs_argop4::OP_WRITE(WRITE4args {
            stateid: held.lock.map_or(held.stateid, |lock| lock.0),
            offset: self.range(block).start,
            stable: stable_how4::FILE_SYNC4,
            data: data.clone(),
        });
        let answer = self.host.once(vec![putfh(&held.handle), write]).await.ok_or(Failed::State)?;
        self.proxied(answer.status)
    }

    fn proxied(&self, status: nfsstat4) -> Result<(), Failed> {
        match status {
            nfsstat4::NFS4_OK => Ok(()),
            status if self.host.shared.has_no_room(status) => Err(Failed::Full),
            status if later(status) || self.host.shared.blames_a_device(status) => Err(Failed::Direct),
            status if unknown(status) => Err(Failed::State),
            other => panic!("{}: I/O through the metadata server: {other}", self.host.name),
        }
    }

    async fn write_direct(&self, held: &Held, block: u64, data: &Bytes) -> Result<(), Failed> {
        let bytes = self.range(block);
        self.layout(held, bytes.start).await?;
        let guard = self.host.layouts.current.read().await;
        let layout =
            guard.clone().filter(|layout| layout.bytes.contains(&bytes.start)).ok_or(Failed::Direct)?;
        let mut failed = None;
        for n in 0..layout.body.ffl_mirrors.len() {
            let mirror = layout.mirror(n);
            if let Err(status) = self.write_mirror(&mirror, bytes.start, data).await {
                failed = Some((mirror, status));
                break;
            }
        }
        drop(guard);
        if let Some((mirror, status)) = failed {
            return Err(self.complain(held, &mirror, bytes.start, status, nfs_opnum4::OP_WRITE).await);
        }
        if self.below(4) == 0 {
            // As fdatasync of Linux: it is durable, and the metadata server hears of it when the layout ends.
            return Ok(());
        }
        let commit = ops::layoutcommit(layout.stateid, Some(bytes.end - 1));
        let answer = self.host.once(vec![putfh(&held.handle), commit]).await.ok_or(Failed::State)?;
        match answer.status {
            // The second is what Linux takes for the first.
            nfsstat4::NFS4_OK | nfsstat4::NFS4ERR_BADLAYOUT => Ok(()),
            status if later(status) => Err(Failed::Direct),
            status if unknown(status) => Err(Failed::State),
            other => panic!("{}: LAYOUTCOMMIT: {other}", self.host.name),
        }
    }

    async fn write_mirror(&self, mirror: &Segment, at: u64, data: &Bytes) -> Result<(), nfsstat3> {
        let to = mirror.data_server(at);
        let nfs = self.server(mirror, at).await?;
        let verifier = nfs.write(to, at, data.clone()).await?;
        match nfs.commit(to).await? == verifier {
            true => Ok(()),
            // It restarted meanwhile: written again.
            false => Err(nfsstat3::NFS3ERR_JUKEBOX),
        }
    }

    /// The connection to the data server of a byte.
    async fn server(&self, segment: &Segment, at: u64) -> Result<Nfs3, nfsstat3> {
        let id = segment.data_server(at).ffds_deviceid;
        let known = self.host.devices.lock().get(&id).filter(|nfs| !nfs.is_closed()).cloned();
        if let Some(nfs) = known {
            return Ok(nfs);
        }
        let info = nfs_argop4::OP_GETDEVICEINFO(GETDEVICEINFO4args {
            gdia_device_id: id,
            gdia_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
            gdia_maxcount: 65536,
            gdia_notify_types: bitmap4::of(&[1, 2]),
        });
        // Under the layout, which a recovery would wait for: the next request sees to that.
        let answer = self.host.patient(vec![info]).await.ok_or(nfsstat3::NFS3ERR_SERVERFAULT)?;
        let Some(nfs_resop4::OP_GETDEVICEINFO(GETDEVICEINFO4res::NFS4_OK(ok))) = answer.results.first()
        else {
            return Err(nfsstat3::NFS3ERR_SERVERFAULT);
        };
        let to = address(ok.gdir_device_addr.da_addr_body.clone());
        let transport = self.host.net.host(&self.host.name);
        let nfs = Nfs3::dial(&self.host.shared.env, transport, to).await;
        let nfs = nfs.ok_or(nfsstat3::NFS3ERR_SERVERFAULT)?;
        self.host.devices.lock().insert(id, nfs.clone());
        Ok(nfs)
    }

    /// A data server did not do it: the layout goes back, with the reason.
    async fn complain(
        &self,
        held: &Held,
        segment: &Segment,
        at: u64,
        status: nfsstat3,
        op: nfs_opnum4,
    ) -> Failed {
        let to = segment.data_server(at).clone();
        self.host.shared.say(&self.host.name, || format!("  {op} at {at}: {status}"));
        if status == nfsstat3::NFS3ERR_JUKEBOX {
            return Failed::Direct;
        }
        if status == nfsstat3::NFS3ERR_SERVERFAULT {
            // As a kernel does that gives up: what is on the way is lost with the connection.
            self.host.devices.lock().remove(&to.ffds_deviceid);
            for n in 1..=4 {
                self.host.net.reset(&self.host.name, &format!("ds{n}"));
            }
            self.host.devices.lock().clear();
        }
        let Some(layout) = self.host.layouts.current.write().await.take() else { return Failed::Direct };
        self.host.layouts.gone();
        let fenced = matches!(status, nfsstat3::NFS3ERR_ACCES | nfsstat3::NFS3ERR_STALE);
        let error = device_error4 {
            de_deviceid: to.ffds_deviceid,
            de_status: match status {
                nfsstat3::NFS3ERR_NOSPC => nfsstat4::NFS4ERR_NOSPC,
                nfsstat3::NFS3ERR_IO => nfsstat4::NFS4ERR_IO,
                _ => nfsstat4::NFS4ERR_NXIO,
            },
            de_opnum: op,
        };
        let report = ff_ioerr4 {
            ffie_offset: 0,
            ffie_length: u64::MAX,
            ffie_stateid: to.ffds_stateid,
            ffie_errors: vec![error],
        };
        // NFS 4.2: it goes ahead, and the return does not say it once more.
        let ahead = !fenced && self.below(2) == 0;
        if ahead {
            let args = LAYOUTERROR4args {
                lea_offset: 0,
                lea_length: u64::MAX,
                lea_stateid: layout.stateid,
                lea_errors: report.ffie_errors.clone(),
            };
            self.host.once(vec![putfh(&held.handle), nfs_argop4::OP_LAYOUTERROR(args)]).await;
        }
        let reports = if fenced || ahead { Vec::new() } else { vec![report] };
        let body = ff_layoutreturn4 { fflr_ioerr_report: reports, ..ff_layoutreturn4::default() };
        let body = sluice_xdr::to_bytes(&body).unwrap();
        let back = ops::layoutreturn(layout.stateid, layoutiomode4::LAYOUTIOMODE4_ANY, body);
        self.host.once(vec![putfh(&held.handle), back]).await;
        Failed::Direct
    }

    /// A layout with this byte is held, or there is none to be had.
    async fn layout(&self, held: &Held, at: u64) -> Result<(), Failed> {
        let known = self.host.layouts.current.read().await.clone();
        if known.as_ref().is_some_and(|layout| layout.bytes.contains(&at)) {
            return Ok(());
        }
        let layouts = &self.host.layouts;
        layouts.asking(&held.handle, true, known.is_some());
        let stateid = known.as_ref().map_or(held.stateid, |layout| layout.stateid);
        // Read-write, always: what is held must do for both.
        let ask = crate::client::layoutget(stateid, RW, at, 4096);
        let answer = self.host.once(vec![putfh(&held.handle), ask]).await;
        let Some(mut answer) = answer else {
            layouts.asking(&held.handle, false, false);
            return Err(Failed::State);
        };
        if answer.status == nfsstat4::NFS4_OK {
            let segment = crate::client::segment(answer.results.pop().unwrap());
            *layouts.current.write().await = Some(segment);
            layouts.asking(&held.handle, false, true);
            return Ok(());
        }
        layouts.asking(&held.handle, false, known.is_some());
        match answer.status {
            nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE | nfsstat4::NFS4ERR_LAYOUTTRYLATER => Err(Failed::Direct),
            // A file that has been in the metadata is written to data servers first.
            status if self.host.shared.has_no_room(status) => Err(Failed::Direct),
            status if later(status) || self.host.shared.blames_a_device(status) => Err(Failed::Direct),
            status if unknown(status) && known.is_some() => {
                self.host.forget_layout().await;
                Err(Failed::Direct)
            }
            status if unknown(status) => Err(Failed::State),
            other => panic!("{}: LAYOUTGET: {other}", self.host.name),
        }
    }

    /// What a block holds is what somebody wrote there last.
    pub(crate) async fn read(&self, file: usize, block: u64) {
        let shared = &self.host.shared;
        let mut direct = self.direct();
        loop {
            self.host.doing(1, format!("read file {file} block {block} direct {direct}"));
            let held = self.holding(file).await;
            let from = shared.at();
            let found = match direct {
                true => self.read_direct(&held, block).await,
                false => self.read_proxied(&held, block).await,
            };
            match found {
                Ok(found) => {
                    let to = shared.at();
                    for word in words(&found) {
                        shared.blocks.check(file, block, word, from, to, (&self.host.name, direct));
                    }
                    return;
                }
                Err(Failed::State) => self.lost().await,
                Err(Failed::Direct | Failed::Full) => {
                    direct = !direct;
                    self.host.pause().await;
                }
            }
        }
    }

    async fn read_proxied(&self, held: &Held, block: u64) -> Result<Bytes, Failed> {
        let stateid = held.lock.map_or(held.stateid, |lock| lock.0);
        let read = READ4args { stateid, offset: self.range(block).start, count: BLOCK as u32 };
        let ops = vec![putfh(&held.handle), nfs_argop4::OP_READ(read)];
        let mut answer = self.host.once(ops).await.ok_or(Failed::State)?;
        self.proxied(answer.status)?;
        match answer.results.pop() {
            Some(nfs_resop4::OP_READ(READ4res::NFS4_OK(ok))) => Ok(ok.data),
            other => panic!("{other:?}"),
        }
    }

    async fn read_direct(&self, held: &Held, block: u64) -> Result<Bytes, Failed> {
        let bytes = self.range(block);
        self.layout(held, bytes.start).await?;
        let guard = self.host.layouts.current.read().await;
        let layout =
            guard.clone().filter(|layout| layout.bytes.contains(&bytes.start)).ok_or(Failed::Direct)?;
        let n = usize::try_from(self.below(layout.body.ffl_mirrors.len() as u64)).unwrap();
        let mirror = layout.mirror(n);
        let found = self.read_mirror(&mirror, &bytes).await;
        drop(guard);
        match found {
            Ok(found) => Ok(found),
            Err(status) => Err(self.complain(held, &mirror, bytes.start, status, nfs_opnum4::OP_READ).await),
        }
    }

    async fn read_mirror(&self, mirror: &Segment, bytes: &Range<u64>) -> Result<Bytes, nfsstat3> {
        let nfs = self.server(mirror, bytes.start).await?;
        let mut found = BytesMut::new();
        while (found.len() as u64) < BLOCK {
            let at = bytes.start + found.len() as u64;
            let count = u32::try_from(bytes.end - at).unwrap();
            let (data, eof) = nfs.read(mirror.data_server(bytes.start), at, count).await?;
            found.extend_from_slice(&data);
            assert!(eof || !data.is_empty(), "no data and no end is an EIO in Linux");
            if eof {
                break;
            }
        }
        Ok(found.freeze())
    }

    async fn truncate(&self, file: usize) {
        let shared = &self.host.shared;
        let size = match (shared.habits.together, self.below(6)) {
            // Too large for the metadata.
            (true, 0) => UNIT,
            (true, _) => (1 + self.below(BLOCKS)) * BLOCK,
            (false, _) => (1 + self.below(PARTS - 1)) * UNIT,
        };
        let gone: Vec<u64> = (0..BLOCKS).filter(|block| self.range(*block).start >= size).collect();
        let id = shared.at();
        gone.iter().for_each(|block| shared.blocks.began(file, *block, id, Value::Is(0), id));
        self.host.forget_blocks(file);
        // Linux sets the time with it, but where OPEN cuts.
        let now = settime4::Default(time_how4::SET_TO_SERVER_TIME4);
        let time_modify_set = (self.below(2) == 0).then_some(now);
        let set = Attributes { size: Some(size), time_modify_set, ..Attributes::default() };
        loop {
            self.host.doing(1, format!("truncate file {file} to {size}"));
            let held = self.holding(file).await;
            let obj_attributes = attributes(&set);
            let op = nfs_argop4::OP_SETATTR(SETATTR4args { stateid: held.stateid, obj_attributes });
            let Some(answer) = self.host.once(vec![putfh(&held.handle), op]).await else { continue };
            match answer.status {
                nfsstat4::NFS4_OK => break,
                status if later(status) || self.host.shared.blames_a_device(status) => {
                    self.host.pause().await
                }
                status if unknown(status) => self.lost().await,
                // A small file that becomes a large one gets data files now, and no data server may have room just now.
                status if self.host.shared.has_no_room(status) => self.host.pause().await,
                other => panic!("{}: truncate: {other}", self.host.name),
            }
        }
        let now = shared.at();
        gone.iter().for_each(|block| shared.blocks.ended(file, *block, id, now, true));
    }

    /// Nobody else holds the lock; who held it writes nothing any more.
    async fn locked(&self, held: &Held) {
        let (host, shared) = (&self.host, &self.host.shared);
        host.doing(1, "lock");
        let Range { start, end } = self.range(LOCKED);
        let op = lock(&host.name, held, start, end - start, false);
        let Some(answer) = host.once(vec![putfh(&held.handle), op]).await else { return };
        let stateid = match answer.results.last() {
            Some(nfs_resop4::OP_LOCK(LOCK4res::NFS4_OK(ok))) => ok.lock_stateid,
            _ if unknown(answer.status) => return self.lost().await,
            _ if later(answer.status) || answer.status == nfsstat4::NFS4ERR_DENIED => {
                return host.pause().await;
            }
            _ => panic!("{}: LOCK: {}", host.name, answer.status),
        };
        {
            let mut locks = shared.locks.lock();
            if let Some(other) = locks.get(&held.file).filter(|other| **other != host.name) {
                let (until, now) = (shared.believes_until(other), shared.env.clock.now());
                let (file, host) = (held.file, &host.name);
                assert!(
                    until < now,
                    "{other} has a lock on file {file} until {until:?}, {host} got it at {now:?}"
                );
            }
            locks.insert(held.file, host.name.clone());
            shared.blocks.fenced(held.file, LOCKED, shared.at());
        }
        {
            // Recovery may have dropped the open meanwhile: then the lock is gone, too.
            let mut open = host.held.lock();
            match open.as_mut().filter(|open| open.stateid.other == held.stateid.other) {
                Some(open) => open.lock = Some((stateid, start, end - start)),
                None => return host.lost_lock(held),
            }
        }
        self.read(held.file, LOCKED).await;
        self.write(held.file, LOCKED, true).await;
        host.doing(1, "unlock");
        let locked = host.held.lock().clone().filter(|now| now.file == held.file);
        let Some((stateid, offset, length)) = locked.as_ref().and_then(|now| now.lock) else { return };
        host.lost_lock(held);
        if let Some(now) = host.held.lock().as_mut() {
            now.lock = None;
        }
        let locktype = nfs_lock_type4::WRITE_LT;
        let args = LOCKU4args { locktype, seqid: 0, lock_stateid: stateid, offset, length };
        host.ask(vec![putfh(&held.handle), nfs_argop4::OP_LOCKU(args)]).await;
    }
}

/// The words of a block, whose end may lie behind the end of the file.
pub(super) fn words(found: &[u8]) -> BTreeSet<u64> {
    let whole: Vec<u8> = found.iter().copied().chain(std::iter::repeat(0)).take(BLOCK as usize).collect();
    whole.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The server does not know, or takes no more, what this stateid stands for.
pub(super) fn unknown(status: nfsstat4) -> bool {
    matches!(
        status,
        nfsstat4::NFS4ERR_BAD_STATEID
            | nfsstat4::NFS4ERR_STALE_STATEID
            | nfsstat4::NFS4ERR_OLD_STATEID
            | nfsstat4::NFS4ERR_EXPIRED
            | nfsstat4::NFS4ERR_ADMIN_REVOKED
            | nfsstat4::NFS4ERR_DELEG_REVOKED
    )
}
