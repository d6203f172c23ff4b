//! What each server holds of the machine, and whether it grows.
//!
//! The first third of a run warms up. Then the greatest value of the last third may be a tenth more than that of the middle
//! third, and a constant, so that one allocation more or one compaction less is no growth. The metadata server's store has
//! caches that fill for as long as there is something new: a run must be long enough to fill them in its first third.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::kills::servers::Servers;

const MIB: u64 = 1 << 20;
/// Bytes of a block as stat(2) counts them.
const BLOCK: u64 = 512;
const SHARE: f64 = 1.1;
/// What the caches of a metadata server's store hold together, in MiB: what these servers are given (`kills/servers.rs`),
/// writes kept for validation (`EmbeddedOptions`), and those of small files' data that are not merged yet.
const CACHES: u64 = 448;

/// A kind of thing that a server holds.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Kind {
    Memory,
    Descriptors,
    Threads,
    Store,
}

const KINDS: [Kind; 4] = [Kind::Memory, Kind::Descriptors, Kind::Threads, Kind::Store];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory, MiB",
            Self::Descriptors => "descriptors",
            Self::Threads => "threads",
            Self::Store => "store, MiB",
        }
    }

    /// What may be added besides the share.
    fn constant(self) -> u64 {
        match self {
            Self::Memory => 8,
            Self::Descriptors => 16,
            // Data servers start some for what waits for a disk, up to a bound of their own.
            Self::Threads => 32,
            // Logs and tables of the store come and go as a whole.
            Self::Store => 64,
        }
    }
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Growth {
    seconds: Vec<u64>,
    series: BTreeMap<(String, Kind), Vec<u64>>,
}

/// The greatest values of the three thirds of a series.
fn thirds(series: &[u64]) -> [u64; 3] {
    let (one, two) = (series.len() / 3, series.len() * 2 / 3);
    [&series[..one], &series[one..two], &series[two..]].map(|part| part.iter().max().copied().unwrap_or(0))
}

fn grew(kind: Kind, series: &[u64]) -> bool {
    let [_, middle, last] = thirds(series);
    last as f64 > middle as f64 * SHARE + kind.constant() as f64
}

impl Growth {
    /// One sample of every server.
    pub(super) fn look(&mut self, servers: &Servers, now: Duration) -> Result<()> {
        self.seconds.push(now.as_secs());
        for (name, process, home) in servers.running() {
            let look = || -> Result<_> {
                let memory = process.resident()?.div_ceil(MIB);
                Ok([memory, process.descriptors()?, process.threads()?, size(&home)?.div_ceil(MIB)])
            };
            let values = look().with_context(|| format!("cannot look at {name}: has it ended?"))?;
            for (kind, value) in KINDS.into_iter().zip(values) {
                self.series.entry((name.clone(), kind)).or_default().push(value);
            }
        }
        Ok(())
    }

    pub(super) fn grew(&self) -> bool {
        self.series.iter().any(|((_, kind), series)| grew(*kind, series))
    }

    /// The last sample in one line.
    pub(super) fn now(&self) -> String {
        let mut text = String::new();
        for ((name, kind), series) in &self.series {
            let separator = if *kind == Kind::Memory { name } else { "" };
            let _ = write!(text, "{separator} {} ", series.last().copied().unwrap_or(0));
        }
        text
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        let mut text = String::from("seconds\tserver\tmemory_mib\tdescriptors\tthreads\tstore_mib\n");
        let names: Vec<_> =
            self.series.keys().filter(|(_, kind)| *kind == Kind::Memory).map(|(name, _)| name).collect();
        for (at, seconds) in self.seconds.iter().enumerate() {
            for name in &names {
                write!(text, "{seconds}\t{name}")?;
                for kind in KINDS {
                    let series = self.series.get(&((*name).clone(), kind));
                    write!(text, "\t{}", series.and_then(|series| series.get(at)).copied().unwrap_or(0))?;
                }
                text.push('\n');
            }
        }
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<7} {:<12} {:>8} {:>12} {:>12} {:>12}  the last third",
            "server", "", "first", "1st third", "2nd", "3rd"
        )?;
        for ((name, kind), series) in &self.series {
            let [first, middle, last] = thirds(series);
            let begun = series.first().copied().unwrap_or(0);
            let most = middle as f64 * SHARE + kind.constant() as f64;
            let mut verdict = "does not grow".to_owned();
            if grew(*kind, series) {
                verdict = format!("GREW: at most {most:.0} are good");
                if name == "mds" && *kind == Kind::Memory && last < CACHES {
                    verdict += &format!("; it may be caches of {CACHES} MiB: run for longer");
                }
            }
            writeln!(
                f,
                "{name:<7} {:<12} {begun:>8} {first:>12} {middle:>12} {last:>12}  {verdict}",
                kind.name()
            )?;
        }
        Ok(())
    }
}

/// What a directory takes of the disk. Files come and go meanwhile.
fn size(home: &Path) -> Result<u64> {
    let mut total = 0;
    let mut folders = vec![home.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                folders.push(entry.path());
            }
            total += found.blocks() * BLOCK;
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_warms_up_does_not_grow() {
        let warm: Vec<u64> = (0..30).map(|at| 20 + 10 * at.min(9)).collect();
        assert!(!grew(Kind::Memory, &warm));
        assert_eq!(thirds(&warm), [110, 110, 110]);
    }

    #[test]
    fn what_goes_on_growing_is_found() {
        // A tenth and a constant more is what the last third may be; one more is growth.
        let run = |last: u64| [vec![10; 10], vec![100; 10], vec![100; 9], vec![last]].concat();
        assert!(!grew(Kind::Descriptors, &run(126)));
        assert!(grew(Kind::Descriptors, &run(127)));
        assert!(!grew(Kind::Memory, &run(118)) && grew(Kind::Memory, &run(119)));
        let steady: Vec<u64> = (0..90).map(|at| 50 + at).collect();
        assert!(grew(Kind::Memory, &steady), "30 in a third");
    }

    #[test]
    fn a_server_that_grows_fails_the_run_and_is_named() {
        let mut growth = Growth::default();
        growth.series.insert(("mds".to_owned(), Kind::Memory), vec![50; 9]);
        assert!(!growth.grew());
        growth.series.insert(("ds0".to_owned(), Kind::Descriptors), vec![50, 50, 50, 50, 50, 50, 50, 50, 90]);
        assert!(growth.grew());
        let table = growth.to_string();
        let bad: Vec<_> = table.lines().filter(|line| line.contains("GREW")).collect();
        assert!(matches!(bad[..], [line] if line.starts_with("ds0     descriptors")), "{table}");
    }

    #[test]
    fn a_store_is_as_large_as_what_is_in_it() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("below")).unwrap();
        let empty = size(home.path()).unwrap();
        fs::write(home.path().join("below/file"), vec![1; 1 << 20]).unwrap();
        assert!(size(home.path()).unwrap() >= empty + (1 << 20));
    }
}
