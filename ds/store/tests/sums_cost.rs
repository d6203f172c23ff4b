//! What checksums at rest cost: `cargo test --release -p sluice-store --test sums_cost -- --ignored --nocapture`. Processor time, which
//! other work on the machine changes less than rates. docs/PERFORMANCE.md has figures.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]
#![allow(clippy::disallowed_methods, reason = "in real time")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{access, bytes, key, options};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use sluice_env::Env;
use sluice_store::device::FileDevice;
use sluice_store::{Options, Stability, Store, SumOptions};

const MIB: u64 = 1 << 20;
const FILES: u64 = 500;

fn cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.unsigned_abs())
}

async fn sealed(store: &Arc<Store>, bytes: u64) {
    while store.scrubbed().sealed < bytes {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn costs() {
    for on in [false, true, false, true] {
        let env = Env::system();
        let dir =
            tempfile::tempdir_in(std::env::var("SLUICE_BENCH_DIR").unwrap_or("/var/tmp".into())).unwrap();
        let sums = SumOptions { quiet: Duration::ZERO, rate: 0, interval: Duration::ZERO };
        let options = Options { checksums: Some(on), sums, ..options() };
        let device = Arc::new(FileDevice::new(dir.path()).unwrap());
        let store = Store::open(&env, device, options).await.unwrap();
        println!("checksums {}", if on { "on" } else { "off" });
        let large = bytes(7, MIB as usize);
        let mut begin = cpu();
        let mut row = |what: &str, per: f64, unit: &str| {
            let now = cpu();
            let took = now.saturating_sub(begin).as_secs_f64() * per;
            println!("  {took:8.2} {unit}  {what}");
            begin = cpu();
        };
        for at in 0..512 {
            store.write_at(&access(1), at % 256 * MIB, large.clone(), Stability::Unstable).await.unwrap();
        }
        row("1 MiB UNSTABLE writes", 1e3 / 512.0, "ms");
        store.commit(key(1)).await.unwrap();
        row("COMMIT of 256 MiB", 1e3, "ms");
        let small = bytes(9, 4096);
        for n in 0..200_000u64 {
            let at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (256 * MIB / 4096) * 4096;
            store.write_now(&access(1), at, &small).unwrap().unwrap();
        }
        row("4 KiB UNSTABLE writes", 1e6 / 200_000.0, "us");
        for file in 10..10 + FILES {
            store.write_at(&access(file), 0, small.clone(), Stability::FileSync).await.unwrap();
        }
        row("data files made with 4 KiB FILE_SYNC", 1e6 / FILES as f64, "us");
        println!("  {:8} flushes", store.flushes());
        if !on {
            continue;
        }
        let keeper = tokio::spawn(Arc::clone(&store).keep_sums());
        sealed(&store, 256 * MIB).await;
        row("sums of 256 MiB and the small files, a GiB", 4e3, "ms");
        tokio::time::sleep(Duration::from_secs(2)).await;
        row("nothing", 1e3, "ms");
        store.scrub();
        while store.scrubbed().running {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        row("scrub of 256 MiB and the small files, a GiB", 4e3, "ms");
        keeper.abort();
        let flushes = store.flushes();
        for region in (0..64u64).map(|n| n * 37 % 64) {
            let at = region * 4 * MIB + 8192;
            store.write_at(&access(1), at, small.clone(), Stability::Unstable).await.unwrap();
        }
        row("first 4 KiB writes to sealed regions", 1e6 / 64.0, "us");
        println!("  {:8} flushes for 64 of them; bad {}", store.flushes() - flushes, store.scrubbed().bad);
    }
}
