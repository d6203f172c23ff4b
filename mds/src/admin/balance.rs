//! Data servers that are balanced.

use std::net::SocketAddr;

use sluice_namespace::StoreId;
use sluice_namespace::stable_storage::BalanceState;
use sluice_xdr::control::*;

use super::Admin;
use super::servers::{refused, wire};
use crate::layout::balance::change;
use crate::layout::balance::choose::Levels;
use crate::layout::balance::progress::Numbers;
use crate::server::Mds;

/// Files named at most.
const EXAMPLES: usize = 10;

/// What `sluice status` says of a data server that gives to others; "" of others.
pub(super) fn words(mds: &Mds, id: StoreId) -> String {
    let numbers = mds.balances.last().map(|progress| progress.numbers(mds.now()));
    let gives = numbers.is_some_and(|numbers| numbers.is_running() && numbers.row.givers.contains(&id));
    if gives { "gives to emptier ones".to_owned() } else { String::new() }
}

impl Admin {
    pub(super) async fn balance(&self, args: ADMIN_BALANCE_args, from: SocketAddr) -> ADMIN_BALANCE_res {
        let mds = &self.mds;
        let tolerance = u16::try_from(args.tolerance).unwrap_or(u16::MAX);
        let done = match args.what {
            ctl_balance_what::BALANCE_LOOK => Ok(None),
            ctl_balance_what::BALANCE_PLAN => change::plan(mds, tolerance).await.map(Some),
            ctl_balance_what::BALANCE_BEGIN => change::begin(mds, tolerance, args.limit).await.map(|()| None),
            _ => change::stop(mds).await.map(|()| None),
        };
        match done.map_err(refused) {
            Ok(levels) => {
                match args.what {
                    ctl_balance_what::BALANCE_BEGIN => {
                        tracing::info!(%from, "an administrator has data servers balanced");
                    }
                    ctl_balance_what::BALANCE_STOP => {
                        tracing::info!(%from, "an administrator stopped the balance of data servers");
                    }
                    _ => {}
                }
                ADMIN_BALANCE_res::CTL_OK(self.balanced(levels.as_ref()).await)
            }
            Err((status, reason)) => ADMIN_BALANCE_res::Default(status, reason),
        }
    }

    async fn balanced(&self, levels: Option<&Levels>) -> ADMIN_BALANCE_resok {
        let last = match self.mds.balances.last() {
            Some(progress) => vec![self.balance_of(&progress.numbers(self.mds.now())).await],
            None => Vec::new(),
        };
        let mut all = ADMIN_BALANCE_resok { last, ..ADMIN_BALANCE_resok::default() };
        if let Some(levels) = levels {
            all.mean = levels.mean().into();
            let device = |device: &crate::layout::balance::choose::Device| {
                let first = device.stores.first().copied().unwrap_or_default();
                ctl_balance_device {
                    servers: device.stores.iter().map(|store| store.0.into()).collect(),
                    used_bytes: device.used,
                    total_bytes: device.total,
                    gives: levels.gives(first),
                    takes: levels.takes(first),
                }
            };
            all.devices = levels.devices().iter().map(device).collect();
            let flows = levels.flows().into_iter();
            let flow = |flow: crate::layout::balance::choose::Flow| ctl_balance_flow {
                from: flow.from.0.into(),
                to: flow.to.0.into(),
                bytes: flow.bytes,
            };
            all.flows = flows.map(flow).collect();
        }
        all
    }

    async fn balance_of(&self, numbers: &Numbers) -> ctl_balance {
        let mut examples = Vec::new();
        for (key, why) in numbers.held.iter().take(EXAMPLES) {
            examples.push(self.named(key, why).await);
        }
        let (row, running) = (&numbers.row, numbers.is_running());
        let words = if running { &numbers.waits } else { &row.why };
        ctl_balance {
            state: match row.state {
                BalanceState::Running => ctl_balance_state::BALANCE_RUNNING,
                BalanceState::Even => ctl_balance_state::BALANCE_EVEN,
                BalanceState::NothingMore => ctl_balance_state::BALANCE_NOTHING_MORE,
                BalanceState::Stopped => ctl_balance_state::BALANCE_STOPPED,
                BalanceState::NoProgress => ctl_balance_state::BALANCE_NO_PROGRESS,
            },
            since: row.since,
            ended: row.ended,
            tolerance: row.tolerance.into(),
            limit: row.rate,
            words: words.clone().into(),
            moved: wire(numbers.moved()),
            left: numbers.left.filter(|_| running).into_iter().collect(),
            rate: wire(if running { numbers.pace.rate } else { crate::layout::census::Amount::default() }),
            spread: numbers.spread.into(),
            seen: numbers.seen,
            held: u64::try_from(numbers.held.len()).unwrap_or(u64::MAX),
            examples,
        }
    }
}
