//! READ, WRITE and COMMIT at a data server. RFC 1813 §3.3.6, §3.3.7, §3.3.21.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::Env;
use sluice_rpc::{Client as Dialler, Credential, ReconnectingClient, Transport};
use sluice_xdr::nfs3::*;
use sluice_xdr::{Decode, Encode, from_bytes, to_frame};

use super::layout::DataFile;
use super::{Error, Result};

/// Largest call: a 1 MiB WRITE and its headers.
const LARGEST: usize = (1 << 20) + 4096;

/// One connection to a data server, made when needed and made again when lost.
#[derive(Debug)]
pub struct DataServer {
    peer: ReconnectingClient,
    timeout: Duration,
}

/// What became of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub count: u32,
    pub committed: stable_how,
    /// When a COMMIT does not repeat it, what was written UNSTABLE may be lost.
    pub verifier: [u8; 8],
}

impl DataServer {
    /// Connects on first use; a call may take `timeout`.
    #[must_use]
    pub fn new(env: Env, transport: Arc<dyn Transport>, addr: SocketAddr, timeout: Duration) -> Self {
        Self { peer: ReconnectingClient::new(Dialler::new(env, transport), addr), timeout }
    }

    /// Up to `count` bytes, and whether they end the file.
    ///
    /// # Errors
    /// Whatever the data server says.
    pub async fn read(&self, file: &DataFile, offset: u64, count: u32) -> Result<(Bytes, bool)> {
        let args = READ3args { file: handle(file), offset, count };
        match self.call(NFSPROC3_READ, &args, &file.credential).await? {
            READ3res::NFS3_OK(ok) => Ok((ok.data, ok.eof)),
            READ3res::Default(status, _) => Err(Error::DataServer { procedure: "READ", status }),
        }
    }

    /// # Errors
    /// Whatever the data server says.
    pub async fn write(
        &self,
        file: &DataFile,
        offset: u64,
        data: Bytes,
        stable: stable_how,
    ) -> Result<Written> {
        let count = u32::try_from(data.len()).map_err(|_| Error::Protocol("a WRITE of over 4 GiB"))?;
        let args = WRITE3args { file: handle(file), offset, count, stable, data };
        match self.call(NFSPROC3_WRITE, &args, &file.credential).await? {
            WRITE3res::NFS3_OK(ok) => {
                Ok(Written { count: ok.count, committed: ok.committed, verifier: ok.verf.0 })
            }
            WRITE3res::Default(status, _) => Err(Error::DataServer { procedure: "WRITE", status }),
        }
    }

    /// Makes the whole data file durable; the write verifier.
    ///
    /// # Errors
    /// Whatever the data server says.
    pub async fn commit(&self, file: &DataFile) -> Result<[u8; 8]> {
        let args = COMMIT3args { file: handle(file), offset: 0, count: 0 };
        match self.call(NFSPROC3_COMMIT, &args, &file.credential).await? {
            COMMIT3res::NFS3_OK(ok) => Ok(ok.verf.0),
            COMMIT3res::Default(status, _) => Err(Error::DataServer { procedure: "COMMIT", status }),
        }
    }

    /// READ, WRITE and COMMIT may all be executed twice.
    async fn call<A: Encode, R: Decode>(
        &self,
        procedure: u32,
        args: &A,
        credential: &Credential,
    ) -> Result<R> {
        let frame = to_frame(args, LARGEST)?;
        let target = (NFS3_PROGRAM, NFS_V3, procedure);
        Ok(from_bytes(self.peer.call_idempotent(target, credential, frame, self.timeout).await?)?)
    }
}

fn handle(file: &DataFile) -> nfs_fh3 {
    nfs_fh3 { data: file.handle.clone() }
}
