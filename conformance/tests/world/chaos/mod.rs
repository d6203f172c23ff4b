//! Everything at once: several hosts change names, read and write while the network, the disks, the store and the
//! servers fail. A seed is a world, and fails the same way again: `SLUICE_CHAOS_SEED=N`. `SLUICE_CHAOS_SEEDS=10000`
//! runs the first so many, or those after `SLUICE_CHAOS_FIRST=N`. `SLUICE_CHAOS_TRACE=1` tells what happens.
//!
//! | module | what |
//! | --- | --- |
//! | `host` | a client as Linux is one: replays, reclaims, opens anew, obeys recalls |
//! | `work` | changes of names that all hosts share |
//! | `io` | blocks of files, read and written directly and not, under a lock and not |
//! | `further` | copies, and what is remembered under delegations |
//! | `mine` | a file of its own for each host, which grows behind a write delegation |
//! | `space` | room set aside and given back, holes |
//! | `faults` | what goes wrong, and for how long |
//! | `upkeep` | what operators do meanwhile, and what is lost where there are two of it |
//! | `compared` | what a comparison of mirrors finds in the end |
//! | `model` | whether a file system could have answered so |

mod compared;
mod faults;
mod further;
mod host;
mod io;
mod mine;
mod model;
mod space;
mod upkeep;
mod work;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sluice_conformance::client::ops;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_rpc::SimConfig;
use sluice_xdr::nfs4::*;
use tokio::task::JoinSet;

use crate::stage::{World, simulate_on};
use host::{BOTH, Habits, Host, Shared};
use io::{BLOCKS, FILES, Io};
use work::{NAMES, Namer};

/// Seeds that run with the tests; more by `SLUICE_CHAOS_SEEDS`.
const SEEDS: u64 = 8;
/// Seeds that one process runs.
const ONE_PROCESS: u64 = 500;
const LEASE: Duration = Duration::from_secs(20);
const STEPS: (u64, u64, u64) = (40, 40, 40);
/// Once nothing fails any more everybody is done sooner.
const PATIENCE: Duration = Duration::from_secs(600);

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What is drawn before the world is made.
fn policy(seed: u64) -> LayoutPolicy {
    let shape = [Shape::Default, Shape::Small, Shape::Wide, Shape::WideAny][(seed / 2 % 4) as usize];
    let shipped = LayoutPolicy::OF_NEW_FILE_SYSTEMS.inline;
    // What is written together stays small for a while; and half of the others are as a new file system is.
    let inline = match (habits(seed).together, seed / 3 % 2) {
        (true, _) => 16 << 10,
        (false, 0) => shipped,
        (false, _) => 0,
    };
    LayoutPolicy { shape, mirrors: 1 + (seed % 2) as u8, inline, class: None }
}

fn habits(seed: u64) -> Habits {
    Habits { together: seed % 5 == 3, brief: seed % 3 == 1 }
}

#[test]
fn whatever_fails_nothing_is_lost_and_nothing_done_twice() {
    if sluice_kv::FoundationOptions::of_tests().is_some() {
        // Its faults are those of the memory.
        return;
    }
    let seeds = match variable("SLUICE_CHAOS_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = variable("SLUICE_CHAOS_FIRST").unwrap_or(0);
            first..first + variable("SLUICE_CHAOS_SEEDS").unwrap_or(SEEDS)
        }
    };
    if seeds.end - seeds.start > ONE_PROCESS {
        return in_processes(seeds);
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let failed: Vec<u64> = std::thread::scope(|threads| {
        let lanes: Vec<_> = (0..workers)
            .map(|lane| {
                let seeds = seeds.clone();
                let mine = move |seed: &u64| seed % workers == lane;
                threads
                    .spawn(move || seeds.filter(mine).filter(|seed| !run(*seed, true)).collect::<Vec<u64>>())
            })
            .collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    assert!(
        failed.is_empty(),
        "seeds {failed:?}; again: SLUICE_CHAOS_SEED={} cargo test -p sluice-conformance-tests --test world whatever_fails",
        failed[0]
    );
}

/// A world that has ended leaves some megabytes behind: servers and their tasks hold each other.
fn in_processes(seeds: Range<u64>) {
    let step = usize::try_from(ONE_PROCESS).unwrap();
    let failed: Vec<String> = seeds
        .clone()
        .step_by(step)
        .filter_map(|first| {
            let count = ONE_PROCESS.min(seeds.end - first);
            let mut part = Command::new(std::env::current_exe().unwrap());
            part.args(["whatever_fails", "--nocapture"]);
            part.env("SLUICE_CHAOS_FIRST", first.to_string()).env("SLUICE_CHAOS_SEEDS", count.to_string());
            (!part.status().unwrap().success()).then(|| format!("{first} to {}", first + count - 1))
        })
        .collect();
    assert!(failed.is_empty(), "of the seeds {failed:?} some failed: each has a line above");
}

/// Whether all went well; if not, the panic says what. `honest`: what data servers flush is flushed.
fn run(seed: u64, honest: bool) -> bool {
    if std::env::var_os("SLUICE_CHAOS_TRACE").is_some() {
        // The servers' words between those of the hosts.
        drop(tracing_subscriber::fmt().with_env_filter("info").with_writer(std::io::stderr).try_init());
    }
    // Milliseconds, and bytes that are on their way at a time: most messages are longer than a thousand.
    let (slow, buffer) =
        [(2, 256 << 10), (2, 1000), (20, 256 << 10), (120, 256 << 10)][(seed / 8 % 4) as usize];
    let network = SimConfig { latency_max: Duration::from_millis(slow), buffer, ..SimConfig::default() };
    let world = || {
        simulate_on(
            seed,
            network,
            |config| {
                config.policy = policy(seed);
                config.lease = LEASE;
                config.recall_timeout = Duration::from_secs(8);
                config.rebuild_after = Duration::ZERO;
            },
            async |world| {
                if seed % 7 == 2 {
                    crate::rot::with_checksums(world).await;
                }
                if seed % 4 == 1 {
                    with_standby(world).await;
                }
                (0..4).for_each(|n| world.device(n).lie(!honest));
                live(world, seed).await;
            },
        )
    };
    let lived = catch_unwind(AssertUnwindSafe(world)).is_ok();
    if !lived {
        tell(seed);
    }
    lived
}

/// There are two metadata servers from now on, of which one has the store.
async fn with_standby(world: &mut World) {
    world.standby = true;
    for n in 0..4 {
        world.stop_data_server(n).await;
        world.start_data_server(n).await;
    }
}

/// Before the others are through, which may take hours.
#[allow(clippy::print_stderr, reason = "a test's output")]
fn tell(seed: u64) {
    eprintln!("SLUICE_CHAOS_SEED={seed} failed");
}

/// Data servers that acknowledge what they have not flushed: the same test finds it.
#[test]
fn whoever_lies_about_a_flush_is_found() {
    if sluice_kv::FoundationOptions::of_tests().is_none() {
        assert!((0..40).any(|seed| !run(seed, false)), "forty worlds, and nobody noticed");
    }
}

/// Everything that the hosts share.
async fn furnish(host: &Host) {
    let mode = Attributes { mode: Some(0o755), ..Attributes::default() };
    let mut dirs = Vec::new();
    for name in ["names0", "names1"] {
        let make = ops::create(createtype4::NF4DIR, name.as_bytes(), &mode).unwrap();
        let made = host.ask(vec![ops::putrootfh(), make, ops::getfh()]).await;
        match made.results.last() {
            Some(nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(found))) => dirs.push(found.object.clone()),
            other => panic!("{other:?}"),
        }
    }
    *host.shared.dirs.lock() = dirs.try_into().unwrap();
    for file in 0..FILES {
        let how = createhow4::GUARDED4(crate::client::attributes(&mode));
        let claim = open_claim4::CLAIM_NULL(crate::client::text(&format!("file{file}")));
        let open = host::open(&host.name, BOTH, claim, openflag4::OPEN4_CREATE(how));
        let made = host.ask(vec![ops::putrootfh(), open, ops::getfh()]).await;
        match &made.results[..] {
            [
                _,
                nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open)),
                nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(found)),
            ] => {
                host.shared.files.lock().push(found.object.clone());
                host.ask(vec![ops::putfh(&found.object), ops::close(open.stateid)]).await;
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn live(world: &mut World, seed: u64) {
    let shared = Shared::new(world.env.clone(), world.mds, LEASE, habits(seed));
    let count = 2 + seed % 3;
    let mut hosts = Vec::new();
    for n in 0..count {
        let kernel = if (seed + n).is_multiple_of(3) { crate::OLD } else { crate::NEW };
        hosts.push(Host::mount(world, &shared, &format!("host{n}"), kernel).await);
    }
    furnish(&hosts[0]).await;
    let mut workers = JoinSet::new();
    for (n, host) in hosts.iter().enumerate() {
        let mut namer = Namer::new(Arc::clone(host));
        workers.spawn(async move {
            for _ in 0..STEPS.0 {
                namer.step().await;
                namer.host.idle().await;
            }
            namer.host.doing(0, "");
        });
        let own = Arc::clone(host);
        workers.spawn(async move {
            for _ in 0..STEPS.2 {
                own.mind().await;
                own.idle().await;
            }
            own.hand_back().await;
            own.doing(2, "");
        });
        let mut io = Io { host: Arc::clone(host), who: (n as u64, count) };
        workers.spawn(async move {
            for _ in 0..STEPS.1 {
                io.step().await;
                io.host.idle().await;
            }
            let held = io.host.held.lock().clone();
            if let Some(held) = held {
                io.close(&held).await;
            }
            io.host.doing(1, "");
        });
    }
    let deadline = world.env.clock.now() + PATIENCE;
    {
        let trouble = faults::trouble(world, &hosts);
        tokio::pin!(trouble);
        let mut over = false;
        while !over {
            tokio::select! {
                biased;
                Some(ended) = workers.join_next() => finished(ended),
                () = &mut trouble => over = true,
            }
        }
    }
    let deadline = deadline.max(world.env.clock.now() + PATIENCE);
    while !workers.is_empty() {
        let left = deadline.since(world.env.clock.now());
        match world.env.clock.timeout(left, workers.join_next()).await {
            Ok(Some(ended)) => finished(ended),
            Ok(None) => break,
            Err(_) => {
                let doing: Vec<_> = hosts.iter().map(|host| host.doing.lock().clone()).collect();
                panic!("not done {} s after the last fault: {doing:?}", PATIENCE.as_secs());
            }
        }
    }
    conclude(world, &shared, &hosts).await;
}

fn finished(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        resume_unwind(error.into_panic());
    }
}

/// All is quiet: what is there is what was promised, and nothing else.
async fn conclude(world: &mut World, shared: &Arc<Shared>, hosts: &[Arc<Host>]) {
    let last = Host::mount(world, shared, "last", crate::NEW).await;
    let mut names = Namer::new(Arc::clone(&last));
    for name in 0..NAMES {
        names.look(u8::try_from(name).unwrap()).await;
    }
    model::linearizable(&shared.names.lock()).unwrap();
    let io = Io { host: Arc::clone(&last), who: (0, 1) };
    for file in 0..FILES {
        for block in 0..=BLOCKS {
            io.read(file, block).await;
        }
        let held = last.held.lock().clone();
        if let Some(held) = held {
            io.close(&held).await;
        }
    }
    mine::as_flushed(&last).await;
    upkeep::until_balanced(world).await;
    until_healed(world).await;
    // Hosts start anew, and with their state goes what only they kept.
    for host in hosts {
        host.session.reboot().await.unwrap();
    }
    compared::as_the_devices_say(world).await;
    for name in 0..NAMES {
        let dirs = shared.dirs.lock().clone();
        let dir = ops::putfh(&dirs[(name % 2) as usize]);
        last.ask(vec![dir, ops::remove(format!("n{name}").as_bytes())]).await;
    }
    for file in 0..FILES {
        last.ask(vec![ops::putrootfh(), ops::remove(format!("file{file}").as_bytes())]).await;
    }
    for host in hosts {
        last.ask(vec![ops::putrootfh(), ops::remove(format!("mine-{}", host.name).as_bytes())]).await;
    }
    for _ in 0..600 {
        if (0..4).all(|n| world.data_files(n) == 0) && world.files_with_state() == 0 {
            world.check().await;
            return;
        }
        last.ask(Vec::new()).await;
        world.sleep(Duration::from_secs(1)).await;
    }
    let left: Vec<_> = (0..4).map(|n| world.data_file_names(n)).collect();
    panic!("nobody has files any more: data files {left:?}, state of {} files", world.files_with_state());
}

async fn until_healed(world: &World) {
    for _ in 0..600 {
        if world.check().await == 0 {
            return;
        }
        world.sleep(Duration::from_secs(1)).await;
    }
    panic!("mirrors do not heal: {}", world.check().await);
}
