//! A metadata store that has failed for good. The server ends and is started again (deploy/tests/metadata_server.rs); what
//! it is asked until then is asked again.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_kv::Faults;
use sluice_rpc::CallError;
use sluice_xdr::nfs4::*;
use tracing_subscriber::fmt::MakeWriter;

use crate::harness::*;

/// Lines that were logged.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Log {
    /// What is logged on this thread until the guard is dropped.
    pub fn of_this_thread() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().clone()).unwrap().lines().map(str::to_owned).collect()
    }
}

/// Linux makes EREMOTEIO of SERVERFAULT, also where it is mounted hard; DELAY is what it waits for.
#[test]
fn clients_wait_and_the_log_does_not_fill() {
    simulate(71, async |world: World| {
        let client = world.client("a").await;
        client.mkdir("", "d").await;
        let (log, _logged) = Log::of_this_thread();
        world.db.set_faults(Faults { failed: true, ..Faults::NONE });
        for _ in 0..500 {
            let looked = client.status(vec![putrootfh(), getattr(&[FATTR4_SIZE])]).await;
            assert_eq!(looked, nfsstat4::NFS4ERR_DELAY);
            let made = vec![putrootfh(), create(createtype4::NF4DIR, "e", &mode(0o777))];
            assert_eq!(client.status(made).await, nfsstat4::NFS4ERR_DELAY);
        }
        let lines = log.lines();
        // What works in the background says a word in minutes; of a thousand calls there is none.
        assert!(lines.len() < 10, "{} lines, such as {:?}", lines.len(), lines.last());
    });
}

/// Whether it was done nobody knows: the client sends it again when its connection is lost, and not before (RFC 8881
/// §2.9.2).
#[test]
fn who_is_not_answered_loses_the_connection() {
    let lost = std::cell::Cell::new(0);
    for millis in 0..40 {
        simulate(72, async |world: World| {
            let client = world.client("a").await;
            client.mkdir("", "first").await;
            let latency = Duration::from_millis(10);
            world.db.set_faults(Faults { unknown_applied: 1.0, latency, ..Faults::NONE });
            let fails = async {
                world.sleep(Duration::from_millis(millis)).await;
                world.db.set_faults(Faults { failed: true, ..Faults::NONE });
            };
            let make = create(createtype4::NF4DIR, "d", &mode(0o777));
            let request = vec![sequence(client.session, 1, 1, true), putrootfh(), make];
            match both(client.raw.try_compound(request), fails).await.0 {
                Ok(_) => {}
                Err(CallError::Closed) => lost.set(lost.get() + 1),
                Err(error) => panic!("{error}, {millis} ms"),
            }
        });
    }
    assert!(lost.get() > 2, "the moment was never met");
}
