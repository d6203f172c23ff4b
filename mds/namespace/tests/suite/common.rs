//! One file system on a memory store, and short ways to speak to it.

use std::sync::atomic::{AtomicU64, Ordering};

use sluice_env::{Env, Wall};
use sluice_kv::{Database, Transaction};
use sluice_namespace::*;

pub const NOW: Wall = Wall { seconds: 1_000, nanos: 7 };

pub fn user(uid: u32, gid: u32) -> Credential {
    Credential { uid, gid, gids: vec![] }
}

pub fn name(bytes: &str) -> Name<'_> {
    Name::new(bytes.as_bytes()).unwrap()
}

pub struct World {
    pub env: Env,
    pub db: Database,
    pub ns: Namespace,
    next: AtomicU64,
    pub update: DirectoryUpdate,
    pub now: Wall,
}

impl World {
    pub async fn new() -> Self {
        Self::with_bits(56).await
    }

    /// Fewer bits: more collisions.
    pub async fn with_bits(hash_bits: u8) -> Self {
        let env = Env::simulated(1);
        let db = Database::fresh(env.clone()).await.unwrap();
        let options = FormatOptions { hash_bits, now: NOW, mode: 0o777, ..FormatOptions::new(&env) };
        let mut txn = db.begin();
        let ns = Namespace::load_or_format(&mut txn, &options).await.unwrap();
        txn.commit().await.unwrap();
        let update = DirectoryUpdate::Exact;
        Self { env, db, ns, next: AtomicU64::new(16), update, now: NOW }
    }

    /// The file system in another store, where files get numbers from `first`.
    pub async fn over(db: Database, env: Env, first: u64) -> Self {
        let ns = Namespace::load(&db.begin()).await.unwrap().unwrap();
        Self { env, db, ns, next: AtomicU64::new(first), update: DirectoryUpdate::Exact, now: NOW }
    }

    pub fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// One attempt: error of the operation, or the value and its commit version.
    pub async fn txn<T>(
        &self,
        op: impl AsyncFnOnce(&mut Transaction) -> Result<T, FsError>,
    ) -> Result<(T, u64), FsError> {
        let mut txn = self.db.begin();
        let value = op(&mut txn).await?;
        Ok((value, txn.commit().await?.version))
    }

    pub async fn read<T>(
        &self,
        op: impl AsyncFnOnce(&mut Transaction) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        op(&mut self.db.begin()).await
    }

    pub fn request<'a>(&self, who: &'a Credential) -> Request<'a> {
        Request { who, now: self.now, directory: self.update }
    }

    /// One attempt of an operation with a pending result.
    pub async fn act<T: Settle>(
        &self,
        op: impl AsyncFnOnce(&mut Transaction) -> Result<Pending<T>, FsError>,
    ) -> Result<T, FsError> {
        let (pending, version) = self.txn(op).await?;
        Ok(pending.resolve(version))
    }

    pub async fn make(
        &self,
        directory: InodeKey,
        called: &str,
        node: NewNode,
        mode: CreateMode,
        attributes: NewAttributes,
        who: &Credential,
    ) -> Result<Created, FsError> {
        let fileid = FileId(self.id());
        let create = Create { directory, name: name(called), node, mode, attributes, fileid };
        self.act(async |txn| self.ns.create(txn, &create, &self.request(who)).await).await
    }

    pub async fn file(&self, directory: InodeKey, called: &str) -> Created {
        let layout = Some(layout(self.id(), 2));
        let node = NewNode::File { layout, read_write_layout: false, size: 0 };
        let attributes = NewAttributes::mode(0o666);
        self.make(directory, called, node, CreateMode::Guarded, attributes, &Credential::ROOT).await.unwrap()
    }

    pub async fn mkdir(&self, directory: InodeKey, called: &str) -> InodeKey {
        let attributes = NewAttributes::mode(0o777);
        let made = self
            .make(directory, called, NewNode::Directory, CreateMode::Guarded, attributes, &Credential::ROOT)
            .await;
        made.unwrap().inode.key
    }

    pub async fn node(&self, directory: InodeKey, called: &str, node: NewNode) -> Result<Created, FsError> {
        let attributes = NewAttributes::mode(0o644);
        self.make(directory, called, node, CreateMode::Guarded, attributes, &Credential::ROOT).await
    }

    pub async fn lookup(&self, directory: InodeKey, called: &str) -> Result<Found, FsError> {
        self.lookup_as(directory, called, &Credential::ROOT).await
    }

    pub async fn lookup_as(
        &self,
        directory: InodeKey,
        called: &str,
        who: &Credential,
    ) -> Result<Found, FsError> {
        self.read(async |txn| {
            let found = self.ns.lookup(txn, &directory, &name(called), who).await;
            // With the directory it is the same.
            match (&found, self.ns.lookup_with_directory(txn, &directory, &name(called), who).await) {
                (Ok(found), Ok((parent, inode))) => {
                    assert_eq!((parent, &inode), (self.ns.getattr(txn, &directory).await?, &found.inode));
                }
                (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
                (one, other) => panic!("{one:?}, {other:?}"),
            }
            found
        })
        .await
    }

    pub async fn stat(&self, key: InodeKey) -> Result<Inode, FsError> {
        self.read(async |txn| self.ns.getattr(txn, &key).await).await
    }

    pub async fn remove_as(
        &self,
        directory: InodeKey,
        called: &str,
        open: bool,
        who: &Credential,
    ) -> Result<Removed, FsError> {
        let remove = Remove { directory, name: name(called), expect: None, open };
        self.act(async |txn| self.ns.remove(txn, &remove, &self.request(who)).await).await
    }

    pub async fn remove(&self, directory: InodeKey, called: &str) -> Result<Removed, FsError> {
        self.remove_as(directory, called, false, &Credential::ROOT).await
    }

    pub async fn rename_as(
        &self,
        from: (InodeKey, &str),
        to: (InodeKey, &str),
        who: &Credential,
    ) -> Result<Renamed, FsError> {
        let rename = Rename {
            from: from.0,
            from_name: name(from.1),
            to: to.0,
            to_name: name(to.1),
            expect_source: None,
            expect_target: None,
            target_open: false,
        };
        self.act(async |txn| self.ns.rename(txn, &rename, &self.request(who)).await).await
    }

    pub async fn rename(&self, from: (InodeKey, &str), to: (InodeKey, &str)) -> Result<Renamed, FsError> {
        self.rename_as(from, to, &Credential::ROOT).await
    }

    pub async fn link_as(
        &self,
        file: InodeKey,
        directory: InodeKey,
        called: &str,
        who: &Credential,
    ) -> Result<Linked, FsError> {
        self.act(async |txn| self.ns.link(txn, &file, &directory, &name(called), &self.request(who)).await)
            .await
    }

    pub async fn link(&self, file: InodeKey, directory: InodeKey, called: &str) -> Result<Linked, FsError> {
        self.link_as(file, directory, called, &Credential::ROOT).await
    }

    pub async fn setattr(&self, key: InodeKey, set: SetAttr, who: &Credential) -> Result<Inode, FsError> {
        let done = self.act(async |txn| self.ns.setattr(txn, &key, &set, &self.request(who)).await).await;
        done.map(|done| done.inode)
    }

    pub async fn page(
        &self,
        directory: InodeKey,
        after: Cookie,
        limit: usize,
        attributes: bool,
    ) -> Result<DirectoryPage, FsError> {
        let read = ReadDir { directory, after, limit, attributes };
        self.read(async |txn| self.ns.readdir(txn, &read, &Credential::ROOT).await).await
    }

    /// The whole listing, page by page.
    pub async fn list(&self, directory: InodeKey, limit: usize) -> Vec<Entry> {
        let mut all: Vec<Entry> = Vec::new();
        loop {
            let after = all.last().map_or(Cookie(0), |e| e.entry.cookie);
            let page = self.page(directory, after, limit, true).await.unwrap();
            all.extend(page.entries);
            if page.eof {
                return all;
            }
        }
    }

    /// The store holds no contradiction.
    pub async fn clean(&self) -> Report {
        let report = check(&self.db.snapshot().await.unwrap()).await.unwrap();
        assert_eq!(report.problems, [], "{report:?}");
        report
    }
}

/// `width` data files of one mirror.
pub fn layout(id: u64, width: u16) -> Layout {
    let slots = (0..width)
        .map(|n| DataFile { store: StoreId(n + 1), slot: n, generation: 1, ..DataFile::default() })
        .collect();
    let component = Component {
        start: 0,
        end: u64::MAX,
        stripe_unit: 1 << 20,
        width,
        mirrors: 1,
        handed_out: false,
        slots,
    };
    Layout { id: DataFileId(id), components: vec![component], mirrors_dirty: false }
}

/// Asserts which error a result is.
#[macro_export]
macro_rules! refused {
    ($result:expr, $error:pat) => {
        match $result {
            Err($error) => {}
            other => panic!("expected {}, got {other:?}", stringify!($error)),
        }
    };
}

/// Without the stamps, which a result that was pending does not know: its `change` says it.
pub fn plain(mut inode: Inode) -> Inode {
    inode.record.stamp.0 = [0; 10];
    if let Some(state) = &mut inode.directory {
        state.stamp.0 = [0; 10];
    }
    inode
}
