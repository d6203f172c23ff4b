//! What was measured, by row and server, and what it must be.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde_json::{Value, json};

use super::peers::Name;
use crate::bench::ds::report::{Figure, figure_json, median, number};

/// One row of one server in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Operations, or entries, a second.
    pub(super) rate: f64,
    /// Of an operation, in microseconds.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Microseconds of the server's processors for one.
    pub(super) cpu: f64,
}

/// What a row must show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Goal {
    pub(super) rate: Option<f64>,
    /// Times NFS-Ganesha, where that is durable.
    pub(super) ganesha: Option<f64>,
    /// Times the store alone.
    pub(super) store: Option<f64>,
}

/// What one operation or entry costs our server by itself, whatever else the machine does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) allocations: f64,
    /// Outside of the kernel, if they were counted.
    pub(super) instructions: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Measured {
    pub(super) title: String,
    pub(super) goal: Goal,
    /// By server, then by round.
    pub(super) samples: BTreeMap<Name, Vec<Sample>>,
    pub(super) own: Option<Own>,
}

impl Measured {
    fn of(&self, name: Name, what: impl Fn(&Sample) -> f64) -> Option<f64> {
        self.samples.get(&name).map(|rounds| median(rounds.iter().map(what)))
    }

    /// The median over rounds of the ratio within a round: what disturbs a round disturbs both.
    fn ratio(&self, other: Name) -> Option<f64> {
        let (ours, theirs) = (self.samples.get(&Name::Sluice)?, self.samples.get(&other)?);
        Some(median(ours.iter().zip(theirs).map(|(ours, theirs)| ours.rate / theirs.rate)))
    }

    /// What is judged, and what is printed beside it.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let mut all = Vec::new();
        if let (Some(least), Some(value)) = (self.goal.rate, self.of(Name::Sluice, |s| s.rate)) {
            let title = "sluice, a second".to_owned();
            all.push(Figure { title, value, unit: "", bound: Some((least, true)) });
        }
        for (other, least) in
            [(Name::Store, self.goal.store), (Name::Ganesha, self.goal.ganesha), (Name::GaneshaPlain, None)]
        {
            if let Some(value) = self.ratio(other) {
                let bound = least.map(|least| (least, true));
                all.push(Figure { title: format!("sluice / {other}"), value, unit: "", bound });
            }
        }
        all
    }

    fn json(&self) -> Value {
        let servers = self.samples.iter().map(|(name, rounds)| {
            let rates: Vec<f64> = rounds.iter().map(|sample| sample.rate).collect();
            json!({
                "server": name.to_string(), "rates": rates, "median": median(rates.iter().copied()),
                "p50_us": self.of(*name, |s| s.p50), "p99_us": self.of(*name, |s| s.p99),
                "cpu_us": self.of(*name, |s| s.cpu),
            })
        });
        let servers: Vec<_> = servers.collect();
        json!({
            "row": self.title, "servers": servers, "allocations": self.own.map(|own| own.allocations),
            "instructions": self.own.and_then(|own| own.instructions),
            "figures": self.figures().iter().map(figure_json).collect::<Vec<_>>(),
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) about: Vec<String>,
    pub(super) rows: Vec<Measured>,
    pub(super) figures: Vec<Figure>,
}

impl Report {
    pub(super) fn passed(&self) -> bool {
        self.missed().is_empty()
    }

    /// A line for each goal that was missed.
    fn missed(&self) -> Vec<String> {
        let line = |row: &str, figure: &Figure| {
            format!("missed: {row}{}: {}{}", figure.title, number(figure.value), figure.verdict())
        };
        let mut all = Vec::new();
        for row in &self.rows {
            let figures = row.figures();
            let bad = figures.iter().filter(|figure| !figure.good());
            all.extend(bad.map(|figure| line(&format!("{}: ", row.title), figure)));
        }
        all.extend(self.figures.iter().filter(|figure| !figure.good()).map(|figure| line("", figure)));
        all
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "about": self.about, "passed": self.passed(), "missed": self.missed(),
            "rows": self.rows.iter().map(Measured::json).collect::<Vec<_>>(),
            "figures": self.figures.iter().map(figure_json).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.about {
            writeln!(f, "{line}")?;
        }
        for row in &self.rows {
            writeln!(f, "\n{}", row.title)?;
            for (name, rounds) in &row.samples {
                let rates = || rounds.iter().map(|sample| sample.rate);
                let spread = format!(
                    "{} .. {}",
                    number(rates().fold(f64::INFINITY, f64::min)),
                    number(rates().fold(0.0, f64::max)),
                );
                let of = |what: fn(&Sample) -> f64| median(rounds.iter().map(what));
                let mut line = format!(
                    "  {name:<14} {:>9}/s {spread:>20}   p50 / p99 {:>7.0} / {:>7.0} us   CPU {:>7.2} us",
                    number(of(|s| s.rate)),
                    of(|s| s.p50),
                    of(|s| s.p99),
                    of(|s| s.cpu),
                );
                if let (Name::Sluice, Some(own)) = (name, row.own) {
                    write!(line, "   {:.1} allocations", own.allocations)?;
                    if let Some(count) = own.instructions {
                        write!(line, "   {count:.0} instructions")?;
                    }
                }
                writeln!(f, "{line}")?;
            }
            for figure in row.figures() {
                writeln!(f, "    {:<26} {:>9}{}", figure.title, number(figure.value), figure.verdict())?;
            }
        }
        writeln!(f)?;
        for figure in &self.figures {
            writeln!(f, "{:<78} {:>7}{}", figure.title, number(figure.value), figure.verdict())?;
        }
        self.missed().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(goal: Goal) -> Measured {
        let rounds = |rates: [f64; 3]| rates.map(|rate| Sample { rate, ..Sample::default() }).to_vec();
        let samples = [
            (Name::Sluice, rounds([4.0, 20.0, 6.0])),
            (Name::Ganesha, rounds([2.0, 10.0, 2.0])),
            (Name::Store, rounds([8.0, 40.0, 8.0])),
        ];
        let own = Some(Own { allocations: 12.0, instructions: Some(180_000.4) });
        Measured { title: "creates".to_owned(), goal, samples: samples.into(), own }
    }

    #[test]
    fn goals_that_are_met_pass() {
        let goal = Goal { rate: Some(6.0), ganesha: Some(2.0), store: Some(0.5) };
        let report = Report { rows: vec![row(goal)], ..Report::default() };
        assert!(report.passed(), "{report}");
        assert!(report.to_string().contains("12.0 allocations   180000 instructions"), "{report}");
    }

    #[test]
    fn every_missed_goal_has_a_line_of_its_own() {
        let goal = Goal { rate: Some(6.1), ganesha: Some(2.1), store: Some(0.51) };
        let slow = Figure { title: "growth".to_owned(), value: 1.31, unit: "", bound: Some((1.3, false)) };
        let report = Report { rows: vec![row(goal)], figures: vec![slow], ..Report::default() };
        let text = report.to_string();
        let missed: Vec<_> = text.lines().filter(|line| line.starts_with("missed: ")).collect();
        assert_eq!(missed.len(), 4, "{text}");
        assert!(missed[3].contains("growth") && missed[0].contains("creates: sluice, a second"), "{text}");
        assert_eq!(report.json()["missed"].as_array().map(Vec::len), Some(4));
        assert!(!report.passed());
    }
}
