//! COPY, OFFLOAD_STATUS, OFFLOAD_CANCEL, CB_OFFLOAD. RFC 7862 §15.2, §15.8, §15.9, §16.1. That the bytes arrive is
//! shown in the simulated world (conformance/tests/world/copy.rs).

use std::time::Duration;

use sluice_mds::{Config, Network, Rule, Squash};
use sluice_xdr::control::{ctl_fence_kind, ctl_stat};
use sluice_xdr::nfs4::*;

use crate::harness::*;
use crate::mirrors::{RW, devices, get, mirrored};
use crate::{exports, layout_recall};

const GIB: u64 = 1 << 30;

/// A copy as a client asks for it: ca_synchronous is false.
pub fn args(source: stateid4, target: stateid4, count: u64) -> COPY4args {
    COPY4args {
        ca_src_stateid: source,
        ca_dst_stateid: target,
        ca_src_offset: 0,
        ca_dst_offset: 0,
        ca_count: count,
        ca_consecutive: true,
        ca_synchronous: false,
        ca_source_server: Vec::new(),
    }
}

/// Two files, open for reading and writing, the first with data.
struct Scene {
    client: Client,
    source: (nfs_fh4, stateid4),
    target: (nfs_fh4, stateid4),
}

/// A file of so many bytes, written by layout.
async fn written(client: &Client, name: &str, size: u64) -> (nfs_fh4, stateid4) {
    let (fh, open) = client.open(name, BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
    fill(client, &fh, open, size).await;
    (fh, open)
}

/// Writes so many bytes by layout.
pub async fn fill(client: &Client, fh: &nfs_fh4, open: stateid4, size: u64) {
    let layout = layout_recall::get(client, fh, open).await;
    let any = layoutiomode4::LAYOUTIOMODE4_ANY;
    client.ok(vec![putfh(fh), layoutcommit(layout, size - 1), layoutreturn(layout, any)]).await;
}

impl Scene {
    async fn new(world: &World) -> Self {
        let client = world.client("a").await;
        let source = written(&client, "from", GIB).await;
        let target = client.open("to", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        Self { client, source, target }
    }

    fn args(&self, count: u64) -> COPY4args {
        args(self.source.1, self.target.1, count)
    }

    fn ops(&self, args: COPY4args) -> Vec<nfs_argop4> {
        vec![putfh(&self.source.0), savefh(), putfh(&self.target.0), nfs_argop4::OP_COPY(args)]
    }

    async fn copy(&self, args: COPY4args) -> Result<COPY4resok, nfsstat4> {
        let mut reply = self.client.compound(self.ops(args)).await;
        match reply.resarray.pop() {
            Some(nfs_resop4::OP_COPY(COPY4res::NFS4_OK(ok))) => Ok(ok),
            _ => Err(reply.status),
        }
    }

    async fn refused(&self, args: COPY4args) -> nfsstat4 {
        self.copy(args).await.unwrap_err()
    }

    /// The stateid of a copy that goes on.
    async fn begin(&self) -> stateid4 {
        let begun = self.copy(self.args(GIB)).await.unwrap();
        assert!(!begun.cr_requirements.cr_synchronous && begun.cr_requirements.cr_consecutive);
        assert_eq!(begun.cr_response.wr_count, 0);
        begun.cr_response.wr_callback_id[0]
    }

    async fn status_of(&self, client: &Client, stateid: stateid4) -> Result<(u64, Vec<nfsstat4>), nfsstat4> {
        let op = nfs_argop4::OP_OFFLOAD_STATUS(OFFLOAD_STATUS4args { osa_stateid: stateid });
        let mut reply = client.compound(vec![putfh(&self.target.0), op]).await;
        match reply.resarray.pop() {
            Some(nfs_resop4::OP_OFFLOAD_STATUS(OFFLOAD_STATUS4res::NFS4_OK(ok))) => {
                Ok((ok.osr_count, ok.osr_complete))
            }
            _ => Err(reply.status),
        }
    }

    async fn status(&self, stateid: stateid4) -> Result<(u64, Vec<nfsstat4>), nfsstat4> {
        self.status_of(&self.client, stateid).await
    }

    async fn cancel(&self, stateid: stateid4) -> nfsstat4 {
        let op = nfs_argop4::OP_OFFLOAD_CANCEL(OFFLOAD_CANCEL4args { oca_stateid: stateid });
        self.client.status(vec![putfh(&self.target.0), op]).await
    }

    async fn told(&self, world: &World) -> CB_OFFLOAD4args {
        until(&world.env, || self.client.callbacks().offloads().pop()).await
    }
}

fn synchronously(args: COPY4args) -> COPY4args {
    COPY4args { ca_synchronous: true, ..args }
}

#[test]
fn a_little_is_copied_at_once_and_durably() {
    simulate(1, async |mut world: World| {
        let scene = Scene::new(&world).await;
        let changed = scene.client.attributes("to", &[FATTR4_CHANGE]).await.change;
        let done = scene.copy(scene.args(5000)).await.unwrap();
        assert_eq!(done.cr_response.wr_callback_id, []);
        assert_eq!(
            (done.cr_response.wr_count, done.cr_response.wr_committed),
            (5000, stable_how4::FILE_SYNC4)
        );
        assert!(done.cr_requirements.cr_synchronous);
        // Linux commits after a copy that it waited for, and compares.
        let commit = nfs_argop4::OP_COMMIT(COMMIT4args { offset: 0, count: 5000 });
        match scene.client.last(vec![putfh(&scene.target.0), commit]).await {
            nfs_resop4::OP_COMMIT(COMMIT4res::NFS4_OK(ok)) => {
                assert_eq!(ok.writeverf, done.cr_response.wr_writeverf);
            }
            other => panic!("{other:?}"),
        }
        let after = scene.client.attributes("to", &[FATTR4_CHANGE, FATTR4_SIZE]).await;
        assert_eq!(after.size, Some(5000));
        assert!(after.change > changed);
        let ordered = world.data_server().transfers();
        assert_eq!(ordered.iter().map(|order| order.length).sum::<u64>(), 5000);
        assert_eq!(scene.client.callbacks().count(), 0);
    });
}

#[test]
fn who_insists_on_waiting_is_told_how_much_it_was() {
    simulate(2, async |world: World| {
        let scene = Scene::new(&world).await;
        let done = scene.copy(synchronously(scene.args(GIB))).await.unwrap();
        assert_eq!(done.cr_response.wr_count, world.config.copy_at_once);
        assert_eq!(done.cr_response.wr_callback_id, []);
    });
}

#[test]
fn what_cannot_be_copied_is_refused() {
    simulate(3, async |world: World| {
        let scene = Scene::new(&world).await;
        let ((source, from), (target, to)) = (&scene.source, &scene.target);
        let ops = |source: &nfs_fh4, target: &nfs_fh4, args| {
            vec![putfh(source), savefh(), putfh(target), nfs_argop4::OP_COPY(args)]
        };
        let client = &scene.client;
        assert_eq!(client.status(ops(source, source, args(*from, *from, 10))).await, nfsstat4::NFS4ERR_INVAL);
        client.mkdir("/", "d").await;
        let directory = client.handle("d").await;
        for (source, target) in [(source, &directory), (&directory, target)] {
            let refused = client.status(ops(source, target, args(ANONYMOUS, ANONYMOUS, 10))).await;
            assert_eq!(refused, nfsstat4::NFS4ERR_WRONG_TYPE);
        }
        let alone = client.status(vec![putfh(target), nfs_argop4::OP_COPY(scene.args(10))]).await;
        assert_eq!(alone, nfsstat4::NFS4ERR_NOFILEHANDLE);
        let beyond = COPY4args { ca_src_offset: GIB - 5, ..scene.args(6) };
        assert_eq!(scene.refused(beyond).await, nfsstat4::NFS4ERR_INVAL);
        let too_large = COPY4args { ca_dst_offset: i64::MAX as u64, ..scene.args(6) };
        assert_eq!(scene.refused(too_large).await, nfsstat4::NFS4ERR_FBIG);
        let elsewhere = COPY4args { ca_source_server: vec![netloc4::NL4_NAME("x".into())], ..scene.args(6) };
        assert_eq!(scene.refused(elsewhere).await, nfsstat4::NFS4ERR_NOTSUPP);
        // The stateids change places: each is of another file.
        assert_eq!(scene.refused(args(*to, *from, 6)).await, nfsstat4::NFS4ERR_BAD_STATEID);
        let reader = vec![putrootfh(), open_name("to", b"reader", READ, 0), getfh()];
        let (_, lesser) = opened(&client.ok(reader).await);
        assert_eq!(scene.refused(args(*from, lesser, 6)).await, nfsstat4::NFS4ERR_OPENMODE);
        // COPY_NOTIFY is what copies between servers begin with.
        let notify = nfs_argop4::OP_COPY_NOTIFY(COPY_NOTIFY4args {
            cna_src_stateid: *from,
            cna_destination_server: netloc4::NL4_NAME("x".into()),
        });
        assert_eq!(client.status(vec![putfh(source), notify]).await, nfsstat4::NFS4ERR_NOTSUPP);
    });
}

#[test]
fn a_copy_without_an_open_is_judged_by_the_modes() {
    simulate(4, async |world: World| {
        let scene = Scene::new(&world).await;
        scene.client.ok(vec![putfh(&scene.target.0), setattr(ANONYMOUS, &mode(0o666))]).await;
        let user = scene.client.over(world.connect("a").await.with_user(1000, 1000, &[]));
        user.ok(scene.ops(args(ANONYMOUS, ANONYMOUS, 10))).await;
        scene.client.ok(vec![putfh(&scene.source.0), setattr(ANONYMOUS, &mode(0o600))]).await;
        let status = user.status(scene.ops(args(ANONYMOUS, ANONYMOUS, 10))).await;
        assert_eq!(status, nfsstat4::NFS4ERR_ACCESS);
    });
}

#[test]
fn the_end_of_a_long_one_is_told() {
    simulate(5, async |mut world: World| {
        let scene = Scene::new(&world).await;
        world.data_server().hold_transfers(true);
        let stateid = scene.begin().await;
        assert_eq!(scene.status(stateid).await, Ok((0, Vec::new())));
        let other = world.client("b").await;
        let bad = Err(nfsstat4::NFS4ERR_BAD_STATEID);
        assert_eq!(scene.status_of(&other, stateid).await, bad, "it is nobody else's");
        world.data_server().hold_transfers(false);
        let told = scene.told(&world).await;
        assert_eq!((&told.coa_fh, told.coa_stateid), (&scene.target.0, stateid));
        match &told.coa_offload_info {
            offload_info4::NFS4_OK(ok) => {
                assert_eq!((ok.wr_count, ok.wr_committed), (GIB, stable_how4::FILE_SYNC4));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(scene.status(stateid).await, Ok((GIB, vec![nfsstat4::NFS4_OK])));
        assert_eq!(scene.cancel(stateid).await, nfsstat4::NFS4ERR_COMPLETE_ALREADY);
        assert_eq!(scene.client.attributes("to", &[FATTR4_SIZE]).await.size, Some(GIB));
        for _ in 0..5 {
            world.sleep(world.config.lease / 4).await;
            scene.client.ok(Vec::new()).await;
        }
        assert_eq!(scene.status(stateid).await, bad, "forgotten after a while");
        assert_eq!(scene.client.callbacks().offloads().len(), 1);
    });
}

#[test]
fn a_cancelled_one_writes_nothing_more() {
    simulate(6, async |mut world: World| {
        let scene = Scene::new(&world).await;
        let data_server = world.data_server();
        data_server.hold_transfers(true);
        let stateid = scene.begin().await;
        until(&world.env, || (!data_server.transfers().is_empty()).then_some(())).await;
        // The step under way is not over: the client is told to come again.
        assert_eq!(scene.cancel(stateid).await, nfsstat4::NFS4ERR_DELAY);
        data_server.hold_transfers(false);
        assert_eq!(scene.cancel(stateid).await, nfsstat4::NFS4_OK);
        let ordered = data_server.transfers().len();
        assert_eq!(scene.status(stateid).await, Err(nfsstat4::NFS4ERR_BAD_STATEID));
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(data_server.transfers().len(), ordered);
        assert!(data_server.transfers().iter().map(|order| order.length).sum::<u64>() < GIB);
        assert!(scene.client.callbacks().offloads().is_empty());
    });
}

#[test]
fn a_cancelled_one_is_not_over_while_an_order_is_under_way_that_was_given_up() {
    simulate(13, async |mut world: World| {
        let scene = Scene::new(&world).await;
        let data_server = world.data_server();
        data_server.hold_transfers(true);
        let stateid = scene.begin().await;
        until(&world.env, || (!data_server.transfers().is_empty()).then_some(())).await;
        // An order is given up after a minute.
        let begin = world.env.clock.now();
        while world.env.clock.now().since(begin) < Duration::from_secs(80) {
            assert_eq!(scene.cancel(stateid).await, nfsstat4::NFS4ERR_DELAY);
        }
        data_server.hold_transfers(false);
        let begin = world.env.clock.now();
        while scene.cancel(stateid).await == nfsstat4::NFS4ERR_DELAY {}
        assert!(world.env.clock.now().since(begin) < Duration::from_secs(5));
        assert_eq!(scene.status(stateid).await, Err(nfsstat4::NFS4ERR_BAD_STATEID));
    });
}

#[test]
fn a_client_has_no_more_than_so_many_under_way() {
    simulate(7, async |mut world: World| {
        let scene = Scene::new(&world).await;
        world.data_server().hold_transfers(true);
        for _ in 0..32 {
            scene.begin().await;
        }
        world.data_server().hold_transfers(false);
        let next = scene.copy(scene.args(GIB)).await.unwrap();
        assert_eq!(next.cr_response.wr_callback_id, []);
        assert_eq!(next.cr_response.wr_count, world.config.copy_at_once);
    });
}

/// A handle of before the restart cannot say whether what it does not find there is lost.
#[test]
fn what_failed_while_a_data_server_was_started_again_is_tried_again() {
    for restarted in [false, true] {
        simulate(14, async |mut world: World| {
            let scene = Scene::new(&world).await;
            let data_server = world.data_server();
            let other = world.add_data_server("ds2").await;
            data_server.set_fails(true);
            data_server.hold_transfers(true);
            let stateid = scene.begin().await;
            until(&world.env, || (!data_server.transfers().is_empty()).then_some(())).await;
            if restarted {
                other.restart(&world.env).await;
            }
            data_server.set_fails(false);
            data_server.hold_transfers(false);
            let told = scene.told(&world).await;
            assert_eq!(told.coa_stateid, stateid);
            match told.coa_offload_info {
                offload_info4::NFS4_OK(ok) => assert!(restarted && ok.wr_count == GIB),
                offload_info4::Default(status, _) => {
                    assert!(!restarted && status == nfsstat4::NFS4ERR_IO, "{status:?}");
                }
            }
        });
    }
}

/// As by who writes there. That its mirrors may differ is known, and nobody looks at it again soon.
#[test]
fn a_mirror_that_is_lost_is_left_behind_by_who_copies_to_it() {
    simulate_with(15, mirrored(), async |mut world: World| {
        let (first, second) = (world.data_server(), world.add_data_server("ds2").await);
        let there = ctl_stat { exists: true, size: GIB, ..ctl_stat::default() };
        [&first, &second].iter().for_each(|server| server.set_stat(there));
        let scene = Scene::new(&world).await;
        let before = second.asked_about().len();
        let (client, (fh, open)) = (&scene.client, &scene.target);
        fill(client, fh, *open, 4096).await;
        second.tell_of(second.asked_about().split_off(before)).await;
        let (layout, both) = get(client, fh, *open, RW).await.unwrap();
        let failed = layoutreturn_failed(layout, devices(&both)[0], nfsstat4::NFS4ERR_NXIO);
        client.ok(vec![putfh(fh), failed]).await;
        // These data servers cannot be compared: it was tried for some seconds.
        world.sleep(Duration::from_secs(20)).await;
        second.set_stat(ctl_stat::default());
        let left = || second.fences().iter().any(|fence| fence.kind == ctl_fence_kind::FENCE_GENERATION);
        assert!(!left());
        assert_eq!(scene.refused(scene.args(4096)).await, nfsstat4::NFS4ERR_DELAY);
        world.sleep(Duration::from_secs(2)).await;
        assert!(left());
        scene.copy(scene.args(4096)).await.unwrap();
    });
}

#[test]
fn a_client_that_is_gone_copies_no_more() {
    simulate(8, async |mut world: World| {
        let scene = Scene::new(&world).await;
        let data_server = world.data_server();
        data_server.hold_transfers(true);
        let stateid = scene.begin().await;
        until(&world.env, || (!data_server.transfers().is_empty()).then_some(())).await;
        // It has restarted.
        let again = world.connect("a").await.session(b"a", [2; 8], 1).await;
        let ordered = data_server.transfers().len();
        data_server.hold_transfers(false);
        world.sleep(Duration::from_secs(10)).await;
        assert!(data_server.transfers().len() <= ordered + 8, "the step that was under way");
        assert_eq!(scene.status_of(&again, stateid).await, Err(nfsstat4::NFS4ERR_BAD_STATEID));
    });
}

/// One that its owner opens again meanwhile does not: the stateid that it began with is an older one then.
#[test]
fn an_open_that_is_closed_meanwhile_ends_it() {
    for closed in [false, true] {
        simulate(9, async |mut world: World| {
            let scene = Scene::new(&world).await;
            let data_server = world.data_server();
            data_server.hold_transfers(true);
            let stateid = scene.begin().await;
            until(&world.env, || (!data_server.transfers().is_empty()).then_some(())).await;
            if closed {
                scene.client.ok(vec![putfh(&scene.source.0), close(scene.source.1)]).await;
            } else {
                for (name, open) in [("from", scene.source.1), ("to", scene.target.1)] {
                    let access = BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
                    let (_, newer) = scene.client.open(name, access, 0).await;
                    assert_eq!(newer, stateid4 { seqid: open.seqid + 1, ..open });
                }
            }
            data_server.hold_transfers(false);
            let told = scene.told(&world).await;
            assert_eq!(told.coa_stateid, stateid);
            match told.coa_offload_info {
                offload_info4::Default(nfsstat4::NFS4ERR_BAD_STATEID, copied) => {
                    assert!(closed && copied < GIB);
                }
                offload_info4::NFS4_OK(ok) => assert!(!closed && ok.wr_count == GIB),
                other => panic!("{other:?}"),
            }
        });
    }
}

/// §10.4: of the target whoever has it, of the source who may have changed it.
#[test]
fn delegations_of_others_are_recalled_first() {
    simulate(10, async |world: World| {
        let scene = Scene::new(&world).await;
        let other = world.client("b").await;
        for (name, want, recalled) in [
            ("from", READ | OPEN4_SHARE_ACCESS_WANT_READ_DELEG, false),
            ("to", READ | OPEN4_SHARE_ACCESS_WANT_READ_DELEG, true),
        ] {
            // The copier has both files open for writing: nobody is given a delegation before it closes them.
            let copier = &scene.client;
            let fh = if name == "to" { &scene.target } else { &scene.source };
            copier.ok(vec![putfh(&fh.0), close(fh.1)]).await;
            for _ in 0..12 {
                world.sleep(Duration::from_secs(5)).await;
                both(copier.ok(Vec::new()), other.ok(Vec::new())).await;
            }
            let held = other.patient(vec![putrootfh(), open_name(name, b"o", want, 0)]).await;
            let Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) = held.last() else { panic!("{held:?}") };
            let open_delegation4::OPEN_DELEGATE_READ(given) = &open.delegation else {
                panic!("{name}: {:?}", open.delegation)
            };
            let before = other.callbacks().count();
            let (_, from) = copier.open("from", READ | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
            let args = args(from, ANONYMOUS, 5000);
            let returns = async {
                if recalled {
                    until(&world.env, || (other.callbacks().count() > before).then_some(())).await;
                    assert_eq!(
                        other.status(vec![putfh(&fh.0), delegreturn(given.stateid)]).await,
                        nfsstat4::NFS4_OK
                    );
                }
            };
            both(copier.patient(scene.ops(args)), returns).await;
            assert_eq!(other.callbacks().count() > before, recalled, "{name}");
        }
    });
}

#[test]
fn both_filehandles_are_judged_by_their_exports() {
    let root = Rule { squash: Squash::None, ..Rule::new("10.0.0.3".parse::<Network>().unwrap()) };
    simulate_with(11, Config { root_export: vec![root], ..at_data_servers() }, async |world: World| {
        let admin = world.client("admin").await;
        admin.mkdir("/", "in").await;
        admin.mkdir("/", "out").await;
        let make = |name| vec![open_create(name, b"o", BOTH, 0), getfh()];
        admin.ok([walk("in"), make("f")].concat()).await;
        exports::add(&world, "/in", &[exports::read_only("0.0.0.0/0")]).await;
        exports::add(&world, "/out", &[exports::rule("0.0.0.0/0")]).await;
        let client = world.client("c").await;
        let (written, open) = opened(&client.ok([walk("out"), make("g")].concat()).await);
        let read = client.handle("in/f").await;
        let copy = |from: &nfs_fh4, to: &nfs_fh4, a, b| {
            vec![putfh(from), savefh(), putfh(to), nfs_argop4::OP_COPY(args(a, b, 0))]
        };
        client.ok(copy(&read, &written, ANONYMOUS, open)).await;
        let status = client.status(copy(&written, &read, open, ANONYMOUS)).await;
        assert_eq!(status, nfsstat4::NFS4ERR_ROFS);
        // What it was let in with before it was saved does not count.
        exports::take(&world, "/in").await;
        let status = client.status(copy(&read, &written, ANONYMOUS, open)).await;
        assert_eq!(status, nfsstat4::NFS4ERR_STALE);
    });
}

#[test]
fn an_export_that_is_taken_away_meanwhile_ends_it() {
    let root = Rule { squash: Squash::None, ..Rule::new("10.0.0.3".parse::<Network>().unwrap()) };
    simulate_with(12, Config { root_export: vec![root], ..at_data_servers() }, async |mut world: World| {
        let admin = world.client("admin").await;
        admin.mkdir("/", "in").await;
        admin.mkdir("/", "out").await;
        let make = |name| vec![open_create(name, b"o", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0), getfh()];
        let (source, open) = opened(&admin.ok([walk("in"), make("f")].concat()).await);
        fill(&admin, &source, open, GIB).await;
        admin.ok(vec![putfh(&source), close(open)]).await;
        exports::add(&world, "/in", &[exports::read_only("0.0.0.0/0")]).await;
        exports::add(&world, "/out", &[exports::rule("0.0.0.0/0")]).await;
        let client = world.client("c").await;
        let target = opened(&client.ok([walk("out"), make("g")].concat()).await);
        let scene = Scene { source: (client.handle("in/f").await, ANONYMOUS), target, client };
        let data_server = world.data_server();
        data_server.hold_transfers(true);
        let stateid = scene.begin().await;
        until(&world.env, || (!data_server.transfers().is_empty()).then_some(())).await;
        exports::take(&world, "/out").await;
        data_server.hold_transfers(false);
        let told = scene.told(&world).await;
        assert_eq!(told.coa_stateid, stateid);
        match told.coa_offload_info {
            offload_info4::Default(nfsstat4::NFS4ERR_STALE, copied) => assert!(copied < GIB),
            other => panic!("{other:?}"),
        }
    });
}

/// Of files that nobody has open, too.
#[test]
fn the_attributes_behind_it_are_those_of_after_it() {
    simulate(13, async |world: World| {
        let scene = Scene::new(&world).await;
        for (fh, open) in [&scene.source, &scene.target] {
            scene.client.ok(vec![putfh(fh), close(*open)]).await;
        }
        world.sleep(Duration::from_secs(1)).await;
        let mut ops = scene.ops(args(ANONYMOUS, ANONYMOUS, 5000));
        ops.push(getattr(&[FATTR4_SIZE]));
        assert_eq!(looked(&scene.client.last(ops).await).size, Some(5000));
    });
}

/// Its connection is lost when the copy ends.
#[test]
fn the_end_is_told_when_there_is_a_path_again() {
    simulate(14, async |mut world: World| {
        let scene = Scene::new(&world).await;
        world.data_server().hold_transfers(true);
        let stateid = scene.begin().await;
        scene.client.raw.connection.close();
        world.data_server().hold_transfers(false);
        let client = scene.client.over(world.connect("a").await);
        loop {
            world.sleep(Duration::from_secs(1)).await;
            let (_, ended) = scene.status_of(&client, stateid).await.unwrap();
            if ended == [nfsstat4::NFS4_OK] {
                break;
            }
        }
        world.sleep(Duration::from_secs(5)).await;
        assert!(client.callbacks().offloads().is_empty());
        client.raw.one(bind(client.session, channel_dir_from_client4::CDFC4_BACK_OR_BOTH)).await;
        let told = until(&world.env, || client.callbacks().offloads().pop()).await;
        assert_eq!(told.coa_stateid, stateid);
    });
}

/// Linux waits for it without an end, and asks for the status only since 6.15.
#[test]
fn the_end_is_told_however_long_there_was_no_path() {
    simulate(17, async |mut world: World| {
        let scene = Scene::new(&world).await;
        world.data_server().hold_transfers(true);
        let stateid = scene.begin().await;
        scene.client.raw.connection.close();
        world.data_server().hold_transfers(false);
        let client = scene.client.over(world.connect("a").await);
        let passes = async || {
            for _ in 0..9 {
                world.sleep(world.config.lease / 4).await;
                client.ok(Vec::new()).await;
            }
        };
        passes().await;
        assert!(client.callbacks().offloads().is_empty());
        let (_, ended) = scene.status_of(&client, stateid).await.unwrap();
        assert_eq!(ended, [nfsstat4::NFS4_OK]);
        client.raw.one(bind(client.session, channel_dir_from_client4::CDFC4_BACK_OR_BOTH)).await;
        let told = until(&world.env, || client.callbacks().offloads().pop()).await;
        assert_eq!(told.coa_stateid, stateid);
        passes().await;
        let forgotten = scene.status_of(&client, stateid).await;
        assert_eq!(forgotten, Err(nfsstat4::NFS4ERR_BAD_STATEID));
        assert_eq!(client.callbacks().offloads().len(), 1);
    });
}

/// DESTROY_SESSION, and a while later CREATE_SESSION: it is the client that was before.
#[test]
fn a_client_that_makes_a_new_session_is_not_gone() {
    simulate(15, async |mut world: World| {
        let scene = Scene::new(&world).await;
        let client = &scene.client;
        world.data_server().hold_transfers(true);
        let stateid = scene.begin().await;
        let destroyed = client.raw.compound(vec![destroy_session(client.session)]).await;
        assert_eq!(destroyed.status, nfsstat4::NFS4_OK);
        world.data_server().hold_transfers(false);
        world.sleep(Duration::from_secs(5)).await;
        let made = client.raw.create_session(client.id, 2).await;
        let CREATE_SESSION4res::NFS4_OK(made) = made else { panic!("{made:?}") };
        let client = Client::new(client.raw.clone(), client.id, made.csr_sessionid);
        client.ok(Vec::new()).await;
        let told = scene.told(&world).await;
        assert_eq!(told.coa_stateid, stateid);
        match told.coa_offload_info {
            offload_info4::NFS4_OK(ok) => assert_eq!(ok.wr_count, GIB),
            other => panic!("{other:?}"),
        }
    });
}

/// One that makes none has nobody to tell.
#[test]
fn a_client_without_a_session_for_a_lease_copies_no_more() {
    simulate(16, async |mut world: World| {
        let scene = Scene::new(&world).await;
        let (client, data_server) = (&scene.client, world.data_server());
        data_server.hold_transfers(true);
        data_server.set_fails(true);
        scene.begin().await;
        client.raw.compound(vec![destroy_session(client.session)]).await;
        data_server.hold_transfers(false);
        world.sleep(world.config.lease + Duration::from_secs(10)).await;
        let ordered = data_server.transfers().len();
        data_server.set_fails(false);
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(data_server.transfers().len(), ordered);
    });
}
