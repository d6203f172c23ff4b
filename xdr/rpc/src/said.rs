//! What was said, and of whom: neither one that asks every few seconds, and is refused each time, nor a thousand that misbehave
//! fill a log.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::Monotonic;

/// After which the same is said again.
const AGAIN: Duration = Duration::from_secs(600);
/// Addresses remembered; beyond it all are forgotten.
const MOST: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Said(BTreeMap<IpAddr, (String, Monotonic)>);

impl Said {
    /// Whether this is to be said now, of this address. From now on it has been.
    pub(crate) fn is_news(&mut self, of: IpAddr, what: &str, now: Monotonic) -> bool {
        if self.0.get(&of).is_some_and(|(said, at)| said == what && now.since(*at) < AGAIN) {
            return false;
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(of, (what.to_owned(), now));
        true
    }
}

/// Lines of one kind within [`WHILE`].
const LINES: u64 = 10;
/// See [`LINES`].
const WHILE: Duration = Duration::from_secs(60);

/// Lines of one kind, of which there may be any number: some are said, and of the others how many there were.
#[derive(Debug, Default)]
pub struct Sparing(Mutex<Spared>);

#[derive(Debug, Default)]
struct Spared {
    since: Option<Monotonic>,
    said: u64,
    unsaid: u64,
}

impl Sparing {
    /// Something happened. Whether it is to be said, and then how often it was not said since the last time.
    pub fn says(&self, now: Monotonic) -> Option<u64> {
        let mut spared = self.0.lock();
        if spared.since.is_none_or(|since| now.since(since) >= WHILE) {
            (spared.since, spared.said) = (Some(now), 0);
        }
        if spared.said >= LINES {
            spared.unsaid += 1;
            return None;
        }
        spared.said += 1;
        Some(std::mem::take(&mut spared.unsaid))
    }
}

/// How connections ended that did not end well: anybody can make one, and break it.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) slow: Sparing,
    pub(crate) hostile: Sparing,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_of_each_and_again_later() {
        let mut said = Said::default();
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let mut at = |seconds: u64, of, what| {
            let now = Monotonic(seconds * 1_000_000_000);
            said.is_news(of, what, now)
        };
        let news: Vec<u64> = (0..1500).step_by(6).filter(|seconds| at(*seconds, a, "another key")).collect();
        assert_eq!(news, [0, 600, 1200]);
        assert!(at(1500, b, "another key") && at(1500, a, "no secure connection"));
        assert!(!at(1501, b, "another key"));
    }

    #[test]
    fn of_many_some_are_said_and_the_others_counted() {
        let sparing = Sparing::default();
        let at = |seconds: u64| sparing.says(Monotonic(seconds * 1_000_000_000));
        let said: Vec<_> = (0..1000).filter_map(|_| at(0)).collect();
        assert_eq!(said, [0; 10]);
        assert_eq!([at(59), at(60), at(61), at(300)], [None, Some(991), Some(0), Some(0)]);
    }
}
