//! A layout as a client uses it, and NFSv3 straight at the data servers.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::Env;
use sluice_rpc::{AuthSys, Client as Dialler, Connection, Credential, Frame, Transport};
use sluice_xdr::flexfiles::{ff_data_server4, ff_device_addr4, ff_layout4};
use sluice_xdr::nfs3::*;
use sluice_xdr::nfs4::{deviceid4, layout4, stateid4};
use sluice_xdr::{Decode, Encode, from_bytes, to_frame};

const LONG: Duration = Duration::from_secs(60);

/// One layout segment.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) bytes: Range<u64>,
    pub(crate) stateid: stateid4,
    pub(crate) return_on_close: bool,
    pub(crate) body: ff_layout4,
}

impl Segment {
    pub(crate) fn new(layout: &layout4, stateid: stateid4, return_on_close: bool) -> Self {
        let body: ff_layout4 = from_bytes(layout.lo_content.loc_body.clone()).unwrap();
        assert!(layout.lo_content.loc_body.len() <= 4096);
        for server in body.ffl_mirrors.iter().flat_map(|mirror| &mirror.ffm_data_servers) {
            assert_eq!(server.ffds_fh_vers.len(), 1, "stock clients use the first alone");
            assert!(server.ffds_fh_vers[0].0.len() <= 32);
        }
        let end = layout.lo_offset.saturating_add(layout.lo_length);
        Self { bytes: layout.lo_offset..end, stateid, return_on_close, body }
    }

    /// As if the n-th mirror were the only one.
    pub(crate) fn mirror(&self, n: usize) -> Self {
        let mut one = self.clone();
        one.body.ffl_mirrors = vec![one.body.ffl_mirrors.swap_remove(n)];
        one
    }

    /// Where byte `offset` is: as Linux computes it.
    pub(crate) fn data_server(&self, offset: u64) -> &ff_data_server4 {
        assert!(self.bytes.contains(&offset), "{offset} is not in {:?}", self.bytes);
        let servers = &self.body.ffl_mirrors[0].ffm_data_servers;
        let stripe = match servers.len() {
            1 => 0,
            count => (offset / self.body.ffl_stripe_unit) % u64::try_from(count).unwrap(),
        };
        &servers[usize::try_from(stripe).unwrap()]
    }

    /// The pieces of a range, none across a stripe boundary.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let stop = match self.body.ffl_stripe_unit {
                0 => range.end,
                unit => (at / unit + 1) * unit,
            };
            // Linux asks for at most 1 MiB at a time.
            let stop = stop.min(range.end).min(at + (1 << 20));
            pieces.push(at..stop);
            at = stop;
        }
        pieces
    }
}

/// The address in an ff_device_addr4, with everything checked that a stock client insists on.
pub(crate) fn address(body: Bytes) -> SocketAddr {
    let device: ff_device_addr4 = from_bytes(body).unwrap();
    let [version] = &device.ffda_versions[..] else { panic!("one version: {device:?}") };
    assert_eq!((version.ffdv_version, version.ffdv_minorversion), (3, 0));
    assert_eq!((version.ffdv_rsize, version.ffdv_wsize), (1 << 20, 1 << 20));
    assert!(!version.ffdv_tightly_coupled);
    let first = device.ffda_netaddrs.first().unwrap();
    let text = std::str::from_utf8(&first.na_r_addr).unwrap();
    let mut parts = text.rsplitn(3, '.');
    let low: u16 = parts.next().unwrap().parse().unwrap();
    let high: u16 = parts.next().unwrap().parse().unwrap();
    let host: IpAddr = parts.next().unwrap().parse().unwrap();
    SocketAddr::new(host, high * 256 + low)
}

/// A client's connection to one data server.
#[derive(Clone, Debug)]
pub(crate) struct Nfs3 {
    connection: Arc<Connection>,
    env: Env,
}

impl Nfs3 {
    /// `None`: it is not there.
    pub(crate) async fn dial(env: &Env, transport: Arc<dyn Transport>, to: SocketAddr) -> Option<Self> {
        let connection = Dialler::new(env.clone(), transport).dial(to).await.ok()?;
        connection.call(NFS3_PROGRAM, 3, 0, &Credential::None, Frame::empty(), LONG).await.ok()?;
        Some(Self { connection, env: env.clone() })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.connection.is_closed()
    }

    /// A connection that breaks is SERVERFAULT, which no data server answers.
    async fn call<A: Encode, R: Decode>(
        &self,
        to: &ff_data_server4,
        procedure: u32,
        args: &A,
    ) -> Result<R, nfsstat3> {
        let number = |text: &Bytes| std::str::from_utf8(text).unwrap().parse().unwrap();
        let synthetic = Credential::Sys(AuthSys {
            stamp: 0,
            machine_name: Bytes::from_static(b"client"),
            uid: number(&to.ffds_user),
            gid: number(&to.ffds_group),
            gids: Vec::new(),
        });
        let frame = to_frame(args, 4 << 20).unwrap();
        let reply = self.connection.call(NFS3_PROGRAM, NFS_V3, procedure, &synthetic, frame, LONG);
        Ok(from_bytes(reply.await.map_err(|_| nfsstat3::NFS3ERR_SERVERFAULT)?).unwrap())
    }

    /// The write verifier.
    pub(crate) async fn write(
        &self,
        to: &ff_data_server4,
        offset: u64,
        data: Bytes,
    ) -> Result<[u8; 8], nfsstat3> {
        let count = u32::try_from(data.len()).unwrap();
        let args = WRITE3args { file: handle(to), offset, count, stable: stable_how::UNSTABLE, data };
        loop {
            return match self.call(to, NFSPROC3_WRITE, &args).await? {
                WRITE3res::NFS3_OK(ok) => {
                    assert_eq!(ok.count, count);
                    Ok(ok.verf.0)
                }
                // As Linux: the same again, for ever.
                WRITE3res::Default(nfsstat3::NFS3ERR_JUKEBOX, _) => {
                    self.env.clock.sleep(Duration::from_secs(5)).await;
                    continue;
                }
                WRITE3res::Default(status, _) => Err(status),
            };
        }
    }

    pub(crate) async fn commit(&self, to: &ff_data_server4) -> Result<[u8; 8], nfsstat3> {
        let args = COMMIT3args { file: handle(to), offset: 0, count: 0 };
        match self.call(to, NFSPROC3_COMMIT, &args).await? {
            COMMIT3res::NFS3_OK(ok) => Ok(ok.verf.0),
            COMMIT3res::Default(status, _) => Err(status),
        }
    }

    /// The bytes, and whether they end the file.
    pub(crate) async fn read(
        &self,
        to: &ff_data_server4,
        offset: u64,
        count: u32,
    ) -> Result<(Bytes, bool), nfsstat3> {
        let args = READ3args { file: handle(to), offset, count };
        match self.call(to, NFSPROC3_READ, &args).await? {
            READ3res::NFS3_OK(ok) => Ok((ok.data, ok.eof)),
            READ3res::Default(status, _) => Err(status),
        }
    }
}

fn handle(to: &ff_data_server4) -> nfs_fh3 {
    nfs_fh3 { data: to.ffds_fh_vers[0].0.clone() }
}

/// Devices, as a client keeps them.
pub(crate) type Devices = std::collections::BTreeMap<deviceid4, Nfs3>;
