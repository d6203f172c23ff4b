//! The table: rows of what was measured, and what they must show.

use std::fmt;

use serde_json::{Value, json};

/// One figure.
#[derive(Clone, Debug)]
pub(super) struct Row {
    what: String,
    how: String,
    value: f64,
    /// Lowest and highest round, where there were several.
    spread: Option<(f64, f64)>,
    unit: &'static str,
    /// Median and 99th percentile latency of one operation, in microseconds.
    latency: Option<(f64, f64)>,
    /// The highest value that is good enough.
    limit: Option<f64>,
}

impl Row {
    pub(super) fn new(what: &str, how: &str, value: f64, unit: &'static str) -> Self {
        Self {
            what: what.to_owned(),
            how: how.to_owned(),
            value,
            spread: None,
            unit,
            latency: None,
            limit: None,
        }
    }

    /// The median of several rounds, which are not empty.
    pub(super) fn median(what: &str, how: &str, rounds: &[f64], unit: &'static str) -> Self {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let spread = (sorted.len() > 1).then(|| (at(0), at(sorted.len() - 1)));
        Self { spread, ..Self::new(what, how, at(sorted.len() / 2), unit) }
    }

    #[must_use]
    pub(super) fn with_latency(self, latency: (f64, f64)) -> Self {
        Self { latency: Some(latency), ..self }
    }

    /// The row must not exceed this.
    #[must_use]
    pub(super) fn at_most(self, limit: f64) -> Self {
        Self { limit: Some(limit), ..self }
    }

    fn good(&self) -> bool {
        self.limit.is_none_or(|limit| self.value <= limit)
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what, "how": self.how, "value": self.value, "unit": self.unit,
            "lowest": self.spread.map(|spread| spread.0), "highest": self.spread.map(|spread| spread.1),
            "p50_us": self.latency.map(|latency| latency.0), "p99_us": self.latency.map(|latency| latency.1),
            "limit": self.limit, "good": self.good(),
        })
    }

    fn cells(&self) -> [String; 6] {
        let spread = self.spread.map(|(low, high)| format!("{} .. {}", number(low), number(high)));
        let latency = self.latency.map(|(p50, p99)| format!("{p50:.0} / {p99:.0}"));
        let verdict = self.limit.map(|limit| match self.good() {
            true => format!("  (at most {limit}: yes)"),
            false => format!("  (at most {limit}: NO)"),
        });
        [
            self.what.clone(),
            self.how.clone(),
            number(self.value),
            format!("{}{}", self.unit, verdict.unwrap_or_default()),
            spread.unwrap_or_default(),
            latency.unwrap_or_default(),
        ]
    }
}

fn number(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[derive(Debug)]
pub(super) struct Table {
    title: String,
    rows: Vec<Row>,
    notes: Vec<String>,
    failures: Vec<String>,
}

impl Table {
    pub(super) fn new(title: String) -> Self {
        Self { title, rows: Vec::new(), notes: Vec::new(), failures: Vec::new() }
    }

    /// Adds a row, and says so to whoever waits for the table.
    pub(super) fn row(&mut self, row: Row) {
        let [what, how, value, unit, ..] = row.cells();
        eprintln!("{what}, {how}: {value} {unit}");
        self.rows.push(row);
    }

    pub(super) fn rows(&mut self, rows: Vec<Row>) {
        for row in rows {
            self.row(row);
        }
    }

    /// The rows, those of one thing together, in the order of their first.
    fn sections(&self) -> impl Iterator<Item = &Row> {
        let mut order: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !order.contains(&row.what.as_str()) {
                order.push(&row.what);
            }
        }
        order.into_iter().flat_map(|what| self.rows.iter().filter(move |row| row.what == what))
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    pub(super) fn fail(&mut self, failure: String) {
        self.failures.push(failure);
    }

    pub(super) fn passed(&self) -> bool {
        self.failures.is_empty() && self.rows.iter().all(Row::good)
    }

    pub(super) fn json(&self) -> Value {
        let rows: Vec<_> = self.rows.iter().map(Row::json).collect();
        json!({
            "title": self.title, "rows": rows, "notes": self.notes, "failures": self.failures,
            "passed": self.passed(),
        })
    }
}

const HEAD: [&str; 6] = ["what", "how", "median", "unit", "lowest .. highest", "p50 / p99 us"];

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![HEAD.map(str::to_owned)];
        lines.extend(self.sections().map(Row::cells));
        let mut widths = [0; 6];
        for (line, column) in lines.iter().flat_map(|line| line.iter().zip(0..)) {
            if let Some(width) = widths.get_mut::<usize>(column) {
                *width = line.chars().count().max(*width);
            }
        }
        writeln!(f, "{}", self.title)?;
        let mut section = String::new();
        for line in &lines {
            let [what, how, value, unit, spread, latency] = line;
            if *what != section {
                writeln!(f)?;
                section.clone_from(what);
            }
            let [a, b, c, d, e, g] = widths;
            let text = format!("{what:<a$}  {how:<b$}  {value:>c$}  {unit:<d$}  {spread:>e$}  {latency:>g$}");
            writeln!(f, "{}", text.trim_end())?;
        }
        writeln!(f)?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        self.failures.iter().try_for_each(|failure| writeln!(f, "FAILED: {failure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_over_its_limit_fails_the_table() {
        let mut table = Table::new("t".to_owned());
        table.row(Row::median("a", "b", &[3.0, 1.0, 2.0], "x").at_most(2.0));
        assert!(table.passed());
        let text = table.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("a b 2.00 x (at most 2: yes) 1.00 .. 3.00"), "{text}");
        table.row(Row::new("a", "c", 2.1, "x").at_most(2.0));
        assert!(!table.passed());
        assert_eq!(table.json()["rows"][1]["good"], false);
    }

    #[test]
    fn a_failure_fails_the_table() {
        let mut table = Table::new("t".to_owned());
        table.fail("broken".to_owned());
        assert!(!table.passed() && table.to_string().contains("FAILED: broken"));
    }
}
