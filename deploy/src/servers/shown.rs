//! How far something is that takes long, for who waits for it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::clients::printable;

/// Between two lines where there is no terminal.
const LINE: Duration = Duration::from_secs(10);

/// A bar on a terminal, lines elsewhere, JSON for scripts.
pub(crate) enum Shown {
    Bar(ProgressBar),
    Lines(Option<Instant>),
    Json,
}

/// What there is to say now.
pub(crate) struct Now {
    /// What goes on.
    pub(crate) doing: String,
    /// Thousandths that are done, if that is known.
    pub(crate) done: Option<u64>,
    pub(crate) words: String,
}

impl Shown {
    pub(crate) fn new(json: bool) -> Self {
        if json {
            Self::Json
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(1000);
            // On two lines, that 80 columns have room for the time to go.
            bar.set_style(style("{prefix} {wide_bar} {percent}%\n  {wide_msg}"));
            Self::Bar(bar)
        } else {
            Self::Lines(None)
        }
    }

    pub(crate) fn show(&mut self, now: Now, json: impl FnOnce() -> Value) {
        match self {
            Self::Json => say!("{}", json()),
            Self::Bar(bar) => {
                bar.set_prefix(now.doing);
                bar.set_position(now.done.unwrap_or(0));
                bar.set_message(now.words);
            }
            Self::Lines(last) if last.is_none_or(|last| last.elapsed() >= LINE) => {
                *last = Some(Instant::now());
                say!("{}: {}", now.doing, now.words);
            }
            Self::Lines(_) => {}
        }
    }
}

/// Nothing of it stays on the terminal, however it ended.
impl Drop for Shown {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// A reason that is the same for so long is not waited for any more: the metadata store does not answer, most likely.
const SAME: Duration = Duration::from_secs(300);
/// Between two questions.
const AGAIN: Duration = Duration::from_millis(200);

/// Asking again and again until there is an answer.
pub(crate) struct Asking {
    what: String,
    shown: Shown,
    reason: String,
    since: Instant,
}

impl Asking {
    /// Nothing is shown of it to scripts.
    pub(crate) fn new(what: String, json: bool) -> Self {
        let mut shown = Shown::new(json);
        match &mut shown {
            Shown::Bar(bar) => bar.set_style(style("{spinner} {prefix}: {wide_msg}")),
            // Most have their answer before there would be anything to say.
            Shown::Lines(last) => *last = Some(Instant::now()),
            Shown::Json => {}
        }
        Self { what, shown, reason: String::new(), since: Instant::now() }
    }

    /// There is none yet: after a moment it may be asked for again.
    ///
    /// # Errors
    /// There will be none, as things are, and why.
    pub(crate) async fn not_yet(&mut self, reason: &[u8]) -> Result<()> {
        let reason = printable(reason);
        self.is_same_for_long(&reason, Instant::now())?;
        if !matches!(self.shown, Shown::Json) {
            self.shown.show(Now { doing: self.what.clone(), done: None, words: reason }, || Value::Null);
        }
        tokio::time::sleep(AGAIN).await;
        Ok(())
    }

    fn is_same_for_long(&mut self, reason: &str, now: Instant) -> Result<()> {
        if self.reason != reason {
            (self.reason, self.since) = (reason.to_owned(), now);
        }
        if now.saturating_duration_since(self.since) >= SAME {
            bail!(
                "{}: {reason}, for {} minutes now: run it again to go on waiting",
                self.what,
                SAME.as_secs() / 60
            );
        }
        Ok(())
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_stays_the_same_is_given_up_on_and_progress_is_not() {
        let mut asking = Asking::new("removing data server 3".to_owned(), true);
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        for (seconds, files) in [(0, 10), (200, 20), (500, 30)] {
            let counting = format!("looking at what it holds: {files} files so far");
            asking.is_same_for_long(&counting, at(seconds)).unwrap();
        }
        let away = "the metadata store does not answer: it is away";
        for seconds in [600, 700, 899] {
            asking.is_same_for_long(away, at(seconds)).unwrap();
        }
        let said = asking.is_same_for_long(away, at(900)).unwrap_err().to_string();
        assert_eq!(
            said,
            "removing data server 3: the metadata store does not answer: it is away, for 5 minutes now: run it again to go on waiting"
        );
    }
}
