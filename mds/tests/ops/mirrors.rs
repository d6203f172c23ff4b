//! Layouts of mirrored files while a data server is away, and when it is back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sluice_kv::RunLimits;
use sluice_mds::Config;
use sluice_namespace::stable_storage::{Fence, PendingFence, put_fence};
use sluice_namespace::{DataFileId, FsError, LayoutPolicy, Shape, StoreId};
use sluice_xdr::control::{CTL_FENCES_MAX, ctl_fence_kind, ctl_health, ctl_stat};
use sluice_xdr::flexfiles::ff_layout4;
use sluice_xdr::from_bytes;
use sluice_xdr::nfs4::*;

use crate::callbacks::Answer;
use crate::copy::fill;
use crate::data_server::DataServer;
use crate::harness::*;

pub const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
pub const RO: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_READ;

/// A layout and its stateid, asked for again while the server says DELAY or RECALLCONFLICT.
pub async fn get(
    client: &Client,
    fh: &nfs_fh4,
    stateid: stateid4,
    iomode: layoutiomode4,
) -> Result<(stateid4, ff_layout4), nfsstat4> {
    for _ in 0..1200 {
        let mut reply = client.compound(vec![putfh(fh), layoutget(stateid, iomode)]).await;
        match (reply.resarray.pop(), reply.status) {
            (Some(nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok))), _) => {
                let body = from_bytes(ok.logr_layout[0].lo_content.loc_body.clone()).unwrap();
                return Ok((ok.logr_stateid, body));
            }
            (_, nfsstat4::NFS4ERR_DELAY | nfsstat4::NFS4ERR_RECALLCONFLICT) => {}
            (_, refused) => return Err(refused),
        }
        client.raw.env.clock.sleep(Duration::from_millis(100)).await;
    }
    panic!("no answer but DELAY for two minutes");
}

/// The first data server of each mirror.
pub fn devices(layout: &ff_layout4) -> Vec<deviceid4> {
    layout.ffl_mirrors.iter().map(|mirror| mirror.ffm_data_servers[0].ffds_deviceid).collect()
}

pub fn mirrored() -> Config {
    Config {
        policy: LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None },
        ..Config::default()
    }
}

/// A file of a page at two data servers.
pub async fn two_copies(world: &mut World) -> ([Arc<DataServer>; 2], Client, (nfs_fh4, stateid4)) {
    let servers = [world.data_server(), world.add_data_server("ds2").await];
    let client = world.client("a").await;
    let (fh, open) = client.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
    for server in &servers {
        server.set_stat(ctl_stat { exists: true, size: 4096, ..ctl_stat::default() });
    }
    fill(&client, &fh, open, 4096).await;
    (servers, client, (fh, open))
}

/// Linux mixes up the mirrors of what it writes at the end of a segment (ADR 0033): it has one to write with, or none. What it
/// reads has no copies to be mixed up, and where one copy is all there is, none is.
#[test]
fn mirrors_are_written_in_one_segment_or_here() {
    let of = |shape, mirrors| Config {
        policy: LayoutPolicy { shape, mirrors, inline: 0, class: None },
        ..Config::default()
    };
    let unavailable = Err(nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
    // Mirrors, stripes of a new kernel, whether an old one may write itself.
    let cases = [
        (Shape::Default, 2, 1, Ok(2)),
        (Shape::Small, 2, 1, Ok(2)),
        (Shape::Wide, 2, 3, unavailable),
        (Shape::WideAny, 2, 3, unavailable),
        (Shape::Wide, 1, 3, Ok(1)),
    ];
    for (shape, mirrors, stripes, of_old) in cases {
        simulate_with(9, of(shape, mirrors), async |mut world: World| {
            world.add_data_server("ds2").await;
            world.add_data_server("ds3").await;
            let (new, old) = (world.client("new").await, world.old_client("old").await);
            let (fh, open) = new.open("f", BOTH, 0).await;
            let (_, body) = get(&new, &fh, open, RW).await.unwrap();
            let servers: Vec<_> = body.ffl_mirrors.iter().map(|one| one.ffm_data_servers.len()).collect();
            assert_eq!(servers, vec![stripes; usize::from(mirrors)], "{shape:?}");
            let (fh, open) = old.open("f", BOTH, 0).await;
            let copies =
                |got: Result<(stateid4, ff_layout4), nfsstat4>| got.map(|(_, body)| body.ffl_mirrors.len());
            assert_eq!(copies(get(&old, &fh, open, RW).await), of_old, "{shape:?}");
            assert_eq!(copies(get(&old, &fh, open, RO).await), Ok(usize::from(mirrors)), "{shape:?}");
        });
    }
}

/// Stripes with mirrors would be written through this server by who takes none: what that one makes has one column, and everybody
/// writes it. Without mirrors it is striped as ever, for others.
#[test]
fn what_an_old_kernel_makes_with_mirrors_is_one_segment_to_everybody() {
    for (shape, mirrors, columns) in [(Shape::Wide, 2, 1), (Shape::WideAny, 2, 1), (Shape::Wide, 1, 3)] {
        let policy = LayoutPolicy { shape, mirrors, inline: 0, class: None };
        simulate_with(10, Config { policy, ..Config::default() }, async |mut world: World| {
            world.add_data_server("ds2").await;
            world.add_data_server("ds3").await;
            let (new, old) = (world.client("new").await, world.old_client("old").await);
            let (fh, open) = old.open("f", BOTH, 0).await;
            let (layout, body) = get(&old, &fh, open, RW).await.unwrap();
            assert_eq!(devices(&body).len(), usize::from(mirrors), "{shape:?}");
            old.ok(vec![putfh(&fh), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
            let (fh, open) = new.open("f", BOTH, 0).await;
            let (_, body) = get(&new, &fh, open, RW).await.unwrap();
            let servers: Vec<_> = body.ffl_mirrors.iter().map(|one| one.ffm_data_servers.len()).collect();
            assert_eq!(servers, vec![columns; usize::from(mirrors)], "{shape:?}");
        });
    }
}

#[test]
fn a_mirror_that_is_away_is_left_out_and_dies_with_its_handles() {
    simulate_with(1, mirrored(), async |mut world: World| {
        let second = world.add_data_server("ds2").await;
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        let (layout, both) = get(&client, &fh, open, RW).await.unwrap();
        assert_eq!(both.ffl_mirrors.len(), 2);
        world.net.freeze("ds2");
        // Until it is given up nobody goes on without it: it may be back in a moment.
        let asks = client.status(vec![putfh(&fh), layoutget(layout, RW)]).await;
        assert_eq!(asks, nfsstat4::NFS4_OK, "nothing is known of it yet");
        until(&world.env, || (client.callbacks().count() >= 1).then_some(())).await;
        let recall = client.callbacks().layout_recalls().remove(0);
        assert!(recall.clora_changed);
        let layoutrecall4::LAYOUTRECALL4_FILE(recalled) = recall.clora_recall else { panic!() };
        client
            .ok(vec![putfh(&fh), layoutreturn(recalled.lor_stateid, layoutiomode4::LAYOUTIOMODE4_ANY)])
            .await;
        // Reading needs no more than the one that is here.
        let (layout, one) = get(&client, &fh, open, RO).await.unwrap();
        assert_eq!(one.ffl_mirrors.len(), 1);
        // Writing without the other: whoever might read it there gives back first, this client, too.
        let first = client.status(vec![putfh(&fh), layoutget(layout, RW)]).await;
        assert_eq!(first, nfsstat4::NFS4ERR_DELAY);
        until(&world.env, || (client.callbacks().count() >= 2).then_some(())).await;
        client.ok(vec![putfh(&fh), layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
        let (layout, one) = get(&client, &fh, open, RW).await.unwrap();
        let left: Vec<_> =
            devices(&both).into_iter().filter(|device| devices(&one).contains(device)).collect();
        assert_eq!((one.ffl_mirrors.len(), left.len()), (1, 1));
        let (_, two) = get(&client, &fh, layout, RO).await.unwrap();
        assert_eq!(devices(&two), devices(&one), "readers do not go to the one that misses writes");
        // It hears that its handles are dead before it serves again.
        let fences = second.fences().len();
        world.net.thaw("ds2");
        until(&world.env, || (second.fences().len() > fences).then_some(())).await;
        let told = second.fences();
        assert!(told.iter().any(|fence| fence.kind == ctl_fence_kind::FENCE_GENERATION));
    });
}

/// These data servers cannot be compared: healing goes on for ever.
#[test]
fn writers_wait_for_a_short_heal_and_write_through_the_server_during_a_long_one() {
    simulate_with(2, mirrored(), async |mut world: World| {
        world.add_data_server("ds2").await;
        let (dies, client) = (world.client("dies").await, world.client("a").await);
        let (fh, open) = dies.open("f", BOTH, 0).await;
        get(&dies, &fh, open, RW).await.unwrap();
        world.net.crash("dies");
        let (fh, open) = client.open("f", BOTH, 0).await;
        let lives = async {
            for _ in 0..10 {
                world.sleep(Duration::from_secs(10)).await;
                client.ok(Vec::new()).await;
            }
        };
        lives.await;
        let begin = world.env.clock.now();
        let refused = get(&client, &fh, open, RW).await.unwrap_err();
        assert_eq!(refused, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
        let waited = world.env.clock.now() - begin;
        assert!(waited >= Duration::from_secs(9) && waited < Duration::from_secs(60), "{waited:?}");
        // Readers have one truth.
        let (_, one) = get(&client, &fh, open, RO).await.unwrap();
        assert_eq!(one.ffl_mirrors.len(), 1);
    });
}

/// Two data servers change places while the one that was here is asked whether it has what is relied on.
#[test]
fn nobody_is_left_behind_for_one_that_was_not_asked() {
    simulate_with(7, mirrored(), async |mut world: World| {
        let ([first, second], client, (fh, open)) = two_copies(&mut world).await;
        for server in [&first, &second] {
            server.tell_of(server.asked_about()).await;
        }
        world.sleep(Duration::from_secs(5)).await;
        world.net.freeze("ds2");
        world.sleep(Duration::from_secs(15)).await;
        // What it had is gone when it comes back.
        second.set_stat(ctl_stat::default());
        first.hold_stats(true);
        let asked = first.asked_about().len();
        let waits = client.status(vec![putfh(&fh), layoutget(open, RW)]).await;
        assert_eq!(waits, nfsstat4::NFS4ERR_DELAY);
        until(&world.env, || (first.asked_about().len() > asked).then_some(())).await;
        world.net.thaw("ds2");
        world.sleep(Duration::from_secs(5)).await;
        first.set_health(ctl_health::HEALTH_FAILING);
        world.sleep(Duration::from_secs(3)).await;
        let asked = second.asked_about().len();
        first.hold_stats(false);
        world.sleep(Duration::from_secs(5)).await;
        let fences = first.fences();
        assert!(fences.iter().all(|fence| fence.kind != ctl_fence_kind::FENCE_GENERATION), "{fences:?}");
        assert!(second.asked_about().len() > asked, "it is relied on now");
    });
}

/// Only who may write may have written to one mirror and not to another.
#[test]
fn who_may_only_read_makes_no_mirrors_differ() {
    simulate_with(6, mirrored(), async |mut world: World| {
        world.add_data_server("ds2").await;
        let (writer, reader) = (world.client("a").await, world.client("b").await);
        let (fh, open) = writer.open("f", BOTH, 0).await;
        get(&writer, &fh, open, RW).await.unwrap();
        let (fh, reads) = reader.open("f", OPEN4_SHARE_ACCESS_READ, 0).await;
        let (layout, body) = get(&reader, &fh, reads, RO).await.unwrap();
        let failed = layoutreturn_failed(layout, devices(&body)[0], nfsstat4::NFS4ERR_NXIO);
        reader.ok(vec![putfh(&fh), failed]).await;
        world.sleep(Duration::from_secs(2)).await;
        assert_eq!(writer.callbacks().count(), 0);
        // Itself it is sent to the other one for a while.
        let other = world.client("c").await;
        let (fh, open) = other.open("f", BOTH, 0).await;
        let (_, both) = get(&other, &fh, open, RO).await.unwrap();
        assert_eq!(both.ffl_mirrors.len(), 2);
    });
}

/// An order to cut what is read could come late, when others have written behind that.
#[test]
fn what_mirrors_are_made_equal_to_is_never_cut() {
    simulate_with(4, mirrored(), async |mut world: World| {
        let servers = [world.data_server(), world.add_data_server("ds2").await];
        servers.iter().for_each(|server| server.set_hollow());
        let dies = world.client("dies").await;
        let (fh, open) = dies.open("f", BOTH, 0).await;
        get(&dies, &fh, open, RW).await.unwrap();
        world.net.crash("dies");
        let client = world.client("a").await;
        let (fh, open) = client.open("f", BOTH, 0).await;
        for _ in 0..10 {
            world.sleep(Duration::from_secs(10)).await;
            client.ok(Vec::new()).await;
        }
        let (_, both) = get(&client, &fh, open, RW).await.unwrap();
        assert_eq!(both.ffl_mirrors.len(), 2, "it is healed");
        let cut: Vec<_> = servers.iter().flat_map(|server| server.cuts()).collect();
        assert!(!cut.is_empty() && cut.iter().all(|(slot, _)| *slot == 1), "{cut:?}");
    });
}

/// More than a registration carries: a fence that is heard of too late does not hold.
#[test]
fn a_data_server_hears_of_all_fences_before_it_serves() {
    simulate_with(3, mirrored(), async |mut world: World| {
        let second = world.add_data_server("ds2").await;
        world.net.freeze("ds2");
        world.sleep(Duration::from_secs(15)).await;
        let most = u64::from(CTL_FENCES_MAX) + 10;
        let rows = (0..most).map(|id| PendingFence {
            store: StoreId(2),
            id: 1 << 40 | id,
            fence: Fence::Generation { file: DataFileId(id), slot: 0, generation: 2 },
            epoch: 1,
        });
        let rows: Vec<_> = rows.collect();
        let put = world.db.run::<_, FsError, _>(RunLimits::default().idempotent(), |mut txn| {
            let rows = &rows;
            Box::pin(async move {
                rows.iter().for_each(|row| put_fence(&mut txn, row));
                Ok(())
            })
        });
        put.await.unwrap();
        world.net.thaw("ds2");
        second.registered(&world.env).await;
        let told: BTreeSet<u64> = second.fences().iter().map(|fence| fence.target.file).collect();
        assert!((0..most).all(|id| told.contains(&id)));
    });
}

/// Where it cannot be made durable it is told again before the data server serves anybody after a restart; until then it
/// is enough that the data server has it in memory.
#[test]
fn a_fence_holds_at_a_data_server_that_can_write_nothing_down() {
    simulate_with(4, at_data_servers(), async |mut world: World| {
        let data_server = world.data_server();
        let (a, b) = (world.client("a").await, world.client("b").await);
        let (fh, open) = a.open("f", BOTH, 0).await;
        get(&a, &fh, open, RW).await.unwrap();
        a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_NOMATCHING_LAYOUT)]);
        data_server.set_keeps(true);
        let (_, other) = b.open("f", BOTH, 0).await;
        b.patient(vec![putfh(&fh), setattr(other, &size(10))]).await;
        assert_eq!(b.attributes("f", &[FATTR4_SIZE]).await.size, Some(10));
        // Besides those of what an earlier incarnation of the metadata server wrote itself.
        let heard = || {
            let all = data_server.fences().into_iter();
            all.filter(|fence| fence.kind == ctl_fence_kind::FENCE_HOLDER_FILE).collect::<Vec<_>>()
        };
        let told = heard();
        assert_eq!(told.len(), 1);
        // It hears again with every registration, until it has written it down.
        world.restart().await;
        let again = heard();
        assert!(again.len() > 1 && again.iter().all(|fence| *fence == told[0]), "{again:?}");
        data_server.set_keeps(false);
        world.sleep(Duration::from_secs(20)).await;
        world.restart().await;
        let before = heard().len();
        world.restart().await;
        assert_eq!(heard().len(), before);
    });
}
