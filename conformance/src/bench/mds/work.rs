//! What clients do: one operation at a time each, on names and files of their own.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::{OPEN4_SHARE_ACCESS_READ, layoutiomode4, nfs_fh4, verifier4};

use crate::bench::load::AsyncOperation;
use crate::client::{Client, How};

/// Calls that one client has under way together, as a host's programs have on its one connection.
pub(super) const IN_FLIGHT: usize = 16;
/// Bytes of a small file.
pub(super) const SMALL: usize = 4096;
/// Of one that is at a data server, where there are any.
const LARGE: usize = 128 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// OPEN with GUARDED, GETFH, GETATTR; CLOSE
    Create,
    /// The same, [`IN_FLIGHT`] OPENs at a time, and then as many CLOSEs
    CreateTogether,
    /// By filehandle
    GetAttributes,
    /// The same, [`IN_FLIGHT`] calls at a time
    GetAttributesTogether,
    Names,
    Listing,
    Rename,
    Remove,
    /// OPEN, WRITE, CLOSE
    Write,
    /// OPEN, READ, CLOSE
    Read,
    /// Under a layout OPEN, WRITE, LAYOUTCOMMIT, LAYOUTRETURN with CLOSE, as a stock kernel has it; else OPEN, WRITE, CLOSE
    WriteLarge,
    /// Under a layout OPEN, READ, LAYOUTRETURN with CLOSE; else OPEN, READ, CLOSE
    ReadLarge,
}

impl Phase {
    /// Its steps are of more than one operation or entry.
    fn counts_itself(self) -> bool {
        matches!(self, Self::Names | Self::Listing | Self::CreateTogether | Self::GetAttributesTogether)
    }

    /// A metadata server by itself cannot do it.
    pub(super) fn needs_data_servers(self) -> bool {
        matches!(self, Self::WriteLarge | Self::ReadLarge)
    }
}

/// A client at work.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) client: Client,
    number: usize,
    /// Where it makes, renames and removes.
    pub(super) directory: nfs_fh4,
    /// What it lists.
    listed: nfs_fh4,
    made: Vec<nfs_fh4>,
    renamed: u64,
    written: u64,
    written_large: u64,
    /// The server has data servers.
    layouts: bool,
    /// Since the phase began.
    done: u64,
    /// Where its listing goes on.
    at: (u64, verifier4),
    /// Since the phase began: entries of listings, elsewhere operations.
    pub(super) units: u64,
}

impl Worker {
    pub(super) fn new(
        client: &Client,
        number: usize,
        directory: &nfs_fh4,
        listed: &nfs_fh4,
        layouts: bool,
    ) -> Self {
        Self {
            client: client.clone(),
            number,
            directory: directory.clone(),
            listed: listed.clone(),
            made: Vec::new(),
            renamed: 0,
            written: 0,
            written_large: 0,
            layouts,
            done: 0,
            at: (0, verifier4::default()),
            units: 0,
        }
    }

    pub(super) fn begin(&mut self) {
        (self.done, self.units, self.at) = (0, 0, (0, verifier4::default()));
    }

    fn name(&self, kind: &str, index: u64) -> Vec<u8> {
        format!("{kind}{:03}.{index:08}", self.number).into_bytes()
    }

    fn made(&self) -> u64 {
        self.made.len() as u64
    }

    async fn create(&mut self) -> Result<bool> {
        let name = self.name("file", self.made());
        let open = self.client.open(&self.directory, &name, &How::new_file(0o644)).await?;
        self.client.close(&open).await?;
        self.made.push(open.handle);
        Ok(true)
    }

    async fn create_together(&mut self) -> Result<bool> {
        let first = self.made();
        let names: Vec<_> = (first..first + IN_FLIGHT as u64).map(|index| self.name("file", index)).collect();
        let opens = self.client.opens(&self.directory, &names, &How::new_file(0o644)).await?;
        self.client.closes(&opens).await?;
        self.made.extend(opens.into_iter().map(|open| open.handle));
        self.units += IN_FLIGHT as u64;
        Ok(true)
    }

    async fn get_attributes(&mut self) -> Result<bool> {
        let Some(at) = self.done.checked_rem(self.made()) else { return Ok(false) };
        let handle = self.made.get(usize::try_from(at)?).context("no such file")?;
        // What the client makes of them is not what is measured.
        ensure!(self.client.getattr_raw(handle).await? > 0, "no attributes");
        Ok(true)
    }

    async fn get_attributes_together(&mut self) -> Result<bool> {
        if self.made.is_empty() {
            return Ok(false);
        }
        let first = usize::try_from(self.units % self.made())?;
        let next = (first..first + IN_FLIGHT).filter_map(|at| self.made.get(at % self.made.len()));
        ensure!(self.client.getattrs_raw(next).await? > 0, "no attributes");
        self.units += IN_FLIGHT as u64;
        Ok(true)
    }

    async fn page(&mut self, attributes: bool) -> Result<bool> {
        let (cookie, verifier) = self.at;
        let page = match attributes {
            true => self.client.readdir_page(&self.listed, cookie, verifier).await?,
            false => self.client.names_page(&self.listed, cookie, verifier).await?,
        };
        self.units += page.entries.len() as u64;
        ensure!(page.eof || !page.entries.is_empty(), "an empty page that is not the last");
        let last = page.entries.last().map_or(cookie, |entry| entry.cookie);
        self.at = if page.eof { (0, verifier4::default()) } else { (last, page.verifier) };
        Ok(true)
    }

    async fn rename(&mut self) -> Result<bool> {
        if self.renamed == self.made() {
            return Ok(false);
        }
        let (from, to) = (self.name("file", self.renamed), self.name("moved", self.renamed));
        self.client.rename(&self.directory, &from, &to).await?;
        self.renamed += 1;
        Ok(true)
    }

    async fn remove(&mut self) -> Result<bool> {
        if self.done == self.made() {
            return Ok(false);
        }
        let kind = if self.done < self.renamed { "moved" } else { "file" };
        self.client.remove(&self.directory, &self.name(kind, self.done)).await?;
        Ok(true)
    }

    async fn write(&mut self) -> Result<bool> {
        static DATA: [u8; SMALL] = [0x5a; SMALL];
        self.put(&self.name("small", self.written), &DATA).await?;
        self.written += 1;
        Ok(true)
    }

    async fn put(&self, name: &[u8], data: &'static [u8]) -> Result<()> {
        let open = self.client.open(&self.directory, name, &How::new_file(0o644)).await?;
        self.client.write_through(&open, 0, Bytes::from_static(data)).await?;
        Ok(self.client.close(&open).await?)
    }

    async fn read(&mut self) -> Result<bool> {
        let Some(at) = self.done.checked_rem(self.written) else { return Ok(false) };
        self.get(&self.name("small", at), SMALL).await?;
        Ok(true)
    }

    async fn get(&self, name: &[u8], length: usize) -> Result<()> {
        let how = How::existing(OPEN4_SHARE_ACCESS_READ);
        let open = self.client.open(&self.directory, name, &how).await?;
        let data = self.client.read_through(&open, 0, u32::try_from(length)?).await?;
        ensure!(data.len() == length, "{} bytes of {length}", data.len());
        Ok(self.client.close(&open).await?)
    }
}

/// Files that are at data servers, where there are any.
impl Worker {
    async fn write_large(&mut self) -> Result<bool> {
        static DATA: [u8; LARGE] = [0x5a; LARGE];
        let name = self.name("large", self.written_large);
        if self.layouts {
            let (client, how) = (&self.client, How::new_file(0o644));
            let mode = layoutiomode4::LAYOUTIOMODE4_RW;
            let (open, segment) = client.open_with_layout(&self.directory, &name, &how, mode).await?;
            client.write(&segment, 0, Bytes::from_static(&DATA), stable_how::FILE_SYNC).await?;
            client.layoutcommit_and_look(&segment, Some(LARGE as u64 - 1)).await?;
            let seen = client.return_and_close(&open).await?;
            ensure!(seen.size == Some(LARGE as u64), "{:?} bytes shown of {LARGE}", seen.size);
        } else {
            self.put(&name, &DATA).await?;
        }
        self.written_large += 1;
        Ok(true)
    }

    async fn read_large(&mut self) -> Result<bool> {
        let Some(at) = self.done.checked_rem(self.written_large) else { return Ok(false) };
        let name = self.name("large", at);
        if self.layouts {
            let (client, how) = (&self.client, How::existing(OPEN4_SHARE_ACCESS_READ));
            let mode = layoutiomode4::LAYOUTIOMODE4_READ;
            let (open, segment) = client.open_with_layout(&self.directory, &name, &how, mode).await?;
            let (data, _) = client.read(&segment, 0, u32::try_from(LARGE)?).await?;
            ensure!(data.len() == LARGE, "{} bytes of {LARGE}", data.len());
            client.return_and_close(&open).await?;
        } else {
            self.get(&name, LARGE).await?;
        }
        Ok(true)
    }
}

pub(super) struct Step(pub(super) Phase);

impl AsyncOperation<Worker> for Step {
    async fn once(&self, worker: &mut Worker, _: u64) -> Result<bool> {
        let more = match self.0 {
            Phase::Create => worker.create().await?,
            Phase::CreateTogether => worker.create_together().await?,
            Phase::GetAttributes => worker.get_attributes().await?,
            Phase::GetAttributesTogether => worker.get_attributes_together().await?,
            Phase::Names => worker.page(false).await?,
            Phase::Listing => worker.page(true).await?,
            Phase::Rename => worker.rename().await?,
            Phase::Remove => worker.remove().await?,
            Phase::Write => worker.write().await?,
            Phase::Read => worker.read().await?,
            Phase::WriteLarge => worker.write_large().await?,
            Phase::ReadLarge => worker.read_large().await?,
        };
        if more {
            worker.done += 1;
            if !self.0.counts_itself() {
                worker.units += 1;
            }
        }
        Ok(more)
    }
}
