//! What an administrator asks for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_namespace::FsError;
use sluice_namespace::stable_storage::{Balance, BalanceState, balance, put_balance};

use super::choose::{self, Levels, Role};
use super::{devices, tell_end};
use crate::dsctl::capacity;
use crate::layout::drain::change::Refusal;
use crate::server::Mds;

/// Far enough that clients do not undo it at once, in thousandths.
pub(crate) const TOLERANCE: u16 = 50;
/// No balance is closer than heartbeats and clients let it be seen.
const CLOSEST: u16 = 5;

fn no<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::No(why.into()))
}

/// Who would give how much to whom, if one began now.
///
/// # Errors
/// Why none can.
pub(crate) async fn plan(mds: &Arc<Mds>, tolerance: u16) -> Result<Levels, Refusal> {
    capacity::look(mds).await;
    let tolerance = judge(tolerance)?;
    let now = devices(mds, |_| false);
    if now.len() < 2 {
        return no(
            "fewer than two devices are in use: those of data servers that are there, are not drained, and take writes; data servers that share a device count as one",
        );
    }
    let givers = choose::fuller(&now);
    Ok(Levels::of(devices(mds, |id| givers.contains(&id)), tolerance))
}

fn judge(tolerance: u16) -> Result<u16, Refusal> {
    match tolerance {
        0 => Ok(TOLERANCE),
        CLOSEST..=500 => Ok(tolerance),
        _ => no("a tolerance is between 0.5 and 50 percent"),
    }
}

/// Begins one, or sets how fast and how far the one goes that runs.
///
/// # Errors
/// Why not.
pub(crate) async fn begin(mds: &Arc<Mds>, tolerance: u16, rate: u64) -> Result<(), Refusal> {
    let _alone = mds.balances.asked.lock().await;
    look_up(mds).await?;
    let levels = plan(mds, tolerance).await?;
    let gives = levels.devices().iter().filter(|device| device.role == Role::Gives);
    let fresh = &Balance {
        since: mds.env.clock.wall().seconds,
        tolerance: judge(tolerance)?,
        rate,
        givers: gives.flat_map(|device| device.stores.iter().copied()).collect(),
        state: BalanceState::Running,
        why: String::new(),
        ended: 0,
        data_files: 0,
        bytes: 0,
    };
    let change = mds.write_again(|mut txn| {
        Box::pin(async move {
            let runs = balance(&txn).await?.filter(|row| row.state == BalanceState::Running);
            let (tolerance, rate) = (fresh.tolerance, fresh.rate);
            let row = runs.map_or(fresh.clone(), |row| Balance { tolerance, rate, ..row });
            put_balance(&mut txn, &row);
            Ok(row)
        })
    });
    let row = surely(mds, change).await?;
    tracing::info!(
        tolerance_percent = f64::from(row.tolerance) / 10.0,
        spread_percent = f64::from(levels.spread()) / 10.0,
        to_move_mib = levels.to_give() >> 20,
        "data servers are balanced from now on"
    );
    mds.balances.began(row);
    Ok(())
}

/// Nothing more is moved; files on their way stay where they were, or come to where they go.
///
/// # Errors
/// Why not.
pub(crate) async fn stop(mds: &Arc<Mds>) -> Result<(), Refusal> {
    let _alone = mds.balances.asked.lock().await;
    look_up(mds).await?;
    let progress = mds.balances.last();
    let numbers = progress.as_ref().map(|progress| progress.numbers(mds.now()));
    let (moved, so_far) = numbers.map(|numbers| (numbers.moved(), numbers.pace.moved)).unwrap_or_default();
    let ended = mds.env.clock.wall().seconds;
    let change = mds.write_again(|mut txn| {
        Box::pin(async move {
            let Some(row) = balance(&txn).await? else { return Ok(None) };
            // By an attempt whose end nobody was told.
            if row.state == BalanceState::Stopped && row.ended == ended {
                return Ok(Some(row));
            }
            if row.state != BalanceState::Running {
                return Ok(None);
            }
            let (data_files, bytes) = (moved.data_files, moved.bytes);
            let row = Balance { state: BalanceState::Stopped, ended, data_files, bytes, ..row };
            put_balance(&mut txn, &row);
            Ok(Some(row))
        })
    });
    let stopped = surely(mds, change).await?;
    let Some(row) = stopped else { return no("no balance is under way") };
    tell_end(&row);
    if let Some(progress) = progress {
        progress.stop();
        progress.is_stored(row, so_far);
    }
    Ok(())
}

/// Changes the row. Where that fails it is looked up as soon as the store answers.
async fn surely<T>(mds: &Mds, change: impl Future<Output = Result<(T, u64), FsError>>) -> Result<T, FsError> {
    mds.balances.doubtful.store(true, Ordering::Release);
    let done = change.await;
    match &done {
        Ok(_) => mds.balances.doubtful.store(false, Ordering::Release),
        Err(_) => mds.balances.changed.notify_one(),
    }
    done.map(|(value, _)| value)
}

/// What became of a change whose end nobody could be told.
///
/// # Errors
/// What the store says.
pub(super) async fn look_up_doubtful(mds: &Arc<Mds>) -> Result<(), FsError> {
    if !mds.balances.doubtful.load(Ordering::Acquire) {
        return Ok(());
    }
    // It may be of a change that is under way.
    let _alone = mds.balances.asked.lock().await;
    look_up(mds).await
}

/// What is stored holds, if that is not what is known. Alone.
async fn look_up(mds: &Arc<Mds>) -> Result<(), FsError> {
    if !mds.balances.doubtful.load(Ordering::Acquire) {
        return Ok(());
    }
    let row = mds.read(|txn| Box::pin(async move { balance(&txn).await })).await?;
    let runs = mds.balances.last().filter(|progress| !progress.is_stopped());
    match (row, runs) {
        (Some(row), _) if row.state == BalanceState::Running => mds.balances.began(row),
        (Some(row), Some(progress)) if row.state == BalanceState::Stopped => {
            tell_end(&row);
            progress.stop();
            progress.is_stored(row, progress.numbers(mds.now()).pace.moved);
        }
        _ => {}
    }
    mds.balances.doubtful.store(false, Ordering::Release);
    Ok(())
}
