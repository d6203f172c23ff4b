//! Layouts that are recalled, returned, forgotten and revoked. RFC 8881 §12.5.5, §20.3.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_mds::Config;
use sluice_state::lease::seq4_status;
use sluice_xdr::control::{ctl_fence_kind, ctl_stat};
use sluice_xdr::nfs4::*;

use crate::callbacks::Answer;
use crate::copy;
use crate::data_server::DataServer;
use crate::exports;
use crate::harness::*;

struct Scene {
    a: Client,
    b: Client,
    fh: nfs_fh4,
    /// B's.
    open: stateid4,
    /// A's.
    layout: stateid4,
}

/// A holds a read-write layout of a file that B has open.
async fn scene(world: &World) -> Scene {
    let (a, b) = (world.client("a").await, world.client("b").await);
    let (fh, mine) = a.open("f", BOTH, 0).await;
    let (_, open) = b.open("f", BOTH, 0).await;
    let layout = get(&a, &fh, mine).await;
    Scene { a, b, fh, open, layout }
}

/// A layout to read and write with.
pub async fn get(client: &Client, fh: &nfs_fh4, stateid: stateid4) -> stateid4 {
    let rw = layoutiomode4::LAYOUTIOMODE4_RW;
    match client.last(vec![putfh(fh), layoutget(stateid, rw)]).await {
        nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok)) => ok.logr_stateid,
        other => panic!("{other:?}"),
    }
}

fn truncate(scene: &Scene) -> Vec<nfs_argop4> {
    vec![putfh(&scene.fh), setattr(scene.open, &size(10))]
}

async fn recalled(world: &World, client: &Client, times: usize) {
    until(&world.env, || (client.callbacks().count() >= times).then_some(())).await;
}

async fn give_back(scene: &Scene, stateid: stateid4) {
    let any = layoutiomode4::LAYOUTIOMODE4_ANY;
    scene.a.ok(vec![putfh(&scene.fh), layoutreturn(stateid, any)]).await;
}

#[test]
fn a_truncation_by_another_client_recalls_the_layout() {
    simulate(1, async |world: World| {
        let scene = scene(&world).await;
        let returns = async {
            recalled(&world, &scene.a, 1).await;
            let asked = scene.a.callbacks().layout_recalls().remove(0);
            assert_eq!(asked.clora_type, layouttype4::LAYOUT4_FLEX_FILES);
            assert_eq!(asked.clora_iomode, layoutiomode4::LAYOUTIOMODE4_ANY);
            let layoutrecall4::LAYOUTRECALL4_FILE(file) = asked.clora_recall else { panic!() };
            assert_eq!((file.lor_fh, file.lor_offset, file.lor_length), (scene.fh.clone(), 0, u64::MAX));
            assert_eq!(file.lor_stateid.other, scene.layout.other);
            assert_eq!(file.lor_stateid.seqid, scene.layout.seqid + 1, "Linux takes no other");
            give_back(&scene, file.lor_stateid).await;
        };
        both(scene.b.patient(truncate(&scene)), returns).await;
        assert_eq!(scene.a.callbacks().count(), 1);
        assert_eq!(scene.a.attributes("f", &[FATTR4_SIZE]).await.size, Some(10));
        assert_eq!(scene.a.flags().await, 0);
    });
}

/// A host that has mounted the file system twice opens a file under two owners, and knows one layout of it by two mounts. What one of
/// them returns does not end what the other writes with.
#[test]
fn what_one_mount_of_a_host_returns_another_does_not_write_with_unseen() {
    const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
    const R: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_READ;
    // What the one asks for, and then the other, and the one again.
    for (seed, asked) in [(31, [RW, RW, RW]), (32, [RW, R, RW]), (33, [R, RW, RW]), (34, [R, R, RW])] {
        simulate(seed, async |world: World| {
            let (a, b) = (world.client("a").await, world.client("b").await);
            let of = |results: &[nfs_resop4]| opened(results);
            let open = |owner| vec![putrootfh(), open_create("f", owner, BOTH, 0), getfh()];
            let (fh, first) = of(&a.ok(open(b"first")).await);
            let (_, second) = of(&a.ok(open(b"second")).await);
            let ask = async |stateid, mode| match a.compound(vec![putfh(&fh), layoutget(stateid, mode)]).await
            {
                COMPOUND4res { status: nfsstat4::NFS4_OK, mut resarray, .. } => match resarray.pop() {
                    Some(nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(ok))) => Some(ok.logr_stateid),
                    other => panic!("{other:?}"),
                },
                // It sends its reads and writes here, for two minutes.
                reply => {
                    assert_eq!(reply.status, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
                    None
                }
            };
            let [one, other, again] = asked;
            let held = ask(first, one).await.unwrap();
            let others = ask(second, other).await;
            let wider = if again == one { Some(held) } else { ask(held, again).await };
            // Some of what it wants is elsewhere.
            let others = match others {
                Some(others) => ask(others, other).await,
                None => None,
            };
            if let Some(others) = others {
                let any = layoutiomode4::LAYOUTIOMODE4_ANY;
                a.ok(vec![putfh(&fh), layoutreturn(others, any)]).await;
            }
            a.ok(vec![putfh(&fh), close(second)]).await;
            let writes = one == RW || wider.is_some();
            let cut = vec![putrootfh(), lookup("f"), setattr(ANONYMOUS, &size(10))];
            let returns = async {
                if writes {
                    recalled(&world, &a, 1).await;
                    let stateid = stateid4 { seqid: 0, ..held };
                    a.ok(vec![putfh(&fh), layoutreturn(stateid, layoutiomode4::LAYOUTIOMODE4_ANY)]).await;
                }
            };
            both(b.patient(cut), returns).await;
            // The other one has closed it: there is nothing that it could be confused with.
            let stateid = ask(first, RW).await.unwrap();
            assert!(stateid.other != held.other || !writes);
        });
    }
}

/// A mount that holds a write delegation keeps its layout when it has closed the file.
#[test]
fn what_one_mount_keeps_with_a_delegation_no_other_is_given() {
    const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
    const R: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_READ;
    simulate(35, async |world: World| {
        let a = world.client("a").await;
        let (fh, first, held) = crate::delegation::writer(&a).await;
        let layout = get(&a, &fh, first).await;
        a.ok(vec![putfh(&fh), close(first)]).await;
        let open = open_name("f", b"second", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0);
        let (_, second) = opened(&a.ok(vec![putrootfh(), open, getfh()]).await);
        let ask = async |stateid, mode| a.status(vec![putfh(&fh), layoutget(stateid, mode)]).await;
        for mode in [R, RW] {
            assert_eq!(ask(second, mode).await, nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE);
            // The one that has it goes on, though it asks for all of it anew.
            for ours in [layout, held] {
                assert_eq!(ask(ours, mode).await, nfsstat4::NFS4_OK);
            }
        }
        let layout = stateid4 { seqid: 0, ..layout };
        let returns = layoutreturn(layout, layoutiomode4::LAYOUTIOMODE4_ANY);
        a.ok(vec![putfh(&fh), returns, delegreturn(held)]).await;
        assert_eq!(ask(second, RW).await, nfsstat4::NFS4_OK);
    });
}

/// Linux asks with OPEN, and under its delegation from then on. What of the answer it could not keep it asks for again.
#[test]
fn what_a_mount_forgot_it_is_given_again_under_the_delegation_of_the_same_open() {
    const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
    simulate(37, async |world: World| {
        let a = world.client("a").await;
        let (fh, first, held) = crate::delegation::writer(&a).await;
        for stateid in [first, held, first] {
            let asked = vec![putfh(&fh), layoutget(stateid, RW)];
            assert_eq!(a.status(asked).await, nfsstat4::NFS4_OK);
        }
    });
}

/// §18.44.3: FSID is the file system of the current filehandle, and each export is one.
#[test]
fn what_is_returned_of_one_export_is_kept_in_another() {
    simulate(36, async |world: World| {
        let (a, b) = (world.client("a").await, world.client("b").await);
        for path in ["/one", "/two"] {
            a.mkdir("/", &path[1..]).await;
            exports::add(&world, path, &[exports::rule("any")]).await;
        }
        let make = |path| {
            let access = BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG;
            [walk(path), vec![open_create("f", b"owner", access, 0), getfh()]].concat()
        };
        let (one, first) = opened(&a.ok(make("/one")).await);
        let (two, second) = opened(&a.ok(make("/two")).await);
        let held = [get(&a, &one, first).await, get(&a, &two, second).await];
        let all_of = |which| {
            nfs_argop4::OP_LAYOUTRETURN(LAYOUTRETURN4args {
                lora_reclaim: false,
                lora_layout_type: layouttype4::LAYOUT4_FLEX_FILES,
                lora_iomode: layoutiomode4::LAYOUTIOMODE4_ANY,
                lora_layoutreturn: layoutreturn4::Default(which),
            })
        };
        a.ok([walk("/one"), vec![all_of(layoutreturn_type4::LAYOUTRETURN4_FSID)]].concat()).await;
        assert_eq!(a.tested(&held).await, [nfsstat4::NFS4ERR_BAD_STATEID, nfsstat4::NFS4_OK]);
        // What it still writes with is asked for.
        let cut = [walk("/two/f"), vec![setattr(ANONYMOUS, &size(10))]].concat();
        let returns = async {
            recalled(&world, &a, 1).await;
            let asked = a.callbacks().layout_recalls().remove(0);
            let layoutrecall4::LAYOUTRECALL4_FILE(file) = asked.clora_recall else { panic!() };
            assert_eq!((&file.lor_fh, file.lor_stateid.other), (&two, held[1].other));
            a.ok([walk("/two"), vec![all_of(layoutreturn_type4::LAYOUTRETURN4_FSID)]].concat()).await;
        };
        both(b.patient(cut), returns).await;
        let held = [get(&a, &one, first).await, get(&a, &two, second).await];
        a.ok([walk("/one"), vec![all_of(layoutreturn_type4::LAYOUTRETURN4_ALL)]].concat()).await;
        assert_eq!(a.tested(&held).await, [nfsstat4::NFS4ERR_BAD_STATEID; 2]);
    });
}

/// Its own truncation needs no recall.
#[test]
fn the_holder_may_truncate() {
    simulate(2, async |world: World| {
        let scene = scene(&world).await;
        scene.a.ok(vec![putfh(&scene.fh), setattr(ANONYMOUS, &size(10))]).await;
        assert_eq!(scene.a.callbacks().count(), 0);
    });
}

#[test]
fn while_a_recall_is_pending_layoutget_conflicts() {
    simulate(3, async |world: World| {
        let scene = scene(&world).await;
        let asks = async {
            recalled(&world, &scene.a, 1).await;
            let again = layoutget(scene.layout, layoutiomode4::LAYOUTIOMODE4_RW);
            let status = scene.a.status(vec![putfh(&scene.fh), again]).await;
            assert_eq!(status, nfsstat4::NFS4ERR_RECALLCONFLICT);
            give_back(&scene, scene.layout).await;
        };
        both(scene.b.patient(truncate(&scene)), asks).await;
    });
}

#[test]
fn delay_is_asked_again_under_the_same_stateid() {
    simulate(4, async |world: World| {
        let scene = scene(&world).await;
        scene.a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_DELAY); 2]);
        let returns = async {
            recalled(&world, &scene.a, 3).await;
            give_back(&scene, scene.layout).await;
        };
        both(scene.b.patient(truncate(&scene)), returns).await;
        let seqids: Vec<u32> = scene
            .a
            .callbacks()
            .layout_recalls()
            .into_iter()
            .map(|asked| match asked.clora_recall {
                layoutrecall4::LAYOUTRECALL4_FILE(file) => file.lor_stateid.seqid,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(seqids, [scene.layout.seqid + 1; 3]);
    });
}

fn fenced(data_server: &DataServer) -> usize {
    data_server.fences().iter().filter(|f| f.kind == ctl_fence_kind::FENCE_HOLDER_FILE).count()
}

/// §12.5.5.1, the forgetful client: what it may still write is cut off before the size is settled.
#[test]
fn a_forgotten_layout_is_fenced() {
    simulate(5, async |mut world: World| {
        let data_server = world.data_server();
        let scene = scene(&world).await;
        // So long after the reply it has forgotten the layout, and not yet to hear of it.
        world.sleep(Duration::from_secs(2)).await;
        scene.a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_NOMATCHING_LAYOUT)]);
        scene.b.patient(truncate(&scene)).await;
        assert_eq!(fenced(&data_server), 1);
        assert_eq!(scene.a.flags().await, 0, "nothing was taken from it");
        world.sleep(Duration::from_secs(1)).await;
    });
}

/// §12.5.5.2: a recall that overtakes the reply to LAYOUTGET is answered the same, and means something else.
#[test]
fn a_layout_that_its_client_does_not_know_of_yet_is_not_forgotten() {
    simulate(55, async |mut world: World| {
        let data_server = world.data_server();
        let scene = scene(&world).await;
        scene.a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_NOMATCHING_LAYOUT)]);
        let returns = async {
            recalled(&world, &scene.a, 2).await;
            give_back(&scene, stateid4 { seqid: scene.layout.seqid + 1, ..scene.layout }).await;
        };
        both(scene.b.patient(truncate(&scene)), returns).await;
        assert_eq!((fenced(&data_server), scene.a.flags().await), (0, 0));
    });
}

/// Promised and not returned: revoked at the deadline, fenced, told to the client, and then forgotten, since
/// Linux frees no layout stateids.
#[test]
fn a_layout_that_does_not_come_back_is_revoked_and_fenced() {
    simulate(6, async |mut world: World| {
        let data_server = world.data_server();
        let scene = scene(&world).await;
        let start = world.env.clock.now();
        scene.b.patient(truncate(&scene)).await;
        assert!(world.env.clock.now().since(start) >= world.config.recall_timeout);
        assert_eq!(fenced(&data_server), 1);
        let revoked = seq4_status::RECALLABLE_STATE_REVOKED;
        assert_eq!(scene.a.flags().await & revoked, revoked);
        assert_eq!(scene.a.flags().await, 0, "Linux drops each layout that it has whenever it is told");
        let use_it = layoutget(scene.layout, layoutiomode4::LAYOUTIOMODE4_RW);
        let status = scene.a.status(vec![putfh(&scene.fh), use_it.clone()]).await;
        assert_eq!(status, nfsstat4::NFS4ERR_DELEG_REVOKED);
        for _ in 0..5 {
            world.sleep(Duration::from_secs(1)).await;
            scene.a.flags().await;
        }
        assert_eq!(scene.a.flags().await, 0);
        let status = scene.a.status(vec![putfh(&scene.fh), use_it]).await;
        assert_eq!(status, nfsstat4::NFS4ERR_BAD_STATEID);
    });
}

/// Nothing that conflicts is granted before every data server has heard.
#[test]
fn the_truncation_waits_for_the_fence() {
    simulate(7, async |mut world: World| {
        let data_server = world.data_server();
        let scene = scene(&world).await;
        data_server.set_stubborn(true);
        scene.a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_NOMATCHING_LAYOUT)]);
        assert_eq!(scene.b.status(truncate(&scene)).await, nfsstat4::NFS4ERR_DELAY);
        data_server.set_stubborn(false);
        scene.b.patient(truncate(&scene)).await;
        assert_eq!(fenced(&data_server), 1);
    });
}

/// Nobody would ever close it: its client was told that there is none.
#[test]
fn an_open_that_cannot_empty_its_file_is_none() {
    simulate(9, async |mut world: World| {
        let data_server = world.data_server();
        let Scene { a, b, fh, open, .. } = scene(&world).await;
        b.ok(vec![putfh(&fh), close(open)]).await;
        data_server.set_stubborn(true);
        a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_NOMATCHING_LAYOUT)]);
        let how = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&size(0))));
        let empties = open_with(b"o", READ, 0, how, open_claim4::CLAIM_NULL("f".into()));
        let emptying = vec![putrootfh(), empties, getfh()];
        assert_eq!(b.status(emptying.clone()).await, nfsstat4::NFS4ERR_DELAY);
        data_server.set_stubborn(false);
        // Its own open would be in the way, too.
        let own = a.patient(vec![putfh(&fh), open_fh(b"owner", BOTH, 0), getfh()]).await;
        a.ok(vec![putfh(&fh), close(opened(&own).1)]).await;
        let alone = vec![putfh(&fh), open_fh(b"owner", BOTH, OPEN4_SHARE_DENY_READ), getfh()];
        let (_, alone) = opened(&a.patient(alone).await);
        a.ok(vec![putfh(&fh), close(alone)]).await;
        opened(&b.patient(emptying).await);
    });
}

/// What was there before somebody looked is seen, though it is settled while it is being looked at.
#[test]
fn what_is_settled_behind_a_look_is_seen() {
    for late in 0..60_u64 {
        simulate(12, async |mut world: World| {
            let data_server = world.data_server();
            let (a, b) = (world.client("a").await, world.client("b").await);
            let (fh, open) = a.open("f", BOTH, 0).await;
            get(&a, &fh, open).await;
            a.ok(vec![putfh(&fh), close(open)]).await;
            data_server.set_stat(ctl_stat {
                exists: true,
                size: 100,
                allocated_bytes: 4096,
                last_write: 1,
                writes: 1,
            });
            a.callbacks().script(&[Answer::Status(nfsstat4::NFS4ERR_NOMATCHING_LAYOUT)]);
            world.sleep(Duration::from_secs(2)).await;
            world.db.set_faults(Faults { latency: Duration::from_millis(10), ..Faults::NONE });
            let looks = async {
                world.sleep(Duration::from_millis(2) * u32::try_from(late).unwrap()).await;
                looked(&b.patient(vec![putfh(&fh), getattr(&[FATTR4_SIZE])]).await[1]).size
            };
            let sets = b.patient(vec![putfh(&fh), setattr(ANONYMOUS, &mode(0o4755))]);
            let (_, seen) = both(sets, looks).await;
            assert_eq!(seen, Some(100), "after {late}");
        });
    }
}

/// Linux that lets its writes end commits those that have ended when it is asked, and returns the layout when all are committed.
#[test]
fn who_promised_to_return_a_layout_is_asked_until_it_does() {
    simulate(38, async |world: World| {
        let scene = scene(&world).await;
        // It has taken the seqid of the recall for the latest.
        let old = Answer::Status(nfsstat4::NFS4ERR_OLD_STATEID);
        scene.a.callbacks().script(&[Answer::Status(nfsstat4::NFS4_OK), old, old]);
        let start = world.env.clock.now();
        let returns = async {
            recalled(&world, &scene.a, 3).await;
            give_back(&scene, stateid4 { seqid: scene.layout.seqid + 1, ..scene.layout }).await;
        };
        both(scene.b.patient(truncate(&scene)), returns).await;
        let took = world.env.clock.now().since(start);
        assert!((Duration::from_secs(2)..Duration::from_secs(3)).contains(&took), "{took:?}");
        let asked = scene.a.callbacks().layout_recalls();
        assert!(asked.len() == 3 && asked.iter().all(|recall| recall == &asked[0]), "{asked:?}");
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!((scene.a.callbacks().count(), scene.a.flags().await), (3, 0));
    });
}

/// Linux throws the reply to a LAYOUTGET away if whoever waited for it was killed, and knows of no seqid then that others name.
#[test]
fn a_client_that_missed_a_grant_is_told_of_the_call_that_it_was_for() {
    simulate(39, async |world: World| {
        let scene = scene(&world).await;
        scene.a.callbacks().knows(scene.layout.seqid);
        assert_eq!(get(&scene.a, &scene.fh, scene.layout).await.seqid, scene.layout.seqid + 1);
        let start = world.env.clock.now();
        let returns = async {
            let taken = until(&world.env, || scene.a.callbacks().taken()).await;
            assert_eq!(taken.lor_stateid.seqid, scene.layout.seqid + 2);
            give_back(&scene, taken.lor_stateid).await;
        };
        both(scene.b.patient(truncate(&scene)), returns).await;
        assert!(world.env.clock.now().since(start) < Duration::from_secs(2));
        let received = scene.a.callbacks().received();
        let [list] = &received[0].sequence.csa_referring_call_lists[..] else { panic!("{received:?}") };
        let [last, first] = &list.rcl_referring_calls[..] else { panic!("{list:?}") };
        assert_eq!((list.rcl_sessionid, last.rc_slotid, first.rc_slotid), (scene.a.session, 0, 0));
        assert_eq!(last.rc_sequenceid, first.rc_sequenceid + 1);
        assert_eq!((received.len(), scene.a.flags().await), (1, 0));
    });
}

/// A client that is gone leaves its layouts behind: fenced when somebody is in need.
#[test]
fn an_expired_client_is_fenced_when_it_is_in_the_way() {
    simulate(8, async |mut world: World| {
        let data_server = world.data_server();
        let scene = scene(&world).await;
        scene.a.raw.connection.close();
        for _ in 0..7 {
            world.sleep(Duration::from_secs(10)).await;
            scene.b.ok(Vec::new()).await;
        }
        assert_eq!(fenced(&data_server), 0, "courteous");
        let start = world.env.clock.now();
        scene.b.patient(truncate(&scene)).await;
        assert!(world.env.clock.now().since(start) < Duration::from_secs(3));
        assert_eq!(fenced(&data_server), 1);
    });
}

/// A server that starts anew asks the data servers about files that have a row: a layout without one would be forgotten.
#[test]
fn a_layout_has_its_row_though_nobody_knows_what_became_of_the_last_one() {
    simulate(9, async |world: World| {
        let scene = scene(&world).await;
        let rows = async || {
            let txn = world.db.begin();
            let namespace = sluice_namespace::Namespace::load(&txn).await.unwrap().unwrap();
            namespace.read_write_files(&txn, None, 10).await.unwrap().len()
        };
        assert_eq!(rows().await, 1);
        give_back(&scene, scene.layout).await;
        world.db.set_faults(Faults { unknown_applied: 1.0, ..Faults::NONE });
        while rows().await > 0 {
            world.sleep(Duration::from_millis(5)).await;
        }
        world.db.set_faults(Faults::NONE);
        get(&scene.b, &scene.fh, scene.open).await;
        assert_eq!(rows().await, 1);
    });
}

/// The next one to open the file would take it for one that nobody knows the end of.
#[test]
fn a_layout_that_is_refused_leaves_no_row() {
    simulate(10, async |world: World| {
        let client = world.client("a").await;
        let rows = async || {
            let txn = world.db.begin();
            let namespace = sluice_namespace::Namespace::load(&txn).await.unwrap().unwrap();
            namespace.read_write_files(&txn, None, 10).await.unwrap().len()
        };
        let small = |open| {
            let nfs_argop4::OP_LAYOUTGET(asked) = layoutget(open, layoutiomode4::LAYOUTIOMODE4_RW) else {
                panic!()
            };
            nfs_argop4::OP_LAYOUTGET(LAYOUTGET4args { loga_maxcount: 8, ..asked })
        };
        let (fh, open) = client.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        let before = client.attributes("f", &[FATTR4_CHANGE]).await.change;
        let refused = client.status(vec![putfh(&fh), small(open)]).await;
        assert_eq!(refused, nfsstat4::NFS4ERR_TOOSMALL);
        client.ok(vec![putfh(&fh), close(open)]).await;
        world.sleep(Duration::from_secs(40)).await;
        assert_eq!(rows().await, 0);
        let again = vec![putrootfh(), open_name("f", b"o", READ | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0)];
        client.ok(again).await;
        assert_eq!(client.attributes("f", &[FATTR4_CHANGE]).await.change, before);
        // It stays while somebody else has one.
        let (_, open) = client.open("f", BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG, 0).await;
        client.ok(vec![putfh(&fh), layoutget(open, layoutiomode4::LAYOUTIOMODE4_RW)]).await;
        assert_eq!(client.status(vec![putfh(&fh), small(open)]).await, nfsstat4::NFS4ERR_TOOSMALL);
        world.sleep(Duration::from_secs(5)).await;
        assert_eq!(rows().await, 1);
    });
}

/// Its files could not be looked up when its data server fell silent.
#[test]
fn what_a_lost_data_server_had_is_recalled_as_soon_as_it_is_known() {
    simulate(9, async |world: World| {
        let scene = scene(&world).await;
        world.db.set_faults(Faults { unavailable: 1.0, ..Faults::NONE });
        world.net.freeze("ds1");
        world.sleep(Duration::from_secs(15)).await;
        assert_eq!(scene.a.callbacks().count(), 0);
        world.db.set_faults(Faults::NONE);
        recalled(&world, &scene.a, 1).await;
        assert!(scene.a.callbacks().layout_recalls()[0].clora_changed);
    });
}

/// A server that may not have its store any more sends its data servers away: that they are not heard of is no loss.
#[test]
fn while_the_store_is_away_no_data_server_is_lost() {
    for seconds in [3, 4, 5, 10, 30] {
        simulate(10, async |world: World| {
            let scene = scene(&world).await;
            world.db.set_faults(Faults { away: true, ..Faults::NONE });
            world.sleep(Duration::from_secs(seconds)).await;
            // They come back when they try again, in some seconds.
            world.net.freeze("ds1");
            world.db.set_faults(Faults::NONE);
            world.sleep(Duration::from_secs(2)).await;
            world.net.thaw("ds1");
            world.sleep(Duration::from_secs(10)).await;
            assert_eq!(scene.a.callbacks().count(), 0, "after {seconds} s");
            world.net.freeze("ds1");
            recalled(&world, &scene.a, 1).await;
        });
    }
}

/// As fast as the client answers, not in steps of some pause.
#[test]
fn many_recalls_take_turns_without_a_pause() {
    simulate(11, async |world: World| {
        const MANY: usize = 640;
        let a = world.client("a").await;
        for n in 0..MANY {
            let (fh, open) = a.open(&format!("f{n}"), BOTH, 0).await;
            get(&a, &fh, open).await;
        }
        world.net.freeze("ds1");
        recalled(&world, &a, 1).await;
        let start = world.env.clock.now();
        recalled(&world, &a, MANY).await;
        let took = world.env.clock.now().since(start);
        // With 16 at a time these are forty rounds.
        assert!(took < Duration::from_millis(500), "{took:?}");
    });
}

/// A host that loses its power takes all its data servers along: what the last one has is taken back as soon as what the
/// first one has.
#[test]
fn data_servers_that_are_lost_at_once_are_not_lost_one_after_the_other() {
    simulate(12, async |mut world: World| {
        const MANY: usize = 640;
        world.add_data_server("ds2").await;
        let a = world.client("a").await;
        for n in 0..MANY {
            let (fh, open) = a.open(&format!("f{n}"), BOTH, 0).await;
            get(&a, &fh, open).await;
        }
        world.db.set_faults(Faults { latency: Duration::from_millis(20), ..Faults::NONE });
        world.net.freeze("ds1");
        world.net.freeze("ds2");
        recalled(&world, &a, 1).await;
        let start = world.env.clock.now();
        // It returns none of them, and is asked for the first ones again meanwhile.
        let files = || {
            a.callbacks().layout_recalls().into_iter().map(|asked| match asked.clora_recall {
                layoutrecall4::LAYOUTRECALL4_FILE(file) => file.lor_fh.0,
                other => panic!("{other:?}"),
            })
        };
        let all = || files().collect::<std::collections::BTreeSet<_>>().len() == MANY;
        until(&world.env, || all().then_some(())).await;
        let took = world.env.clock.now().since(start);
        // Read one by one these are 13 s for the first one alone.
        assert!(took < Duration::from_secs(3), "{took:?}");
    });
}

/// A COMPOUND that was under way when a layout was revoked does not tell of it, whenever it ends.
#[test]
fn a_revocation_is_told_by_what_begins_after_it() {
    let config = Config { recall_timeout: Duration::from_secs(5), ..at_data_servers() };
    simulate_with(21, config, async |mut world: World| {
        let data_server = world.data_server();
        let scene = scene(&world).await;
        let (from, reads) = scene.a.open("from", BOTH, 0).await;
        let (to, writes) = scene.a.open("to", BOTH, 0).await;
        copy::fill(&scene.a, &from, reads, 1 << 20).await;
        let waits = COPY4args { ca_synchronous: true, ..copy::args(reads, writes, 5000) };
        let waits = vec![putfh(&from), savefh(), putfh(&to), nfs_argop4::OP_COPY(waits)];
        data_server.hold_transfers(true);
        let revoked = async {
            world.sleep(Duration::from_secs(1)).await;
            scene.b.patient(truncate(&scene)).await;
            world.sleep(Duration::from_secs(3)).await;
            data_server.hold_transfers(false);
        };
        both(scene.a.ok(waits), revoked).await;
        let told = seq4_status::RECALLABLE_STATE_REVOKED;
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(scene.a.flags().await, told);
        world.sleep(Duration::from_secs(3)).await;
        assert_eq!(scene.a.flags().await, 0);
    });
}
