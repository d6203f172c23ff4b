//! What was measured, by row and server, and what it must be.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde_json::{Value, json};

use super::peers::Name;

/// One row of one server in one round.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// In the unit of the row.
    pub(super) rate: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// CPU seconds of the server for each GiB moved.
    pub(super) cpu: f64,
    /// Of the writer beside it, in MB/s.
    pub(super) beside: Option<f64>,
}

/// What a row must show, as ratios of medians over rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Goal {
    pub(super) ganesha: Option<f64>,
    /// Of the pinned ceiling, and how many times Ganesha that is.
    pub(super) ceiling: Option<(f64, f64)>,
    /// CPU seconds per GiB, at most.
    pub(super) cpu: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Measured {
    pub(super) title: String,
    pub(super) unit: &'static str,
    pub(super) goal: Goal,
    /// By server, then by round.
    pub(super) samples: BTreeMap<Name, Vec<Sample>>,
}

/// A figure that stands by itself, and how it is judged.
#[derive(Debug)]
pub(in crate::bench) struct Figure {
    pub(in crate::bench) title: String,
    pub(in crate::bench) value: f64,
    pub(in crate::bench) unit: &'static str,
    /// The bound, and whether it is the least (or the most) that is good.
    pub(in crate::bench) bound: Option<(f64, bool)>,
}

impl Figure {
    pub(in crate::bench) fn good(&self) -> bool {
        self.bound.is_none_or(|(bound, least)| if least { self.value >= bound } else { self.value <= bound })
    }

    pub(in crate::bench) fn verdict(&self) -> String {
        let Some((bound, least)) = self.bound else { return String::new() };
        let word = if least { "at least" } else { "at most" };
        format!("  ({word} {bound}: {})", if self.good() { "yes" } else { "NO" })
    }
}

#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) about: Vec<String>,
    pub(super) rows: Vec<Measured>,
    pub(super) figures: Vec<Figure>,
}

pub(in crate::bench) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Measured {
    fn of(&self, name: Name, what: impl Fn(&Sample) -> f64) -> Option<f64> {
        self.samples.get(&name).map(|rounds| median(rounds.iter().map(what)))
    }

    /// The median over rounds of the ratio within a round: what disturbs a round disturbs both.
    pub(super) fn ratio(&self, other: Name) -> Option<f64> {
        self.over(other, |sample| sample.rate)
    }

    fn over(&self, other: Name, what: fn(&Sample) -> f64) -> Option<f64> {
        let (ours, theirs) = (self.samples.get(&Name::Sluice)?, self.samples.get(&other)?);
        Some(median(ours.iter().zip(theirs).map(|(ours, theirs)| what(ours) / what(theirs))))
    }

    /// Ratios and costs with their goals.
    fn figures(&self) -> Vec<Figure> {
        let mut all = Vec::new();
        for (other, least) in [
            (Name::Ganesha, self.goal.ganesha),
            // For comparison: with a lean client it answers a call several times as fast as anything that has files.
            (Name::Ceiling, None),
            (Name::Kernel, Some(1.0)),
            // What checksums cost those who do not want any is nothing; this says what they cost the others.
            (Name::Summed, None),
            (Name::Tls, None),
        ] {
            if let Some(value) = self.ratio(other) {
                let bound = least.map(|least| (least, true));
                all.push(Figure { title: format!("sluice / {other}"), value, unit: "", bound });
            }
        }
        if let (Some((least, pinned)), Some(ganesha)) = (self.goal.ceiling, self.ratio(Name::Ganesha)) {
            let title = format!("sluice / pinned ceiling ({pinned:.2} x ganesha)");
            all.push(Figure { title, value: ganesha / pinned, unit: "", bound: Some((least, true)) });
        }
        // The client pays for TLS as well, on the same processors: of the server's part this says more than the rate.
        if let Some(value) = self.over(Name::Tls, |s| s.cpu) {
            let title = "CPU: sluice / tls".to_owned();
            all.push(Figure { title, value, unit: "", bound: None });
        }
        if let (Some(most), Some(value)) = (self.goal.cpu, self.of(Name::Sluice, |s| s.cpu)) {
            let title = "server CPU for a GiB".to_owned();
            all.push(Figure { title, value, unit: " s", bound: Some((most, false)) });
        }
        all
    }

    fn json(&self) -> Value {
        let servers = self.samples.iter().map(|(name, rounds)| {
            let rates: Vec<f64> = rounds.iter().map(|sample| sample.rate).collect();
            json!({
                "server": name.to_string(), "rates": rates, "median": median(rates.iter().copied()),
                "p50_us": self.of(*name, |s| s.p50), "p99_us": self.of(*name, |s| s.p99),
                "cpu_s_per_gib": self.of(*name, |s| s.cpu),
            })
        });
        let servers: Vec<_> = servers.collect();
        json!({
            "row": self.title, "unit": self.unit, "servers": servers,
            "figures": self.figures().iter().map(figure_json).collect::<Vec<_>>(),
        })
    }
}

pub(in crate::bench) fn figure_json(figure: &Figure) -> Value {
    let bound = figure.bound.map(|(bound, least)| json!({ "bound": bound, "least": least }));
    json!({ "what": figure.title, "value": figure.value, "unit": figure.unit, "goal": bound, "good": figure.good() })
}

impl Report {
    pub(super) fn passed(&self) -> bool {
        self.rows.iter().flat_map(Measured::figures).all(|figure| figure.good())
            && self.figures.iter().all(Figure::good)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "about": self.about, "passed": self.passed(),
            "rows": self.rows.iter().map(Measured::json).collect::<Vec<_>>(),
            "figures": self.figures.iter().map(figure_json).collect::<Vec<_>>(),
        })
    }
}

pub(in crate::bench) fn number(value: f64) -> String {
    if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
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
                    "  {name:<8} {:>8} {:<5} {spread:>18}   p50 / p99 {:>6.0} / {:>6.0} us   {:>5.2} CPU s/GiB",
                    number(of(|s| s.rate)),
                    row.unit,
                    of(|s| s.p50),
                    of(|s| s.p99),
                    of(|s| s.cpu),
                );
                let beside: Vec<f64> = rounds.iter().filter_map(|sample| sample.beside).collect();
                if !beside.is_empty() {
                    write!(line, "   writer {:.0} MB/s", median(beside))?;
                }
                writeln!(f, "{line}")?;
            }
            for figure in row.figures() {
                writeln!(
                    f,
                    "    {:<22} {:.2}{}{}",
                    figure.title,
                    figure.value,
                    figure.unit,
                    figure.verdict()
                )?;
            }
        }
        writeln!(f)?;
        for figure in &self.figures {
            writeln!(
                f,
                "{:<58} {:>7}{}{}",
                figure.title,
                number(figure.value),
                figure.unit,
                figure.verdict()
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(goal: Goal) -> Measured {
        let rounds =
            |rates: [f64; 3]| rates.map(|rate| Sample { rate, cpu: 0.5, ..Sample::default() }).to_vec();
        let samples = [(Name::Sluice, rounds([4.0, 20.0, 6.0])), (Name::Ganesha, rounds([2.0, 10.0, 2.0]))];
        Measured { title: "t".to_owned(), unit: "u", goal, samples: samples.into() }
    }

    #[test]
    fn ratios_are_those_within_a_round() {
        let goal = Goal { ganesha: Some(2.0), ..Goal::default() };
        assert_eq!((row(goal).ratio(Name::Ganesha), row(goal).ratio(Name::Ceiling)), (Some(2.0), None));
        let report = Report { rows: vec![row(goal)], ..Report::default() };
        assert!(report.passed());
        assert!(report.to_string().contains("sluice / ganesha       2.00  (at least 2: yes)"), "{report}");
    }

    #[test]
    fn the_ceiling_is_pinned_in_rates_of_ganesha() {
        for (least, passes) in [(0.5, true), (0.51, false)] {
            let report = Report {
                rows: vec![row(Goal { ceiling: Some((least, 4.0)), ..Goal::default() })],
                ..Report::default()
            };
            assert_eq!(report.passed(), passes, "{report}");
            assert!(report.to_string().contains("pinned ceiling (4.00 x ganesha)"), "{report}");
        }
    }

    #[test]
    fn a_missed_goal_is_told() {
        for goal in
            [Goal { ganesha: Some(2.1), ..Goal::default() }, Goal { cpu: Some(0.4), ..Goal::default() }]
        {
            let report = Report { rows: vec![row(goal)], ..Report::default() };
            assert!(!report.passed() && report.to_string().contains(": NO)"));
            assert_eq!(report.json()["passed"], false);
        }
    }
}
