//! Logs: a story at the default level, more with SLUICE_LOG.

use tracing_subscriber::EnvFilter;

/// Logs to standard error. SLUICE_LOG takes tracing's filters, such as `debug` or `sluice_mds=debug`.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("SLUICE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // A second start in one process would be a mistake of ours, not worth dying for.
    drop(
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(colours)
            .with_target(false)
            // What cannot be logged would be told by a panic, when standard error is a pipe that nobody reads any more.
            .log_internal_errors(false)
            .try_init(),
    );
}
