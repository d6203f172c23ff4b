//! What goes wrong, and for how long.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_kv::Faults;

use super::host::Host;
use super::upkeep;
use crate::stage::World;

const EVENTS: u64 = 8;
/// What begins while it lasts makes it longer: a data server that cannot be heard for half a minute has failed, as far as
/// anybody can tell.
const DEAF: Duration = Duration::from_secs(20);
/// For data files to be moved between data servers.
const MOVES: Duration = Duration::from_secs(8);

#[derive(Clone, Debug)]
enum Fault {
    Partition(String, String),
    Mute(String),
    Down(usize),
    Full(usize),
    /// Until somebody looks after it.
    Failing(usize),
    /// What is there can be read, and nobody writes there.
    ReadOnly(usize),
    Store,
    /// By its number: emptied, or on the way to it.
    Drained(u16),
    /// Little room is left, at one least of all; whether that is stopped in the end which makes use of it.
    Balanced(bool),
    /// A directory with a limit.
    Limited(&'static str),
    /// All files get another number of copies; whether that is stopped in the end which makes them.
    Mirrored(bool),
}

impl Fault {
    /// Whoever has two copies of everything has both.
    fn spares_copies(&self) -> bool {
        matches!(self, Self::Drained(_))
    }

    /// The metadata server cannot hear a data server.
    fn silences(&self, active: &str) -> bool {
        match self {
            Self::Partition(a, b) => a == active || b == active,
            Self::Mute(_) | Self::Down(_) => true,
            _ => false,
        }
    }
}

fn below(world: &World, bound: u64) -> u64 {
    world.env.random.u64() % bound.max(1)
}

/// Mostly a moment, sometimes longer than a lease.
fn length(world: &World) -> Duration {
    match below(world, 4) {
        0 => Duration::from_millis(below(world, 40_000)),
        _ => Duration::from_millis(below(world, 3_000)),
    }
}

/// Two different machines, of which one is a server.
fn two(world: &World, hosts: &[Arc<Host>]) -> (String, String) {
    let mut all: Vec<String> = (1..=4).map(|n| format!("ds{n}")).collect();
    all.push(world.active.to_owned());
    let one = all.swap_remove(below(world, all.len() as u64) as usize);
    all.extend(hosts.iter().map(|host| host.name.clone()));
    let other = all.swap_remove(below(world, all.len() as u64) as usize);
    (one, other)
}

/// Some faults, one after the other, the earlier ones still there or not; at the end none is left.
pub(crate) async fn trouble(world: &mut World, hosts: &[Arc<Host>]) {
    let mut on: Vec<(sluice_env::Monotonic, Fault)> = Vec::new();
    let mut lost = Vec::new();
    let mut numbers = [1, 2, 3, 4];
    for _ in 0..EVENTS {
        world.sleep(Duration::from_millis(below(world, 4_000))).await;
        end(world, &mut on, false).await;
        let mut until = world.env.clock.now() + length(world);
        let n = below(world, 4) as usize;
        let fault = match below(world, 29) {
            0..=2 => {
                let (a, b) = two(world, hosts);
                world.net.partition(&a, &b);
                Fault::Partition(a, b)
            }
            3..=4 => {
                let (a, b) = two(world, hosts);
                hosts[0].shared.say("FAULT", || format!("reset between {a} and {b}"));
                world.net.reset(&a, &b);
                continue;
            }
            5 => {
                let (name, _) = two(world, hosts);
                world.net.freeze(&name);
                Fault::Mute(name)
            }
            6..=7 if world.standby && below(world, 2) == 0 => {
                hosts[0].shared.say("FAULT", || "the other metadata server takes over".to_owned());
                world.set_faults(Faults::NONE);
                take_over(world, hosts).await;
                continue;
            }
            6..=7 => {
                hosts[0].shared.say("FAULT", || "restart of the metadata server".to_owned());
                world.set_faults(Faults::NONE);
                hosts[0].shared.restarts(true);
                world.restart_metadata_server().await;
                hosts[0].shared.restarts(false);
                continue;
            }
            8..=9 => {
                if !world.is_up(n) {
                    continue;
                }
                if below(world, 2) == 0 {
                    world.crash_data_server(n).await;
                } else {
                    world.tear_data_server(n).await;
                }
                Fault::Down(n)
            }
            10 => {
                hosts[0].shared.device_full.store(true, Ordering::Relaxed);
                world.device(n).set_capacity(below(world, 1 << 20));
                Fault::Full(n)
            }
            11 => {
                hosts[0].shared.say("FAULT", || format!("flushes of ds{} fail", n + 1));
                hosts[0].shared.device_failed.store(true, Ordering::Relaxed);
                world.device(n).fail_syncs(1 + below(world, 3) as u32);
                Fault::Failing(n)
            }
            12 => {
                let host = Arc::clone(&hosts[below(world, hosts.len() as u64) as usize]);
                host.shared.say("FAULT", || format!("restart of {}", host.name));
                world.env.spawn.spawn(Box::pin(async move { host.restart().await }));
                continue;
            }
            13..=14 => {
                world.set_faults(store(world));
                Fault::Store
            }
            15..=16 => {
                upkeep::drain(world, numbers[n], false).await;
                Fault::Drained(numbers[n])
            }
            17 => {
                hosts[0].shared.say("FAULT", || "the key is replaced".to_owned());
                upkeep::replace_key(world).await;
                continue;
            }
            18 => {
                hosts[0].shared.device_failed.store(true, Ordering::Relaxed);
                world.device(n).set_read_only(true);
                Fault::ReadOnly(n)
            }
            // Of what is lost already the metadata server may not know yet.
            19 if on.is_empty() && lost.is_empty() && upkeep::all_twice(world, &numbers).await => {
                hosts[0].shared.say("FAULT", || format!("ds{} is gone, and there is a new one", n + 1));
                hosts[0].shared.device_failed.store(true, Ordering::Relaxed);
                upkeep::replace(world, &mut numbers, n).await;
                continue;
            }
            20..=21 => {
                hosts[0].shared.device_full.store(true, Ordering::Relaxed);
                let room = |other| if other == n { (64 << 10, 256 << 10) } else { (1 << 20, 1 << 20) };
                let room = [0, 1, 2, 3].map(room).map(|(least, more)| least + below(world, more));
                upkeep::balance(world, room).await;
                // What moves takes some seconds.
                until = until.max(world.env.clock.now() + MOVES);
                Fault::Balanced(below(world, 2) == 0)
            }
            25..=26 => {
                hosts[0].shared.limited.store(true, Ordering::Relaxed);
                if below(world, 4) == 0 {
                    upkeep::recount(world).await;
                }
                let path = ["/", "/names1"][below(world, 2) as usize];
                upkeep::limit(world, path, Some(1 + below(world, 40 << 20))).await;
                Fault::Limited(path)
            }
            27..=28 => {
                upkeep::set_mirrors(world, 1 + below(world, 3) as u32).await;
                until = until.max(world.env.clock.now() + MOVES);
                Fault::Mirrored(below(world, 2) == 0)
            }
            22 if world.is_up(n) => {
                if !take_away(world, hosts, &mut on, &mut numbers, n).await {
                    on.push((until, Fault::Drained(numbers[n])));
                }
                continue;
            }
            _ => {
                // One that has only just been started may have been given up before: then the other copy is the only one.
                let all_serve = (0..4).all(|n| world.serving(n));
                if all_serve
                    && on.iter().all(|(_, fault)| fault.spares_copies())
                    && let Some((id, n, path)) = upkeep::spare(world, &numbers, &lost).await
                {
                    hosts[0].shared.say("FAULT", || format!("ds{} loses {path}", n + 1));
                    hosts[0].shared.device_failed.store(true, Ordering::Relaxed);
                    upkeep::lose(world, n, &path).await;
                    lost.push(id);
                }
                continue;
            }
        };
        if fault.silences(world.active) && until.since(world.env.clock.now()) > DEAF {
            hosts[0].shared.device_failed.store(true, Ordering::Relaxed);
        }
        hosts[0].shared.say("FAULT", || format!("{fault:?} until {} ms", until.0 / 1_000_000));
        on.push((until, fault));
    }
    end(world, &mut on, true).await;
    for n in 0..4 {
        world.until_serving(n).await;
    }
}

/// The n-th data server is emptied and removed while what is wrong elsewhere ends or does not, and a new one comes to its host. False:
/// it could not be emptied in time, or nobody said that it was.
async fn take_away(
    world: &mut World,
    hosts: &[Arc<Host>],
    on: &mut Vec<(sluice_env::Monotonic, Fault)>,
    numbers: &mut upkeep::Numbers,
    n: usize,
) -> bool {
    let number = numbers[n];
    hosts[0].shared.say("FAULT", || format!("ds{}, number {number}, is to be taken away", n + 1));
    let until = world.env.clock.now() + Duration::from_millis(20_000 + below(world, 60_000));
    while !upkeep::remove(world, number).await {
        if world.env.clock.now() > until {
            return false;
        }
        world.sleep(Duration::from_millis(500)).await;
        end(world, on, false).await;
    }
    hosts[0].shared.say("FAULT", || format!("ds{} is taken away", n + 1));
    // Data files may be there still if it could not be told to remove them: they are nobody's.
    assert!(!upkeep::is_named(world, number).await, "data server {number} was not empty");
    // It lives on for a while, and serves nobody.
    world.sleep(Duration::from_millis(below(world, 3_000))).await;
    world.replace_data_server(n).await;
    numbers[n] = upkeep::next_number(numbers);
    // The number of the next one that is new depends on this one having its own.
    while !world.serving(n) {
        world.sleep(Duration::from_millis(500)).await;
        end(world, on, false).await;
    }
    true
}

/// Hosts hear of it sooner or later; the one that has lost the store lives on, and so do their connections to it. What it had on
/// its way may arrive late.
async fn take_over(world: &mut World, hosts: &[Arc<Host>]) {
    let former = world.active;
    if below(world, 2) == 0 {
        let (net, data_server) = (world.net.clone(), format!("ds{}", 1 + below(world, 4)));
        net.partition(former, &data_server);
        world.sleep(Duration::from_millis(below(world, 3_000))).await;
        let (clock, late) = (Arc::clone(&world.env.clock), below(world, 10_000));
        world.env.spawn.spawn(Box::pin(async move {
            clock.sleep(Duration::from_millis(late)).await;
            net.heal(former, &data_server);
        }));
    }
    hosts[0].shared.restarts(true);
    world.take_over().await;
    hosts[0].shared.restarts(false);
    *hosts[0].shared.mds.lock() = world.mds;
    for host in hosts {
        let (host, net, late) = (Arc::clone(host), world.net.clone(), below(world, 20_000));
        world.env.spawn.spawn(Box::pin(async move {
            host.shared.env.clock.sleep(Duration::from_millis(late)).await;
            host.session.moved_to(*host.shared.mds.lock());
            net.reset(&host.name, former);
            // Or it was about to connect there.
            host.session.disconnect().await;
        }));
    }
}

fn store(world: &World) -> Faults {
    let chance = |world: &World| below(world, 10) as f64 / 100.0;
    Faults {
        conflict: chance(world),
        unknown_applied: chance(world),
        unknown_lost: chance(world),
        too_old: chance(world) / 10.0,
        unavailable: chance(world) / 10.0,
        latency: Duration::from_millis(below(world, 20)),
        scarce: below(world, 4) == 0,
        ..Faults::NONE
    }
}

/// Ends what is over; or all.
async fn end(world: &mut World, on: &mut Vec<(sluice_env::Monotonic, Fault)>, all: bool) {
    let now = world.env.clock.now();
    let (mut over, rest): (Vec<_>, Vec<_>) = on.drain(..).partition(|(until, _)| all || *until <= now);
    *on = rest;
    // Who is to be asked may be at fault itself.
    over.sort_by_key(|(_, fault)| {
        matches!(fault, Fault::Drained(_) | Fault::Balanced(..) | Fault::Limited(_) | Fault::Mirrored(_))
    });
    for (until, fault) in over {
        match fault {
            Fault::Partition(a, b) => world.net.heal(&a, &b),
            Fault::Mute(name) => world.net.thaw(&name),
            Fault::Down(n) => world.start_in_trouble(n).await,
            Fault::Failing(n) => {
                world.device(n).fail_syncs(0);
                if world.is_up(n) {
                    world.crash_data_server(n).await;
                    world.start_in_trouble(n).await;
                }
            }
            Fault::Full(n) => world.device(n).set_capacity(1 << 40),
            Fault::ReadOnly(n) => world.device(n).set_read_only(false),
            Fault::Store => world.set_faults(Faults::NONE),
            Fault::Balanced(stops) => {
                (0..4).for_each(|n| world.device(n).set_capacity(1 << 40));
                if stops {
                    upkeep::stop_balance(world).await;
                }
            }
            // Who loses one of two copies is to know how many there are.
            Fault::Mirrored(stops) => {
                let seconds = if all { 900 } else { 3 };
                if !upkeep::until_mirrored(world, stops || !all, seconds).await {
                    assert!(!all, "getting other mirrors does not end");
                    on.push((until, fault));
                }
            }
            Fault::Limited(path) => {
                while !upkeep::limit(world, path, None).await {
                    if !all {
                        on.push((until, fault));
                        break;
                    }
                }
            }
            Fault::Drained(number) => {
                while !upkeep::drain(world, number, true).await {
                    if !all {
                        on.push((until, fault));
                        break;
                    }
                }
            }
        }
    }
}
