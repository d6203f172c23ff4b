//! Devices that hang: nothing that asks them for anything gets on, and nothing says so.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::{BoxFuture, Env, Spawn};
use sluice_namespace::{LayoutPolicy, Shape};
use sluice_xdr::nfs4::nfsstat4;
use tokio::sync::oneshot;

use crate::client::{Client, RO, RW};
use crate::mirrors::{Writer, healed, home, put};
use crate::stage::{World, simulate_with};
use crate::{NEW, pattern};

const TWICE: LayoutPolicy = LayoutPolicy { shape: Shape::Small, mirrors: 2, inline: 0, class: None };

type Work = Box<dyn FnOnce() + Send>;

/// Work that may block waits while its device hangs.
#[derive(Clone)]
pub(crate) struct Hangs {
    inner: Arc<dyn Spawn>,
    held: Arc<Mutex<Option<Vec<Work>>>>,
    /// It answers questions all the same.
    answers: Arc<Mutex<bool>>,
}

impl std::fmt::Debug for Hangs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hangs")
    }
}

impl Hangs {
    pub(crate) fn new(env: &Env) -> Self {
        Self { inner: Arc::clone(&env.spawn), held: Arc::default(), answers: Arc::default() }
    }

    pub(crate) fn begin(&self, answers: bool) {
        *self.answers.lock() = answers;
        self.held.lock().get_or_insert_default();
    }

    /// What was asked for meanwhile is done.
    pub(crate) fn end(&self) {
        let held = self.held.lock().take();
        held.into_iter().flatten().for_each(|work| work());
    }
}

impl Spawn for Hangs {
    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.inner.spawn(task);
    }

    fn blocking(&self, work: Work) -> BoxFuture<'static, ()> {
        // Work that is done at once may bring more, and meet the lock.
        if self.held.lock().is_none() {
            return self.inner.blocking(work);
        }
        let (done, wait) = oneshot::channel();
        self.held.lock().get_or_insert_default().push(Box::new(move || {
            work();
            let _ = done.send(());
        }));
        Box::pin(async move {
            let _ = wait.await;
        })
    }

    fn apart(&self, name: &'static str, work: Work) {
        let answers = name == "look" && *self.answers.lock();
        drop(if answers { self.inner.blocking(work) } else { self.blocking(work) });
    }
}

/// NFSv3 has no way to say so, and a client that waits asks nobody else.
#[test]
fn who_has_another_mirror_goes_on_without_a_device_that_hangs() {
    simulate_with(60, TWICE, async |world| {
        goes_on_without(world, World::hang, Duration::from_secs(45)).await;
    });
}

/// Nor has it where the device answers whoever asks, and takes nothing: a file system that was frozen, a path that queues writes.
#[test]
fn who_has_another_mirror_goes_on_without_a_device_that_takes_no_writes() {
    simulate_with(61, TWICE, async |world| {
        goes_on_without(world, World::hang_writes, Duration::from_secs(75)).await;
    });
}

async fn goes_on_without(world: &mut World, hang: fn(&World, usize), within: Duration) {
    let mut model = pattern(0, 100_000);
    let mut writer = Writer::mount(world, "a", "f").await;
    writer.write(world, 0, &model).await;
    let held = writer.held.clone().unwrap();
    let hangs = home(world, &writer.client, &held, 0).await;
    hang(world, hangs);
    let begun = world.env.clock.now();
    let written = world.env.clock.timeout(2 * within, writer.write(world, 50_000, &[7; 30_000])).await;
    assert!(written.is_ok(), "it waits for ever");
    put(&mut model, 50_000, &[7; 30_000]);
    let took = world.env.clock.now().since(begun);
    assert!(took < within, "{took:?}");
    writer.give_back().await;
    // Others neither: nobody waits for a fence there.
    let other = Client::mount(world, "b", NEW).await;
    let file = other.open("f").await;
    let segment = other.layout(&file, file.stateid, RO, 0).await;
    assert_eq!(segment.body.ffl_mirrors.len(), 1);
    assert!(other.read(&segment, 0..100_000).await.unwrap()[..] == model[..]);
    other.layout_return(&file, segment.stateid).await;
    other.truncate(&file, 60_000).await;
    model.truncate(60_000);
    assert!(world.env.clock.now().since(begun) < within + Duration::from_secs(15));

    world.resume(hangs);
    healed(world, "f", &model).await;
    let status = other.layout_status(&file, RW, 0).await;
    assert_eq!(status, nfsstat4::NFS4_OK);
}
