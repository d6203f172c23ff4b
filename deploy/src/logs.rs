//! Logs: a story at the default level, more with SLUICE_LOG.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::AsFd;

use nix::sys::stat::fstat;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{self, Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

const FILTER: &str = "SLUICE_LOG";

/// Logs to standard error. SLUICE_LOG takes tracing's filters, such as `debug` or `sluice_mds=debug`.
pub(crate) fn start() {
    let (filter, complaint) = filter(std::env::var_os(FILTER).as_deref());
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        // What cannot be logged would be told by a panic, when standard error is a pipe that nobody reads any more.
        .log_internal_errors(false);
    // A second start in one process would be a mistake of ours, not worth dying for.
    drop(if to_journal() { builder.event_format(Journal::default()).try_init() } else { builder.try_init() });
    if let Some(complaint) = complaint {
        tracing::warn!("{complaint}");
    }
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

    fn said(ours: bool, filter: &str) -> String {
        let (here, there) = UnixStream::pair().unwrap();
        let there = OwnedFd::from(there);
        let found = fstat(&there).unwrap();
        let inode = found.st_ino + u64::from(!ours);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "logs::tests::speaks", "--nocapture"])
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
    fn a_filter_that_is_not_understood_is_told() {
        assert!(filter(None).1.is_none() && filter(Some(OsStr::new("sluice_mds=debug,info"))).1.is_none());
        let (_, complaint) = filter(Some(OsStr::new("sluice_mds=loud")));
        assert!(complaint.unwrap().starts_with("SLUICE_LOG=sluice_mds=loud is not understood"));
    }
}
