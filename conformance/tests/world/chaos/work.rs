//! What hosts do: one worker changes names, the other one reads and writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_conformance::client::ops;
use sluice_xdr::nfs4::*;

use super::host::{BOTH, Held, Host};
use super::model::{Act, At, NAMELESS, NEVER, Step};
use crate::client::{later, putfh, text};

pub(crate) const NAMES: u64 = 6;
/// Of a file that is there.
pub(crate) const PLAIN: openflag4 = openflag4::Default(opentype4::OPEN4_NOCREATE);

/// The directory that a name is in, and how it is called there.
fn place(dirs: &[nfs_fh4; 2], name: u8) -> (nfs_argop4, String) {
    (putfh(&dirs[usize::from(name) % 2]), format!("n{name}"))
}

fn fileid(answer: &[nfs_resop4]) -> Option<u64> {
    match answer.last() {
        Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))) => {
            Attributes::decode(&ok.obj_attributes).unwrap().fileid
        }
        _ => None,
    }
}

pub(super) fn handle(answer: &[nfs_resop4]) -> Option<nfs_fh4> {
    answer.iter().find_map(|result| match result {
        nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(found)) => Some(found.object.clone()),
        _ => None,
    })
}

/// A worker on names, and the objects that it has seen.
pub(crate) struct Namer {
    pub(crate) host: Arc<Host>,
    seen: Vec<(u64, nfs_fh4)>,
}

impl Namer {
    pub(crate) fn new(host: Arc<Host>) -> Self {
        Self { host, seen: Vec::new() }
    }

    /// `act` is being asked for: what it does if nobody ever hears of it.
    fn begin(&self, from: At, act: Act) -> usize {
        let mut all = self.host.shared.names.lock();
        all.push(Step { from, to: NEVER, act });
        all.len() - 1
    }

    fn end(&self, begun: usize, act: Act) {
        let to = self.host.shared.at();
        let step = &mut self.host.shared.names.lock()[begun];
        (step.to, step.act) = (to, act);
    }

    /// One of the directories is a tree with a limit: what has several names stays on its side.
    fn was_at_the_border(&self, answer: &Option<(nfsstat4, Vec<nfs_resop4>)>, begun: usize) -> bool {
        let refused = answer.as_ref().is_some_and(|(status, _)| *status == nfsstat4::NFS4ERR_XDEV);
        if refused {
            assert!(self.host.shared.limited.load(Ordering::Relaxed), "there is no border");
            self.end(begun, Act::Refused);
        }
        refused
    }

    /// Asks; an answer that says that nothing was done is asked for again. `None`: the session went.
    async fn change(&self, ops: Vec<nfs_argop4>) -> Option<(nfsstat4, Vec<nfs_resop4>)> {
        loop {
            let answer = self.host.once(ops.clone()).await?;
            if !later(answer.status) {
                return Some((answer.status, answer.results));
            }
            self.host.pause().await;
        }
    }

    pub(crate) async fn step(&mut self) {
        let (host, shared) = (Arc::clone(&self.host), Arc::clone(&self.host.shared));
        let dirs = shared.dirs.lock().clone();
        let name = u8::try_from(shared.below(NAMES)).unwrap();
        let (dir, text_name) = place(&dirs, name);
        let from = shared.at();
        match shared.below(12) {
            0..=3 => {
                host.doing(0, format!("create {name}"));
                let mode = Attributes { mode: Some(0o644), ..Attributes::default() };
                let make = if shared.below(2) == 0 {
                    let how = createhow4::GUARDED4(crate::client::attributes(&mode));
                    let claim = open_claim4::CLAIM_NULL(text(&text_name));
                    super::host::open(
                        &format!("{} names", host.name),
                        BOTH,
                        claim,
                        openflag4::OPEN4_CREATE(how),
                    )
                } else {
                    ops::create(createtype4::NF4FIFO, text_name.as_bytes(), &mode).unwrap()
                };
                let seen = bitmap4::of(&[FATTR4_FILEID]);
                let begun = self.begin(from, Act::Create(name, Some(NAMELESS + from)));
                let answer = self.change(vec![dir, make, ops::getfh(), ops::getattr(seen)]).await;
                // Whatever follows CREATE may have failed: it was done.
                if let Some((status, results)) = answer {
                    let made = matches!(
                        results.get(1),
                        Some(
                            nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(_))
                                | nfs_resop4::OP_CREATE(CREATE4res::NFS4_OK(_))
                        )
                    );
                    assert!(made || status == nfsstat4::NFS4ERR_EXIST, "create {name}: {status}");
                    let id = fileid(&results).unwrap_or(NAMELESS + from);
                    self.end(begun, Act::Create(name, made.then_some(id)));
                    if let Some(found) = handle(&results) {
                        self.seen.push((id, found.clone()));
                        if let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) = results.get(1) {
                            host.ask(vec![putfh(&found), ops::close(open.stateid)]).await;
                        }
                    }
                }
            }
            4..=5 => {
                host.doing(0, format!("remove {name}"));
                let begun = self.begin(from, Act::Remove(name, true));
                let answer = self.change(vec![dir, ops::remove(text_name.as_bytes())]).await;
                let done = answer.as_ref().is_none_or(|(status, _)| *status == nfsstat4::NFS4_OK);
                if let Some((status, _)) = &answer {
                    assert!(done || *status == nfsstat4::NFS4ERR_NOENT, "remove {name}: {status}");
                }
                if answer.is_some() {
                    self.end(begun, Act::Remove(name, done));
                }
            }
            6..=8 => {
                let other = u8::try_from(shared.below(NAMES)).unwrap();
                host.doing(0, format!("rename {name} {other}"));
                let (to, new_name) = place(&dirs, other);
                let rename = ops::rename(text_name.as_bytes(), new_name.as_bytes());
                let begun = self.begin(from, Act::Rename(name, other, true));
                let answer = self.change(vec![dir, nfs_argop4::OP_SAVEFH, to, rename]).await;
                if self.was_at_the_border(&answer, begun) {
                    return;
                }
                let done = answer.as_ref().is_none_or(|(status, _)| *status == nfsstat4::NFS4_OK);
                if let Some((status, _)) = &answer {
                    assert!(done || *status == nfsstat4::NFS4ERR_NOENT, "rename {name}: {status}");
                }
                if answer.is_some() {
                    self.end(begun, Act::Rename(name, other, done));
                }
            }
            9 => {
                let Some((id, found)) = self.seen.last().cloned() else { return };
                host.doing(0, format!("link {id} {name}"));
                let link = nfs_argop4::OP_LINK(LINK4args { newname: text(&text_name) });
                let begun = self.begin(from, Act::Link(id, name, true));
                let answer = self.change(vec![putfh(&found), nfs_argop4::OP_SAVEFH, dir, link]).await;
                if self.was_at_the_border(&answer, begun) {
                    return;
                }
                let done = answer.as_ref().is_none_or(|(status, _)| *status == nfsstat4::NFS4_OK);
                if let Some((status, _)) = &answer {
                    let refused = [nfsstat4::NFS4ERR_EXIST, nfsstat4::NFS4ERR_STALE, nfsstat4::NFS4ERR_NOENT];
                    assert!(done || refused.contains(status), "link {name}: {status}");
                }
                if answer.is_some() {
                    self.end(begun, Act::Link(id, name, done));
                }
            }
            10 => self.list(usize::from(name) % 2).await,
            _ => self.look(name).await,
        }
    }

    /// One look at all names of a directory.
    async fn list(&self, dir: usize) {
        self.host.doing(0, format!("list {dir}"));
        let shared = &self.host.shared;
        let from = shared.at();
        let handle = shared.dirs.lock()[dir].clone();
        let wanted = bitmap4::of(&[FATTR4_FILEID]);
        let answer =
            self.host.ask(vec![putfh(&handle), ops::readdir(0, verifier4::default(), 1 << 16, wanted)]).await;
        let Some(nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page))) = answer.results.last() else {
            panic!("list {dir}: {}", answer.status)
        };
        let to = shared.at();
        for name in (0..NAMES as u8).filter(|name| usize::from(*name) % 2 == dir) {
            let found =
                page.reply.entries.iter().filter(|entry| *entry.name == *format!("n{name}").as_bytes());
            let ids: Vec<_> =
                found.map(|entry| Attributes::decode(&entry.attrs).unwrap().fileid.unwrap()).collect();
            assert!(ids.len() < 2, "{name} is listed twice");
            shared.names.lock().push(Step { from, to, act: Act::Look(name, ids.first().copied()) });
        }
    }

    pub(crate) async fn look(&mut self, name: u8) {
        self.host.doing(0, format!("look {name}"));
        let shared = Arc::clone(&self.host.shared);
        let dirs = shared.dirs.lock().clone();
        let (dir, text_name) = place(&dirs, name);
        // The change attribute of the directory, too.
        let handle_of_dir = dirs[usize::from(name) % 2].clone();
        let before = shared.rising.so_far(&handle_of_dir.0);
        let look = vec![dir.clone(), ops::getattr(bitmap4::of(&[FATTR4_CHANGE]))];
        if let [.., nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(ok))] = &self.host.ask(look).await.results[..]
        {
            let change = Attributes::decode(&ok.obj_attributes).unwrap().change.unwrap();
            shared.rising.seen(&handle_of_dir.0, before, change);
        }
        let from = shared.at();
        let note = |act| {
            let to = shared.at();
            shared.names.lock().push(Step { from, to, act });
        };
        let seen = bitmap4::of(&[FATTR4_FILEID]);
        let ops = vec![dir, ops::lookup(text_name.as_bytes()), ops::getfh(), ops::getattr(seen)];
        let answer = self.host.ask(ops).await;
        match (answer.status, fileid(&answer.results)) {
            (nfsstat4::NFS4_OK, Some(id)) => {
                note(Act::Look(name, Some(id)));
                self.seen.extend(handle(&answer.results).map(|found| (id, found)));
            }
            (nfsstat4::NFS4ERR_NOENT, _) => note(Act::Look(name, None)),
            // Removed between LOOKUP and GETATTR.
            (nfsstat4::NFS4ERR_STALE, _) => {}
            (other, _) => panic!("look {name}: {other}"),
        }
    }
}

/// Opens the file anew, for a worker that has lost it or has none: `None` while it cannot be told.
pub(crate) async fn open_file(host: &Host, file: usize) -> Option<Held> {
    let claim = open_claim4::CLAIM_NULL(text(&format!("file{file}")));
    let open = super::host::open(&host.name, BOTH, claim, PLAIN);
    let answer = host.once(vec![nfs_argop4::OP_PUTROOTFH, open, ops::getfh()]).await?;
    match (&answer.results[..], handle(&answer.results)) {
        ([_, nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)), ..], Some(handle)) => {
            Some(Held { file, handle, stateid: open.stateid, lock: None })
        }
        // Or where it ends nobody knows who is here.
        _ if later(answer.status) || host.shared.blames_a_device(answer.status) => {
            host.pause().await;
            None
        }
        _ => panic!("{} opens file {file}: {}", host.name, answer.status),
    }
}
