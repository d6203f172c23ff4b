//! Files that are kept in the metadata, operation by operation. RFC 8881 §5.12.4, §18.22, §18.32, §18.43;
//! RFC 7862 §15.

use std::time::Duration;

use bytes::Bytes;
use sluice_mds::Config;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;

use crate::admin::ask;
use crate::harness::*;
use crate::persistence::{comparable, request, send, send_again};

const LIMIT: u32 = 16 << 10;
const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
const READ: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_READ;
const CURRENT: stateid4 = stateid4 { seqid: 1, other: [0; 12] };
const UNAVAILABLE: nfsstat4 = nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE;

fn inline(seed: u64, test: impl AsyncFn(World)) {
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: LIMIT, class: None };
    simulate_with(seed, Config { policy, ..Config::default() }, test);
}

fn write(stateid: stateid4, offset: u64, data: &[u8]) -> nfs_argop4 {
    let (stable, data) = (stable_how4::UNSTABLE4, Bytes::copy_from_slice(data));
    nfs_argop4::OP_WRITE(WRITE4args { stateid, offset, stable, data })
}

async fn written(client: &Client, fh: &nfs_fh4, stateid: stateid4, offset: u64, data: &[u8]) -> WRITE4resok {
    match client.last(vec![putfh(fh), write(stateid, offset, data)]).await {
        nfs_resop4::OP_WRITE(WRITE4res::NFS4_OK(ok)) => ok,
        other => panic!("{other:?}"),
    }
}

async fn read(client: &Client, fh: &nfs_fh4, stateid: stateid4, offset: u64, count: u32) -> READ4resok {
    let op = nfs_argop4::OP_READ(READ4args { stateid, offset, count });
    match client.last(vec![putfh(fh), op]).await {
        nfs_resop4::OP_READ(READ4res::NFS4_OK(ok)) => ok,
        other => panic!("{other:?}"),
    }
}

async fn threshold(client: &Client, path: &str) -> Vec<threshold_item4> {
    client.attributes(path, &[FATTR4_MDSTHRESHOLD]).await.mdsthreshold.unwrap().mth_hints
}

async fn status(world: &World) -> ADMIN_STATUS_resok {
    match ask(world, ADMIN_STATUS, &()).await {
        ADMIN_STATUS_res::CTL_OK(status) => status,
        other => panic!("{other:?}"),
    }
}

async fn policy(world: &World, path: &'static str, policy: &'static str) -> Result<String, String> {
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    match ask(world, ADMIN_POLICY, &ADMIN_POLICY_args { path: path.into(), policy: policy.into() }).await {
        ADMIN_POLICY_res::CTL_OK(policy) => Ok(text(policy)),
        ADMIN_POLICY_res::Default(_, why) => Err(text(why)),
    }
}

#[test]
fn a_write_is_stable_and_read_back_and_counted_as_neither_proxied() {
    inline(1, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let before = world.mds.orders();
        let first = written(&client, &fh, open, 0, b"some bytes").await;
        assert_eq!((first.count, first.committed), (10, stable_how4::FILE_SYNC4));
        let second = written(&client, &fh, open, 20, b"more").await;
        assert_eq!(second.writeverf, first.writeverf);
        let all = read(&client, &fh, open, 0, 1 << 20).await;
        assert_eq!((all.eof, &all.data[..]), (true, &b"some bytes\0\0\0\0\0\0\0\0\0\0more"[..]));
        let part = read(&client, &fh, open, 5, 3).await;
        assert_eq!((part.eof, &part.data[..]), (false, &b"byt"[..]));
        let beyond = read(&client, &fh, open, 24, 3).await;
        assert_eq!((beyond.eof, beyond.data.len()), (true, 0));
        let found = client.attributes("f", &[FATTR4_SIZE, FATTR4_SPACE_USED]).await;
        assert_eq!((found.size, found.space_used), (Some(24), Some(512)));
        let status = status(&world).await;
        assert_eq!((status.inline_bytes_read, status.inline_bytes_written), (27, 14));
        assert_eq!((status.proxied_bytes_read, status.proxied_bytes_written), (0, 0));
        assert_eq!(world.mds.orders(), before);
    });
}

/// Files of a new file system, made as `sluice mds` makes it.
#[test]
fn as_shipped_small_files_are_inline_and_large_ones_are_not() {
    simulate_with(20, Config::default(), async |world: World| {
        assert_eq!(policy(&world, "/", "").await.unwrap(), "default,inline=32KiB");
        let client = world.client("a").await;
        client.ok(vec![putrootfh(), create(createtype4::NF4DIR, "d", &mode(0o755))]).await;
        assert_eq!(policy(&world, "/d", "").await.unwrap(), "default,inline=32KiB");
        let (fh, open) = client.open("f", BOTH, 0).await;
        let before = world.mds.orders();
        written(&client, &fh, open, 0, &[1; 32 << 10]).await;
        assert!(!threshold(&client, "f").await.is_empty());
        assert_eq!(world.mds.orders(), before);
        client.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
        client.ok(vec![putfh(&fh), setattr(open, &size((32 << 10) + 1))]).await;
        assert!(threshold(&client, "f").await.is_empty());
        // A start with another default changes nothing: it is of new file systems.
        for limit in ["off", "0"] {
            let set = format!("default,inline={limit}").leak();
            assert_eq!(policy(&world, "/", set).await.unwrap(), "default");
        }
        client.open("g", BOTH, 0).await;
        assert!(threshold(&client, "g").await.is_empty());
        assert_eq!(policy(&world, "/d", "").await.unwrap(), "default,inline=32KiB", "what was made before");
    });
}

#[test]
fn what_exists_keeps_its_policy_whatever_a_start_says() {
    simulate(21, async |mut world: World| {
        assert_eq!(policy(&world, "/", "").await.unwrap(), "default");
        world.config.policy = LayoutPolicy::OF_NEW_FILE_SYSTEMS;
        world.restart().await;
        assert_eq!(policy(&world, "/", "").await.unwrap(), "default");
    });
}

#[test]
fn a_store_with_little_room_takes_names_and_no_more_data() {
    inline(22, async |world: World| {
        let client = world.client("a").await;
        let (small, open) = client.open("small", BOTH, 0).await;
        written(&client, &small, open, 0, &[1; 100]).await;
        let (grows, open_to_grow) = client.open("grows", BOTH, 0).await;
        world.db.set_faults(sluice_kv::Faults { scarce: true, ..sluice_kv::Faults::NONE });
        world.sleep(Duration::from_secs(5)).await;
        client.open("new", BOTH, 0).await;
        assert!(threshold(&client, "new").await.is_empty(), "it is at data servers from the beginning");
        written(&client, &small, open, 50, &[3; 50]).await;
        assert!(!threshold(&client, "small").await.is_empty(), "it takes no more than before");
        // The data server of these tests keeps no data; where it was to go is what counts.
        client.status(vec![putfh(&grows), write(open_to_grow, 0, b"more")]).await;
        assert!(threshold(&client, "grows").await.is_empty());
        world.db.set_faults(sluice_kv::Faults::NONE);
        world.sleep(Duration::from_secs(5)).await;
        client.open("later", BOTH, 0).await;
        assert!(!threshold(&client, "later").await.is_empty());
    });
}

#[test]
fn reading_moves_no_time() {
    inline(12, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        written(&client, &fh, open, 0, b"some bytes").await;
        let times = [FATTR4_TIME_ACCESS, FATTR4_TIME_MODIFY, FATTR4_TIME_METADATA, FATTR4_CHANGE];
        let before = client.attributes("f", &times).await;
        world.sleep(Duration::from_secs(5)).await;
        read(&client, &fh, open, 0, 100).await;
        assert_eq!(client.attributes("f", &times).await, before);
    });
}

#[test]
fn a_write_moves_the_change_attribute_once_and_takes_set_id_bits() {
    inline(2, async |world: World| {
        let root = world.client("a").await;
        let (fh, _) = root.open("f", BOTH, 0).await;
        root.ok(vec![putfh(&fh), setattr(stateid4::default(), &mode(0o6777))]).await;
        let before = root.attributes("f", &[FATTR4_CHANGE]).await.change;
        let raw = world.connect("a2").await.with_user(7, 7, &[]);
        let user = raw.session(b"a2", [1; 8], 1).await;
        user.ok(vec![reclaim_complete(false)]).await;
        let ops = vec![putrootfh(), open_name("f", b"o", BOTH, 0), getfh()];
        let (fh, open) = opened(&user.ok(ops).await);
        written(&user, &fh, open, 0, b"x").await;
        let after = user.attributes("f", &[FATTR4_CHANGE, FATTR4_MODE]).await;
        assert!(after.change > before);
        assert_eq!(after.mode, Some(0o777));
    });
}

#[test]
fn mdsthreshold_is_told_as_long_as_the_file_is_inline() {
    inline(3, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let hints = threshold(&client, "f").await;
        assert_eq!(hints.len(), 1);
        assert_eq!(hints[0].thi_layout_type, layouttype4::LAYOUT4_FLEX_FILES);
        let wanted = [TH4_READ_SIZE, TH4_WRITE_SIZE, TH4_WRITE_IOSIZE];
        assert_eq!(hints[0].thi_hintset, bitmap4::of(&wanted));
        let values: Vec<_> =
            hints[0].thi_hintlist.chunks(8).map(|n| u64::from_be_bytes(n.try_into().unwrap())).collect();
        assert_eq!(values, [u64::from(LIMIT) + 1, u64::from(LIMIT) + 1, 1 << 20]);
        assert!(client.attributes("", &[FATTR4_SUPPORTED_ATTRS]).await.supported_attrs.unwrap().contains(68));
        client.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
        assert_eq!(threshold(&client, "f").await, []);
        assert_eq!(threshold(&client, "").await, [], "of a directory");
    });
}

#[test]
fn a_layout_to_write_with_is_given_to_who_asks_for_it_alone() {
    inline(4, async |world: World| {
        let client = world.client("a").await;
        let with_open = |name| {
            let open = open_create(name, b"o", BOTH, 0);
            vec![putrootfh(), open, getfh(), layoutget(CURRENT, RW)]
        };
        let reply = client.compound(with_open("f")).await;
        assert_eq!(reply.status, UNAVAILABLE);
        let (fh, open) = opened(&reply.resarray[..4]);
        assert_eq!(client.status(vec![putfh(&fh), layoutget(open, READ)]).await, UNAVAILABLE);
        assert!(!threshold(&client, "f").await.is_empty(), "still inline");
        let stale = stateid4 { seqid: 1, other: [9; 12] };
        assert_eq!(
            client.status(vec![putfh(&fh), layoutget(stale, READ)]).await,
            nfsstat4::NFS4ERR_BAD_STATEID
        );
        client.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
        // From now on it is a file like any other.
        client.ok(with_open("f")).await;
    });
}

#[test]
fn a_size_is_set_within_the_limit_and_beyond_it() {
    inline(5, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        written(&client, &fh, open, 0, &[7; 9000]).await;
        for bytes in [100, u64::from(LIMIT)] {
            client.ok(vec![putfh(&fh), setattr(open, &size(bytes))]).await;
        }
        let all = read(&client, &fh, open, 0, 1 << 20).await;
        assert!(all.data[..100] == [7; 100] && all.data[100..] == [0; LIMIT as usize - 100]);
        assert!(!threshold(&client, "f").await.is_empty());
        client.ok(vec![putfh(&fh), setattr(open, &size(0))]).await;
        client.ok(vec![putfh(&fh), setattr(open, &size(u64::from(LIMIT) + 1))]).await;
        assert!(threshold(&client, "f").await.is_empty());
        assert_eq!(client.attributes("f", &[FATTR4_SIZE]).await.size, Some(u64::from(LIMIT) + 1));
        // Made so large at once, it never was inline.
        let attributes = Attributes { size: Some(1 << 30), ..mode(0o644) };
        let how = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&attributes)));
        let claim = open_claim4::CLAIM_NULL("big".into());
        client.ok(vec![putrootfh(), open_with(b"o", BOTH, 0, how, claim)]).await;
        assert!(threshold(&client, "big").await.is_empty());
    });
}

#[test]
fn seek_and_read_plus_see_data_up_to_the_end() {
    inline(6, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        written(&client, &fh, open, 100, b"end").await;
        let seek =
            |sa_what, sa_offset| nfs_argop4::OP_SEEK(SEEK4args { sa_stateid: open, sa_offset, sa_what });
        for (what, offset, eof, found) in [
            (data_content4::NFS4_CONTENT_DATA, 5, false, 5),
            (data_content4::NFS4_CONTENT_HOLE, 5, true, 103),
        ] {
            match client.last(vec![putfh(&fh), seek(what, offset)]).await {
                nfs_resop4::OP_SEEK(SEEK4res::NFS4_OK(ok)) => {
                    assert_eq!((ok.sr_eof, ok.sr_offset), (eof, found))
                }
                other => panic!("{other:?}"),
            }
        }
        let past = client.status(vec![putfh(&fh), seek(data_content4::NFS4_CONTENT_DATA, 103)]).await;
        assert_eq!(past, nfsstat4::NFS4ERR_NXIO);
        for (offset, count, eof, wanted) in [(98, 4, false, &b"\0\0en"[..]), (101, 99, true, &b"nd"[..])] {
            let args = READ_PLUS4args { rpa_stateid: open, rpa_offset: offset, rpa_count: count };
            match client.last(vec![putfh(&fh), nfs_argop4::OP_READ_PLUS(args)]).await {
                nfs_resop4::OP_READ_PLUS(READ_PLUS4res::NFS4_OK(ok)) => {
                    assert_eq!(ok.rpr_eof, eof);
                    let data = data4 { d_offset: offset, d_data: Bytes::from_static(wanted) };
                    assert_eq!(ok.rpr_contents, [read_plus_content::NFS4_CONTENT_DATA(data)]);
                }
                other => panic!("{other:?}"),
            }
        }
        let args = READ_PLUS4args { rpa_stateid: open, rpa_offset: 500, rpa_count: 9 };
        match client.last(vec![putfh(&fh), nfs_argop4::OP_READ_PLUS(args)]).await {
            nfs_resop4::OP_READ_PLUS(READ_PLUS4res::NFS4_OK(ok)) => {
                assert!(ok.rpr_eof && ok.rpr_contents.is_empty());
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_small_file_is_cloned_and_copied_in_the_metadata() {
    inline(7, async |world: World| {
        let client = world.client("a").await;
        let (from, source) = client.open("from", BOTH, 0).await;
        written(&client, &from, source, 0, &[5; 6000]).await;
        let before = world.mds.orders();
        let clone = |to: &nfs_fh4, target| {
            let args = CLONE4args {
                cl_src_stateid: source,
                cl_dst_stateid: target,
                cl_src_offset: 0,
                cl_dst_offset: 0,
                cl_count: 0,
            };
            vec![putfh(&from), savefh(), putfh(to), nfs_argop4::OP_CLONE(args)]
        };
        let (to, target) = client.open("clone", BOTH, 0).await;
        client.ok(clone(&to, target)).await;
        assert_eq!(read(&client, &to, target, 0, 9999).await.data[..], [5; 6000]);
        let (to, target) = client.open("copy", BOTH, 0).await;
        let copy = COPY4args {
            ca_src_stateid: source,
            ca_dst_stateid: target,
            ca_src_offset: 1000,
            ca_dst_offset: 3,
            ca_count: 0,
            ca_consecutive: true,
            ca_synchronous: true,
            ca_source_server: Vec::new(),
        };
        let ops = vec![putfh(&from), savefh(), putfh(&to), nfs_argop4::OP_COPY(copy)];
        match client.last(ops).await {
            nfs_resop4::OP_COPY(COPY4res::NFS4_OK(ok)) => assert_eq!(ok.cr_response.wr_count, 5000),
            other => panic!("{other:?}"),
        }
        let all = read(&client, &to, target, 0, 9999).await.data;
        assert!(all[..3] == [0; 3] && all[3..] == [5; 5000]);
        assert_eq!(world.mds.orders(), before, "no data server was asked");
        assert!(!threshold(&client, "copy").await.is_empty());
    });
}

#[test]
fn a_write_waits_for_the_delegations_of_others() {
    inline(8, async |world: World| {
        let (holder, writer) = (world.client("a").await, world.client("b").await);
        let (fh, open) = writer.open("f", BOTH, 0).await;
        written(&writer, &fh, open, 0, b"old").await;
        writer.ok(vec![putfh(&fh), close(open)]).await;
        let asks = OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WANT_READ_DELEG;
        let opened = holder.ok(vec![putrootfh(), open_name("f", b"o", asks, 0)]).await;
        let nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)) = &opened[1] else { panic!("{opened:?}") };
        let open_delegation4::OPEN_DELEGATE_READ(given) = &open.delegation else { panic!("{open:?}") };
        let anonymous = stateid4::default();
        let writes = writer.patient(vec![putfh(&fh), write(anonymous, 0, b"new")]);
        let gives_back = async {
            until(&world.env, || (holder.callbacks().count() > 0).then_some(())).await;
            world.sleep(Duration::from_secs(2)).await;
            assert_eq!(read(&holder, &fh, given.stateid, 0, 9).await.data[..], *b"old");
            holder.ok(vec![putfh(&fh), delegreturn(given.stateid)]).await;
        };
        tokio::join!(writes, gives_back);
        assert_eq!(read(&holder, &fh, open.stateid, 0, 9).await.data[..], *b"new");
    });
}

#[test]
fn a_retried_write_after_a_restart_is_answered_from_its_row() {
    inline(9, async |mut world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let ops = vec![putfh(&fh), write(open, 0, b"first")];
        let request = request(&client, 1, ops);
        let first = send(&client.raw, &request).await;
        assert_eq!(first.status, nfsstat4::NFS4_OK, "{first:?}");
        written(&client, &fh, open, 0, b"later").await;
        world.restart().await;
        let again = send_again(&world, &request).await;
        assert_eq!(comparable(&again), comparable(&first));
        let client = world.client("b").await;
        let (fh, open) = loop {
            let reply = client.compound(vec![putrootfh(), open_name("f", b"o", BOTH, 0), getfh()]).await;
            if reply.status == nfsstat4::NFS4_OK {
                break opened(&reply.resarray[1..]);
            }
            assert_eq!(reply.status, nfsstat4::NFS4ERR_GRACE);
            world.sleep(Duration::from_secs(5)).await;
        };
        assert_eq!(read(&client, &fh, open, 0, 99).await.data[..], *b"later", "it was not run again");
    });
}

#[test]
fn a_policy_says_how_small_is_small() {
    simulate(10, async |world: World| {
        let client = world.client("a").await;
        client.open("plain", BOTH, 0).await;
        assert_eq!(threshold(&client, "plain").await, [], "not unless it is asked for");
        client.mkdir("", "d").await;
        assert_eq!(policy(&world, "/d", "small,inline=4KiB").await.unwrap(), "small,inline=4KiB");
        // Who does not speak of it leaves it.
        assert_eq!(policy(&world, "/d", "default,mirrors=1").await.unwrap(), "default,mirrors=1,inline=4KiB");
        client.mkdir("d", "below").await;
        let ops = vec![open_create("f", b"o", BOTH, 0), getfh()];
        client.ok(walk("d/below").into_iter().chain(ops).collect()).await;
        assert!(!threshold(&client, "d/below/f").await.is_empty());
        policy(&world, "/d/below", "wide").await.unwrap();
        client.ok(walk("d/below").into_iter().chain([open_create("g", b"o", BOTH, 0)]).collect()).await;
        assert_eq!(threshold(&client, "d/below/g").await, [], "wide files are large");
        assert_eq!(policy(&world, "/d", "default,inline=off").await.unwrap(), "default");
        assert!(policy(&world, "/d", "default,inline=1MiB").await.unwrap_err().contains("at most 64KiB"));
    });
}

/// Nobody knows yet who had it open.
#[test]
fn what_loses_its_name_in_grace_is_read_by_who_reclaims_it() {
    inline(40, async |mut world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        written(&client, &fh, open, 0, b"some bytes").await;
        drop(client);
        world.restart().await;
        let client = world.new_client("a").await;
        client.ok(vec![putrootfh(), remove("f")]).await;
        let reclaim = vec![putfh(&fh), open_previous(b"owner", BOTH, 0), getfh()];
        let (_, open) = opened(&client.ok(reclaim).await);
        client.ok(vec![reclaim_complete(false)]).await;
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(&read(&client, &fh, open, 0, 100).await.data[..], b"some bytes");
        client.ok(vec![putfh(&fh), close(open)]).await;
        world.sleep(Duration::from_secs(1)).await;
        let after = client.status(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await;
        assert_eq!(after, nfsstat4::NFS4ERR_STALE);
    });
}

#[test]
fn for_who_may_not_write_it_a_file_gets_no_data_files() {
    inline(23, async |world: World| {
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        client.ok(vec![putfh(&fh), setattr(open, &mode(0o744))]).await;
        let raw = world.connect("b").await.with_user(7, 7, &[]);
        let user = raw.session(b"b", [1; 8], 1).await;
        user.ok(vec![reclaim_complete(false)]).await;
        let larger = setattr(stateid4::default(), &size(u64::from(LIMIT) + 1));
        assert_eq!(user.status(vec![putfh(&fh), larger]).await, nfsstat4::NFS4ERR_ACCESS);
        assert!(!threshold(&client, "f").await.is_empty());
    });
}
