//! How far something is that takes long, for who waits for it.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

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

/// For words that change.
pub(super) fn spinner() -> ProgressBar {
    ProgressBar::new_spinner().with_style(style("{spinner} {wide_msg}"))
}

pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
