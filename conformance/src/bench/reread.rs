//! The same files opened, read and closed by eight clients, twice: what delegations save.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::{layoutiomode4, nfs_fh4};
use tokio::task::JoinSet;

use super::Target;
use super::directory;
use super::host::Installation;
use super::table::{Row, Table};
use crate::client::{Client, How};

const CLIENTS: usize = 8;
const SIZE: u32 = 4096;
/// Rows of files that were closed are cleared a moment later.
const SETTLED: Duration = Duration::from_secs(3);
const WHAT: &str = "open, read, close";

pub(super) async fn measure(target: &Target, installation: &Installation, table: &mut Table) -> Result<()> {
    let files = target.scale.reread;
    let mut clients = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        clients.push(target.client(&format!("bench-reread-{number}"), 16).await?);
    }
    let directory = make(&clients, files).await?;
    target.env.clock.sleep(SETTLED).await;
    for pass in 1..=2 {
        let before = installation.work()?;
        let calls: u64 = clients.iter().map(Client::compounds).sum();
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for client in &clients {
            tasks.spawn(read_all(client.clone(), directory.clone(), files, pass));
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let elapsed = began.elapsed().as_secs_f64();
        let all = files as f64 * CLIENTS as f64;
        let calls = clients.iter().map(Client::compounds).sum::<u64>() - calls;
        let written = installation.work()?.since(&before).transactions as f64;
        let how = |what: &str| format!("{CLIENTS} clients, {files} files, pass {pass}: {what}");
        table.row(Row::new(WHAT, &how("files"), all / elapsed, "files/s"));
        let calls = Row::new(WHAT, &how("calls to the metadata server"), calls as f64 / all, "per file");
        // Renewals of leases.
        table.row(if pass == 2 { calls.at_most(0.01) } else { calls });
        table.row(Row::new(WHAT, &how("durable transactions"), written, "in all").at_most(0.0));
    }
    if let Some(client) = clients.first() {
        directory::list(target, client, &directory, files, "delegated files", table).await?;
    }
    for client in clients {
        client.return_delegations().await?;
        client.leave().await?;
    }
    Ok(())
}

fn name(number: u64) -> String {
    format!("file{number:08}")
}

async fn make(clients: &[Client], files: u64) -> Result<nfs_fh4> {
    let Some(first) = clients.first() else { anyhow::bail!("no clients") };
    let directory = first.mkdir(first.root(), b"reread", 0o755).await?.handle;
    let payload = Bytes::from(vec![0x5a; usize::try_from(SIZE)?]);
    let mut tasks = JoinSet::new();
    let step = clients.len();
    for (at, client) in clients.iter().cloned().enumerate() {
        let (directory, payload) = (directory.clone(), payload.clone());
        tasks.spawn(async move {
            for number in (u64::try_from(at)?..files).step_by(step) {
                let how = How::new_file(0o644);
                let name = name(number);
                let rw = layoutiomode4::LAYOUTIOMODE4_RW;
                let (open, segment) = client.open_with_layout(&directory, name.as_bytes(), &how, rw).await?;
                client.write(&segment, 0, payload.clone(), stable_how::FILE_SYNC).await?;
                client.layoutcommit_and_look(&segment, Some(u64::from(SIZE) - 1)).await?;
                client.return_and_close(&open).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(directory)
}

/// What was read before is in the client's cache, and holds for as long as the delegation does.
async fn read_all(client: Client, directory: nfs_fh4, files: u64, pass: u32) -> Result<()> {
    for number in 0..files {
        let reading = client.open_to_read(&directory, name(number).as_bytes()).await?;
        // What was opened by a delegation is read from the cache, and closed without a word.
        if reading.told {
            let segment = client.layoutget(&reading.open, layoutiomode4::LAYOUTIOMODE4_READ, 0).await?;
            let (data, _) = client.read(&segment, 0, SIZE).await?;
            ensure!(data.len() == usize::try_from(SIZE)?, "{} bytes in pass {pass}", data.len());
            client.return_and_close(&reading.open).await?;
        }
    }
    Ok(())
}
