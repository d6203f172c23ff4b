//! Writing a snapshot in the words of Prometheus: names begin with `sluice_`, units are bytes and seconds.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use sluice_rpc::{Admission, ProcedureSnapshot};

/// A name and a value.
pub(super) type Label = (&'static str, String);

pub(super) fn write(snapshot: Box<dyn Collector>) -> Result<String, String> {
    let mut registry = Registry::default();
    registry.register_collector(snapshot);
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| format!("cannot write the metrics: {error}"))?;
    Ok(text)
}

/// One family after another.
pub(super) struct Page<'a>(pub(super) DescriptorEncoder<'a>);

/// What is counted: bytes or seconds, which the name says, or things, which it names.
#[derive(Clone, Copy)]
pub(super) enum In {
    Bytes,
    Seconds,
    Things,
}

impl In {
    fn unit(self) -> Option<Unit> {
        match self {
            Self::Bytes => Some(Unit::Bytes),
            Self::Seconds => Some(Unit::Seconds),
            Self::Things => None,
        }
    }
}

impl Page<'_> {
    /// `name[_unit]_total`.
    pub(super) fn counter<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        unit: In,
        help: &str,
        values: impl IntoIterator<Item = (Vec<Label>, V)>,
    ) -> fmt::Result {
        self.family(name, unit, help, MetricType::Counter, values, |place, value| {
            place.encode_counter::<NoLabelSet, V, f64>(value, None)
        })
    }

    pub(super) fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        unit: In,
        help: &str,
        values: impl IntoIterator<Item = (Vec<Label>, V)>,
    ) -> fmt::Result {
        self.family(name, unit, help, MetricType::Gauge, values, |place, value| place.encode_gauge(value))
    }

    fn family<V>(
        &mut self,
        name: &str,
        unit: In,
        help: &str,
        kind: MetricType,
        values: impl IntoIterator<Item = (Vec<Label>, V)>,
        put: impl Fn(&mut MetricEncoder<'_>, &V) -> fmt::Result,
    ) -> fmt::Result {
        let unit = unit.unit();
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in values {
            if labels.is_empty() {
                put(&mut family, &value)?;
            } else {
                put(&mut family.encode_family(&labels)?, &value)?;
            }
        }
        Ok(())
    }

    /// Latencies: `name_seconds`.
    pub(super) fn latency(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Vec<Label>, f64, Vec<u64>)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, sum, counts) in values {
            histogram(&mut family.encode_family(&labels)?, sum, &counts)?;
        }
        Ok(())
    }

    /// Connections, of which there is a number at most.
    pub(super) fn connections(&mut self, prefix: &str, admission: Admission) -> fmt::Result {
        let help = "Connections that are open";
        self.gauge(&format!("{prefix}_connections"), In::Things, help, one(admission.open))?;
        let help = "Connections that are open and under TLS";
        self.gauge(&format!("{prefix}_connections_tls"), In::Things, help, one(admission.tls))?;
        let help = "Connections refused because there were as many as there may be";
        self.counter(&format!("{prefix}_connections_refused"), In::Things, help, one(admission.refused))
    }

    /// Calls, bytes and latency of the procedures of `program` that `name` knows.
    pub(super) fn calls(
        &mut self,
        prefix: &str,
        program: u32,
        name: impl Fn(u32) -> Option<&'static str>,
        all: &[ProcedureSnapshot],
    ) -> fmt::Result {
        let known: Vec<_> = all
            .iter()
            .filter(|one| one.program == program)
            .filter_map(|one| Some((vec![("procedure", name(one.procedure)?.to_owned())], one)))
            .collect();
        let each = |of: fn(&ProcedureSnapshot) -> u64| {
            known.iter().map(move |(labels, one)| (labels.clone(), of(one))).collect::<Vec<_>>()
        };
        self.counter(&format!("{prefix}_calls"), In::Things, "Calls answered", each(|one| one.calls))?;
        self.counter(
            &format!("{prefix}_calls_failed"),
            In::Things,
            "Calls answered by an error of RPC",
            each(|one| one.failed),
        )?;
        let help = "Bytes of arguments received";
        self.counter(&format!("{prefix}_call_received"), In::Bytes, help, each(|one| one.bytes_in))?;
        let help = "Bytes of results sent";
        self.counter(&format!("{prefix}_call_sent"), In::Bytes, help, each(|one| one.bytes_out))?;
        self.latency(
            &format!("{prefix}_call_duration"),
            "From a call received to its answer",
            known.iter().map(|(labels, one)| (labels.clone(), one.total.as_secs_f64(), one.buckets.to_vec())),
        )
    }
}

/// A value without labels.
pub(super) fn one<V>(value: V) -> [(Vec<Label>, V); 1] {
    [(Vec::new(), value)]
}

/// Every second power of two is a bucket here, from 16 us to 17 s: a scrape of everything stays small.
const FIRST: usize = 4;
const LAST: usize = 24;

/// `counts[k]`: what took less than 2^k microseconds and not less than half of that.
fn histogram(encoder: &mut MetricEncoder<'_>, sum: f64, counts: &[u64]) -> fmt::Result {
    let mut buckets = Vec::new();
    let mut from = 0;
    for bound in (FIRST..=LAST).step_by(2) {
        let within = counts.get(from..=bound).unwrap_or_default().iter().sum();
        // Exact: powers of two of up to 2^24 microseconds.
        buckets.push(((1u64 << bound) as f64 / 1e6, within));
        from = bound + 1;
    }
    buckets.push((f64::INFINITY, counts.get(from..).unwrap_or_default().iter().sum()));
    encoder.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
}
