//! How far a scrub is, and where it goes on after a restart.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use sluice_env::{Monotonic, Wall};

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

/// One that broke off begins by itself again so much later, or after the interval, if that is shorter.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Default)]
struct Course {
    point: Point,
    /// Scrubs that began since the store was opened: who works on one sees whether it still runs.
    number: u64,
    /// Data files that it could not look at since then.
    missed: u64,
    /// The first folder with one: after a restart it goes on there, and does not forget them.
    missed_in: Option<u16>,
    /// It was ended, and the device still says that it runs, perhaps.
    unsaved: bool,
    /// The last one did not come to its end: until then none begins by itself.
    rests: Monotonic,
}

impl Course {
    fn runs(&self, number: u64) -> bool {
        self.point.running && self.number == number
    }
}

/// When it is, and how often scrubs are to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) wall: Wall,
    pub(crate) now: Monotonic,
    pub(crate) interval: Duration,
}

impl Moment {
    /// When one that breaks off now may begin by itself again.
    fn again(&self) -> Monotonic {
        self.now + self.interval.min(AGAIN)
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    course: Mutex<Course>,
}

impl State {
    /// Where an incarnation before this one was; anything that cannot be read is a beginning. Blocking.
    pub(crate) fn load(device: &dyn Device) -> Result<Self, StoreError> {
        let point = match read_all(device, FILE) {
            Ok(bytes) => decode(&bytes).unwrap_or_default(),
            Err(StoreError::Missing) => Point::default(),
            Err(error) => return Err(error),
        };
        Ok(Self { course: Mutex::new(Course { point, ..Course::default() }) })
    }

    fn course(&self) -> MutexGuard<'_, Course> {
        self.course.lock()
    }

    pub(crate) fn get(&self) -> Point {
        self.course().point
    }

    /// Whether it is time for one to begin by itself, in a store that came into being when `created` says.
    pub(crate) fn is_due(&self, at: Moment, created: i64) -> bool {
        let Course { point, rests, .. } = *self.course();
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let (wall, interval) = (at.wall.seconds, seconds(at.interval));
        // What is said to have been in the future was before the clock was set right.
        let last = [point.finished, created].into_iter().filter(|last| *last <= wall);
        let last = last.max().unwrap_or(i64::MIN);
        // Of one that did not come to its end before a restart only this is known.
        let broken = point.begun > point.finished && point.begun <= wall;
        let again = if broken { point.begun.saturating_add(interval.min(seconds(AGAIN))) } else { i64::MIN };
        let due = last.saturating_add(interval).max(again) <= wall;
        interval > 0 && !point.running && due && rests <= at.now
    }

    /// Begins from the beginning, unless one runs.
    pub(crate) fn begin(&self, now: Wall) {
        let mut course = self.course();
        if !course.point.running {
            let point = Point { running: true, begun: now.seconds, folders: 0, compared: 0, ..course.point };
            *course = Course { point, number: course.number + 1, ..Course::default() };
        }
    }

    /// Ends the one that runs, for a whole interval.
    pub(crate) fn stop(&self, at: Moment) {
        let mut course = self.course();
        if course.point.running {
            (course.point.running, course.rests) = (false, at.now + at.interval);
            course.unsaved = true;
        }
    }

    /// Whether one was ended since the place was saved last.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.course().unsaved
    }

    /// It cannot go on.
    pub(crate) fn break_off(&self, number: u64, at: Moment) {
        let mut course = self.course();
        if course.runs(number) {
            (course.point.running, course.rests) = (false, at.again());
        }
    }

    /// The scrub that runs, by its number, and the folder that is next.
    pub(crate) fn next(&self) -> Option<(u64, u16)> {
        let course = self.course();
        let Point { running, folders, .. } = course.point;
        (running && folders < FOLDERS).then_some((course.number, folders))
    }

    pub(crate) fn runs(&self, number: u64) -> bool {
        self.course().runs(number)
    }

    /// So many bytes more were compared.
    pub(crate) fn compared(&self, number: u64, bytes: u64) {
        let mut course = self.course();
        if course.runs(number) {
            course.point.compared += bytes;
        }
    }

    /// It could not look at a data file of the folder it is at.
    pub(crate) fn missed(&self, number: u64) {
        let mut course = self.course();
        if course.runs(number) {
            let folder = course.point.folders;
            course.missed += 1;
            course.missed_in.get_or_insert(folder);
        }
    }

    /// A folder is done. If that was the last: how many data files could not be looked at. Then the scrub has not come to its
    /// end, though it goes no further.
    pub(crate) fn folder_done(&self, number: u64, at: Moment) -> Option<u64> {
        let mut course = self.course();
        if !course.runs(number) {
            return None;
        }
        let (missed, point) = (course.missed, &mut course.point);
        point.folders = (point.folders + 1).min(FOLDERS);
        if point.folders < FOLDERS {
            return None;
        }
        point.running = false;
        if missed == 0 {
            point.finished = at.wall.seconds;
        } else {
            course.rests = at.again();
        }
        Some(missed)
    }

    /// Blocking.
    pub(crate) fn save(&self, device: &dyn Device) -> Result<(), StoreError> {
        let point = {
            let mut course = self.course();
            course.unsaved = false;
            let first = course.missed_in.filter(|_| course.point.running);
            Point { folders: first.unwrap_or(course.point.folders), ..course.point }
        };
        replace(device, FILE, encode(&point).as_bytes())
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
        let (number, folder) = state.next().unwrap();
        assert_eq!(folder, 0);
        state.compared(number, 100);
        let at = |seconds| Moment {
            wall: Wall { seconds, nanos: 0 },
            now: Monotonic(0),
            interval: Duration::ZERO,
        };
        assert_eq!(state.folder_done(number, at(0)), None);
        state.folder_done(number + 1, at(0));
        state.save(&device).unwrap();
        device.crash();
        let again = State::load(&device).unwrap();
        assert_eq!(again.get(), Point { running: true, begun: 5, finished: 0, folders: 1, compared: 100 });
        again.begin(Wall { seconds: 9, nanos: 0 });
        assert_eq!(again.get().begun, 5, "it runs");
        let (number, folder) = again.next().unwrap();
        assert_eq!(folder, 1);
        while again.folder_done(number, at(7)).is_none() {}
        assert_eq!(again.next(), None);
        assert_eq!((again.get().running, again.get().finished), (false, 7));
        device.open(FILE).unwrap().write_at(b"x", 20).unwrap();
        assert_eq!(State::load(&device).unwrap().get(), Point::default());
    }
}
