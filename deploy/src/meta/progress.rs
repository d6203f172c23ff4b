//! How far something long is, on a terminal; nothing where there is none.

use indicatif::{ProgressBar, ProgressStyle};
use sluice_namespace::transfer;

use super::source::Source;

pub(super) struct Progress {
    bar: ProgressBar,
    rows: u64,
    /// Of these, inodes and entries.
    counted: u64,
}

impl Progress {
    pub(super) fn new(what: &'static str, source: &Source) -> Self {
        let bar = match source.expected() {
            Some(all) => {
                ProgressBar::new(all).with_style(style("{prefix} {wide_bar} {percent}% {msg}, {eta} left"))
            }
            None => ProgressBar::new_spinner().with_style(style("{prefix} {spinner} {msg}")),
        };
        bar.set_prefix(what);
        Self { bar, rows: 0, counted: 0 }
    }

    pub(super) fn row(&mut self, key: &[u8]) {
        self.rows += 1;
        self.counted += u64::from(transfer::is_counted(key));
    }

    pub(super) fn page(&self, source: &Source) {
        let done = source.done(self.counted);
        // What grew meanwhile is not in the guess.
        self.bar.set_position(self.bar.length().map_or(done, |all| done.min(all)));
        let seconds = self.bar.elapsed().as_secs().max(1);
        self.bar.set_message(format!("{} rows, {}/s", self.rows, self.rows / seconds));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
