//! The newest version of the store, without asking the cluster for it.
//!
//! While this server has the store, nobody else writes there: the version of its own last commit is one at which
//! everything that was ever acknowledged is seen. So transactions begin there, and save the round trip for a version.
//! After a commit whose result is unknown that is no longer so, since it may have a higher version than any that is
//! known: then the cluster is asked first, as it is when nothing was committed for a while. What it says is good for as
//! long as a commit's version, also where that is no news: where nobody writes, its versions rise every other second.

use std::cmp::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use sluice_env::Monotonic;

/// How long a version is good for. The cluster answers nothing about versions of more than 5 s ago, and a transaction
/// that begins at this one has what is left of them.
const FRESH: Duration = Duration::from_millis(500);

/// The newest version known, if it can be relied on.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    /// It was the newest then, or came to be later.
    at: Monotonic,
    /// No commit may have a higher version.
    known: bool,
    /// How often that was not so.
    doubts: u64,
}

impl State {
    fn advance(&mut self, version: u64, at: Monotonic) {
        match version.cmp(&self.version) {
            Ordering::Less => {}
            Ordering::Equal => self.at = self.at.max(at),
            Ordering::Greater => (self.version, self.at) = (version, at),
        }
    }
}

impl Recent {
    pub(crate) fn version(&self, now: Monotonic) -> Option<u64> {
        let state = self.state.lock();
        (state.known && now.since(state.at) < FRESH).then_some(state.version)
    }

    /// To be kept while the cluster is asked.
    pub(crate) fn doubts(&self) -> u64 {
        self.state.lock().doubts
    }

    /// The cluster's answer to a question asked at `at`.
    pub(crate) fn answered(&self, version: u64, at: Monotonic, doubts: u64) {
        let mut state = self.state.lock();
        state.advance(version, at);
        // What was in doubt when it was asked is in the answer; what came to be so since is not.
        state.known |= state.doubts == doubts;
    }

    /// Of a commit that began at `at`; before anybody hears of it.
    pub(crate) fn committed(&self, version: u64, at: Monotonic) {
        self.state.lock().advance(version, at);
    }

    /// A commit was begun: whoever drops the value without saying what became of it leaves it in doubt.
    pub(crate) fn commit(&self) -> InFlight<'_> {
        InFlight { recent: self, open: true }
    }

    fn doubt(&self) {
        let mut state = self.state.lock();
        state.known = false;
        state.doubts += 1;
    }
}

/// A commit whose result is not known yet.
#[derive(Debug)]
pub(crate) struct InFlight<'a> {
    recent: &'a Recent,
    open: bool,
}

impl InFlight<'_> {
    /// It is known: applied, with the version told, or refused.
    pub(crate) fn settled(mut self) {
        self.open = false;
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.open {
            self.recent.doubt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic(millis * 1_000_000)
    }

    #[test]
    fn it_is_asked_for_first_and_then_follows_commits() {
        let recent = Recent::default();
        recent.committed(5, at(1));
        assert_eq!(recent.version(at(1)), None);
        recent.answered(4, at(2), recent.doubts());
        assert_eq!(recent.version(at(2)), Some(5));
        recent.committed(9, at(3));
        recent.committed(8, at(4));
        assert_eq!(recent.version(at(400)), Some(9));
        assert_eq!(recent.version(at(504)), None);
    }

    /// Where nobody writes, versions rise now and then only: its word that there is none newer is as good as a newer one.
    #[test]
    fn what_the_cluster_says_again_is_good_again() {
        let recent = Recent::default();
        recent.answered(5, at(0), 0);
        assert_eq!(recent.version(at(500)), None);
        recent.answered(5, at(500), 0);
        assert_eq!(recent.version(at(999)), Some(5));
        // An answer that was late says nothing of what has come since, and none makes a version younger than it was asked for.
        recent.committed(9, at(800));
        recent.answered(5, at(900), 0);
        recent.answered(9, at(700), 0);
        assert_eq!(recent.version(at(1299)), Some(9));
        assert_eq!(recent.version(at(1300)), None);
    }

    #[test]
    fn a_commit_in_doubt_is_waited_for() {
        let recent = Recent::default();
        recent.answered(4, at(0), 0);
        let asked = recent.doubts();
        drop(recent.commit());
        // Neither another commit nor an answer to an earlier question tells.
        recent.committed(7, at(1));
        recent.answered(6, at(1), asked);
        assert_eq!(recent.version(at(1)), None);
        recent.answered(8, at(2), recent.doubts());
        assert_eq!(recent.version(at(2)), Some(8));
        recent.commit().settled();
        assert_eq!(recent.version(at(2)), Some(8));
    }
}
