//! The tables that are not files.

use std::net::IpAddr;

use crate::common::*;
use crate::refused;
use sluice_env::Wall;
use sluice_kv::{KvError, Versionstamp};
use sluice_namespace::stable_storage::*;
use sluice_namespace::*;

async fn put(w: &World, op: impl FnOnce(&mut sluice_kv::Transaction)) {
    w.txn(async |t| {
        op(t);
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fenced_server_cannot_commit() {
    let w = World::new().await;
    let old = w.txn(async |t| take_epoch(t, [1; 16]).await).await.unwrap().0;
    assert_eq!(old.epoch, 1);
    assert_eq!(w.txn(async |t| take_epoch(t, [1; 16]).await).await.unwrap().0, old, "run twice");
    // A transaction that began before the takeover fails at its commit, a later one at its check.
    let mut txn = w.db.begin();
    check_epoch(&txn, &old).await.unwrap();
    let new = w.txn(async |t| take_epoch(t, [2; 16]).await).await.unwrap().0;
    assert_eq!(new.epoch, 2);
    put_server(&mut txn, &ServerRecord { grace_ended_in: 9 });
    assert_eq!(txn.commit().await.unwrap_err(), KvError::Conflict);
    refused!(w.read(async |t| check_epoch(t, &old).await).await, FsError::Fenced { ours: 1, found: 2 });
    assert!(w.read(async |t| check_epoch(t, &new).await).await.is_ok());
    assert_eq!(w.read(async |t| server(t).await).await.unwrap(), ServerRecord::default());
}

#[tokio::test(start_paused = true)]
async fn client_session_and_reply_rows() {
    let w = World::new().await;
    let record = |id| ClientRecord {
        id,
        owner: "owner".into(),
        verifier: [3; 8],
        principal: "sys:0@host".into(),
        implementation: (id % 2 == 0).then(|| Implementation {
            domain: "kernel.org".into(),
            name: "Linux 6.18".into(),
            date: Wall { seconds: 5, nanos: 6 },
        }),
        minor_version: 2,
        create_seqid: 7,
        next_session: 8,
        reclaimed_in: 9,
        revoked: true,
        broken: true,
    };
    for id in 1..=5 {
        put(&w, |t| put_client(t, &record(id))).await;
    }
    let hosts = ["::1", "10.0.0.1", "::ffff:10.0.0.2"].map(|host| host.parse::<IpAddr>().unwrap());
    for (client, host) in (1..).zip(hosts) {
        put(&w, |t| put_client_host(t, &ClientHost { client, host })).await;
    }
    let hosts_after = async |after| w.read(async |t| client_hosts(t, after, 9).await).await.unwrap();
    let last = ClientHost { client: 3, host: hosts[2].to_canonical() };
    assert_eq!(hosts_after(Some(2)).await, [last]);
    let guard = |client| ClientGuard { client, enforced: 1 << 41, allowed: u64::MAX };
    for client in 2..=3 {
        put(&w, |t| put_client_guard(t, &guard(client))).await;
    }
    put(&w, |t| clear_client(t, 3)).await;
    let guards = w.read(async |t| client_guards(t, None, 9).await).await.unwrap();
    assert_eq!(guards, [guard(2)]);
    let left: Vec<_> = hosts_after(None).await.into_iter().map(|row| row.host).collect();
    assert_eq!(left, hosts[..2]);
    let ids = async |after, n| {
        let rows = w.read(async |t| clients(t, after, n).await).await.unwrap();
        rows.into_iter().map(|c| c.id).collect::<Vec<_>>()
    };
    assert_eq!((ids(None, 3).await, ids(Some(4), 3).await), (vec![1, 2, 4], vec![5]));
    assert_eq!(w.read(async |t| client(t, 4).await).await.unwrap(), Some(record(4)));

    let channel =
        Channel { max_request: 1, max_response: 2, max_response_cached: 3, max_ops: 4, max_requests: 5 };
    let security = [
        None,
        Some(CallbackSecurity::None),
        Some(CallbackSecurity::Sys { stamp: 1, machine_name: "m".into(), uid: 2, gid: 3, gids: vec![4, 5] }),
    ];
    let mut all = Vec::new();
    for (i, callback_security) in security.into_iter().enumerate() {
        let id = [u8::try_from(i).unwrap(); 16];
        let back = Channel { max_ops: 2, ..channel };
        let session = SessionRecord {
            id,
            fore: channel,
            back,
            callback_program: 77,
            callback_security,
            persist: true,
            back_wanted: false,
        };
        put(&w, |t| put_session(t, &session)).await;
        all.push(session);
    }
    assert_eq!(w.read(async |t| sessions(t, None, 9).await).await.unwrap(), all);
    assert_eq!(w.read(async |t| sessions(t, Some(&[0; 16]), 9).await).await.unwrap(), all[1..]);

    let row = |seqid| ReplyRow {
        stamp: Versionstamp([0; 10]),
        seqid,
        op_index: 1,
        fingerprint: 99,
        results: "results".into(),
    };
    for slot in [0, 1, 256] {
        put(&w, |t| put_reply(t, &[1; 16], slot, &row(slot + 1))).await;
    }
    let (_, version) = w
        .txn(async |t| {
            put_reply(t, &[2; 16], 0, &row(5));
            Ok(())
        })
        .await
        .unwrap();
    let stored = w.read(async |t| reply(t, &[2; 16], 0).await).await.unwrap().unwrap();
    assert_eq!((stored.stamp.version(), &stored.results[..]), (version, &b"results"[..]));
    let after = async |from: Option<(&[u8; 16], u32)>| {
        let rows = w.read(async |t| replies(t, from, 3).await).await.unwrap();
        rows.into_iter().map(|(id, slot, row)| (id[0], slot, row.seqid)).collect::<Vec<_>>()
    };
    assert_eq!(after(None).await, [(1, 0, 1), (1, 1, 2), (1, 256, 257)]);
    assert_eq!(after(Some((&[1; 16], 1))).await, [(1, 256, 257), (2, 0, 5)]);
    put(&w, |t| clear_session(t, &[1; 16])).await;
    assert_eq!(after(None).await, [(2, 0, 5)]);
    assert!(w.read(async |t| reply(t, &[2; 16], 0).await).await.unwrap().is_some());
    assert!(w.read(async |t| session(t, &[1; 16]).await).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn stores_keep_their_numbers_and_their_fences() {
    let w = World::new().await;
    let register = async |uuid: u8| w.txn(async |t| store_by_uuid(t, &[uuid; 16]).await).await.unwrap().0;
    let mut first = register(1).await;
    assert_eq!((first.id, register(2).await.id, register(1).await.id), (StoreId(1), StoreId(2), StoreId(1)));
    first.addresses = vec![StoreAddress { host: "10.0.0.1".into(), port: 20_490 }];
    first.state = StoreState::Draining;
    (first.total_bytes, first.free_bytes) = (100, 50);
    for class in [None, Class::parse("archive"), None] {
        first.class = class;
        put(&w, |t| put_store(t, &first)).await;
        assert_eq!(register(1).await, first);
    }
    let ids: Vec<_> =
        w.read(async |t| stores(t, None, 9).await).await.unwrap().into_iter().map(|s| s.id.0).collect();
    assert_eq!(ids, [1, 2]);
    assert_eq!(w.read(async |t| stores(t, Some(StoreId(1)), 9).await).await.unwrap().len(), 1);

    let kinds = [
        Fence::Holder { holder: 7 },
        Fence::HolderFile { holder: 7, file: DataFileId(8) },
        Fence::Generation { file: DataFileId(8), slot: 3, generation: 4 },
    ];
    let mut rows = Vec::new();
    for (id, fence) in (1..).zip(kinds) {
        let row = PendingFence { store: StoreId(1), id, fence, epoch: u32::try_from(id).unwrap() };
        put(&w, |t| put_fence(t, &row)).await;
        put(&w, |t| put_fence(t, &PendingFence { store: StoreId(2), ..row })).await;
        rows.push(row);
    }
    let pending = async |after| w.read(async |t| fences(t, StoreId(1), after, 9).await).await.unwrap();
    assert_eq!((pending(None).await, pending(Some(2)).await), (rows.clone(), rows[2..].to_vec()));
    put(&w, |t| clear_fence(t, StoreId(1), 2)).await;
    assert_eq!(pending(None).await.len(), 2);
    let mut after = None;
    let mut retire =
        async || w.txn(async |t| retire_fences(t, StoreId(1), 3, &mut after, 1).await).await.unwrap().0;
    while !retire().await {}
    assert_eq!(pending(None).await, rows[2..]);

    let epochs = CapabilityEpochs {
        current: 5,
        oldest: 4,
        keys: vec![
            CapabilityKey { id: 1, epoch: 4, key: [9; 32] },
            CapabilityKey { id: 2, epoch: 5, key: [8; 32] },
        ],
    };
    assert_eq!(w.read(async |t| capability_epochs(t).await).await.unwrap(), None);
    put(&w, |t| put_capability_epochs(t, &epochs)).await;
    assert_eq!(w.read(async |t| capability_epochs(t).await).await.unwrap(), Some(epochs.clone()));
    assert!(!format!("{epochs:?}").contains('9'), "keys stay out of logs");
}

#[tokio::test(start_paused = true)]
async fn exports_policies_and_statistics() {
    let w = World::new().await;
    for (id, squash) in [(1, Squash::Root), (2, Squash::None), (300, Squash::All)] {
        let export = Export {
            id,
            path: "scratch".into(),
            root: InodeKey::ROOT,
            rules: vec![
                Rule::new("10.0.0.0/8".parse().unwrap()),
                Rule {
                    read_only: id == 2,
                    squash,
                    anonymous_gid: 65_533,
                    flavours: Flavours { sys: true, krb5p: true, ..Flavours::NO_ACCESS },
                    ..Rule::new("2001:db8::/32".parse().unwrap())
                },
            ],
            named: Vec::new(),
        };
        put(&w, |t| put_export(t, &export)).await;
        assert_eq!(w.read(async |t| stable_storage::export(t, id).await).await.unwrap(), Some(export));
    }
    put(&w, |t| clear_export(t, 2)).await;
    let ids: Vec<_> =
        w.read(async |t| exports(t, None, 9).await).await.unwrap().into_iter().map(|e| e.id).collect();
    assert_eq!(ids, [1, 300]);
    let wide = PolicyRow { name: "wide".into(), first: 0, stripe_unit: 1 << 20, width: 4, mirrors: 1 };
    put(&w, |t| put_policy(t, &wide)).await;
    assert_eq!(w.read(async |t| policies(t).await).await.unwrap(), [wide]);
    put(&w, |t| clear_policy(t, b"wide")).await;
    assert_eq!(w.read(async |t| policy(t, b"wide").await).await.unwrap(), None);
    for i in 0..20 {
        w.file(InodeKey::ROOT, &format!("f{i}")).await;
    }
    assert_eq!(w.read(async |t| statistic(t, Statistic::Files).await).await.unwrap(), 21);
}

#[tokio::test(start_paused = true)]
async fn numbers_are_never_handed_out_twice() {
    let w = World::new().await;
    let ids = IdAllocator::default();
    assert_eq!(ids.take(), None);
    let lease = async || w.txn(async |t| lease_block(t, Sequence::FileId, 3).await).await.unwrap().0;
    // A lease that did not commit belongs to nobody; the next one may be the same.
    let mut lost = w.db.begin();
    lease_block(&mut lost, Sequence::FileId, 3).await.unwrap();
    drop(lost);
    ids.refill(lease().await);
    ids.refill(lease().await);
    assert_eq!(ids.left(), 6);
    let taken: Vec<_> = std::iter::from_fn(|| ids.take()).collect();
    assert_eq!(taken, [16, 17, 18, 19, 20, 21]);
    assert_eq!(w.txn(async |t| lease_block(t, Sequence::Fence, 3).await).await.unwrap().0, 1..4);
}

/// Counters are always written: a scan would step over every version that a store keeps of them for others.
#[tokio::test(start_paused = true)]
async fn a_statistic_is_read_row_by_row() {
    let w = World::new().await;
    for i in 0..20 {
        w.file(InodeKey::ROOT, &format!("f{i}")).await;
    }
    // Stores that older releases made have more shards than are written now.
    let mut txn = w.db.begin();
    txn.atomic(sluice_kv::AtomicOp::Add, [0x40_u8, 1, 15].as_slice(), 100_u64.to_le_bytes());
    txn.commit().await.unwrap();
    let before = w.db.work().reads;
    assert_eq!(w.read(async |t| statistic(t, Statistic::Files).await).await.unwrap(), 121);
    assert_eq!(w.db.work().reads - before, 16, "one for each shard that there may be");
}
