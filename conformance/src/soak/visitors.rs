//! Clients that come, write and read files in every way that leaves something at a server, and leave; or vanish with everything
//! open, and come back under the same name later, as a machine that was reset does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use bytes::Bytes;
use sluice_env::Env;
use sluice_rpc::Tcp;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::{layoutiomode4, nfs_fh4, nfsstat4};

use crate::client::{Client, Error, How, Identity, Segment};
use crate::kills::dice::Dice;
use crate::kills::herd::{Herd, Worker};
use crate::kills::servers::Servers;
use crate::kills::tree::Broken;

/// Visitors that are there at once.
const VISITORS: u64 = 4;
/// Names that one goes by in turn; who vanished is forgotten when his name comes again.
const NAMES: u64 = 4;
const FILES: u64 = 6;
/// Bytes of a file: by one WRITE to the metadata server, or through a layout.
const SMALL: usize = 3000;
const LARGE: usize = 96 << 10;
/// One visit in so many ends without a word.
const VANISHES: u64 = 3;

/// How many visits there were.
#[derive(Debug, Default)]
pub(super) struct Visits(AtomicU64);

impl Visits {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Visitor {
    number: u64,
    mds: SocketAddr,
    dice: Dice,
    visits: Arc<Visits>,
}

/// They come at once, and again and again.
pub(super) fn invite(servers: &Servers, herd: &mut Herd, dice: &mut Dice) -> Result<Arc<Visits>> {
    let visits = Arc::new(Visits::default());
    for number in 0..VISITORS {
        let (mds, dice) = (servers.mds_address(), Dice::new(dice.next()));
        herd.add(Visitor { number, mds, dice, visits: Arc::clone(&visits) });
    }
    Ok(visits)
}

impl Worker for Visitor {
    async fn step(&mut self) -> Result<()> {
        let name = format!("visitor{}-{}", self.number, self.dice.below(NAMES));
        let identity = Identity { slots: 8, ..Identity::new(&name, "6.18.3") };
        let client = Client::connect(Env::system(), Arc::new(Tcp), self.mds, identity).await?;
        let visit = self.visit(&client, &name).await;
        let vanishes = visit.with_context(|| name.clone())?;
        self.visits.0.fetch_add(1, Ordering::Relaxed);
        if !vanishes {
            client.leave().await.with_context(|| format!("{name} leaves"))?;
        }
        Ok(())
    }

    /// Nobody else is promised anything here: each visit checks what it wrote.
    async fn compare(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Visitor {
    /// Whether it ends without a word, with everything open.
    async fn visit(&mut self, client: &Client, who: &str) -> Result<bool> {
        let home = home(client, who).await?;
        let vanishes = self.dice.below(VANISHES) == 0;
        for _ in 0..1 + self.dice.below(4) {
            let name = format!("file{}", self.dice.below(FILES));
            let name = name.as_bytes();
            let data = Bytes::from(vec![u8::try_from(self.dice.below(251))?; LARGE]);
            if self.dice.below(2) == 0 {
                let open = client.open(&home, name, &How::create(0o644)).await?;
                client.write_through(&open, 0, data.slice(..SMALL)).await?;
                let found = client.read_through(&open, 0, u32::try_from(SMALL)?).await?;
                same(&found, &data[..SMALL])?;
                client.close(&open).await?;
            } else {
                let rw = layoutiomode4::LAYOUTIOMODE4_RW;
                let (open, mut segment) =
                    client.open_with_layout(&home, name, &How::create(0o644), rw).await?;
                // It may be asked back at any time, and is given again.
                while let Err(error) = directly(client, &segment, &data).await {
                    if !matches!(error.downcast_ref(), Some(Error::LayoutGone)) {
                        return Err(error);
                    }
                    segment = client.layoutget(&open, rw, 0).await?;
                }
                client.return_and_close(&open).await?;
            }
            let reading = client.open_to_read(&home, name).await?;
            if reading.told {
                client.close(&reading.open).await?;
            }
            client.return_delegations().await?;
            if self.dice.below(2) == 0 {
                client.remove(&home, name).await?;
            }
        }
        if vanishes {
            // What is held now is for the server to clean up.
            let rw = layoutiomode4::LAYOUTIOMODE4_RW;
            client.open_with_layout(&home, b"held", &How::create(0o644), rw).await?;
            client.open(&home, b"read", &How::create(0o644)).await?;
            client.open_to_read(&home, b"read").await?;
        }
        Ok(vanishes)
    }
}

/// Writes by way of a layout, and finds what it wrote.
async fn directly(client: &Client, segment: &Segment, data: &Bytes) -> Result<()> {
    client.write(segment, 0, data.clone(), stable_how::UNSTABLE).await?;
    client.commit(segment).await?;
    client.layoutcommit(segment, Some(LARGE as u64 - 1)).await?;
    let (found, _) = client.read(segment, 0, u32::try_from(LARGE)?).await?;
    same(&found, data)
}

/// A directory that nobody else uses: whoever vanished there is forgotten before it is used again.
async fn home(client: &Client, name: &str) -> Result<nfs_fh4> {
    match client.mkdir(client.root(), name.as_bytes(), 0o755).await {
        Ok(made) => Ok(made.handle),
        Err(Error::Status { status: nfsstat4::NFS4ERR_EXIST, .. }) => {
            Ok(client.lookup(client.root(), name.as_bytes()).await?.handle)
        }
        Err(error) => Err(error.into()),
    }
}

fn same(found: &[u8], wanted: &[u8]) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(Broken(format!("{} bytes came back that are not the {} written", found.len(), wanted.len())).into())
}
