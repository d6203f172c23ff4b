//! Opening a store: is this ours, is it alone, which incarnation is this?

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sluice_env::Env;
use tokio::sync::oneshot;

use crate::access_ops::Settled;
use crate::callers::Callers;
use crate::device::Device;
use crate::emptied::Emptied;
use crate::flush::Flushes;
use crate::format::{BOOT, DATA, JOURNAL, SUMS_LEFT, SUPERBLOCK, Superblock};
use crate::gate::Gate;
use crate::journal::Journal;
use crate::lane::Lane;
use crate::log::{read_all, replace};
use crate::open_files::OpenFiles;
use crate::pace::Pace;
use crate::pool::Pool;
use crate::room::Room;
use crate::sums::{Quarantine, ScrubState, SumOptions, Sums, forget_quarantine};
use crate::tide::Tide;
use crate::verifier::Verifiers;
use crate::{Store, StoreError, Uuid, witness};

/// How a store is opened and how much it may use.
#[derive(Clone, Debug)]
pub struct Options {
    /// Make a new store of an empty directory. Without it an empty directory is refused: the
    /// device may not be mounted.
    pub create: bool,
    /// The cluster this store must belong to, if it belongs to one already.
    pub cluster: Option<Uuid>,
    /// Data files kept open, if they and their checksums take no more than half of the descriptors that the process may have.
    pub open_files: usize,
    /// Fences and tombstones kept; more are refused with `FencesFull`.
    pub max_rows: usize,
    /// Bytes of the device that data may not fill.
    pub reserve: u64,
    /// Threads that read at once: the queue depth of a cold device.
    pub read_threads: usize,
    /// Threads that write at once: writes go to the page cache, so a few saturate it.
    pub write_threads: usize,
    /// Reads up to this many bytes are tried on the calling thread if they need not wait.
    pub inline_read: usize,
    /// Page-aligned writes up to this many bytes are done on the calling thread while the device takes
    /// writes at memory speed.
    pub inline_write: usize,
    /// Threads that do so at once, or send what is in memory: fewer than serve connections.
    pub inline_threads: usize,
    /// Whether checksums are kept of what is at rest; `None`: as before, and not in a new store.
    pub checksums: Option<bool>,
    pub sums: SumOptions,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            create: false,
            cluster: None,
            open_files: 4096,
            max_rows: 1 << 20,
            reserve: 64 << 20,
            read_threads: 32,
            write_threads: 4,
            inline_read: 1 << 20,
            inline_write: 16 << 10,
            inline_threads: usize::MAX,
            checksums: None,
            sums: SumOptions::default(),
        }
    }
}

impl Store {
    /// Opens the store on `device`, or makes one.
    ///
    /// # Errors
    /// Each reads as one line that names the directory: foreign, absent, newer format, locked,
    /// another cluster, damaged.
    pub async fn open(env: &Env, device: Arc<dyn Device>, options: Options) -> Result<Arc<Self>, StoreError> {
        let (done, wait) = oneshot::channel();
        let env2 = env.clone();
        drop(env.spawn.blocking(Box::new(move || {
            // The caller may have given up.
            let _ = done.send(open(&env2, device, options));
        })));
        wait.await.unwrap_or(Err(StoreError::Closing))
    }
}

fn open(env: &Env, device: Arc<dyn Device>, options: Options) -> Result<Arc<Store>, StoreError> {
    let place = device.name();
    let at = |error: io::Error| StoreError::Directory(place.clone(), error.to_string());
    let inside = |error: StoreError| match error {
        StoreError::Io(why) => StoreError::Directory(place.clone(), why),
        StoreError::NoSpace | StoreError::ReadOnly | StoreError::Missing | StoreError::TooBig => {
            StoreError::Directory(place.clone(), error.to_string())
        }
        other => other,
    };
    let lock = device.lock().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => StoreError::Locked(place.clone()),
        _ => at(error),
    })?;
    let mut superblock = match read_all(&*device, SUPERBLOCK) {
        Ok(bytes) => Superblock::decode(&place, &bytes)?,
        Err(StoreError::Missing) => {
            make(env, &device, &options).map_err(inside)?;
            let bytes = read_all(&*device, SUPERBLOCK).map_err(inside)?;
            Superblock::decode(&place, &bytes)?
        }
        Err(error) => return Err(inside(error)),
    };
    if let Some(cluster) = options.cluster
        && !superblock.cluster.is_nil()
        && superblock.cluster != cluster
    {
        return Err(StoreError::ForeignCluster(place, superblock.uuid, superblock.cluster, cluster));
    }
    device.create_dir(DATA).map_err(at)?;
    device.sync_dir("").map_err(at)?;
    let boot = next_boot(&*device).map_err(inside)?;
    let journal = Journal::open(env, Arc::clone(&device), options.max_rows, false).map_err(inside)?;
    switch_sums(env, &*device, &mut superblock, options.checksums).map_err(inside)?;
    witness::prepare(&*device);
    let tide = Tide::open(&*device).map_err(inside)?;
    let scrub = ScrubState::load(&*device).map_err(inside)?;
    let sums = match superblock.sums {
        Some(id) => {
            let quarantine = Quarantine::open(Arc::clone(&device)).map_err(inside)?;
            let clock = Arc::clone(&env.clock);
            Some(Sums::new(id, Arc::clone(&device), clock, options.sums, quarantine))
        }
        None => None,
    };
    tracing::info!(store = %place, uuid = %superblock.uuid, boot, "store open");
    let (journal, verifiers) = (Arc::new(journal), Arc::new(Verifiers::new(boot, env.random.u64())));
    let files = Arc::new(OpenFiles::new(affordable(env, &options, sums.is_some()), boot));
    for (key, generation) in journal.peek(|table| table.unreported(usize::MAX)) {
        files.shard(key).made.add(key, generation);
    }
    Ok(Arc::new(Store {
        env: env.clone(),
        boot,
        superblock: Mutex::new(superblock),
        flushes: Flushes::new(env, &device, (&files, &journal), &verifiers),
        verifiers,
        settled: Settled::new(&journal),
        emptied: journal.peek(|table| Emptied::of(table.removed())),
        journal,
        files,
        folders: Arc::default(),
        pool: Pool::default(),
        room: Room::new(options.reserve),
        gate: Gate::default(),
        orders: Gate::default(),
        since: OnceLock::new(),
        health: Arc::default(),
        tide,
        sums,
        scrub,
        read_lane: Lane::new(options.read_threads),
        wait_lane: Lane::patient(options.read_threads),
        write_lane: Lane::new(options.write_threads),
        under_way: Arc::default(),
        inline_read: options.inline_read,
        inline_write: options.inline_write,
        callers: Callers::new(options.inline_threads),
        pace: Pace::default(),
        send_pace: Pace::default(),
        direct_bytes: AtomicU64::new(0),
        piped_bytes: AtomicU64::new(0),
        small_calls: AtomicBool::new(false),
        device,
        _lock: lock,
    }))
}

/// Switches checksums on or off, durably.
fn switch_sums(
    env: &Env,
    device: &dyn Device,
    superblock: &mut Superblock,
    on: Option<bool>,
) -> Result<(), StoreError> {
    let sums = match (on, superblock.sums) {
        // Of what earlier sums say nothing holds that is not under this name.
        (Some(true), None) => Some(env.random.u64()),
        (Some(false), Some(_)) => {
            // First: whatever happens from here on, somebody removes what is left. Until that is done nobody reads it, and sums
            // that are switched on again have another name.
            replace(device, SUMS_LEFT, b"\n")?;
            None
        }
        _ => return Ok(()),
    };
    // What was found by other sums is not known of what there is now, and no scrub would find it well.
    forget_quarantine(device)?;
    *superblock = Superblock { sums, ..*superblock };
    replace(device, SUPERBLOCK, superblock.encode().as_bytes())
}

/// Makes a store of an empty directory. The superblock comes last: until it is there, the same
/// command may be repeated.
fn make(env: &Env, device: &Arc<dyn Device>, options: &Options) -> Result<(), StoreError> {
    let place = device.name();
    let ours = [BOOT, JOURNAL, "boot.new", "journal.new", "superblock.new", "lost+found"];
    let foreign = device.list("")?.into_iter().any(|name| !ours.contains(&name.as_str()));
    if foreign {
        return Err(StoreError::Foreign(place));
    }
    if !options.create {
        return Err(StoreError::Absent(place));
    }
    drop(Journal::open(env, Arc::clone(device), options.max_rows, true)?);
    replace(&**device, BOOT, b"0\n")?;
    let superblock = Superblock {
        uuid: Uuid(env.random.array()),
        cluster: options.cluster.unwrap_or_default(),
        created: env.clock.wall().seconds,
        sums: None,
    };
    replace(&**device, SUPERBLOCK, superblock.encode().as_bytes())
}

/// Counts this incarnation, durably, before it answers anyone.
fn next_boot(device: &dyn Device) -> Result<u64, StoreError> {
    let damaged = |why: &str| StoreError::Corrupt(device.name(), BOOT.into(), why.into());
    let bytes = match read_all(device, BOOT) {
        Err(StoreError::Missing) => return Err(damaged("it is missing")),
        other => other?,
    };
    let text = std::str::from_utf8(&bytes).map_err(|_| damaged("not a number"))?;
    let last: u64 = text.trim().parse().map_err(|_| damaged("not a number"))?;
    let boot = last.wrapping_add(1);
    replace(device, BOOT, format!("{boot}\n").as_bytes())?;
    Ok(boot)
}

/// Data files that may stay open: with their checksums they take half of the descriptors that the process may have, and
/// connections, which each take one or two, have the rest. A system that does not tell gives what is asked for.
fn affordable(env: &Env, options: &Options, sums: bool) -> usize {
    let most = usize::try_from(env.process.descriptors().most).unwrap_or(usize::MAX);
    let each = if sums { 2 } else { 1 };
    let half = if most == 0 { usize::MAX } else { most / 2 / each };
    if half < options.open_files {
        tracing::info!(
            descriptors = most,
            files = half,
            "fewer data files are kept open: raise LimitNOFILE for more"
        );
    }
    options.open_files.min(half)
}
