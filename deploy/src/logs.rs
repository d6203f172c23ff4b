//! Logs: a story at the default level, more with SLUICE_LOG, and for a while after SIGUSR1.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::stat::fstat;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{self, Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, reload};

const FILTER: &str = "SLUICE_LOG";
/// What SIGUSR1 asks for, and for how long: a server that is left so fills its disk.
const MORE: &str = "debug";
const FOR: Duration = Duration::from_secs(600);

/// Logs to standard error. SLUICE_LOG takes tracing's filters, such as `debug` or `sluice_mds=debug`.
pub(crate) fn start() {
    let (usual, complaint) = usual();
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let (filter, now) = reload::Layer::new(usual);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        // What cannot be logged would be told by a panic, when standard error is a pipe that nobody reads any more.
        .log_internal_errors(false);
    let lines = if to_journal() { lines.event_format(Journal::default()).boxed() } else { lines.boxed() };
    // A second start in one process would be a mistake of ours, not worth dying for.
    drop(tracing_subscriber::registry().with(lines).with(filter).try_init());
    // What libraries say that know of another log only: the engine of the embedded store, why it failed.
    log::set_max_level(log::LevelFilter::Warn);
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}");
    }
    if tokio::runtime::Handle::try_current().is_ok() {
        // It fails when nothing is logged any more.
        tokio::spawn(more_when_asked(move |filter| drop(now.reload(filter))));
    }
}

/// Whoever looks for a fault that is there now cannot start the server again for it.
async fn more_when_asked(set: impl Fn(EnvFilter)) {
    let mut asked = match signal(SignalKind::user_defined1()) {
        Ok(asked) => asked,
        Err(error) => return tracing::warn!(%error, "cannot watch for SIGUSR1"),
    };
    while asked.recv().await.is_some() {
        set(EnvFilter::new(MORE));
        tracing::info!(
            minutes = FOR.as_secs() / 60,
            "everything is logged for a while: SIGUSR1 again ends it"
        );
        let _ = tokio::time::timeout(FOR, asked.recv()).await;
        tracing::info!("logging as before");
        set(usual().0);
    }
}

/// As the environment has it.
fn usual() -> (EnvFilter, Option<String>) {
    filter(std::env::var_os(FILTER).as_deref())
}

/// What is logged, and what is wrong with what was asked for.
fn filter(asked: Option<&OsStr>) -> (EnvFilter, Option<String>) {
    let usual = || EnvFilter::new("info");
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return (usual(), None) };
    let parsed = match asked.to_str() {
        Some(text) => EnvFilter::try_new(text).map_err(|error| error.to_string()),
        None => Err("it is not UTF-8".to_owned()),
    };
    match parsed {
        Ok(filter) => (filter, None),
        Err(error) => {
            let asked = asked.display();
            (usual(), Some(format!("{FILTER}={asked} is not understood ({error}): logging as without it")))
        }
    }
}

/// Whether standard error is systemd's journal, by what systemd says of it.
pub(crate) fn to_journal() -> bool {
    let Some(said) = std::env::var_os("JOURNAL_STREAM") else { return false };
    fstat(std::io::stderr().as_fd()).is_ok_and(|found| said == *format!("{}:{}", found.st_dev, found.st_ino))
}

/// A line as the journal wants it: it knows the time, and takes the priority from what the line begins with (sd-daemon(3)).
#[derive(Debug)]
struct Journal(Format<Full, ()>);

impl Default for Journal {
    fn default() -> Self {
        Self(format::format().without_time().with_target(false).with_ansi(false))
    }
}

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    /// In a process of its own (the one below): its standard error and its environment are what is under test.
    #[test]
    #[ignore = "run by the test below"]
    fn speaks() {
        start();
        tracing::info!(number = 7, "a line");
        tracing::warn!("a warning");
        crate::out::complain(format_args!("the end"));
    }

    /// Likewise.
    #[test]
    #[ignore = "run by the test below"]
    fn is_asked_for_more() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            start();
            for expected in ["no", "yes", "no"] {
                tokio::time::sleep(Duration::from_millis(50)).await;
                tracing::debug!("it is {expected}");
                tokio::task::yield_now().await;
                nix::sys::signal::raise(nix::sys::signal::Signal::SIGUSR1).unwrap();
            }
        });
    }

    fn said(ours: bool, filter: &str) -> String {
        said_by("speaks", ours, filter)
    }

    fn said_by(name: &str, ours: bool, filter: &str) -> String {
        let (here, there) = UnixStream::pair().unwrap();
        let there = OwnedFd::from(there);
        let found = fstat(&there).unwrap();
        let inode = found.st_ino + u64::from(!ours);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", &format!("logs::tests::{name}"), "--nocapture"])
            .env("JOURNAL_STREAM", format!("{}:{inode}", found.st_dev))
            .env(FILTER, filter)
            .stdout(Stdio::null())
            .stderr(there)
            .spawn()
            .unwrap();
        let text = std::io::read_to_string(here).unwrap();
        assert!(child.wait().unwrap().success(), "{text}");
        text
    }

    #[test]
    fn the_journal_is_told_priorities_and_no_time() {
        assert_eq!(said(true, ""), "<6> INFO a line number=7\n<4> WARN a warning\n<3>sluice: the end\n");
        // The stream is another one: somebody has redirected it.
        let elsewhere = said(false, "warn");
        let lines: Vec<&str> = elsewhere.lines().collect();
        assert!(lines[0].starts_with("20") && lines[0].ends_with(" WARN a warning"), "{elsewhere}");
        assert_eq!(lines[1..], ["sluice: the end"]);
    }

    #[test]
    fn a_signal_asks_for_more_and_the_next_one_for_no_more() {
        let said = said_by("is_asked_for_more", true, "info");
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("it is")).collect();
        assert_eq!(lines, ["<7>DEBUG it is yes"], "{said}");
        assert!(said.contains("<6> INFO everything is logged for a while"), "{said}");
    }

    #[test]
    fn a_filter_that_is_not_understood_is_told() {
        assert!(filter(None).1.is_none() && filter(Some(OsStr::new("sluice_mds=debug,info"))).1.is_none());
        let (_, complaint) = filter(Some(OsStr::new("sluice_mds=loud")));
        assert!(complaint.unwrap().starts_with("SLUICE_LOG=sluice_mds=loud is not understood"));
    }
}
