//! What every peer did in each round, and what of it is told.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::load::Said;
use super::tree::Part;
use super::{Peer, Row};
use crate::bench::ds::report::{median, number};

/// How a line begins that is for the runner.
const SAMPLE: &str = "SAMPLE\t";
const MIB: f64 = 1048576.0;

/// One row of one peer in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    said: Said,
    /// CPU seconds of the whole guest of the servers, and of the client's.
    server: f64,
    client: f64,
}

/// A figure of a sample.
type Of = fn(&Sample) -> f64;

impl Sample {
    fn rate(&self) -> f64 {
        self.said.count as f64 / self.said.seconds
    }

    fn mib(&self) -> f64 {
        self.said.bytes as f64 / MIB / self.said.seconds
    }

    /// To the server of the mount, for a file.
    fn calls(&self) -> Option<f64> {
        self.said.calls.map(|calls| calls as f64 / self.said.count as f64)
    }

    fn alone(&self) -> f64 {
        self.said.alone.map_or(f64::NAN, |(rate, _)| rate)
    }
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) about: Vec<String>,
    /// By round.
    samples: BTreeMap<(Row, Peer), Vec<Sample>>,
}

impl Report {
    /// Takes what the client's guest printed.
    pub(super) fn take(&mut self, output: &str) -> Result<()> {
        for line in output.lines().filter_map(|line| line.strip_prefix(SAMPLE)) {
            let (row, peer, sample) = parse(line).with_context(|| format!("not understood: {line}"))?;
            self.samples.entry((row, peer)).or_default().push(sample);
        }
        Ok(())
    }

    /// A peer that did not do its part makes the others' figures worthless.
    pub(super) fn complete(&self, rows: &[(Row, Peer)], rounds: usize) -> Result<()> {
        for (row, peer) in rows {
            let there = self.samples.get(&(*row, *peer)).map_or(0, Vec::len);
            let wanted = if *row == Row::Fill { 1 } else { rounds };
            if there != wanted {
                bail!("{peer} has {there} of {wanted} rounds of {row}");
            }
        }
        Ok(())
    }

    /// The median over rounds of the ratio to the kernel's server within a round.
    fn ratio(&self, row: Row, peer: Peer, of: Of) -> Option<f64> {
        let (ours, theirs) = (self.samples.get(&(row, peer))?, self.samples.get(&(row, Peer::Kernel))?);
        Some(median(ours.iter().zip(theirs).map(|(ours, theirs)| of(ours) / of(theirs))))
    }

    fn block(&self, f: &mut fmt::Formatter<'_>, title: &str, row: Row, unit: &str, of: Of) -> fmt::Result {
        let rows: Vec<_> = self.samples.iter().filter(|((found, _), _)| *found == row).collect();
        if rows.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{title}")?;
        for ((_, peer), rounds) in rows {
            let all = || rounds.iter().map(of);
            let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
            let spread = format!("{} .. {}", number(least), number(most));
            let middle = |of: Of| number(median(rounds.iter().map(of)));
            write!(f, "  {peer:<7} {:>8} {unit:<8} {spread:>18}", number(median(all())))?;
            if *peer != Peer::Kernel
                && let Some(ratio) = self.ratio(row, *peer, of)
            {
                write!(f, "   {ratio:>5.2} of the kernel's")?;
            } else {
                write!(f, "   {:>21}", "")?;
            }
            match (row, unit) {
                (Row::Burst, "MiB/s") => write!(f, "   {} s", middle(|s| s.said.seconds))?,
                (Row::Burst, _) => write!(
                    f,
                    "   p50 / p99 {} / {} ms, alone {} a second",
                    middle(|s| f64::from(s.said.p50) / 1e3),
                    middle(|s| f64::from(s.said.p99) / 1e3),
                    middle(Sample::alone),
                )?,
                _ => write!(
                    f,
                    "   {} MiB/s   p50 / p99 {} / {} ms   CPU of a file: servers {} ms, client {} ms",
                    middle(Sample::mib),
                    middle(|s| f64::from(s.said.p50) / 1e3),
                    middle(|s| f64::from(s.said.p99) / 1e3),
                    middle(|s| s.server * 1e3 / s.said.count as f64),
                    middle(|s| s.client * 1e3 / s.said.count as f64),
                )?,
            }
            if let Some(calls) = rounds.first().and_then(Sample::calls) {
                write!(f, ", {calls:.2} calls")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let rows: Vec<_> = self
            .samples
            .iter()
            .map(|((row, peer), rounds)| {
                let rounds: Vec<_> = rounds.iter().map(|sample| {
                json!({ "said": sample.said, "server_cpu_s": sample.server, "client_cpu_s": sample.client })
            }).collect();
                json!({ "row": row.to_string(), "peer": peer.to_string(), "rounds": rounds })
            })
            .collect();
        json!({ "about": self.about, "rows": rows })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.about {
            writeln!(f, "{line}")?;
        }
        self.block(
            f,
            "small files written, each durable before the next of its thread (one round)",
            Row::Fill,
            "files/s",
            Sample::rate,
        )?;
        self.block(f, "small files read cold, in random order", Row::Cold, "files/s", Sample::rate)?;
        self.block(f, "checkpoint burst beside random reads", Row::Burst, "MiB/s", Sample::mib)?;
        self.block(f, "4 KiB random reads during the burst", Row::Burst, "reads/s", Sample::rate)?;
        for (part, title) in [
            (Part::Unpack, "a tree of source files unpacked, with their times (one thread, as all below)"),
            (Part::List, "listed with attributes, nothing cached"),
            (Part::Again, "listed once more"),
            (Part::Search, "every file read, nothing cached"),
            (Part::Remove, "removed, nothing cached"),
        ] {
            self.block(f, title, Row::Tree(part), "files/s", Sample::rate)?;
        }
        Ok(())
    }
}

/// Round, peer, row, both guests' hundredths of CPU seconds, and what the load said.
fn parse(line: &str) -> Result<(Row, Peer, Sample)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [_, peer, row, server, client, said] = *fields else { bail!("six fields are wanted") };
    let seconds = |text: &str| text.parse::<f64>().map(|hundredths| hundredths / 100.0);
    let sample =
        Sample { said: serde_json::from_str(said)?, server: seconds(server)?, client: seconds(client)? };
    Ok((Row::named(row)?, Peer::named(peer)?, sample))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(round: u32, peer: &str, count: u64, seconds: f64) -> String {
        format!(
            "SAMPLE\t{round}\t{peer}\tcold\t50\t100\t{{\"count\":{count},\"bytes\":1048576,\"seconds\":{seconds},\"p50\":1,\"p99\":2,\"alone\":null}}\n"
        )
    }

    #[test]
    fn ratios_are_those_within_a_round() {
        let mut report = Report::default();
        for (round, kernel, sluice) in [(1, 100, 70), (2, 1000, 400), (3, 10, 6)] {
            report
                .take(&format!(
                    "noise\n{}{}",
                    line(round, "kernel", kernel, 1.0),
                    line(round, "sluice", sluice, 1.0)
                ))
                .unwrap();
        }
        assert_eq!(
            report.ratio(Row::Cold, Peer::Sluice, Sample::rate),
            Some(0.6),
            "that of the medians is 0.7"
        );
        assert!(report.to_string().contains("0.60 of the kernel's"), "{report}");
        let both = [(Row::Cold, Peer::Kernel), (Row::Cold, Peer::Sluice)];
        assert!(report.complete(&both, 3).is_ok() && report.complete(&both, 4).is_err());
        assert!(report.complete(&[(Row::Cold, Peer::Inline)], 3).is_err(), "a peer that is missing");
    }

    #[test]
    fn a_broken_line_is_an_error() {
        assert!(Report::default().take("SAMPLE\t1\tkernel\tcold\t1\t1\t{}\n").is_err());
        assert!(Report::default().take("SAMPLE\t1\tganesha\tcold\t1\t1\t{}\n").is_err());
    }
}
