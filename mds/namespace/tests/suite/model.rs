//! Random sequences of operations against a plain model of a file system.

use std::collections::BTreeMap;

use crate::common::*;
use proptest::prelude::*;
use sluice_namespace::*;

/// An inode of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    File,
    Directory { parent: usize, entries: BTreeMap<String, usize> },
}

/// The model: inodes by number; 0 is the root. Nothing is ever taken out of `nodes`.
#[derive(Clone, Debug)]
struct Model {
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NotFound,
    Exists,
    NotEmpty,
    Invalid,
    IsDirectory,
}

type Outcome = Result<(), Refusal>;

impl Model {
    fn new() -> Self {
        Self { nodes: vec![Node::Directory { parent: 0, entries: BTreeMap::new() }] }
    }
    fn entries(&self, directory: usize) -> &BTreeMap<String, usize> {
        match &self.nodes[directory] {
            Node::Directory { entries, .. } => entries,
            Node::File => panic!("a file has no entries"),
        }
    }
    fn entries_mut(&mut self, directory: usize) -> &mut BTreeMap<String, usize> {
        match &mut self.nodes[directory] {
            Node::Directory { entries, .. } => entries,
            Node::File => panic!("a file has no entries"),
        }
    }
    fn is_directory(&self, node: usize) -> bool {
        matches!(self.nodes[node], Node::Directory { .. })
    }
    fn create(&mut self, directory: usize, called: &str, node: Node) -> Outcome {
        if self.entries(directory).contains_key(called) {
            return Err(Refusal::Exists);
        }
        self.nodes.push(node);
        let new = self.nodes.len() - 1;
        self.entries_mut(directory).insert(called.into(), new);
        Ok(())
    }
    fn remove(&mut self, directory: usize, called: &str) -> Outcome {
        let node = *self.entries(directory).get(called).ok_or(Refusal::NotFound)?;
        if self.is_directory(node) && !self.entries(node).is_empty() {
            return Err(Refusal::NotEmpty);
        }
        self.entries_mut(directory).remove(called);
        Ok(())
    }
    fn link(&mut self, from: (usize, &str), to: (usize, &str)) -> Outcome {
        let node = *self.entries(from.0).get(from.1).ok_or(Refusal::NotFound)?;
        if self.is_directory(node) {
            return Err(Refusal::IsDirectory);
        }
        if self.entries(to.0).contains_key(to.1) {
            return Err(Refusal::Exists);
        }
        self.entries_mut(to.0).insert(to.1.into(), node);
        Ok(())
    }
    fn within(&self, mut directory: usize, above: usize) -> bool {
        loop {
            if directory == above {
                return true;
            }
            let Node::Directory { parent, .. } = self.nodes[directory] else { panic!() };
            if directory == 0 {
                return false;
            }
            directory = parent;
        }
    }
    fn rename(&mut self, from: (usize, &str), to: (usize, &str)) -> Outcome {
        let node = *self.entries(from.0).get(from.1).ok_or(Refusal::NotFound)?;
        let target = self.entries(to.0).get(to.1).copied();
        if target == Some(node) {
            return Ok(());
        }
        if let Some(target) = target {
            if self.is_directory(node) != self.is_directory(target) {
                return Err(Refusal::Exists);
            }
            if self.is_directory(target) && !self.entries(target).is_empty() {
                return Err(Refusal::NotEmpty);
            }
        }
        if self.is_directory(node) && self.within(to.0, node) {
            return Err(Refusal::Invalid);
        }
        self.entries_mut(from.0).remove(from.1);
        self.entries_mut(to.0).insert(to.1.into(), node);
        if let Node::Directory { parent, .. } = &mut self.nodes[node] {
            *parent = to.0;
        }
        Ok(())
    }
    /// Directories that can be reached, in a fixed order.
    fn directories(&self) -> Vec<usize> {
        let mut found = vec![0];
        let mut at = 0;
        while at < found.len() {
            found.extend(self.entries(found[at]).values().copied().filter(|n| self.is_directory(*n)));
            at += 1;
        }
        found
    }
    fn links(&self, node: usize) -> usize {
        self.directories().iter().flat_map(|d| self.entries(*d).values()).filter(|n| **n == node).count()
    }
}

/// Directories and names are chosen among those there are by number.
#[derive(Clone, Debug)]
enum Action {
    Create(u8, u8),
    Mkdir(u8, u8),
    Remove(u8, u8),
    Link(u8, u8, u8, u8),
    Rename(u8, u8, u8, u8),
}

fn action() -> impl Strategy<Value = Action> {
    let n = || 0u8..6;
    let d = any::<u8>;
    prop_oneof![
        2 => (d(), n()).prop_map(|(a, b)| Action::Create(a, b)),
        3 => (d(), n()).prop_map(|(a, b)| Action::Mkdir(a, b)),
        2 => (d(), n()).prop_map(|(a, b)| Action::Remove(a, b)),
        1 => (d(), n(), d(), n()).prop_map(|(a, b, c, d)| Action::Link(a, b, c, d)),
        4 => (d(), n(), d(), n()).prop_map(|(a, b, c, d)| Action::Rename(a, b, c, d)),
    ]
}

struct Run {
    world: World,
    model: Model,
    /// The inode of each node of the model.
    keys: Vec<InodeKey>,
}

impl Run {
    fn pick(&self, n: u8) -> usize {
        let directories = self.model.directories();
        directories[usize::from(n) % directories.len()]
    }

    async fn act(&mut self, action: &Action) {
        let (w, called) = (&self.world, |n: &u8| format!("n{n}"));
        let (expected, got) = match action {
            Action::Create(d, n) | Action::Mkdir(d, n) => {
                let d = self.pick(*d);
                let (model, node) = if matches!(action, Action::Mkdir(..)) {
                    (Node::Directory { parent: d, entries: BTreeMap::new() }, NewNode::Directory)
                } else {
                    let layout = Some(layout(w.id(), 1));
                    (Node::File, NewNode::File { layout, read_write_layout: false, size: 0 })
                };
                let got = w.node(self.keys[d], &called(n), node).await;
                if let Ok(made) = &got {
                    self.keys.push(made.inode.key);
                }
                (self.model.create(d, &called(n), model), got.map(|_| ()))
            }
            Action::Remove(d, n) => {
                let d = self.pick(*d);
                let got = w.remove(self.keys[d], &called(n)).await;
                (self.model.remove(d, &called(n)), got.map(|_| ()))
            }
            Action::Link(d, n, e, m) => {
                let (d, e) = (self.pick(*d), self.pick(*e));
                let got = match w.lookup(self.keys[d], &called(n)).await {
                    Ok(found) => w.link(found.inode.key, self.keys[e], &called(m)).await.map(|_| ()),
                    Err(error) => Err(error),
                };
                (self.model.link((d, &called(n)), (e, &called(m))), got)
            }
            Action::Rename(d, n, e, m) => {
                let (d, e) = (self.pick(*d), self.pick(*e));
                let got = w.rename((self.keys[d], &called(n)), (self.keys[e], &called(m))).await;
                (self.model.rename((d, &called(n)), (e, &called(m))), got.map(|_| ()))
            }
        };
        let got = got.map_err(|error| match error {
            FsError::NotFound => Refusal::NotFound,
            FsError::Exists => Refusal::Exists,
            FsError::NotEmpty => Refusal::NotEmpty,
            FsError::Invalid => Refusal::Invalid,
            FsError::IsDirectory => Refusal::IsDirectory,
            other => panic!("{action:?}: {other:?}"),
        });
        assert_eq!(got, expected, "{action:?}");
    }

    async fn compare(&self) {
        for d in self.model.directories() {
            let listed: BTreeMap<String, InodeKey> = self
                .world
                .list(self.keys[d], 3)
                .await
                .into_iter()
                .map(|e| (String::from_utf8(e.entry.name.to_vec()).unwrap(), e.entry.inode))
                .collect();
            let expected: BTreeMap<String, InodeKey> =
                self.model.entries(d).iter().map(|(name, n)| (name.clone(), self.keys[*n])).collect();
            assert_eq!(listed, expected);
            for n in self.model.entries(d).values().filter(|n| !self.model.is_directory(**n)) {
                let stat = self.world.stat(self.keys[*n]).await.unwrap();
                assert_eq!(usize::try_from(stat.nlink()).unwrap(), self.model.links(*n));
            }
        }
        let report = self.world.clean().await;
        assert_eq!(report.orphans, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_namespace_is_the_model(
        bits in prop_oneof![Just(1u8), Just(2), Just(56)],
        blind: bool,
        actions in prop::collection::vec(action(), 1..60),
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::with_bits(bits).await;
            if blind {
                world.update = DirectoryUpdate::Blind;
            }
            let mut run = Run { world, model: Model::new(), keys: vec![InodeKey::ROOT] };
            for action in &actions {
                run.act(action).await;
            }
            run.compare().await;
        });
    }
}
