//! When a server stops: a signal, or the end of its parent.

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

/// Completes on SIGINT, SIGTERM, or, for a child of `up`, when its standard input ends.
pub(crate) async fn requested(with_stdin: bool) -> Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch for SIGTERM")?;
    let parent = async {
        if !with_stdin {
            return std::future::pending().await;
        }
        let mut stdin = tokio::io::stdin();
        let mut bytes = [0; 64];
        while stdin.read(&mut bytes).await.is_ok_and(|n| n > 0) {}
    };
    if with_stdin {
        // A terminal's Ctrl-C reaches the whole group: children leave it to their parent to stop them in order.
        tokio::select! {
            _ = terminate.recv() => Ok("SIGTERM"),
            () = parent => Ok("the parent ended"),
        }
    } else {
        tokio::select! {
            _ = interrupt.recv() => Ok("SIGINT"),
            _ = terminate.recv() => Ok("SIGTERM"),
        }
    }
}
