//! A data server is emptied of many small striped files, while clients make others.

use std::time::Duration;

use sluice_kv::Faults;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::ctl_intent;
use sluice_xdr::nfs4::layoutrecall4;

use crate::NEW;
use crate::client::{Client, Opened};
use crate::drain::{drain, drained, right, server};
use crate::pattern;
use crate::stage::{World, simulate_with};
use crate::storage::Segment;

const SIZE: usize = 3000;

/// Makes a file as a program does that writes a message and syncs it.
async fn message(client: &Client, name: &str) -> (Opened, Segment) {
    let (file, held) = client.open_with_layout(name).await;
    for mirror in 0..held.body.ffl_mirrors.len() {
        client.write(&held.mirror(mirror), 0, &pattern(7, SIZE)).await.unwrap();
    }
    // Refused when the layout was called back and is gone: the data servers are asked.
    let _ = client.commit_as_linux(&file, held.stateid, Some(SIZE as u64 - 1)).await;
    (file, held)
}

/// Gives back what was called back since.
async fn obey(client: &Client, kept: &[(Opened, Segment)], obeyed: &mut usize) {
    for recall in client.recalls().into_iter().skip(*obeyed) {
        *obeyed += 1;
        let layoutrecall4::LAYOUTRECALL4_FILE(what) = recall.clora_recall else { panic!() };
        let named = |held: &Segment| held.stateid.other == what.lor_stateid.other;
        if let Some((file, _)) = kept.iter().find(|(_, held)| named(held)) {
            client.layout_return(file, what.lor_stateid).await;
        }
    }
}

/// Until it is drained.
async fn empties(world: &World, n: usize) -> Duration {
    let began = world.env.clock.now();
    loop {
        let status = server(world, n).await.unwrap();
        let took = world.env.clock.now().since(began);
        if status.intent == ctl_intent::INTENT_DRAINED {
            return took;
        }
        assert!(took < Duration::from_secs(300), "{status:?}");
        world.sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn many_small_files_are_moved_as_fast_as_they_can_be() {
    for mirrors in [1, 2] {
        simulate_with(
            95,
            LayoutPolicy { shape: Shape::Wide, mirrors, inline: 0, class: None },
            async |world| {
                let client = Client::mount(world, "a", NEW).await;
                for n in 0..400 {
                    let (file, held) = message(&client, &format!("f{n}")).await;
                    client.return_and_close(&file, held.stateid).await;
                }
                drain(world, 1, 0).await.unwrap();
                let took = empties(world, 1).await;
                assert!(took < Duration::from_secs(15), "it took {took:?}");
                drained(world, 1).await;
                for n in [0, 123, 399] {
                    right(world, &format!("f{n}"), &pattern(7, SIZE), 1).await;
                }
            },
        );
    }
}

#[test]
fn what_is_in_use_meanwhile_is_moved_soon_after() {
    for mirrors in [1, 2] {
        simulate_with(
            96,
            LayoutPolicy { shape: Shape::Wide, mirrors, inline: 0, class: None },
            async |world| {
                let (client, keeps) =
                    (Client::mount(world, "a", NEW).await, Client::mount(world, "b", NEW).await);
                let (mut kept, mut obeyed) = (Vec::new(), 0);
                for n in 0..100 {
                    kept.push(message(&keeps, &format!("k{n}")).await);
                }
                drain(world, 1, 0).await.unwrap();
                for n in 0..150 {
                    let (file, held) = message(&client, &format!("m{n}")).await;
                    client.return_and_close(&file, held.stateid).await;
                    obey(&keeps, &kept, &mut obeyed).await;
                    world.sleep(Duration::from_millis(50)).await;
                }
                obey(&keeps, &kept, &mut obeyed).await;
                for (file, held) in &kept {
                    keeps.layout_return(file, held.stateid).await;
                    keeps.close(file).await;
                }
                let took = empties(world, 1).await;
                assert!(took < Duration::from_secs(15), "it took {took:?} after all work had ended");
                drained(world, 1).await;
                for name in ["k0", "k99", "m0", "m149"] {
                    right(world, name, &pattern(7, SIZE), 1).await;
                }
            },
        );
    }
}

/// It takes longer than the store ever answers in a row.
#[test]
fn a_data_server_is_emptied_though_the_store_fails_before_all_files_are_looked_at() {
    simulate_with(
        17,
        LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None },
        async |world| {
            let client = Client::mount(world, "a", NEW).await;
            // Nothing is to be copied: nobody has seen where they are.
            for n in 0..1_000 {
                client.close(&client.open(&format!("f{n}")).await).await;
            }
            let slow = Faults { latency: Duration::from_millis(12), ..Faults::NONE };
            world.set_faults(slow);
            drain(world, 1, 0).await.unwrap();
            for round in 0.. {
                world.set_faults(Faults { unavailable: 1.0, ..slow });
                // Longer than any transaction is tried.
                world.sleep(Duration::from_secs(12)).await;
                world.set_faults(slow);
                world.sleep(Duration::from_millis(4_500)).await;
                let row = server(world, 1).await.unwrap();
                if row.intent == ctl_intent::INTENT_DRAINED {
                    return;
                }
                assert!(round < 100, "not drained: {row:?}");
            }
        },
    );
}
