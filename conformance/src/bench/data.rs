//! READ and WRITE at each data server with the capabilities of a layout: no metadata on the way.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::layoutiomode4;

use super::Target;
use super::load::{self, AsyncOperation, Until};
use super::table::{Row, Table};
use crate::client::{Client, DataFile, DataServer, How, Open, Segment};

const MIB: u64 = 1 << 20;
/// Of the file at each data server; a file of the default policy has that much on one.
const SIZE: u64 = 64 * MIB;
const CONNECTIONS: usize = 4;
/// Calls in flight per connection.
const DEPTHS: [usize; 2] = [4, 32];
/// Files made in search of one per data server.
const PATIENCE: u16 = 16;
const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
}

/// One row per data server and depth.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kind: Kind,
    bytes: u64,
    random: bool,
}

const SHAPES: [Shape; 4] = [
    Shape { kind: Kind::Write, bytes: MIB, random: false },
    Shape { kind: Kind::Read, bytes: MIB, random: false },
    Shape { kind: Kind::Write, bytes: 4096, random: true },
    Shape { kind: Kind::Read, bytes: 4096, random: true },
];

impl Shape {
    fn name(self) -> &'static str {
        match (self.kind, self.random) {
            (Kind::Read, false) => "1 MiB sequential read",
            (Kind::Write, false) => "1 MiB sequential write",
            (Kind::Read, true) => "4 KiB random read",
            (Kind::Write, true) => "4 KiB random write",
        }
    }
}

struct Transfer {
    shape: Shape,
    file: DataFile,
    payload: Bytes,
    seed: AtomicU64,
}

impl AsyncOperation<Arc<DataServer>> for Transfer {
    async fn once(&self, server: &mut Arc<DataServer>, number: u64) -> Result<bool> {
        let places = SIZE / self.shape.bytes;
        let place = match self.shape.random {
            false => number % places,
            true => {
                let seed = self.seed.fetch_add(1, Ordering::Relaxed);
                (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16) % places
            }
        };
        let offset = place * self.shape.bytes;
        match self.shape.kind {
            Kind::Read => {
                let count = u32::try_from(self.shape.bytes)?;
                let (data, _) = server.read(&self.file, offset, count).await?;
                ensure!(data.len() as u64 == self.shape.bytes, "a short READ of {} bytes", data.len());
            }
            Kind::Write => {
                let written = server.write(&self.file, offset, self.payload.clone(), stable_how::UNSTABLE);
                let written = written.await?;
                ensure!(u64::from(written.count) == self.shape.bytes, "a short WRITE of {}", written.count);
            }
        }
        Ok(true)
    }
}

pub(super) async fn measure(target: &Target, table: &mut Table) -> Result<()> {
    let client = target.client("bench-data", 64).await?;
    let files = one_each(target, &client).await?;
    for (number, (address, (_, segment))) in files.iter().enumerate() {
        let file = segment.mirrors.first().and_then(|mirror| mirror.first()).context("an empty layout")?;
        let what = format!("data server {} ({address})", number + 1);
        for shape in SHAPES {
            for depth in DEPTHS {
                row(target, &what, file, shape, depth, table).await?;
            }
        }
    }
    for (open, segment) in files.values() {
        let size = client.layoutcommit(segment, Some(SIZE - 1)).await?;
        ensure!(size.is_none_or(|size| size == SIZE), "LAYOUTCOMMIT made the size {size:?}");
        client.layoutreturn(&open.handle).await?;
        client.close(open).await?;
        let found = client.getattr(&open.handle).await?;
        ensure!(found.size == Some(SIZE), "{:?} bytes shown of {SIZE} written", found.size);
    }
    client.leave().await.map_err(Into::into)
}

/// Files until every data server has the beginning of one.
async fn one_each(target: &Target, client: &Client) -> Result<BTreeMap<SocketAddr, (Open, Segment)>> {
    let mut files: BTreeMap<SocketAddr, (Open, Segment)> = BTreeMap::new();
    let directory = client.mkdir(client.root(), b"data", 0o755).await?.handle;
    for number in 0..target.data_servers * PATIENCE {
        if files.len() == usize::from(target.data_servers) {
            break;
        }
        let name = format!("file{number}");
        let open = client.open(&directory, name.as_bytes(), &How::create(0o644)).await?;
        let segment = client.layoutget(&open, layoutiomode4::LAYOUTIOMODE4_RW, 0).await?;
        let place = segment.place(0).context("a layout without byte 0")?;
        ensure!(place.end >= SIZE, "only {} bytes on one data server", place.end);
        let file = segment.mirrors.first().and_then(|mirror| mirror.get(place.stripe));
        let address = file.context("an empty layout")?.address;
        if let Entry::Vacant(first) = files.entry(address) {
            first.insert((open, segment));
        } else {
            client.layoutreturn(&open.handle).await?;
            client.close(&open).await?;
            client.remove(&directory, name.as_bytes()).await?;
        }
    }
    ensure!(
        files.len() == usize::from(target.data_servers),
        "files came to {} data servers only",
        files.len()
    );
    Ok(files)
}

async fn row(
    target: &Target,
    what: &str,
    file: &DataFile,
    shape: Shape,
    depth: usize,
    table: &mut Table,
) -> Result<()> {
    let connect = || {
        let (env, transport) = (target.env.clone(), Arc::clone(&target.transport));
        Arc::new(DataServer::new(env, transport, file.address, TIMEOUT))
    };
    let connections: Vec<_> = (0..CONNECTIONS).map(|_| connect()).collect();
    let workers: Vec<_> = connections.iter().cycle().take(CONNECTIONS * depth).cloned().collect();
    if let (Kind::Write, false, Some(server)) = (shape.kind, shape.random, connections.first()) {
        fill(server, file).await?;
    }
    let (mut rates, mut runs) = (Vec::new(), Vec::new());
    for round in 0..target.scale.rounds {
        let transfer = Transfer {
            shape,
            file: file.clone(),
            payload: Bytes::from(vec![0xa5; usize::try_from(shape.bytes)?]),
            seed: AtomicU64::new(u64::from(round) << 32 | 1),
        };
        let began = Instant::now();
        let (run, _) = load::run(workers.clone(), Until::Elapsed(target.scale.round), transfer).await?;
        if let (Kind::Write, Some(server)) = (shape.kind, connections.first()) {
            server.commit(file).await?;
        }
        let rate = run.operations.len() as f64 / began.elapsed().as_secs_f64();
        rates.push(if shape.random { rate } else { rate * shape.bytes as f64 / 1e6 });
        runs.push(run);
    }
    let how = match shape.kind {
        Kind::Read => format!("{}, {CONNECTIONS} connections x {depth}", shape.name()),
        Kind::Write => format!("{} and COMMIT, {CONNECTIONS} connections x {depth}", shape.name()),
    };
    let unit = if shape.random { "IOPS" } else { "MB/s" };
    table.row(Row::median(what, &how, &rates, unit).with_latency(load::latency(&runs)));
    Ok(())
}

/// The whole file once, so that nothing measured is the first write of a block.
async fn fill(server: &DataServer, file: &DataFile) -> Result<()> {
    let payload = Bytes::from(vec![0x5a; usize::try_from(MIB)?]);
    for offset in (0..SIZE).step_by(usize::try_from(MIB)?) {
        server.write(file, offset, payload.clone(), stable_how::UNSTABLE).await?;
    }
    server.commit(file).await?;
    Ok(())
}
