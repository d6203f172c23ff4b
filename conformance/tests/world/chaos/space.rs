//! Room that is set aside, room that is given back, and what is said about holes. RFC 7862 §15.1, §15.4, §15.10, §15.11.

use std::ops::Range;

use sluice_xdr::nfs4::*;

use super::host::Held;
use super::io::{BLOCK, BLOCKS, Io, unknown, words};
use super::model::{At, Value};
use crate::client::{later, putfh};

impl Io {
    pub(super) async fn space(&self, file: usize) {
        match self.below(4) {
            0 => self.allocate(file).await,
            1 => self.deallocate(file).await,
            2 => self.seek(file).await,
            _ => self.read_plus(file).await,
        }
    }

    /// What is there stays, and what was not there is zeros.
    async fn allocate(&self, file: usize) {
        let Some(own) = self.own() else { return };
        let Range { start, end } = self.range(own);
        self.host.doing(1, format!("allocate file {file} block {own}"));
        self.insist(file, |held| {
            nfs_argop4::OP_ALLOCATE(ALLOCATE4args {
                aa_stateid: held.stateid,
                aa_offset: start,
                aa_length: end - start,
            })
        })
        .await;
    }

    async fn deallocate(&self, file: usize) {
        let (Some(own), shared) = (self.own(), &self.host.shared) else { return };
        let Range { start, end } = self.range(own);
        let id = shared.at();
        shared.blocks.began(file, own, id, Value::Is(0), id);
        self.host.forget_blocks(file);
        self.host.doing(1, format!("deallocate file {file} block {own}"));
        let op = |held: &Held| {
            nfs_argop4::OP_DEALLOCATE(DEALLOCATE4args {
                da_stateid: held.stateid,
                da_offset: start,
                da_length: end - start,
            })
        };
        if self.insist(file, op).await.is_some() {
            shared.blocks.ended(file, own, id, shared.at(), true);
        }
    }

    /// Where a hole is said to be, there are zeros.
    async fn seek(&self, file: usize) {
        let block = self.below(BLOCKS + 1);
        let Range { start, end } = self.range(block);
        let data = self.below(2) == 0;
        self.host.doing(1, format!("seek in file {file} block {block}, data {data}"));
        let what = if data { data_content4::NFS4_CONTENT_DATA } else { data_content4::NFS4_CONTENT_HOLE };
        let op = |held: &Held| {
            nfs_argop4::OP_SEEK(SEEK4args { sa_stateid: held.stateid, sa_offset: start, sa_what: what })
        };
        let zeros = match self.insist(file, op).await {
            Some((from, nfs_resop4::OP_SEEK(SEEK4res::NFS4_OK(found)))) => {
                let hole = match data {
                    true => found.sr_eof || found.sr_offset >= end,
                    // The end of the file is a hole, too.
                    false => found.sr_offset == start,
                };
                hole.then_some(from)
            }
            // Behind the end of the file.
            Some((from, nfs_resop4::OP_SEEK(SEEK4res::Default(nfsstat4::NFS4ERR_NXIO)))) => Some(from),
            _ => None,
        };
        if let Some(from) = zeros {
            self.saw(file, block, &[], from);
        }
    }

    async fn read_plus(&self, file: usize) {
        let block = self.below(BLOCKS + 1);
        let Range { start, .. } = self.range(block);
        self.host.doing(1, format!("read_plus of file {file} block {block}"));
        let op = |held: &Held| {
            let rpa_stateid = held.lock.map_or(held.stateid, |lock| lock.0);
            let args = READ_PLUS4args { rpa_stateid, rpa_offset: start, rpa_count: BLOCK as u32 };
            nfs_argop4::OP_READ_PLUS(args)
        };
        let Some((from, nfs_resop4::OP_READ_PLUS(READ_PLUS4res::NFS4_OK(found)))) =
            self.insist(file, op).await
        else {
            return;
        };
        let mut all = Vec::new();
        for content in found.rpr_contents {
            let here = start + all.len() as u64;
            match content {
                read_plus_content::NFS4_CONTENT_DATA(data) => {
                    assert_eq!(data.d_offset, here);
                    all.extend_from_slice(&data.d_data);
                }
                read_plus_content::NFS4_CONTENT_HOLE(hole) => {
                    assert_eq!(hole.di_offset, here);
                    all.resize(all.len() + usize::try_from(hole.di_length).unwrap(), 0);
                }
                other => panic!("{other:?}"),
            }
        }
        // It may be short before the end of the file, as READ may.
        let whole = all.len() as u64 >= BLOCK || found.rpr_eof;
        let until = if whole { all.len() } else { all.len() / 8 * 8 };
        if whole || until > 0 {
            self.saw(file, block, &all[..until.min(BLOCK as usize)], from);
        }
    }

    /// The block began with these bytes, and ended there or went on with zeros.
    fn saw(&self, file: usize, block: u64, bytes: &[u8], from: At) {
        let shared = &self.host.shared;
        let to = shared.at();
        for word in words(bytes) {
            shared.blocks.check(file, block, word, from, to, (&self.host.name, false));
        }
    }

    /// One operation on the file, and from when on it was asked for as it was answered. Asked again until the answer is about the
    /// operation; `None` when there is no room.
    async fn insist(&self, file: usize, op: impl Fn(&Held) -> nfs_argop4) -> Option<(At, nfs_resop4)> {
        loop {
            let held = self.holding(file).await;
            let from = self.host.shared.at();
            let Some(mut answer) = self.host.once(vec![putfh(&held.handle), op(&held)]).await else {
                continue;
            };
            match answer.status {
                nfsstat4::NFS4_OK | nfsstat4::NFS4ERR_NXIO => return Some((from, answer.results.pop()?)),
                status if self.host.shared.has_no_room(status) => return None,
                status if later(status) || self.host.shared.blames_a_device(status) => {
                    self.host.pause().await
                }
                status if unknown(status) => self.lost().await,
                other => panic!("{}: {}: {other}", self.host.name, self.host.doing.lock()[1]),
            }
        }
    }
}
