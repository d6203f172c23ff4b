//! One worker's part of the namespace: two directories, what is in them, and what every request must be answered.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use sluice_xdr::nfs4::*;
use thiserror::Error;

use super::dice::Dice;
use super::names::{Host, root};
use crate::client::ops;

const FILES: u64 = 10;
const FOLDERS: u64 = 4;
const DATA: usize = 64;
const ANONYMOUS: stateid4 = stateid4 { seqid: 0, other: [0; 12] };
const SEEN: bitmap4 =
    bitmap4::of(&[FATTR4_TYPE, FATTR4_SIZE, FATTR4_FILEHANDLE, FATTR4_FILEID, FATTR4_MODE, FATTR4_NUMLINKS]);

/// A promise that was not kept.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Broken(pub(crate) String);

/// One of the two directories, and a name there. Names of directories begin with `d`, of files with `f`.
type Place = (usize, String);

/// What a name means.
#[derive(Clone, Debug)]
struct Node {
    handle: nfs_fh4,
    folder: bool,
    mode: u32,
    data: Option<[u8; DATA]>,
}

/// The model: names lead to nodes, nodes are told apart by their fileid.
#[derive(Debug)]
pub(crate) struct Tree {
    dirs: [nfs_fh4; 2],
    names: BTreeMap<Place, u64>,
    nodes: BTreeMap<u64, Node>,
    dice: Dice,
    done: u64,
}

fn broken(what: String) -> anyhow::Error {
    Broken(what).into()
}

fn expect(what: &str, found: nfsstat4, wanted: nfsstat4) -> Result<()> {
    if found == wanted { Ok(()) } else { Err(broken(format!("{what} was answered {found}, not {wanted}"))) }
}

fn handle(results: &[nfs_resop4]) -> Result<nfs_fh4> {
    let found = results.iter().rev().find_map(|result| match result {
        nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(found)) => Some(found.object.clone()),
        _ => None,
    });
    found.context("no filehandle came back")
}

fn attributes(results: &[nfs_resop4]) -> Result<Attributes> {
    match results.last() {
        Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))) => Ok(Attributes::decode(&ok.obj_attributes)?),
        _ => bail!("no attributes came back"),
    }
}

fn mode(bits: u32) -> Attributes {
    Attributes { mode: Some(bits), ..Attributes::default() }
}

impl Tree {
    /// Two empty directories for worker `name`.
    pub(crate) async fn plant(host: &Host, name: &str, dice: Dice) -> Result<Self> {
        let mut dirs = Vec::new();
        for half in ["a", "b"] {
            let name = format!("{name}{half}");
            let make = ops::create(createtype4::NF4DIR, name.as_bytes(), &mode(0o755))?;
            let answer = host.ask(root(vec![make, ops::getfh()])).await?;
            expect("the first mkdir", answer.status, nfsstat4::NFS4_OK)?;
            dirs.push(handle(&answer.results)?);
        }
        let dirs = <[nfs_fh4; 2]>::try_from(dirs).map_err(|_| anyhow::anyhow!("two directories"))?;
        Ok(Self { dirs, names: BTreeMap::new(), nodes: BTreeMap::new(), dice, done: 0 })
    }

    fn dir(&self, n: usize) -> nfs_argop4 {
        let [first, second] = &self.dirs;
        ops::putfh(if n == 0 { first } else { second })
    }

    fn place(&mut self, folder: bool) -> Place {
        let (kind, count) = if folder { ('d', FOLDERS) } else { ('f', FILES) };
        (self.dice.index(2), format!("{kind}{}", self.dice.below(count)))
    }

    /// A name that means something, of a file or of anything.
    fn known(&mut self, files: bool) -> Option<(Place, u64)> {
        let fit = |place: &Place| !files || place.1.starts_with('f');
        let all: Vec<_> = self.names.iter().filter(|(place, _)| fit(place)).collect();
        let chosen = self.dice.clone().index(all.len());
        self.dice.next();
        all.get(chosen).map(|(place, id)| ((*place).clone(), **id))
    }

    /// One change.
    pub(crate) async fn step(&mut self, host: &Host) -> Result<()> {
        self.done += 1;
        match self.dice.below(16) {
            0..=3 => self.open(host, true).await,
            4 => self.open(host, false).await,
            5 => self.mkdir(host).await,
            6..=8 => self.remove(host).await,
            9..=11 => self.rename(host).await,
            12 => self.link(host).await,
            13..=14 => self.setattr(host).await,
            _ => self.write(host).await,
        }
    }

    fn enter(&mut self, place: Place, handle: nfs_fh4, values: &Attributes, folder: bool) -> Result<()> {
        let id = values.fileid.context("no fileid")?;
        let mode = values.mode.context("no mode")?;
        if self.nodes.insert(id, Node { handle, folder, mode, data: None }).is_some() {
            return Err(broken(format!("fileid {id} was given twice")));
        }
        self.names.insert(place, id);
        Ok(())
    }

    /// Nodes without a name are gone.
    fn forget(&mut self) {
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.nodes.retain(|id, _| named.contains(id));
    }

    async fn open(&mut self, host: &Host, exclusive: bool) -> Result<()> {
        let place = self.place(false);
        let values = mode(0o600 + u32::try_from(self.dice.below(64)).unwrap_or(0));
        let values = values.encode(&values.present())?;
        let how = if exclusive { createhow4::GUARDED4(values) } else { createhow4::UNCHECKED4(values) };
        let open = nfs_argop4::OP_OPEN(OPEN4args {
            seqid: 0,
            share_access: OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            share_deny: OPEN4_SHARE_DENY_NONE,
            owner: state_owner4 { clientid: 0, owner: format!("{:?}", self.dirs.first()).into() },
            openhow: openflag4::OPEN4_CREATE(how),
            claim: open_claim4::CLAIM_NULL(Bytes::copy_from_slice(place.1.as_bytes())),
        });
        let answer = host.ask(vec![self.dir(place.0), open, ops::getfh(), ops::getattr(SEEN)]).await?;
        let there = self.names.get(&place).copied();
        let what = format!("OPEN (exclusive: {exclusive}) of {place:?}, there: {}", there.is_some());
        if exclusive && there.is_some() {
            return expect(&what, answer.status, nfsstat4::NFS4ERR_EXIST);
        }
        expect(&what, answer.status, nfsstat4::NFS4_OK)?;
        let (found, values) = (handle(&answer.results)?, attributes(&answer.results)?);
        match there {
            Some(id) if values.fileid == Some(id) => {}
            Some(id) => return Err(broken(format!("{what}: fileid {:?}, not {id}", values.fileid))),
            None => self.enter(place, found.clone(), &values, false)?,
        }
        if let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) = answer.results.get(1) {
            // Opens do not outlive the server, and nobody reclaims this one.
            host.ask(vec![ops::putfh(&found), ops::close(open.stateid)]).await?;
        }
        Ok(())
    }

    async fn mkdir(&mut self, host: &Host) -> Result<()> {
        let place = self.place(true);
        let make = ops::create(createtype4::NF4DIR, place.1.as_bytes(), &mode(0o755))?;
        let answer = host.ask(vec![self.dir(place.0), make, ops::getfh(), ops::getattr(SEEN)]).await?;
        let there = self.names.contains_key(&place);
        let wanted = if there { nfsstat4::NFS4ERR_EXIST } else { nfsstat4::NFS4_OK };
        expect(&format!("CREATE of {place:?}"), answer.status, wanted)?;
        if !there {
            self.enter(place, handle(&answer.results)?, &attributes(&answer.results)?, true)?;
        }
        Ok(())
    }

    async fn remove(&mut self, host: &Host) -> Result<()> {
        let folder = self.dice.below(4) == 0;
        let place = self.place(folder);
        let answer = host.ask(vec![self.dir(place.0), ops::remove(place.1.as_bytes())]).await?;
        let there = self.names.remove(&place).is_some();
        let wanted = if there { nfsstat4::NFS4_OK } else { nfsstat4::NFS4ERR_NOENT };
        expect(&format!("REMOVE of {place:?}"), answer.status, wanted)?;
        self.forget();
        Ok(())
    }

    async fn rename(&mut self, host: &Host) -> Result<()> {
        let folder = self.dice.below(4) == 0;
        let (from, to) = (self.place(folder), self.place(folder));
        let rename = ops::rename(from.1.as_bytes(), to.1.as_bytes());
        let ops = vec![self.dir(from.0), nfs_argop4::OP_SAVEFH, self.dir(to.0), rename];
        let answer = host.ask(ops).await?;
        let what = format!("RENAME of {from:?} to {to:?}");
        let Some(id) = self.names.get(&from).copied() else {
            return expect(&what, answer.status, nfsstat4::NFS4ERR_NOENT);
        };
        expect(&what, answer.status, nfsstat4::NFS4_OK)?;
        // Two names of one file: nothing happens (RFC 8881 §18.26.3).
        if self.names.get(&to) != Some(&id) {
            self.names.remove(&from);
            self.names.insert(to, id);
            self.forget();
        }
        Ok(())
    }

    async fn link(&mut self, host: &Host) -> Result<()> {
        let Some((_, id)) = self.known(true) else { return Ok(()) };
        let to = self.place(false);
        let node = self.nodes.get(&id).context("a name without a node")?;
        let link = nfs_argop4::OP_LINK(LINK4args { newname: Bytes::copy_from_slice(to.1.as_bytes()) });
        let ops = vec![ops::putfh(&node.handle), nfs_argop4::OP_SAVEFH, self.dir(to.0), link];
        let answer = host.ask(ops).await?;
        let there = self.names.contains_key(&to);
        let wanted = if there { nfsstat4::NFS4ERR_EXIST } else { nfsstat4::NFS4_OK };
        expect(&format!("LINK as {to:?}"), answer.status, wanted)?;
        if !there {
            self.names.insert(to, id);
        }
        Ok(())
    }

    async fn setattr(&mut self, host: &Host) -> Result<()> {
        let Some((place, id)) = self.known(false) else { return Ok(()) };
        let bits = 0o700 + u32::try_from(self.dice.below(64)).unwrap_or(0);
        let node = self.nodes.get_mut(&id).context("a name without a node")?;
        let set = ops::setattr(ANONYMOUS, &mode(bits))?;
        let answer = host.ask(vec![ops::putfh(&node.handle), set]).await?;
        expect(&format!("SETATTR of {place:?}"), answer.status, nfsstat4::NFS4_OK)?;
        node.mode = bits;
        Ok(())
    }

    async fn write(&mut self, host: &Host) -> Result<()> {
        let Some((place, id)) = self.known(true) else { return Ok(()) };
        let mut data = [0; DATA];
        data.iter_mut().for_each(|byte| *byte = self.dice.next() as u8);
        let node = self.nodes.get_mut(&id).context("a name without a node")?;
        let write = nfs_argop4::OP_WRITE(WRITE4args {
            stateid: ANONYMOUS,
            offset: 0,
            stable: stable_how4::FILE_SYNC4,
            data: Bytes::copy_from_slice(&data),
        });
        let answer = host.ask(vec![ops::putfh(&node.handle), write]).await?;
        expect(&format!("WRITE of {place:?}"), answer.status, nfsstat4::NFS4_OK)?;
        node.data = Some(data);
        Ok(())
    }

    /// Everything is as the model says, and nothing else is there.
    pub(crate) async fn compare(&self, host: &Host) -> Result<()> {
        let mut found = BTreeMap::new();
        for n in 0..2 {
            self.list(host, n, &mut found).await?;
        }
        for (place, id) in &self.names {
            let node = self.nodes.get(id).context("a name without a node")?;
            let Some(values) = found.remove(place) else {
                return Err(broken(format!("{place:?} is missing")));
            };
            let links =
                if node.folder { 2 } else { self.names.values().filter(|other| *other == id).count() };
            let size = node.data.map_or(0, |data| data.len());
            let wanted = (Some(*id), Some(node.mode), Some(u32::try_from(links)?));
            if (values.fileid, values.mode, values.numlinks) != wanted
                || (!node.folder && values.size != Some(u64::try_from(size)?))
            {
                return Err(broken(format!("{place:?} is {values:?}, not {wanted:?} of {size} bytes")));
            }
        }
        if let Some(place) = found.keys().next() {
            return Err(broken(format!("{place:?} is there and was never promised, or was removed")));
        }
        for (id, node) in &self.nodes {
            self.compare_data(host, *id, node).await?;
        }
        Ok(())
    }

    async fn list(&self, host: &Host, dir: usize, found: &mut BTreeMap<Place, Attributes>) -> Result<()> {
        let list = ops::readdir(0, verifier4::default(), 1 << 16, SEEN);
        let answer = host.ask(vec![self.dir(dir), list]).await?;
        let Some(nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page))) = answer.results.last() else {
            return Err(broken(format!("READDIR was answered {}", answer.status)));
        };
        if !page.reply.eof {
            bail!("a listing of a few names does not fit into one reply");
        }
        for entry in &page.reply.entries {
            let place = (dir, String::from_utf8_lossy(&entry.name).into_owned());
            if found.insert(place.clone(), Attributes::decode(&entry.attrs)?).is_some() {
                return Err(broken(format!("{place:?} is listed twice")));
            }
        }
        Ok(())
    }

    async fn compare_data(&self, host: &Host, id: u64, node: &Node) -> Result<()> {
        let Some(data) = node.data else { return Ok(()) };
        let count = u32::try_from(2 * DATA)?;
        let read = nfs_argop4::OP_READ(READ4args { stateid: ANONYMOUS, offset: 0, count });
        let answer = host.ask(vec![ops::putfh(&node.handle), read]).await?;
        match answer.results.last() {
            Some(nfs_resop4::OP_READ(READ4res::NFS4_OK(ok))) if ok.data[..] == data => Ok(()),
            _ => Err(broken(format!("the data of {id} is gone: {answer:?}"))),
        }
    }
}
