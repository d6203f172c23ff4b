//! What a data server shows.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use sluice_ds::{DataServer, Metrics};
use sluice_env::BoxFuture;

use super::Source;
use super::page::{In, Page, one};

const NFS3_PROGRAM: u32 = 100_003;

/// A data server to be scraped.
pub(crate) struct DsSource(pub(crate) Arc<DataServer>);

impl Source for DsSource {
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Collector>, String>> {
        Box::pin(async move {
            let snapshot: Box<dyn Collector> = Box::new(Snapshot(self.0.metrics().await));
            Ok(snapshot)
        })
    }
}

/// Nothing where there are none.
fn checksums(page: &mut Page<'_>, scrub: &sluice_store::Scrub) -> fmt::Result {
    if !scrub.on {
        return Ok(());
    }
    let help = "1 while a scrub runs";
    page.gauge("sluice_ds_scrub_running", In::Things, help, one(u64::from(scrub.running)))?;
    let help = "When the last scrub that came to its end did, in seconds since 1970; 0: never";
    page.gauge("sluice_ds_scrub_finished", In::Things, help, one(scrub.finished.unsigned_abs()))?;
    let help = "Bytes read back and found to be what was written";
    page.counter("sluice_ds_verified", In::Bytes, help, one(scrub.verified))?;
    let help = "Bytes that got checksums";
    page.counter("sluice_ds_sealed", In::Bytes, help, one(scrub.sealed))?;
    let help = "Regions whose checksums were given up for a write, with a flush each";
    page.counter("sluice_ds_unsealed", In::Things, help, one(scrub.unsealed))?;
    let help = "Blocks of 4 KiB found bad";
    page.counter("sluice_ds_bad_blocks", In::Things, help, one(scrub.bad))?;
    let help = "Ranges in quarantine: readers of them get errors";
    page.gauge("sluice_ds_quarantined", In::Things, help, one(scrub.quarantined))
}

#[derive(Debug)]
struct Snapshot(Metrics);

impl Collector for Snapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut page, all) = (Page(encoder), &self.0);
        let (status, counters) = (&all.status, &all.status.counters);
        let labels = vec![
            ("version", crate::VERSION.to_owned()),
            ("data_server", status.store_id.to_string()),
            ("store", status.store.to_string()),
        ];
        page.gauge(
            "sluice_ds_info",
            In::Things,
            "Which store is served by which software",
            [(labels, 1u64)],
        )?;
        let help = "1 while a connection to the metadata server stands";
        page.gauge("sluice_ds_connected", In::Things, help, one(u64::from(status.connected)))?;
        let help = "1 while clients are served, 0 while they are told to wait";
        page.gauge("sluice_ds_serving", In::Things, help, one(u64::from(status.serving)))?;
        page.counter("sluice_ds_read", In::Bytes, "Bytes read by clients", one(counters.bytes_read))?;
        page.counter(
            "sluice_ds_written",
            In::Bytes,
            "Bytes written by clients",
            one(counters.bytes_written),
        )?;
        let help = "Requests that a handle, its rights or a fence said no to";
        page.counter("sluice_ds_refused", In::Things, help, one(counters.refused))?;
        let help = "Requests that the device said no to";
        page.counter("sluice_ds_errors", In::Things, help, one(counters.errors))?;
        page.counter("sluice_ds_flushes", In::Things, "Flushes of the device", one(all.flushes))?;
        let help = "Flushes that failed: data was lost";
        page.counter("sluice_ds_flush_failures", In::Things, help, one(all.flush_failures))?;
        let help = "Bytes written past the page cache: of large writes that were to be durable";
        page.counter("sluice_ds_direct_write", In::Bytes, help, one(all.direct_bytes))?;
        let help = "Bytes written from the socket to the page cache without a copy in between: of large UNSTABLE writes";
        page.counter("sluice_ds_piped_write", In::Bytes, help, one(all.piped_bytes))?;
        let fences = u64::try_from(status.fences).unwrap_or(u64::MAX);
        page.gauge("sluice_ds_fences", In::Things, "Rows in the fence table", one(fences))?;
        // A device that does not tell has no series, rather than one that says 0.
        let told = all.capacity.iter();
        let total = told.clone().map(|capacity| (Vec::new(), capacity.total));
        page.gauge("sluice_ds_capacity", In::Bytes, "Size of the device", total)?;
        let help = "Bytes that clients may still fill";
        page.gauge("sluice_ds_free", In::Bytes, help, told.map(|capacity| (Vec::new(), capacity.free)))?;
        checksums(&mut page, &all.scrub)?;
        page.connections("sluice_ds", status.admission)?;
        page.calls("sluice_ds", NFS3_PROGRAM, sluice_ds::nfs3::procedure_name, &status.procedures)
    }
}
