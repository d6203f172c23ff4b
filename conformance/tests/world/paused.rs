//! Between two slices of a long heal a file may be emptied: what was being filled then belongs to nobody, and nothing that
//! is written afterwards goes there.

use std::time::Duration;

use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::nfsstat4;

use crate::client::{Client, Opened};
use crate::drain::drain;
use crate::mirrors::{Writer, home};
use crate::pattern;
use crate::stage::{World, simulate_tuned};

/// A file is emptied while it moves and the limit is waited for, and `written` meanwhile. Then it is removed.
fn emptied_on_its_way(seed: u64, written: impl AsyncFn(&World, &Client, &Opened)) {
    // All of it is one piece: it is there, and then comes a long pause.
    let policy = LayoutPolicy { shape: Shape::Small, mirrors: 1, inline: 0, class: None };
    let tune = |config: &mut sluice_mds::Config| (config.heal_piece, config.policy) = (16 << 20, policy);
    simulate_tuned(seed, tune, async |world| {
        let mut writer = Writer::mount(world, "a", "f").await;
        writer.write(world, 0, &pattern(5, 3 << 20)).await;
        let gone = home(world, &writer.client, &writer.held.clone().unwrap(), 0).await;
        writer.give_back().await;
        world.sleep(Duration::from_secs(5)).await;
        drain(world, gone, 256 << 10).await.unwrap();
        world.until(|world| (0..4).any(|n| n != gone && world.data_files(n) > 0)).await;
        world.sleep(Duration::from_secs(1)).await;
        let before = world.env.clock.now();
        writer.client.truncate(&writer.file, 0).await;
        written(world, &writer.client, &writer.file).await;
        let waited = world.env.clock.now().since(before);
        assert!(waited < Duration::from_secs(5), "{waited:?}: the pause is over");
        writer.client.close(&writer.file).await;
        writer.client.remove("f").await;
        world.sleep(Duration::from_secs(60)).await;
        let left: Vec<_> = (0..4).flat_map(|n| world.data_file_names(n)).collect();
        assert!(left.is_empty(), "nobody ever removes {left:?}");
        assert_eq!(world.check().await, 0);
    });
}

#[test]
fn a_write_does_not_go_where_the_file_was_on_its_way_to() {
    emptied_on_its_way(1, async |_, client, file| {
        let data = pattern(7, 100_000);
        assert_eq!(client.proxied_write(file, 0, &data).await, nfsstat4::NFS4_OK);
        assert!(client.proxied_read(file, 0, 100_000).await[..] == data[..]);
    });
}

#[test]
fn a_copy_does_not_go_where_the_file_was_on_its_way_to() {
    emptied_on_its_way(2, async |world, client, file| {
        let data = pattern(8, 100_000);
        let source = client.open("g").await;
        assert_eq!(client.proxied_write(&source, 0, &data).await, nfsstat4::NFS4_OK);
        client.copy_all((&source, 0), (file, 0), 100_000).await.unwrap();
        assert!(client.proxied_read(file, 0, 100_000).await[..] == data[..]);
        client.close(&source).await;
        client.remove("g").await;
        world.check().await;
    });
}
