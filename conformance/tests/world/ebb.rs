//! Data servers whose store goes back to a snapshot of itself: what was written since is not there (docs/adr/0029).

use std::time::Duration;

use sluice_kv::KeyValue;
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::control::*;
use sluice_xdr::nfs4::nfsstat4;

use crate::client::{Client, RW};
use crate::copied::{refused, serving, states};
use crate::mirrors::{Writer, healed, home, put};
use crate::stage::{World, simulate_with};
use crate::{NEW, pattern};

const ONCE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };

/// A mark is made of what came before.
const MARKED: Duration = Duration::from_secs(25);
const SETTLED: Duration = Duration::from_secs(60);

async fn accept(world: &World, n: usize) -> Result<u64, String> {
    let id = u32::try_from(n + 1).unwrap();
    for _ in 0..300 {
        match world.admin(ADMIN_ACCEPT_OLDER, &ADMIN_ACCEPT_OLDER_args { id }).await {
            ADMIN_ACCEPT_OLDER_res::CTL_OK(done) => return Ok(done.files),
            ADMIN_ACCEPT_OLDER_res::Default(ctl_status::CTL_ERR_AGAIN, _) => {
                world.sleep(Duration::from_secs(1)).await;
            }
            ADMIN_ACCEPT_OLDER_res::Default(_, why) => return Err(String::from_utf8(why.to_vec()).unwrap()),
        }
    }
    panic!("it is put off for ever")
}

/// Durable at the data server, and known to the metadata server.
async fn put_file(client: &Client, name: &str, byte: u8) {
    let (file, layout) = client.open_with_layout(name).await;
    client.write(&layout, 0, &[byte; 100_000]).await.unwrap();
    client.layout_commit(&file, layout.stateid, Some(99_999)).await.unwrap();
    client.return_and_close(&file, layout.stateid).await;
}

#[test]
fn a_data_server_that_went_back_to_a_snapshot_serves_nothing() {
    simulate_with(420, ONCE, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        put_file(&client, "f", b'o').await;
        let n = (0..4).find(|n| world.data_files(*n) > 0).unwrap();
        world.sleep(MARKED).await;
        let older = world.snapshot_of(n);
        put_file(&client, "f", b'n').await;
        world.sleep(MARKED).await;

        // Whatever ends how, its own store is its own.
        world.crash_data_server(n).await;
        world.start_data_server(n).await;
        world.restart_metadata_server().await;
        world.until_serving(n).await;
        world.sleep(MARKED).await;

        let own = world.put_device(n, older).await;
        world.start_refused(n).await;
        let mut others = vec![0, 1, 2, 3];
        others.retain(|other| *other != n);
        assert_eq!(serving(world), others);
        let why = refused(world).await;
        let words = format!("data server {} went back to an older copy of its store (mark ", n + 1);
        assert!(why.len() == 1 && why[0].starts_with(&words), "{why:?}");
        assert!(why[0].contains("what was written since is not there. "), "{why:?}");
        assert!(why[0].contains(&format!("sluice ds accept-older {}`", n + 1)), "{why:?}");
        let state = &states(world).await[n];
        assert!(
            state.starts_with("refused, as its store went back to an older copy of itself (mark "),
            "{state}"
        );
        // Nobody is shown what was there then; what needs another data server goes on.
        let third = Client::mount(world, "b", NEW).await;
        let file = third.open("f").await;
        assert_ne!(third.layout_status(&file, RW, 0).await, nfsstat4::NFS4_OK);
        put_file(&third, "other", b'x').await;
        // Nor after a start.
        world.restart_metadata_server().await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), others);

        world.put_device(n, own).await;
        world.start_data_server(n).await;
        world.sleep(SETTLED).await;
        assert_eq!(serving(world), [0, 1, 2, 3]);
        let last = Client::mount(world, "c", NEW).await;
        let file = last.open("f").await;
        assert_eq!(&last.proxied_read(&file, 0, 100).await[..], [b'n'; 100]);
        let why = accept(world, n).await.unwrap_err();
        assert!(why.contains("was not refused as an older copy"), "{why}");
        world.check().await;
    });
}

#[test]
fn an_older_copy_that_is_accepted_is_healed_from_other_mirrors() {
    simulate_with(421, TWICE, async |world| {
        let mut model = pattern(0, 100_000);
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &model).await;
        let held = writer.held.clone().unwrap();
        let n = home(world, &writer.client, &held, 0).await;
        world.sleep(MARKED).await;
        let older = world.snapshot_of(n);
        writer.write(world, 50_000, &[7; 30_000]).await;
        put(&mut model, 50_000, &[7; 30_000]);
        writer.give_back().await;
        world.sleep(MARKED).await;

        world.put_device(n, older.snapshot()).await;
        world.start_refused(n).await;
        let files = accept(world, n).await.unwrap();
        assert_eq!(files, 1);
        world.until_serving(n).await;
        healed(world, "f", &model).await;
        world.check().await;
        // The same copy is not accepted twice.
        world.sleep(MARKED).await;
        world.put_device(n, older).await;
        world.start_refused(n).await;
        assert!(states(world).await[n].contains("went back"), "{:?}", states(world).await);
    });
}

/// The rows of them.
async fn marks(world: &World) -> Vec<KeyValue> {
    let mut rows = world.rows().await;
    rows.retain(|(key, _)| key[0] == 0x3f);
    rows
}

/// It costs nothing where nothing is written, and little where something is.
#[test]
fn marks_are_made_while_there_is_anything_new() {
    simulate_with(422, ONCE, async |world| {
        let client = Client::mount(world, "a", NEW).await;
        put_file(&client, "f", b'o').await;
        world.sleep(2 * MARKED).await;
        let (before, marks) = (world.cost(), marks(world).await);
        assert_eq!(marks.len(), 4, "each start makes one");
        world.sleep(Duration::from_secs(600)).await;
        assert_eq!((world.cost() - before).flushes, 0);
        assert_eq!(self::marks(world).await, marks);
        let client = Client::mount(world, "b", NEW).await;
        let before = world.cost();
        put_file(&client, "f", b'n').await;
        world.sleep(Duration::from_secs(600)).await;
        assert!((world.cost() - before).flushes <= 8);
        let later = self::marks(world).await;
        assert_eq!(later.iter().zip(&marks).filter(|(later, before)| later != before).count(), 1);
    });
}
