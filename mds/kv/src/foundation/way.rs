//! The way to the cluster: who is asked, by which certificates, and what is in the way when nobody answers.

use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

use sluice_env::{Env, Monotonic};
use tokio::sync::oneshot;

use super::cluster_file::ClusterFile;
use super::tls::{self, Identity, RELOAD, Tls};
use super::{Foundation, FoundationOptions};
use crate::KvError;

/// Between two warnings of the same.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone, Debug)]
pub(crate) struct Way {
    cluster_file: Option<PathBuf>,
    tls: Tls,
}

/// What somebody was told last, and when.
#[derive(Default)]
struct Told(Option<(String, Monotonic)>);

impl Told {
    /// Whether `what` is to be said now.
    fn tells(&mut self, what: &str, now: Monotonic) -> bool {
        let is_old = |(said, at): &(String, Monotonic)| said == what && now.since(*at) < AGAIN;
        if self.0.as_ref().is_some_and(is_old) {
            return false;
        }
        self.0 = Some((what.to_owned(), now));
        true
    }
}

impl Way {
    pub(crate) fn of(options: &FoundationOptions) -> Self {
        Self { cluster_file: options.cluster_file.clone(), tls: options.tls.clone() }
    }

    /// Whether this client can show the cluster what it wants to see, as far as that can be told without it.
    pub(crate) fn check(&self, env: &Env) -> Result<(), KvError> {
        self.read(now(env)).map(drop)
    }

    fn read(&self, now: Duration) -> Result<(ClusterFile, Option<Identity>), KvError> {
        let cluster = ClusterFile::of(self.cluster_file.as_deref());
        let identity = self.tls.read(&cluster, now)?;
        Ok((cluster, identity))
    }

    /// The same on a thread that may wait for a disk. `None`: it died.
    async fn read_elsewhere(
        &self,
        env: &Env,
        now: Duration,
    ) -> Option<Result<(ClusterFile, Option<Identity>), KvError>> {
        let (tell, told) = oneshot::channel();
        let way = self.clone();
        // Not awaited: the answer says when it is done.
        drop(env.spawn.blocking(Box::new(move || drop(tell.send(way.read(now))))));
        told.await.ok()
    }

    /// What `opening` comes to; if the cluster does not answer, with what is in the way.
    pub(crate) async fn explained<T>(
        &self,
        env: &Env,
        opening: impl Future<Output = Result<T, KvError>>,
    ) -> Result<T, KvError> {
        // A cluster that has refused a client twice lets it wait without a word, and the library asks often: whoever wants to
        // hear why comes with its first question.
        let looking = self.look(env);
        let opened = opening.await;
        let Err(KvError::Unavailable { what }) = opened else { return opened };
        let seen = looking.await;
        Err(KvError::Unavailable { what: seen.map_or(what.clone(), |seen| format!("{what}: {seen}")) })
    }

    /// Looks from now on; what it is depends on nobody who waits for it.
    fn look(&self, env: &Env) -> impl Future<Output = Option<String>> + use<> {
        let (way, time) = (self.clone(), now(env));
        let (tell, told) = oneshot::channel();
        // Not a task: a process that has done its work does not wait for an address that is silent.
        let looking = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
            let found = match way.read(time) {
                Ok((cluster, identity)) => tls::look(&cluster, identity.as_ref(), time),
                Err(error) => Some(error.to_string()),
            };
            // Nobody waits if all is well.
            _ = tell.send(found);
        });
        async move {
            looking.ok()?;
            told.await.ok().flatten()
        }
    }

    /// Says what is going to be in the way, or is, for as long as the store is in use. Certificates are replaced under it.
    pub(crate) async fn watch(self, store: Weak<Foundation>, env: Env) {
        let mut told = Told::default();
        loop {
            let Some(is_ours) = store.upgrade().filter(|store| store.goes_on().is_ok()).map(|s| s.is_ours())
            else {
                return;
            };
            let time = now(&env);
            let Some(found) = self.read_elsewhere(&env, time).await else { return };
            match found {
                Err(error) => {
                    let what = error.to_string();
                    if told.tells(&what, env.clock.now()) {
                        tracing::error!(
                            "no new connection to the FoundationDB cluster can be made, and those that stand end some time: {what}"
                        );
                    }
                }
                Ok((cluster, identity)) => {
                    let remark = identity.and_then(|identity| self.tls.remark(&cluster, &identity, time));
                    if let Some(what) = remark.filter(|what| told.tells(what, env.clock.now())) {
                        tracing::warn!("{what}");
                    }
                }
            }
            if !is_ours && let Some(why) = self.look(&env).await {
                tracing::warn!(%why, "the FoundationDB cluster does not answer");
            }
            env.clock.sleep(RELOAD).await;
        }
    }
}

fn now(env: &Env) -> Duration {
    Duration::from_secs(u64::try_from(env.clock.wall().seconds).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_day() {
        let (mut told, start) = (Told::default(), Monotonic(0));
        assert!(told.tells("a", start));
        assert!(!told.tells("a", start + Duration::from_secs(3600)));
        assert!(told.tells("b", start + Duration::from_secs(3600)));
        assert!(told.tells("b", start + Duration::from_secs(3600) + AGAIN));
    }
}
