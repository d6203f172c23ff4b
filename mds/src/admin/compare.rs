//! Mirrors that are compared, and made equal to the right one.

use std::net::SocketAddr;

use bytes::Bytes;
use sluice_namespace::StoreId;
use sluice_xdr::control::*;

use super::Admin;
use super::servers::refused;
use crate::layout::compare::found::Finding;
use crate::layout::compare::judge::{Hint, Unequal};
use crate::layout::compare::mend::{self, Named, Right};
use crate::layout::compare::{Numbers, begin, stop};
use crate::layout::drain::change::Refusal;
use crate::layout::maintenance::progress::State;
use crate::layout::missed::Reasons;

/// Files of a page.
const PAGE: usize = 64;
/// As the protocol carries it.
const MOST_COPIES: usize = 64;

impl Admin {
    pub(super) async fn compare(&self, args: ADMIN_COMPARE_args, from: SocketAddr) -> ADMIN_COMPARE_res {
        let mds = &self.mds;
        let done = match args.what {
            ctl_compare_what::COMPARE_BEGIN => {
                let path = String::from_utf8_lossy(&args.path).into_owned();
                let begun = begin(mds, args.path, args.limit).await;
                if begun.is_ok() {
                    tracing::info!(%from, %path, "an administrator has mirrors compared");
                }
                begun
            }
            ctl_compare_what::COMPARE_STOP => {
                let stopped = stop(mds).await;
                if stopped.is_ok() {
                    tracing::info!(%from, "an administrator stopped the comparison of mirrors");
                }
                stopped
            }
            _ => Ok(()),
        };
        if let Err((status, reason)) = done.map_err(refused) {
            return ADMIN_COMPARE_res::Default(status, reason);
        }
        let mut resok = ADMIN_COMPARE_resok::default();
        if let Some(last) = mds.comparisons.get() {
            let after = usize::try_from(args.after).unwrap_or(usize::MAX);
            resok.last.push(self.compared(&last.numbers(mds.now()), after).await);
        }
        ADMIN_COMPARE_res::CTL_OK(resok)
    }

    /// Of what was found, a page behind the first `after`.
    async fn compared(&self, numbers: &Numbers, after: usize) -> ctl_compare {
        let found = &numbers.own;
        let mut findings = Vec::new();
        for finding in found.findings.iter().skip(after).take(PAGE) {
            let mut name = self.named(&finding.key, "").await.name;
            if found.one && numbers.path.len() <= CTL_STRING_MAX as usize {
                name = numbers.path.clone();
            }
            findings.push(differing(finding, name));
        }
        let not_compared = self.missed(&numbers.missed).await;
        let running = numbers.state == State::Running;
        ctl_compare {
            state: state(numbers.state),
            path: numbers.path.clone(),
            since: numbers.since,
            ended: numbers.ended,
            limit: numbers.limit,
            seen: numbers.seen,
            compared: found.compared,
            bytes: found.bytes,
            rate: if running { numbers.pace.rate.bytes } else { 0 },
            differ: found.differ,
            later: numbers.later,
            kept: u32::try_from(found.findings.len()).unwrap_or(u32::MAX),
            findings,
            not_compared,
            words: numbers.words.clone().into(),
        }
    }

    /// Files that something was not done with.
    pub(super) async fn missed(&self, reasons: &Reasons) -> Vec<ctl_missed> {
        let mut all = Vec::new();
        for (reason, missed) in reasons.iter() {
            let mut examples = Vec::new();
            for key in &missed.examples {
                examples.push(self.named(key, "").await);
            }
            all.push(ctl_missed { reason: reason.clone().into(), files: missed.files, examples });
        }
        all
    }

    pub(super) async fn mend(&self, args: ADMIN_MEND_args, from: SocketAddr) -> ADMIN_MEND_res {
        match self.mended(&args, from).await.map_err(refused) {
            Ok(done) => ADMIN_MEND_res::CTL_OK(done),
            Err((status, reason)) => ADMIN_MEND_res::Default(status, reason),
        }
    }

    async fn mended(&self, args: &ADMIN_MEND_args, from: SocketAddr) -> Result<ADMIN_MEND_resok, Refusal> {
        let mds = &self.mds;
        let named = if args.path.is_empty() { Named::Number(args.file) } else { Named::Path(&args.path) };
        let key = mend::find(mds, named).await?;
        let mut copies = 0;
        if !args.look {
            let right = match args.from {
                0 => Right::ByZeros,
                id => {
                    let store = u16::try_from(id).ok().map(StoreId);
                    let store = store.filter(|store| mds.data_servers.get(*store).is_some());
                    let none =
                        || Refusal::No(format!("there is no data server {id}: sluice ds list shows them"));
                    Right::At(store.ok_or_else(none)?)
                }
            };
            copies = u32::try_from(mend::mend(mds, key, right).await?).unwrap_or(u32::MAX);
            let (file, by) = (key.fileid.0, args.from);
            tracing::info!(%from, file, data_server = by, copies, "an administrator said which copy is right");
        }
        let healing = mend::is_healing(mds, key).await?;
        Ok(ADMIN_MEND_resok { file: key.fileid.0, copies, healing })
    }
}

pub(super) fn state(state: State) -> ctl_compare_state {
    match state {
        State::Running => ctl_compare_state::COMPARE_RUNNING,
        State::Done => ctl_compare_state::COMPARE_DONE,
        State::Stopped => ctl_compare_state::COMPARE_STOPPED,
    }
}

fn differing(finding: &Finding, name: Bytes) -> ctl_differing {
    let differences = &finding.differences;
    ctl_differing {
        file: finding.key.fileid.0,
        name,
        size: finding.size,
        bytes: differences.bytes,
        ranges: differences.ranges,
        first: differences.first.iter().map(unequal).collect(),
        lost: finding.lost.iter().take(MOST_COPIES).map(|store| store.0.into()).collect(),
        by_zeros: finding.lost.is_empty() && differences.right_by_zeros().is_some(),
    }
}

fn unequal(range: &Unequal) -> ctl_unequal {
    let copies = range.column.iter().zip(&range.judgement.copies).take(MOST_COPIES);
    let copy = |(file, copy): (&sluice_namespace::DataFile, &crate::layout::compare::judge::Copy)| ctl_copy {
        data_server: file.store.0.into(),
        alike: copy.alike,
        zeros: copy.zeros,
        odd: copy.odd,
    };
    ctl_unequal {
        offset: range.offset,
        length: range.length,
        hint: match range.judgement.hint {
            Hint::Somehow => ctl_differs::DIFFERS_SOMEHOW,
            Hint::Zeros => ctl_differs::DIFFERS_ZEROS,
            Hint::Outvoted => ctl_differs::DIFFERS_OUTVOTED,
        },
        copies: copies.map(copy).collect(),
    }
}
