//! What anybody can make happen any number of times fills no log.

use std::time::Duration;

use sluice_xdr::control::*;
use sluice_xdr::nfs4::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::admin::evict;
use crate::exports::{read_only, set};
use crate::failed_store::Log;
use crate::harness::*;

const RW: layoutiomode4 = layoutiomode4::LAYOUTIOMODE4_RW;
const MANY: usize = 50;

async fn open_many(client: &Client, with_layouts: bool) {
    for n in 0..MANY {
        let (fh, open) = client.open(&format!("f{n}"), BOTH, 0).await;
        if with_layouts {
            client.ok(vec![putfh(&fh), layoutget(open, RW)]).await;
        }
    }
}

fn those(log: &Log, what: &str) -> Vec<String> {
    log.lines().into_iter().filter(|line| line.contains(what)).collect()
}

#[test]
fn the_end_of_a_client_is_one_line() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        open_many(&client, true).await;
        let (log, _logged) = Log::of_this_thread();
        let gone = evict(&world, client.id).await;
        assert!(matches!(gone, ADMIN_EVICT_res::CTL_OK(_)), "{gone:?}");
        world.sleep(Duration::from_secs(5)).await;
        let told = those(&log, "its state is released");
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("opens=50") && told[0].contains("layouts=50"), "{told:?}");
        assert_eq!(those(&log, "state revoked"), [""; 0]);
    });
}

#[test]
fn of_many_recalls_that_are_not_answered_some_are_told() {
    simulate(2, async |world: World| {
        let client = world.client("a").await;
        open_many(&client, true).await;
        let (log, _logged) = Log::of_this_thread();
        set(&world, "/", &[read_only("any")]).await;
        for _ in 0..9 {
            world.sleep(Duration::from_secs(10)).await;
            client.compound(Vec::new()).await;
        }
        let told = those(&log, "state revoked");
        assert!((1..=10).contains(&told.len()), "{} lines", told.len());
    });
}

#[test]
fn a_thousand_who_speak_no_rpc_are_told_of_in_a_few_lines() {
    simulate(3, async |world: World| {
        let (log, _logged) = Log::of_this_thread();
        for n in 0..1000u32 {
            let host = world.net.host(&format!("h{}", n % 100));
            let mut stream = host.connect(world.addr).await.unwrap();
            // Each is wrong in its own way.
            stream.write_all(&(0xc000_0000 | n).to_be_bytes()).await.unwrap();
            let _closed = stream.read_to_end(&mut Vec::new()).await;
        }
        let told = those(&log, "connection closed");
        assert!((1..=20).contains(&told.len()), "{} lines, such as {:?}", told.len(), told.first());
        // Those that were not told are counted.
        world.sleep(Duration::from_secs(60)).await;
        let mut stream = world.net.host("late").connect(world.addr).await.unwrap();
        stream.write_all(&0xffff_ffff_u32.to_be_bytes()).await.unwrap();
        let _closed = stream.read_to_end(&mut Vec::new()).await;
        assert!(those(&log, "connection closed").last().unwrap().contains("unsaid=990"), "{:?}", log.lines());
    });
}
