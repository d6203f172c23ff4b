//! Files that exist get more mirrors, or fewer.

use std::net::SocketAddr;

use sluice_xdr::control::*;

use super::Admin;
use super::compare::state;
use super::servers::refused;
use crate::layout::drain::change::Refusal;
use crate::layout::maintenance::progress::State;
use crate::layout::mirrors::{Numbers, begin, stop};

impl Admin {
    pub(super) async fn mirrors(&self, args: ADMIN_MIRRORS_args, from: SocketAddr) -> ADMIN_MIRRORS_res {
        let mds = &self.mds;
        let done = match args.what {
            ctl_mirrors_what::MIRRORS_BEGIN => {
                let path = String::from_utf8_lossy(&args.path).into_owned();
                let mirrors = args.mirrors;
                let begun = self.begin_mirrors(args).await;
                if begun.is_ok() {
                    tracing::info!(%from, %path, mirrors, "an administrator has files have so many mirrors");
                }
                begun
            }
            ctl_mirrors_what::MIRRORS_STOP => {
                let stopped = stop(mds).await;
                if stopped.is_ok() {
                    tracing::info!(%from, "an administrator stopped the change of mirrors");
                }
                stopped
            }
            _ => Ok(()),
        };
        if let Err((status, reason)) = done.map_err(refused) {
            return ADMIN_MIRRORS_res::Default(status, reason);
        }
        let mut resok = ADMIN_MIRRORS_resok::default();
        if let Some(last) = mds.mirror_changes.get() {
            resok.last.push(self.changed(&last.numbers(mds.now())).await);
        }
        ADMIN_MIRRORS_res::CTL_OK(resok)
    }

    async fn begin_mirrors(&self, args: ADMIN_MIRRORS_args) -> Result<(), Refusal> {
        let mirrors = u8::try_from(args.mirrors).ok().filter(|mirrors| *mirrors > 0);
        let mirrors = mirrors.ok_or_else(|| Refusal::No("there are 1 to 36 copies of a file".to_owned()))?;
        begin(&self.mds, args.path, mirrors, args.limit).await
    }

    async fn changed(&self, numbers: &Numbers) -> ctl_mirrors {
        let (running, changed) = (numbers.state == State::Running, &numbers.own);
        ctl_mirrors {
            state: state(numbers.state),
            path: numbers.path.clone(),
            mirrors: changed.mirrors.into(),
            since: numbers.since,
            ended: numbers.ended,
            limit: numbers.limit,
            seen: numbers.seen,
            more: changed.more,
            fewer: changed.fewer,
            noted: changed.noted,
            bytes: changed.bytes,
            rate: if running { numbers.pace.rate.bytes } else { 0 },
            filling: changed.filling,
            later: numbers.later,
            missed: self.missed(&numbers.missed).await,
            words: numbers.words.clone().into(),
        }
    }
}
