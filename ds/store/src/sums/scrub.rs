//! How far a scrub is, and where it goes on after a restart.

use parking_lot::Mutex;
use sluice_env::Wall;

use crate::StoreError;
use crate::device::Device;
use crate::log::{read_all, replace};

const FILE: &str = "scrub";
const HEAD: &str = "sluice scrub 1";

/// Folders of data files: a scrub goes through them one after the other.
pub(crate) const FOLDERS: u16 = 4096;

/// A scrub, and what there is to say about checksums. Counts are since the store was opened, unless they say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrub {
    /// Checksums are kept.
    pub on: bool,
    pub running: bool,
    /// Seconds since 1970: when the scrub that runs, or that ran last, began; 0: never.
    pub begun: i64,
    /// When the last one that came to its end did; 0: never.
    pub finished: i64,
    /// Of `FOLDERS`, by the scrub that runs.
    pub folders: u16,
    /// Bytes compared by the scrub that runs, or ran last; across restarts.
    pub compared: u64,
    /// Bytes found good.
    pub verified: u64,
    /// Bytes that got sums.
    pub sealed: u64,
    /// Times that a region's sums were given up because it was written to: a flush each.
    pub unsealed: u64,
    /// Blocks of 4 KiB found bad.
    pub bad: u64,
    /// Records of sums found damaged themselves.
    pub lost: u64,
    /// Ranges in quarantine now.
    pub quarantined: u64,
}

/// What is durable of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) running: bool,
    pub(crate) begun: i64,
    pub(crate) finished: i64,
    pub(crate) folders: u16,
    pub(crate) compared: u64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    point: Mutex<Point>,
}

impl State {
    /// Where an incarnation before this one was; anything that cannot be read is a beginning. Blocking.
    pub(crate) fn load(device: &dyn Device) -> Result<Self, StoreError> {
        let point = match read_all(device, FILE) {
            Ok(bytes) => decode(&bytes).unwrap_or_default(),
            Err(StoreError::Missing) => Point::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { point: Mutex::new(point) })
    }

    pub(crate) fn get(&self) -> Point {
        *self.point.lock()
    }

    /// Begins from the beginning, unless one runs.
    pub(crate) fn begin(&self, now: Wall) {
        let mut point = self.point.lock();
        if !point.running {
            *point = Point { running: true, begun: now.seconds, folders: 0, compared: 0, ..*point };
        }
    }

    pub(crate) fn stop(&self) {
        self.point.lock().running = false;
    }

    /// So many bytes more were compared.
    pub(crate) fn compared(&self, bytes: u64) {
        self.point.lock().compared += bytes;
    }

    /// A folder is done; true when that was the last.
    pub(crate) fn folder_done(&self, now: Wall) -> bool {
        let mut point = self.point.lock();
        point.folders = (point.folders + 1).min(FOLDERS);
        let last = point.folders == FOLDERS;
        if last {
            (point.running, point.finished) = (false, now.seconds);
        }
        last
    }

    /// Blocking.
    pub(crate) fn save(&self, device: &dyn Device) -> Result<(), StoreError> {
        replace(device, FILE, encode(&self.get()).as_bytes())
    }
}

fn encode(point: &Point) -> String {
    let Point { running, begun, finished, folders, compared } = point;
    let running = u8::from(*running);
    format!(
        "{HEAD}\nrunning {running}\nbegun {begun}\nfinished {finished}\nfolders {folders}\ncompared {compared}\n"
    )
}

fn decode(bytes: &[u8]) -> Option<Point> {
    let mut lines = std::str::from_utf8(bytes).ok()?.lines().skip(1);
    let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
    let point = Point {
        running: field("running")? == "1",
        begun: field("begun")?.parse().ok()?,
        finished: field("finished")?.parse().ok()?,
        folders: field("folders")?.parse().ok()?,
        compared: field("compared")?.parse().ok()?,
    };
    (encode(&point).as_bytes() == bytes && point.folders <= FOLDERS).then_some(point)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemDevice;

    #[test]
    fn a_scrub_goes_on_where_it_was() {
        let device = MemDevice::new();
        let state = State::load(&device).unwrap();
        state.begin(Wall { seconds: 5, nanos: 0 });
        state.compared(100);
        assert!(!state.folder_done(Wall::default()));
        state.save(&device).unwrap();
        device.crash();
        let again = State::load(&device).unwrap();
        assert_eq!(again.get(), Point { running: true, begun: 5, finished: 0, folders: 1, compared: 100 });
        again.begin(Wall { seconds: 9, nanos: 0 });
        assert_eq!(again.get().begun, 5, "it runs");
        while !again.folder_done(Wall { seconds: 7, nanos: 0 }) {}
        assert_eq!((again.get().running, again.get().finished), (false, 7));
        device.open(FILE).unwrap().write_at(b"x", 20).unwrap();
        assert_eq!(State::load(&device).unwrap().get(), Point::default());
    }
}
