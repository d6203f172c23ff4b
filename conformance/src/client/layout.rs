//! Layouts held, and I/O through them. RFC 8881 §12.5, RFC 8435.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use sluice_rpc::{AuthSys, Credential};
use sluice_xdr::flexfiles::{ff_data_server4, ff_device_addr4, ff_layout4, ff_layoutreturn4};
use sluice_xdr::from_bytes;
use sluice_xdr::nfs3::stable_how;
use sluice_xdr::nfs4::*;
use tokio::sync::RwLock;

use super::data::{DataServer, Written};
use super::files::{FOR_CACHES, How, Open, USUAL, attributes, opened, opening};
use super::session::{Client, Inner};
use super::{Error, Result, ops};

const UNAVAILABLE: nfsstat4 = nfsstat4::NFS4ERR_LAYOUTUNAVAILABLE;
const LATER: nfsstat4 = nfsstat4::NFS4ERR_LAYOUTTRYLATER;
const CONFLICT: nfsstat4 = nfsstat4::NFS4ERR_RECALLCONFLICT;

/// What the client holds and knows of layouts.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    files: Mutex<BTreeMap<nfs_fh4, File>>,
    devices: Mutex<BTreeMap<deviceid4, SocketAddr>>,
    data_servers: Mutex<BTreeMap<SocketAddr, Arc<DataServer>>>,
}

#[derive(Debug, Default)]
struct File {
    held: Option<Arc<Held>>,
    /// LAYOUTGETs on their way: a recall may be of what they will bring.
    asking: usize,
}

/// The layouts of one file under their one stateid.
#[derive(Debug)]
pub(super) struct Held {
    stateid: Mutex<stateid4>,
    /// True when given back. Read while I/O is on its way, written to give back.
    gone: RwLock<bool>,
}

/// A data file as one layout names it.
#[derive(Clone, Debug)]
pub struct DataFile {
    pub device: deviceid4,
    pub address: SocketAddr,
    /// The capability.
    pub handle: Bytes,
    pub credential: Credential,
    /// The higher the better to read from.
    pub efficiency: u32,
}

/// What one LAYOUTGET gave.
#[derive(Clone, Debug)]
pub struct Segment {
    pub file: nfs_fh4,
    pub bytes: Range<u64>,
    pub iomode: layoutiomode4,
    /// Bytes; 0 when each mirror is one data file.
    pub stripe_unit: u64,
    /// By mirror, then by stripe.
    pub mirrors: Vec<Vec<DataFile>>,
    held: Arc<Held>,
}

/// Where a byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub stripe: usize,
    /// The first byte behind it that is in another stripe or segment.
    pub end: u64,
}

impl Segment {
    /// Where `offset` is; `None` outside the segment.
    #[must_use]
    pub fn place(&self, offset: u64) -> Option<Place> {
        let stripes = u64::try_from(self.mirrors.first()?.len()).ok()?;
        if !self.bytes.contains(&offset) || stripes == 0 {
            return None;
        }
        if self.stripe_unit == 0 || stripes == 1 {
            return Some(Place { stripe: 0, end: self.bytes.end });
        }
        let number = offset / self.stripe_unit;
        let end = (number + 1).saturating_mul(self.stripe_unit).min(self.bytes.end);
        Some(Place { stripe: usize::try_from(number % stripes).ok()?, end })
    }

    /// The copies of a stripe, the best to read from first.
    fn copies(&self, stripe: usize) -> Vec<&DataFile> {
        let mut copies: Vec<_> = self.mirrors.iter().filter_map(|mirror| mirror.get(stripe)).collect();
        copies.sort_by_key(|file| std::cmp::Reverse(file.efficiency));
        copies
    }
}

impl Client {
    /// The segment that holds `offset`. Waits while the server says LAYOUTTRYLATER or RECALLCONFLICT.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn layoutget(&self, open: &Open, iomode: layoutiomode4, offset: u64) -> Result<Segment> {
        loop {
            let layouts = &self.inner.layouts;
            let known = layouts.asking(&open.handle);
            let stateid = known.as_ref().map_or(open.stateid, |held| held.stateid());
            let ops = vec![ops::putfh(&open.handle), ops::layoutget(stateid, iomode, offset)];
            let answer = self.compound(ops).await;
            let granted = match &answer {
                Ok(results) => granted(results),
                Err(_) => None,
            };
            let held = layouts.answered(&open.handle, granted.map(|granted| granted.logr_stateid));
            match (answer, held) {
                (Err(Error::Status { status: LATER | CONFLICT, .. }), _) => {
                    self.inner.env.clock.sleep(std::time::Duration::from_millis(100)).await;
                }
                (Err(error), _) => return Err(error),
                (Ok(results), Some(held)) => {
                    let granted = granted_or(&results)?;
                    return self.segment(&open.handle, granted, held, offset).await;
                }
                (Ok(_), None) => return Err(Error::Protocol("LAYOUTGET")),
            }
        }
    }

    async fn segment(
        &self,
        file: &nfs_fh4,
        granted: &LAYOUTGET4resok,
        held: Arc<Held>,
        offset: u64,
    ) -> Result<Segment> {
        let layout = granted.logr_layout.first().ok_or(Error::Protocol("LAYOUTGET without a layout"))?;
        let body: ff_layout4 = from_bytes(layout.lo_content.loc_body.clone())?;
        let mut mirrors = Vec::with_capacity(body.ffl_mirrors.len());
        for mirror in &body.ffl_mirrors {
            let mut stripes = Vec::with_capacity(mirror.ffm_data_servers.len());
            for server in &mirror.ffm_data_servers {
                stripes.push(self.data_file(server).await?);
            }
            mirrors.push(stripes);
        }
        let segment = Segment {
            file: file.clone(),
            bytes: layout.lo_offset..layout.lo_offset.saturating_add(layout.lo_length),
            iomode: layout.lo_iomode,
            stripe_unit: body.ffl_stripe_unit,
            mirrors,
            held,
        };
        match segment.place(offset) {
            Some(_) => Ok(segment),
            None => Err(Error::Protocol("a layout without the offset asked for")),
        }
    }

    async fn data_file(&self, server: &ff_data_server4) -> Result<DataFile> {
        let handle = server.ffds_fh_vers.first().ok_or(Error::Protocol("a data file without a handle"))?;
        let id = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
        let (Some(uid), Some(gid)) = (id(&server.ffds_user), id(&server.ffds_group)) else {
            return Err(Error::Protocol("a synthetic id that is not a number"));
        };
        let host = self.inner.identity.host.clone().into();
        let credential = AuthSys { stamp: 0, machine_name: host, uid, gid, gids: Vec::new() };
        Ok(DataFile {
            device: server.ffds_deviceid,
            address: self.device(server.ffds_deviceid).await?,
            handle: handle.0.clone(),
            credential: Credential::Sys(credential),
            efficiency: server.ffds_efficiency,
        })
    }

    /// The first address of a device; asked for once.
    async fn device(&self, device: deviceid4) -> Result<SocketAddr> {
        if let Some(address) = lock(&self.inner.layouts.devices).get(&device) {
            return Ok(*address);
        }
        let Some(nfs_resop4::OP_GETDEVICEINFO(GETDEVICEINFO4res::NFS4_OK(info))) =
            self.compound(vec![ops::getdeviceinfo(device)]).await?.pop()
        else {
            return Err(Error::Protocol("GETDEVICEINFO"));
        };
        let body: ff_device_addr4 = from_bytes(info.gdir_device_addr.da_addr_body)?;
        if body.ffda_versions.first().is_none_or(|version| version.ffdv_version != 3) {
            return Err(Error::Protocol("a device that does not speak NFSv3"));
        }
        let address = body.ffda_netaddrs.iter().find_map(universal);
        let address = address.ok_or(Error::Protocol("a device without a usable address"))?;
        lock(&self.inner.layouts.devices).insert(device, address);
        Ok(address)
    }

    /// The connection to a data server that all I/O of this client shares.
    #[must_use]
    pub fn data_server(&self, address: SocketAddr) -> Arc<DataServer> {
        let inner = &self.inner;
        let mut known = lock(&inner.layouts.data_servers);
        let made = || {
            let (env, transport) = (inner.env.clone(), Arc::clone(&inner.transport));
            Arc::new(DataServer::new(env, transport, address, inner.identity.timeout))
        };
        Arc::clone(known.entry(address).or_insert_with(made))
    }

    /// Up to `count` bytes from `offset`, and whether they end the file; stops at the end of a stripe.
    /// Copies are tried one after the other.
    ///
    /// # Errors
    /// [`Error::LayoutGone`], else what the last copy's data server said.
    pub async fn read(&self, segment: &Segment, offset: u64, count: u32) -> Result<(Bytes, bool)> {
        let gone = segment.held.gone.read().await;
        if *gone {
            return Err(Error::LayoutGone);
        }
        let place = segment.place(offset).ok_or(Error::Protocol("I/O outside its segment"))?;
        let count = count.min(u32::try_from(place.end - offset).unwrap_or(u32::MAX));
        let mut last = Error::Protocol("a segment without mirrors");
        for file in segment.copies(place.stripe) {
            match self.data_server(file.address).read(file, offset, count).await {
                Ok(found) => return Ok(found),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Writes to every copy; `data` must end within the stripe. One answer per copy, in mirror order.
    ///
    /// # Errors
    /// [`Error::LayoutGone`], or what the first data server that failed said.
    pub async fn write(
        &self,
        segment: &Segment,
        offset: u64,
        data: Bytes,
        stable: stable_how,
    ) -> Result<Vec<Written>> {
        let gone = segment.held.gone.read().await;
        if *gone {
            return Err(Error::LayoutGone);
        }
        let place = segment.place(offset).ok_or(Error::Protocol("I/O outside its segment"))?;
        let end = u64::try_from(data.len()).ok().and_then(|length| offset.checked_add(length));
        if end.is_none_or(|end| end > place.end) {
            return Err(Error::Protocol("a WRITE across stripes"));
        }
        let mut written = Vec::with_capacity(segment.mirrors.len());
        for file in segment.mirrors.iter().filter_map(|mirror| mirror.get(place.stripe)) {
            written.push(self.data_server(file.address).write(file, offset, data.clone(), stable).await?);
        }
        Ok(written)
    }

    /// COMMIT at every data file of the segment; their write verifiers by mirror, then by stripe.
    ///
    /// # Errors
    /// [`Error::LayoutGone`], or what the first data server that failed said.
    pub async fn commit(&self, segment: &Segment) -> Result<Vec<Vec<[u8; 8]>>> {
        let gone = segment.held.gone.read().await;
        if *gone {
            return Err(Error::LayoutGone);
        }
        let mut all = Vec::with_capacity(segment.mirrors.len());
        for mirror in &segment.mirrors {
            let mut verifiers = Vec::with_capacity(mirror.len());
            for file in mirror {
                verifiers.push(self.data_server(file.address).commit(file).await?);
            }
            all.push(verifiers);
        }
        Ok(all)
    }

    /// Opens by name and asks for the layout of the beginning in the same COMPOUND, as a stock kernel does.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn open_with_layout(
        &self,
        directory: &nfs_fh4,
        name: &[u8],
        how: &How,
        iomode: layoutiomode4,
    ) -> Result<(Open, Segment)> {
        let (open, segment) = self.open_asking(directory, name, how, iomode).await?;
        let segment = match segment {
            Some(segment) => segment,
            // Who asks by itself gets one to write with, as Linux does that has much to write.
            None => self.layoutget(&open, iomode, 0).await?,
        };
        Ok((open, segment))
    }

    /// The same where the metadata server may keep the data itself: then there is no layout.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn open_asking(
        &self,
        directory: &nfs_fh4,
        name: &[u8],
        how: &How,
        iomode: layoutiomode4,
    ) -> Result<(Open, Option<Segment>)> {
        let mut ops = opening(directory, name, how)?;
        ops.push(ops::layoutget(ops::CURRENT, iomode, 0));
        let mut reply = self.inner.whole(ops.clone()).await?;
        let results = match (reply.status, reply.resarray.last()) {
            (UNAVAILABLE, Some(nfs_resop4::OP_LAYOUTGET(_))) => {
                reply.resarray.remove(0);
                reply.resarray.pop();
                return Ok((opened(&reply.resarray)?, None));
            }
            (nfsstat4::NFS4_OK, Some(_)) => {
                reply.resarray.remove(0);
                reply.resarray
            }
            // It is said again, with patience.
            _ => self.compound(ops).await?,
        };
        let open = opened(results.get(..results.len().saturating_sub(1)).unwrap_or_default())?;
        let granted = granted_or(&results)?;
        // Asked for and answered at once: a recall in between waits for the reply (RFC 8881 §12.5.5.2.1).
        drop(self.inner.layouts.asking(&open.handle));
        let held = self.inner.layouts.answered(&open.handle, Some(granted.logr_stateid));
        let held = held.ok_or(Error::Protocol("LAYOUTGET"))?;
        let segment = self.segment(&open.handle, granted, held, 0).await?;
        Ok((open, Some(segment)))
    }

    /// LAYOUTCOMMIT as a stock kernel sends it: with the attributes that come of it. Sluice leaves the size out.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn layoutcommit_and_look(&self, segment: &Segment, last: Option<u64>) -> Result<Attributes> {
        let stateid = segment.held.stateid();
        let look = ops::getattr(FOR_CACHES);
        attributes(
            &self.compound(vec![ops::putfh(&segment.file), ops::layoutcommit(stateid, last), look]).await?,
        )
    }

    /// The last close as a stock kernel does it: LAYOUTRETURN, GETATTR and CLOSE in one COMPOUND. What was seen of the
    /// file: nothing, where no layout is held.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn return_and_close(&self, open: &Open) -> Result<Attributes> {
        let Some(held) = self.inner.layouts.forget(&open.handle) else {
            self.close(open).await?;
            return Ok(Attributes::default());
        };
        *held.gone.write().await = true;
        let body = sluice_xdr::to_bytes(&ff_layoutreturn4::default())?;
        let give_back = ops::layoutreturn(held.stateid(), layoutiomode4::LAYOUTIOMODE4_ANY, body);
        let look = ops::getattr(USUAL);
        let mut results =
            self.compound(vec![ops::putfh(&open.handle), give_back, look, ops::close(open.stateid)]).await?;
        drop(results.pop());
        attributes(&results)
    }

    /// Tells the metadata server how far was written: `last` is the offset of the last byte. The size it
    /// made of that, if it changed.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn layoutcommit(&self, segment: &Segment, last: Option<u64>) -> Result<Option<u64>> {
        let stateid = segment.held.stateid();
        let ops = vec![ops::putfh(&segment.file), ops::layoutcommit(stateid, last)];
        match self.compound(ops).await?.pop() {
            Some(nfs_resop4::OP_LAYOUTCOMMIT(LAYOUTCOMMIT4res::NFS4_OK(ok))) => Ok(match ok.locr_newsize {
                newsize4::TRUE(size) => Some(size),
                newsize4::FALSE => None,
            }),
            _ => Err(Error::Protocol("LAYOUTCOMMIT")),
        }
    }

    /// Gives back whatever layouts of the file are held, once the I/O under them has ended.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn layoutreturn(&self, file: &nfs_fh4) -> Result<()> {
        self.inner.give_back(file).await
    }
}

impl Inner {
    /// Waits for the I/O under the file's layouts, forgets them, returns them: all, whatever iomode was
    /// recalled, as segments are not kept by iomode here.
    pub(super) async fn give_back(&self, file: &nfs_fh4) -> Result<()> {
        let Some(held) = self.layouts.forget(file) else { return Ok(()) };
        *held.gone.write().await = true;
        let body = sluice_xdr::to_bytes(&ff_layoutreturn4::default())?;
        let all = layoutiomode4::LAYOUTIOMODE4_ANY;
        self.patient(vec![ops::putfh(file), ops::layoutreturn(held.stateid(), all, body)]).await.map(drop)
    }
}

/// What is known of a file's layouts when they are recalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recalled {
    Held,
    /// A LAYOUTGET is on its way: RFC 8881 §12.5.5.2.1.
    Asking,
    Unknown,
}

impl Layouts {
    /// The layouts of a file, now that another LAYOUTGET is about to be sent.
    fn asking(&self, file: &nfs_fh4) -> Option<Arc<Held>> {
        let mut files = lock(&self.files);
        let entry = files.entry(file.clone()).or_default();
        entry.asking += 1;
        entry.held.clone()
    }

    /// The same, now that it was answered with `stateid`, if it was granted.
    fn answered(&self, file: &nfs_fh4, stateid: Option<stateid4>) -> Option<Arc<Held>> {
        let mut files = lock(&self.files);
        let entry = files.entry(file.clone()).or_default();
        entry.asking = entry.asking.saturating_sub(1);
        if let Some(stateid) = stateid {
            let fresh = || Arc::new(Held { stateid: Mutex::new(stateid), gone: RwLock::new(false) });
            entry.held.get_or_insert_with(fresh).advance(stateid);
        }
        let held = entry.held.clone();
        if entry.held.is_none() && entry.asking == 0 {
            files.remove(file);
        }
        held
    }

    /// A recall with this stateid has come.
    pub(super) fn recalled(&self, file: &nfs_fh4, stateid: stateid4) -> Recalled {
        let files = lock(&self.files);
        match files.get(file) {
            Some(File { held: Some(held), asking: 0 }) => {
                held.advance(stateid);
                Recalled::Held
            }
            Some(entry) if entry.asking > 0 => Recalled::Asking,
            _ => Recalled::Unknown,
        }
    }

    /// The files with layouts.
    pub(super) fn files(&self) -> Vec<nfs_fh4> {
        let files = lock(&self.files);
        files.iter().filter(|(_, file)| file.held.is_some()).map(|(handle, _)| handle.clone()).collect()
    }

    fn forget(&self, file: &nfs_fh4) -> Option<Arc<Held>> {
        let mut files = lock(&self.files);
        let entry = files.get_mut(file)?;
        let held = entry.held.take();
        if entry.asking == 0 {
            files.remove(file);
        }
        held
    }
}

impl Held {
    fn stateid(&self) -> stateid4 {
        *lock(&self.stateid)
    }

    /// Replies come in any order: the highest seqid counts (RFC 8881 §12.5.3).
    fn advance(&self, stateid: stateid4) {
        let mut known = lock(&self.stateid);
        if known.other != stateid.other || stateid.seqid > known.seqid {
            *known = stateid;
        }
    }
}

fn granted(results: &[nfs_resop4]) -> Option<&LAYOUTGET4resok> {
    match results.last() {
        Some(nfs_resop4::OP_LAYOUTGET(LAYOUTGET4res::NFS4_OK(granted))) => Some(granted),
        _ => None,
    }
}

fn granted_or(results: &[nfs_resop4]) -> Result<&LAYOUTGET4resok> {
    granted(results).ok_or(Error::Protocol("LAYOUTGET"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// RFC 5665 §5.2.3.3, §5.2.3.4: the address, then the port in two decimal bytes.
fn universal(address: &netaddr4) -> Option<SocketAddr> {
    let text = std::str::from_utf8(&address.na_r_addr).ok()?;
    let mut parts = text.rsplitn(3, '.');
    let (low, high): (u8, u8) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(SocketAddr::new(parts.next()?.parse().ok()?, u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(stripes: usize, stripe_unit: u64, bytes: Range<u64>) -> Segment {
        let file = DataFile {
            device: deviceid4([0; 16]),
            address: "127.0.0.1:1".parse().unwrap(),
            handle: Bytes::new(),
            credential: Credential::None,
            efficiency: 0,
        };
        Segment {
            file: nfs_fh4::default(),
            bytes,
            iomode: layoutiomode4::LAYOUTIOMODE4_RW,
            stripe_unit,
            mirrors: vec![vec![file; stripes]],
            held: Arc::new(Held { stateid: Mutex::new(stateid4::default()), gone: RwLock::new(false) }),
        }
    }

    #[test]
    fn stripes_are_counted_from_byte_zero_of_the_file() {
        let striped = segment(3, 100, 400..950);
        assert_eq!(striped.place(400), Some(Place { stripe: 1, end: 500 }));
        assert_eq!(striped.place(555), Some(Place { stripe: 2, end: 600 }));
        assert_eq!(striped.place(949), Some(Place { stripe: 0, end: 950 }));
        assert_eq!((striped.place(399), striped.place(950)), (None, None));
        assert_eq!(segment(1, 0, 64..128).place(70), Some(Place { stripe: 0, end: 128 }));
    }

    #[test]
    fn addresses_are_read() {
        let parse = |text: &'static str| {
            universal(&netaddr4 { na_r_netid: Bytes::from_static(b"tcp"), na_r_addr: text.into() })
        };
        assert_eq!(parse("192.168.1.2.78.81"), Some("192.168.1.2:20049".parse().unwrap()));
        assert_eq!(parse("fd00::7.8.1"), Some("[fd00::7]:2049".parse().unwrap()));
        assert_eq!((parse("192.168.1.2.300.1"), parse("8.1"), parse("")), (None, None, None));
    }
}
