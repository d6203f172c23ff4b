//! What a small file costs, and that it costs no promise: as `tar` and `cp` on Linux write one.

use std::time::Duration;

use crate::NEW;
use crate::client::{Client, RW};
use crate::stage::{Cost, World, simulate};

const SIZE: u64 = 4096;
/// Longer than anything is gathered.
const QUIET: Duration = Duration::from_secs(3);

/// One file, from open to close; `times`: set before the close.
async fn write(client: &Client, name: &str, times: Option<i64>) {
    let (file, layout) = client.open_with_layout(name).await;
    client.write(&layout, 0, &crate::pattern(0, 4096)).await.unwrap();
    if let Some(seconds) = times {
        assert_eq!(client.set_mtime_and_look(&file, seconds).await, (SIZE, seconds));
    }
    client.commit_as_linux(&file, layout.stateid, Some(SIZE - 1)).await.unwrap();
    assert_eq!(client.return_and_close(&file, layout.stateid).await, SIZE);
}

/// The first file pays for connections, folders and leases of numbers, and tells what the client is like.
async fn warm_up(world: &World, client: &Client) {
    for n in 0..200 {
        write(client, &format!("warm{n}"), None).await;
    }
    world.sleep(QUIET).await;
}

async fn hundred(world: &World, client: &Client, times: Option<i64>) -> Cost {
    let before = world.cost();
    for n in 0..100 {
        write(client, &format!("f{}-{n}", times.is_some()), times).await;
    }
    world.sleep(QUIET).await;
    world.cost() - before
}

#[test]
fn a_small_file_costs_two_transactions_and_a_call_for_each_look() {
    simulate(20, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        warm_up(world, &client).await;
        // OPEN and LAYOUTCOMMIT; a look for LAYOUTRETURN.
        let plain = hundred(world, &client, None).await;
        // What is gathered over many files: rows of returned layouts, data files that exist now.
        let gathered = 0..=60;
        assert!(gathered.contains(&(plain.transactions - 200)), "{plain:?}");
        assert_eq!(plain.orders, 100, "{plain:?}");
        // Data, entry, journal.
        assert!((300..=310).contains(&plain.flushes), "{plain:?}");
        // OPEN and SETATTR, which takes the size along: LAYOUTCOMMIT has nothing left to do. A look each for
        // SETATTR, the GETATTR behind it, LAYOUTCOMMIT with its GETATTR, and LAYOUTRETURN.
        let kept = hundred(world, &client, Some(77)).await;
        assert!(gathered.contains(&(kept.transactions - 200)), "{kept:?}");
        assert_eq!(kept.orders, 400, "{kept:?}");
        assert!((300..=310).contains(&kept.flushes), "{kept:?}");
    });
}

/// A machine costs about a kilobyte: a server that kept one for every file ever written would grow for ever.
#[test]
fn a_file_that_nobody_has_open_costs_no_memory() {
    simulate(23, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        warm_up(world, &client).await;
        assert_eq!(world.files_with_state(), 0);
    });
}

/// The row that says so went with the transaction that made the file.
#[test]
fn what_was_written_right_after_open_is_found_after_a_crash() {
    simulate(21, async |world| {
        let mut client = Client::mount(world, "a", NEW).await;
        write(&client, "first", None).await;
        let before = world.cost();
        let (file, layout) = client.open_with_layout("f").await;
        assert_eq!((world.cost() - before).transactions, 1, "making the file and granting its layout");
        client.write(&layout, 0, &crate::pattern(0, 5000)).await.unwrap();
        world.restart_metadata_server().await;
        client.reconnect(world).await;
        assert_eq!(client.stat(&file).await.0, 5000);
    });
}

/// Between the answer to SETATTR and anything after it.
#[test]
fn a_size_that_came_with_the_times_outlives_a_crash_and_so_do_the_times() {
    simulate(22, async |world| {
        let mut client = Client::mount(world, "a", NEW).await;
        write(&client, "first", None).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, &crate::pattern(0, 5000)).await.unwrap();
        assert_eq!(client.set_mtime_and_look(&file, 77).await, (5000, 77));
        world.restart_metadata_server().await;
        client.reconnect(world).await;
        assert_eq!((client.stat(&file).await.0, client.mtime(&file).await), (5000, 77));
    });
}

/// A look serves the COMPOUND that came before it, and no later one.
#[test]
fn a_later_request_looks_again() {
    simulate(23, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        let (file, layout) = client.open_with_layout("f").await;
        client.write(&layout, 0, &crate::pattern(0, 5000)).await.unwrap();
        assert_eq!(client.set_mtime_and_look(&file, 77).await, (5000, 77));
        client.write(&layout, 5000, &crate::pattern(0, 100)).await.unwrap();
        assert_eq!(client.stat(&file).await.0, 5100);
        client.write(&layout, 5100, &crate::pattern(0, 100)).await.unwrap();
        let (size, _) = client.layout_commit(&file, layout.stateid, Some(99)).await.unwrap();
        assert_eq!(size, 5200, "what LAYOUTCOMMIT does not tell of is found beside it");
        assert!(client.mtime(&file).await > 77);
    });
}

/// A file that was opened with its row, and never written: nobody is asked about it, now or after a crash.
#[test]
fn a_row_without_a_layout_goes_with_the_open() {
    simulate(24, async |world| {
        let mut client = Client::mount(world, "a", NEW).await;
        write(&client, "first", None).await;
        let (empty, file) = (client.open("empty").await, client.open("f").await);
        client.close(&empty).await;
        client.close(&file).await;
        world.sleep(QUIET).await;
        // The row is gone with the open, and comes back with a layout.
        let file = client.open("f").await;
        let layout = client.layout(&file, file.stateid, RW, 0).await;
        client.write(&layout, 0, &crate::pattern(0, 10)).await.unwrap();
        world.restart_metadata_server().await;
        client.reconnect(world).await;
        let before = world.cost();
        assert_eq!(client.stat(&empty).await.0, 0);
        assert_eq!((world.cost() - before).orders, 0);
        assert_eq!(client.stat(&file).await.0, 10);
        assert_ne!((world.cost() - before).orders, 0);
    });
}
