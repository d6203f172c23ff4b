use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;

use sluice_kv::{Database, EmbeddedOptions, FoundationOptions};
use sluice_mds::{Config, Mds};
use sluice_rpc::{ClusterKey, Keys, Limits, Server, Tcp};
use sluice_xdr::control::{ADMIN_POLICY, ADMIN_POLICY_args, ADMIN_POLICY_res};

use super::*;
use crate::reach::Admin;
use crate::store::Place;

const EMBEDDED: cli::Store = cli::Store {
    store: None,
    fdb_cluster_file: None,
    fdb_library: None,
    fdb_name: None,
    fdb_tls_certificate: None,
    fdb_tls_key: None,
    fdb_tls_ca: None,
    fdb_tls_verify_peers: None,
};

/// A metadata server, and where its things are.
struct Running {
    address: SocketAddr,
    dir: tempfile::TempDir,
    admin: Admin,
}

impl Running {
    async fn start(dir: tempfile::TempDir) -> Self {
        let env = Env::system();
        let key_file = dir.path().join("cluster.key");
        if !key_file.exists() {
            ClusterKey::generate(&env).write(&key_file).unwrap();
        }
        let key = Keys::read(&key_file).unwrap();
        let store = dir.path().join("metadata");
        std::fs::create_dir_all(&store).unwrap();
        let db = Database::open_embedded(env.clone(), &store, EmbeddedOptions::default()).unwrap();
        let mds = Mds::start(env.clone(), Arc::new(Tcp), db, Config::default()).await.unwrap();
        let server = Server::new(env.clone(), Arc::new(Tcp), Limits::default(), mds.plain_programs())
            .with_secure(key.clone(), mds.secure_programs());
        let server = Arc::new(server);
        let listener = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr();
        env.spawn.spawn(Box::pin(server.serve(listener)));
        let admin = Admin::connect(address, key).await.unwrap();
        Self { address, dir, admin }
    }

    fn reach(&self) -> cli::Reach {
        let key = Some(self.dir.path().join("cluster.key"));
        cli::Reach { data_dir: None, mds: Some(self.address.to_string()), key }
    }

    /// Sets or asks for the root's policy: something in the metadata that a command can change and see.
    async fn policy(&self, set: &str) -> String {
        let arguments = ADMIN_POLICY_args { path: "/".into(), policy: set.to_owned().into() };
        match self.admin.call(ADMIN_POLICY, &arguments).await.unwrap() {
            ADMIN_POLICY_res::CTL_OK(policy) => String::from_utf8(policy.to_vec()).unwrap(),
            ADMIN_POLICY_res::Default(_, reason) => panic!("{reason:?}"),
        }
    }
}

async fn dumped(running: &Running, name: &str) -> PathBuf {
    let file = running.dir.path().join(name);
    dump(Source::open(&running.reach(), &EMBEDDED).await.unwrap(), &file, true).await.unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dumped_from_a_server_at_work_is_loaded_and_served() {
    let old = Running::start(tempfile::tempdir().unwrap()).await;
    old.policy("wide,mirrors=2").await;
    check(Source::open(&old.reach(), &EMBEDDED).await.unwrap(), true).await.unwrap();
    let file = dumped(&old, "dump").await;
    check(Source::dump(&file).unwrap(), false).await.unwrap();
    // What comes after is not in it.
    old.policy("small").await;

    let to = tempfile::tempdir().unwrap();
    load(&file, to.path(), &EMBEDDED, false).await.unwrap();
    let at_rest = cli::Reach { data_dir: Some(to.path().to_owned()), mds: None, key: None };
    check(Source::open(&at_rest, &EMBEDDED).await.unwrap(), true).await.unwrap();
    let new = Running::start(to).await;
    assert_eq!(new.policy("").await, "wide,mirrors=2,inline=32KiB");
    check(Source::open(&new.reach(), &EMBEDDED).await.unwrap(), true).await.unwrap();
    // A file system is never loaded over another.
    let other = tempfile::tempdir().unwrap();
    load(&file, other.path(), &EMBEDDED, true).await.unwrap();
    let refused = load(&file, other.path(), &EMBEDDED, true).await.unwrap_err().to_string();
    assert!(refused.contains("holds a file system"), "{refused}");
}

/// What is in a folder, but for what is hidden.
fn names(dir: &Path) -> Vec<String> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<String> = all.filter(|name| !name.starts_with('.')).collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_dumps_are_kept_and_the_server_knows_of_them() {
    let running = Running::start(tempfile::tempdir().unwrap()).await;
    running.policy("wide,mirrors=2").await;
    assert_eq!(crate::status::last_dump(&running.admin).await.unwrap().newest, []);
    let dir = tempfile::tempdir().unwrap();
    let one_more = async |keep| {
        let source = Source::open(&running.reach(), &EMBEDDED).await.unwrap();
        dump_into(source, dir.path(), Some(keep), true).await
    };
    one_more(2).await.unwrap();
    let first = names(dir.path());
    assert_eq!(first.len(), 1);
    check(Source::dump(&dir.path().join(&first[0])).unwrap(), true).await.unwrap();
    let told = crate::status::last_dump(&running.admin).await.unwrap().newest;
    assert!(told[0].verified && told[0].rows > 0 && told[0].age_seconds < 60, "{told:?}");
    let length = std::fs::metadata(dir.path().join(&first[0])).unwrap().len();
    assert_eq!(told[0].bytes, length);
    // As if they were of other days.
    let (uuid, _) = first[0].split_once('-').unwrap();
    for day in ["20200101", "20200102", "20200103"] {
        std::fs::copy(dir.path().join(&first[0]), dir.path().join(format!("{uuid}-{day}T000000Z.dump")))
            .unwrap();
    }
    std::fs::remove_file(dir.path().join(&first[0])).unwrap();
    // What is not whole costs none of the older ones: half of a dump, dumped again.
    let whole = dumped(&running, "whole").await;
    let half = running.dir.path().join("half");
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&half, &bytes[..bytes.len() - 10]).unwrap();
    let refused = dump_into(Source::dump(&half).unwrap(), dir.path(), Some(1), true).await.unwrap_err();
    assert!(refused.to_string().contains("cut short"), "{refused}");
    assert_eq!(names(dir.path()).len(), 3);
    one_more(2).await.unwrap();
    let left = names(dir.path());
    assert_eq!((left.len(), &left[0]), (2, &format!("{uuid}-20200103T000000Z.dump")));
    let missing = dir.path().join("nowhere");
    let source = Source::open(&running.reach(), &EMBEDDED).await.unwrap();
    assert!(dump_into(source, &missing, None, true).await.is_err() && !missing.exists());
}

/// A server has few places for them, each of which is free again a minute after whoever had it went away.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_is_no_dump_that_others_wait_for() {
    let running = Running::start(tempfile::tempdir().unwrap()).await;
    let there = dumped(&running, "dump").await;
    let nowhere = running.dir.path().join("nowhere").join("dump");
    for _ in 0..5 {
        for (file, why) in [(&there, "exists already"), (&nowhere, "no folder that is there")] {
            let (file, reach) = (Some(file.clone()), running.reach());
            let dump = Meta::Dump { file, into: None, keep: None, reach, store: EMBEDDED, json: true };
            let refused = run(dump).await.unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
    }
    check(Source::open(&running.reach(), &EMBEDDED).await.unwrap(), true).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn dumps_of_one_second_have_names_of_their_own() {
    let running = Running::start(tempfile::tempdir().unwrap()).await;
    let whole = dumped(&running, "whole").await;
    let dir = tempfile::tempdir().unwrap();
    for count in 1..=4 {
        dump_into(Source::dump(&whole).unwrap(), dir.path(), None, true).await.unwrap();
        assert_eq!(names(dir.path()).len(), count);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_goes_on_where_nobody_has_been() {
    let running = Running::start(tempfile::tempdir().unwrap()).await;
    running.policy("wide,mirrors=2").await;
    let dir = running.dir.path();
    let refused = adopt(dir, &EMBEDDED, true).await.unwrap_err().to_string();
    assert!(refused.contains("a metadata server is running with") && refused.ends_with("stop it first"));
    let refused = adopt(&dir.join("elsewhere"), &EMBEDDED, true).await.unwrap_err().to_string();
    assert!(refused.contains("there is no metadata in") && !dir.join("elsewhere").exists(), "{refused}");
    // Opened, and nothing put into it.
    let empty = tempfile::tempdir().unwrap();
    drop(source::store_of(&Place::new(empty.path(), &EMBEDDED)).await.unwrap());
    let refused = adopt(empty.path(), &EMBEDDED, true).await.unwrap_err().to_string();
    assert!(refused.contains("there is no file system in"), "{refused}");

    let file = dumped(&running, "dump").await;
    let copy = tempfile::tempdir().unwrap();
    load(&file, copy.path(), &EMBEDDED, true).await.unwrap();
    adopt(copy.path(), &EMBEDDED, false).await.unwrap();
    adopt(copy.path(), &EMBEDDED, true).await.unwrap();
    let at_rest = cli::Reach { data_dir: Some(copy.path().to_owned()), mds: None, key: None };
    check(Source::open(&at_rest, &EMBEDDED).await.unwrap(), true).await.unwrap();
    let new = Running::start(copy).await;
    assert_eq!(new.policy("").await, "wide,mirrors=2,inline=32KiB");
    let status = crate::status::ask(&new.admin).await.unwrap();
    assert_eq!(status.mds_epoch, 2 + 3 * (1 << 16), "for the load, and each time");
}

/// As after a restore into a cluster that is younger than the one of the backup.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_newer_than_its_store_is_refused_in_words() {
    let running = Running::start(tempfile::tempdir().unwrap()).await;
    running.policy("wide,mirrors=2").await;
    let mut rows = Vec::new();
    let mut source = Source::open(&running.reach(), &EMBEDDED).await.unwrap();
    loop {
        match source.next().await.unwrap() {
            page if page.is_empty() => break,
            page => rows.extend(page),
        }
    }
    let younger = async |commits: u32| {
        let db = Database::memory(Env::system(), sluice_kv::Faults::NONE);
        for _ in 0..commits {
            let mut txn = db.begin();
            rows.iter().for_each(|(key, value)| txn.set(key.clone(), value.clone()));
            txn.commit().await.unwrap();
        }
        compare_versions("foundationdb:here", Source::at_rest(db, None).await.unwrap()).await
    };
    let refused = younger(1).await.unwrap_err().to_string();
    assert!(refused.starts_with("foundationdb:here: the cluster has come to version 1, and"), "{refused}");
    assert!(refused.contains("`sluice meta dump`") && refused.contains("another --fdb-name"), "{refused}");
    younger(1000).await.unwrap();
}

/// A cluster that recovers takes seconds, and hours of rows may have been read by then.
#[tokio::test(start_paused = true)]
async fn a_store_at_rest_that_is_away_for_a_while_is_waited_for() {
    let env = Env::simulated(1);
    let db = Database::memory(env.clone(), sluice_kv::Faults::NONE);
    for n in 0..20u8 {
        let mut txn = db.begin();
        txn.set(vec![0x10, n], vec![n; 60_000]);
        txn.commit().await.unwrap();
    }
    let mut source = Source::at_rest(db.clone(), None).await.unwrap();
    let mut rows = source.next().await.unwrap();
    assert!(!rows.is_empty() && rows.len() < 20);
    let away = |away| sluice_kv::Faults { away, ..sluice_kv::Faults::NONE };
    db.set_faults(away(true));
    let comes_back = async {
        env.clock.sleep(std::time::Duration::from_secs(20)).await;
        db.set_faults(away(false));
    };
    let rest = async {
        loop {
            match source.next().await.unwrap() {
                page if page.is_empty() => break,
                page => rows.extend(page),
            }
        }
    };
    tokio::join!(rest, comes_back);
    assert!(rows.iter().map(|(key, _)| key[1]).eq(0..20), "each row once");
    // What has failed for good is not waited for.
    let mut source = Source::at_rest(db.clone(), None).await.unwrap();
    db.set_faults(sluice_kv::Faults { failed: true, ..sluice_kv::Faults::NONE });
    let (begun, failed) = (env.clock.now(), source.next().await);
    assert!(failed.is_err() && env.clock.now().since(begun).as_secs() < 1);
}

/// Nothing in it contradicts anything else; it is only not all.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_server_would_begin_with_is_not_found_to_be_whole() {
    let running = Running::start(tempfile::tempdir().unwrap()).await;
    let whole = dumped(&running, "whole").await;
    let mut reader = Source::dump(&whole).unwrap();
    let rows = reader.next().await.unwrap();
    let found = async |rows: &[sluice_kv::KeyValue]| {
        let db = Database::memory(Env::system(), sluice_kv::Faults::NONE);
        let mut txn = db.begin();
        rows.iter().for_each(|(key, value)| txn.set(key.clone(), value.clone()));
        txn.commit().await.unwrap();
        let checked = check(Source::at_rest(db, None).await.unwrap(), false).await;
        checked.map_err(|error| error.to_string())
    };
    assert_eq!(found(&rows).await, Ok(()));
    let mut half = rows.clone();
    half.push((bytes::Bytes::from_static(&[4]), bytes::Bytes::from_static(&[1])));
    let words = found(&half).await.unwrap_err();
    assert!(words.contains("a load was broken off"), "{words}");
    let without: Vec<_> = rows.iter().filter(|(key, _)| **key != [1_u8][..]).cloned().collect();
    assert_eq!(without.len() + 1, rows.len());
    let words = found(&without).await.unwrap_err();
    assert!(words.contains("1 contradictions"), "{words}");
    // Nor one that has next to nothing yet.
    let begun = found(&half[half.len() - 1..]).await.unwrap_err();
    assert!(begun.contains("a load was broken off"), "{begun}");
}

/// The service runs as the owner of the data directory; who restores a dump is root.
#[tokio::test(flavor = "multi_thread")]
async fn what_root_makes_belongs_to_whom_the_data_directory_belongs_to() {
    const OWNER: u32 = 65_534;
    if !nix::unistd::geteuid().is_root() {
        say!("NOT RUN: only root may give files away");
        return;
    }
    let old = Running::start(tempfile::tempdir().unwrap()).await;
    let file = dumped(&old, "dump").await;
    let to = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(to.path(), Some(OWNER), Some(OWNER)).unwrap();
    let kept = to.path().join("cluster.key");
    std::fs::write(&kept, "").unwrap();
    // Below it, one that is not there yet.
    for (again, dir) in [("again1", to.path().to_owned()), ("again2", to.path().join("other"))] {
        load(&file, &dir, &EMBEDDED, true).await.unwrap();
        assert_eq!(of_others(&dir.join("metadata"), OWNER), Vec::<PathBuf>::new());
        assert_eq!(std::fs::metadata(&dir).unwrap().uid(), OWNER);
        let at_rest = cli::Reach { data_dir: Some(dir.clone()), mds: None, key: None };
        check(Source::open(&at_rest, &EMBEDDED).await.unwrap(), true).await.unwrap();
        let again = old.dir.path().join(again);
        dump(Source::open(&at_rest, &EMBEDDED).await.unwrap(), &again, true).await.unwrap();
        assert_eq!(of_others(&dir.join("metadata"), OWNER), Vec::<PathBuf>::new());
    }
    assert_eq!(std::fs::metadata(&kept).unwrap().uid(), 0, "what no store makes is left alone");
}

/// What is not `owner`'s, of `path` and all below it.
fn of_others(path: &Path, owner: u32) -> Vec<PathBuf> {
    let found = std::fs::symlink_metadata(path).unwrap();
    let mut others: Vec<PathBuf> = (found.uid() != owner).then(|| path.to_owned()).into_iter().collect();
    if found.is_dir() {
        let entries = std::fs::read_dir(path).unwrap();
        others.extend(entries.flat_map(|entry| of_others(&entry.unwrap().path(), owner)));
    }
    others
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_use_is_left_to_its_server() {
    let running = Running::start(tempfile::tempdir().unwrap()).await;
    let at = |dir: PathBuf| cli::Reach { data_dir: Some(dir), mds: None, key: None };
    let dir = running.dir.path();
    let busy =
        Source::open(&at(dir.to_owned()), &EMBEDDED).await.err().map(|error| format!("{error:#}")).unwrap();
    assert!(busy.starts_with("a metadata server is running"), "{busy}");
    assert!(busy.ends_with(": give --mds and --key"), "{busy}");
    let file = dumped(&running, "dump").await;
    let busy = load(&file, dir, &EMBEDDED, true).await.unwrap_err().to_string();
    assert!(busy.contains("stop it first"), "{busy}");
    assert!(
        Source::open(&at(dir.join("elsewhere")), &EMBEDDED)
            .await
            .err()
            .unwrap()
            .to_string()
            .contains("no metadata")
    );
}

/// In both directions between the stores.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a FoundationDB cluster: cargo check-all --only foundationdb"]
async fn foundation_is_loaded_and_dumped() {
    let options = FoundationOptions::of_tests()
        .expect("NOT RUN: FoundationDB: SLUICE_FDB_CLUSTER_FILE and SLUICE_FDB_LIBRARY are not set");
    drop(Database::fresh_in(Env::system(), &options).await.unwrap());
    let cluster = cli::Store {
        store: Some(cli::StoreKind::Foundationdb),
        fdb_cluster_file: options.cluster_file,
        fdb_library: options.library,
        fdb_name: Some(options.name),
        ..EMBEDDED
    };
    let old = Running::start(tempfile::tempdir().unwrap()).await;
    old.policy("wide,mirrors=2").await;
    let file = dumped(&old, "dump").await;
    let there = tempfile::tempdir().unwrap();
    load(&file, there.path(), &cluster, true).await.unwrap();
    let at = |dir: &Path| cli::Reach { data_dir: Some(dir.to_owned()), mds: None, key: None };
    check(Source::open(&at(there.path()), &cluster).await.unwrap(), true).await.unwrap();
    let refused = load(&file, there.path(), &cluster, true).await.unwrap_err().to_string();
    assert!(refused.contains("holds a file system"), "{refused}");

    let back = there.path().join("back");
    let at_rest = Source::open(&at(there.path()), &cluster).await.unwrap();
    // Longer than the cluster keeps a version: as a dump of a large file system takes.
    tokio::time::sleep(std::time::Duration::from_secs(6)).await;
    dump(at_rest, &back, true).await.unwrap();
    let here = tempfile::tempdir().unwrap();
    load(&back, here.path(), &EMBEDDED, true).await.unwrap();
    let new = Running::start(here).await;
    assert_eq!(new.policy("").await, "wide,mirrors=2,inline=32KiB");
    check(Source::open(&new.reach(), &EMBEDDED).await.unwrap(), true).await.unwrap();
}
