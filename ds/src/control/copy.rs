//! COPY: fill a data file from a peer's, read over NFSv3 like any client would.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_rpc::{CallError, Client, Connection, Credential};
use sluice_store::{FileKey, StoreError};
use sluice_xdr::control::{DS_COPY_args, DS_COPY_res, ctl_address, ctl_status};
use sluice_xdr::nfs3::{
    NFS_V3, NFS3_PROGRAM, NFSPROC3_READ, READ3args, READ3res, READ3resok, nfs_fh3, nfsstat3,
};
use sluice_xdr::{from_bytes, to_frame};

use super::data_file;
use super::orders::{self, Until};
use crate::error::ctl;
use crate::shared::{IO_MAX, Shared};

/// How long one READ of the peer may take.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn run(shared: &Arc<Shared>, args: DS_COPY_args) -> DS_COPY_res {
    let (Some(target), Some(source)) = (data_file(&args.target), socket(&args.source)) else {
        return DS_COPY_res::Default(ctl_status::CTL_ERR_INVAL);
    };
    let caller = args.caller;
    let (inner, until) = (Arc::clone(shared), shared.patient(&caller, orders::MOVING));
    let work = async move {
        // Who wants nothing waits for what was ordered before.
        if args.length == 0 {
            return Ok(0);
        }
        let peer = connect(&inner, source).await?;
        let copied = copy(&inner, &peer, target, until, &args).await;
        peer.close();
        copied
    };
    match shared.order(target, until, work).await {
        Ok(copied) => DS_COPY_res::CTL_OK(copied),
        Err(error) => {
            tracing::warn!(file = %target.0, peer = %source, %error, "a copy from a peer failed");
            DS_COPY_res::Default(ctl(&error))
        }
    }
}

pub(super) fn socket(address: &ctl_address) -> Option<SocketAddr> {
    let host: IpAddr = std::str::from_utf8(&address.host).ok()?.parse().ok()?;
    Some(SocketAddr::new(host, u16::try_from(address.port).ok()?))
}

pub(super) async fn connect(shared: &Shared, source: SocketAddr) -> Result<Arc<Connection>, StoreError> {
    let mut client = Client::new(shared.env.clone(), Arc::clone(&shared.transport));
    if let Some(keys) = &shared.sealed {
        client = client.with_key(keys.clone());
    }
    client.dial(source).await.map_err(|error| StoreError::Io(error.to_string()))
}

/// Copies the range, or up to the source's end, and makes it durable. Returns the bytes copied.
async fn copy(
    shared: &Shared,
    peer: &Connection,
    (key, generation): (FileKey, u16),
    until: Until,
    args: &DS_COPY_args,
) -> Result<u64, StoreError> {
    let store = &shared.store;
    // Before anything is written.
    let since = store.verifier(key);
    let mut size = store.stat(key).await?.map_or(0, |stat| stat.size);
    let end = args.offset.saturating_add(args.length).min(i64::MAX as u64);
    let mut at = args.offset;
    if at >= end {
        return Ok(0);
    }
    let mut found = read(peer, &args.source_fh, at, end).await?;
    loop {
        let READ3resok { data, eof, .. } = found;
        let from = at;
        at += data.len() as u64;
        let last = eof || at >= end;
        if data.is_empty() && !last {
            return Err(StoreError::Io("the peer returned nothing before its end".into()));
        }
        // Zeros beyond the end are there already, once the file is long enough.
        let skip = from >= size && is_zero(&data);
        if !skip {
            size = size.max(at);
        }
        let fill = async {
            let _step = shared.step(until)?;
            if skip { Ok(()) } else { store.fill(key, generation, from, data).await }
        };
        if last {
            fill.await?;
            break;
        }
        // The peer reads on while we write.
        let (filled, ahead) = tokio::join!(fill, read(peer, &args.source_fh, at, end));
        filled?;
        found = ahead?;
    }
    if at > size {
        let _step = shared.step(until)?;
        // Trailing zeros that were left out: one of them gives the file its size.
        store.fill(key, generation, at - 1, Bytes::from_static(&[0])).await?;
    }
    match store.commit_since(key, since).await {
        Ok(()) | Err(StoreError::Missing) => Ok(at - args.offset),
        Err(error) => Err(error),
    }
}

pub(super) fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

/// One READ of the peer, of what lies before `end`.
pub(super) async fn read(
    peer: &Connection,
    handle: &Bytes,
    offset: u64,
    end: u64,
) -> Result<READ3resok, StoreError> {
    let count = u32::try_from(end - offset).unwrap_or(IO_MAX).min(IO_MAX);
    let args = READ3args { file: nfs_fh3 { data: handle.clone() }, offset, count };
    let failed = |error: CallError| StoreError::Io(format!("the peer cannot be read: {error}"));
    let frame = to_frame(&args, 4096).map_err(|error| failed(error.into()))?;
    let reply = peer.call(NFS3_PROGRAM, NFS_V3, NFSPROC3_READ, &Credential::None, frame, PATIENCE);
    // It may be back in a moment.
    let reply = reply.await.map_err(|_| StoreError::Closing)?;
    match from_bytes::<READ3res>(reply).map_err(|error| failed(error.into()))? {
        READ3res::NFS3_OK(ok) if ok.data.len() <= count as usize => Ok(ok),
        READ3res::NFS3_OK(_) => Err(StoreError::Io("the peer returned more than asked for".into())),
        READ3res::Default(nfsstat3::NFS3ERR_JUKEBOX, _) => Err(StoreError::Closing),
        READ3res::Default(status, _) => Err(StoreError::Io(format!("the peer answers {status:?}"))),
    }
}
