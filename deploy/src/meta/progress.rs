//! How far something long is, on a terminal; nothing where there is none.

use std::fmt::Write;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use sluice_kv::KeyValue;
use sluice_namespace::transfer;

use super::source::Source;
use crate::status::duration;

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
                ProgressBar::new(all).with_style(style("{prefix} {wide_bar} {percent}% {msg}, {left} to go"))
            }
            None => ProgressBar::new_spinner().with_style(style("{prefix} {spinner} {msg}")),
        };
        bar.set_prefix(what);
        Self { bar, rows: 0, counted: 0 }
    }

    /// The next rows of `source`; `None`: that was all.
    pub(super) async fn next(&mut self, source: &mut Source) -> Result<Option<Vec<KeyValue>>> {
        let rows = source.next().await?;
        if rows.is_empty() {
            return Ok(None);
        }
        self.rows += rows.len() as u64;
        self.counted += rows.iter().filter(|(key, _)| transfer::is_counted(key)).count() as u64;
        self.draw(source.done(self.counted));
        Ok(Some(rows))
    }

    fn draw(&self, done: u64) {
        // What grew meanwhile is not in the guess.
        self.bar.set_position(self.bar.length().map_or(done, |all| done.min(all)));
        let millis = u64::try_from(self.bar.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        self.bar.set_message(format!("{} rows, {}/s", self.rows, self.rows.saturating_mul(1000) / millis));
    }

    /// All rows until now.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }
}

/// Nothing of it stays on the terminal, however it ended.
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("left", |state: &ProgressState, to: &mut dyn Write| {
        // As every other command says it. While there is something to do it takes a second.
        let _ = to.write_str(&duration(state.eta().as_secs().max(1)));
    })
}
