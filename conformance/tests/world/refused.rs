//! A mirror whose device does not take a write: whoever writes through the metadata server hears of no error while there is
//! another one, however much later a heartbeat says what is wrong.

use std::time::Duration;

use sluice_xdr::nfs4::nfsstat4;

use crate::client::later;
use crate::lost::{TWICE, at_rest, homes};
use crate::mirrors::{Writer, healed, put};
use crate::stage::{World, simulate_with};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Flushes,
    ReadOnly,
}

impl Trouble {
    fn begin(self, world: &World, n: usize) {
        match self {
            Self::Flushes => world.device(n).fail_syncs(u32::MAX),
            Self::ReadOnly => world.device(n).set_read_only(true),
        }
    }

    /// Its device is looked after, and it is started again.
    async fn end(world: &mut World, n: usize) {
        world.device(n).fail_syncs(0);
        world.device(n).set_read_only(false);
        world.crash_data_server(n).await;
        world.start_data_server(n).await;
    }
}

/// As a client does that hears that it has to wait.
async fn write(world: &World, writer: &Writer, at: u64, data: &[u8]) -> nfsstat4 {
    for _ in 0..300 {
        let status = writer.client.proxied_write(&writer.file, at, data).await;
        if !later(status) {
            return status;
        }
        world.sleep(Duration::from_millis(100)).await;
    }
    panic!("a write is asked to wait for ever");
}

#[test]
fn who_writes_where_one_of_two_mirrors_refuses_waits_and_hears_of_no_error() {
    for (mirror, trouble) in [0, 1].into_iter().flat_map(|n| [(n, Trouble::Flushes), (n, Trouble::ReadOnly)])
    {
        simulate_with(97, TWICE, async |world| {
            let (mut writer, mut data) = at_rest(world).await;
            let refuses = homes(world, &mut writer).await[mirror];
            trouble.begin(world, refuses);
            assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4_OK, "{mirror} {trouble:?}");
            put(&mut data, 100, b"new");
            // It is read as it was written, wherever that is.
            assert!(writer.client.proxied_read(&writer.file, 0, 1000).await[..] == data[..1000]);
            Trouble::end(world, refuses).await;
            healed(world, "f", &data).await;
        });
    }
}

#[test]
fn one_that_refused_once_is_filled_again() {
    simulate_with(98, TWICE, async |world| {
        let (mut writer, mut data) = at_rest(world).await;
        let refuses = homes(world, &mut writer).await[0];
        world.device(refuses).set_read_only(true);
        let (_, wrote) = tokio::join!(
            async {
                world.sleep(Duration::from_millis(50)).await;
                world.device(refuses).set_read_only(false);
            },
            write(world, &writer, 100, b"new"),
        );
        assert_eq!(wrote, nfsstat4::NFS4_OK);
        put(&mut data, 100, b"new");
        healed(world, "f", &data).await;
    });
}

#[test]
fn where_both_mirrors_refuse_it_is_an_error() {
    simulate_with(99, TWICE, async |world| {
        let (mut writer, mut data) = at_rest(world).await;
        let homes = homes(world, &mut writer).await;
        homes.iter().for_each(|n| Trouble::Flushes.begin(world, *n));
        assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4ERR_IO);
        for n in homes {
            Trouble::end(world, n).await;
        }
        assert_eq!(write(world, &writer, 100, b"new").await, nfsstat4::NFS4_OK);
        put(&mut data, 100, b"new");
        healed(world, "f", &data).await;
    });
}
