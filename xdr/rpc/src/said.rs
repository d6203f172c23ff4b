//! What was said of whom: one that asks every few seconds, and is refused each time, fills no log.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

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
}
