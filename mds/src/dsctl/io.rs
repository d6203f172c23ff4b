//! READ, WRITE and COMMIT through this server: an NFSv3 client of the data servers, a holder like any other.
//! RFC 1813 §3.3.6, §3.3.7, §3.3.21. A healthy mount proxies nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sluice_namespace::stable_storage::StoreState;
use sluice_namespace::{DataFile, DataFileId, Layout, StoreId};
use sluice_rpc::{Client, Connection, Credential, Transport};
use sluice_xdr::capability::Capability;
use sluice_xdr::nfs3::*;
use sluice_xdr::nfs4::nfsstat4;
use sluice_xdr::{Decode, Encode, Reader, Writer};

use super::orders::pieces;
use super::registry::{MDS_HOLDER, StoreView, rights};
use super::{StoreHandle, fence};
use crate::layout::heal::{Filling, beside};
use crate::server::Mds;

const NFS3: u32 = 100_003;
const PATIENCE: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(3);
/// How long a data server may be silent before what only it has is an I/O error; until then clients wait.
const GIVE_UP: Duration = Duration::from_secs(30);
/// How often one request may be told to wait before the client is.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// What only this data server has is an I/O error by now.
pub(super) fn hopeless(mds: &Mds, store: StoreId) -> bool {
    mds.data_servers.get(store).is_none_or(|store| given_up(mds, &store.view()))
}

/// A machine that stood still for some seconds is back before an application hears of it.
fn given_up(mds: &Mds, view: &StoreView) -> bool {
    let silent = mds.now().since(view.last_heard.max(mds.started));
    view.lost && silent > u64::try_from(GIVE_UP.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads through this server. Bytes beyond what data files hold are zeros; the caller has clamped to size.
///
/// # Errors
/// What the client is told.
pub(crate) async fn read(
    mds: &Arc<Mds>,
    layout: &Layout,
    offset: u64,
    length: u32,
) -> Result<Bytes, nfsstat4> {
    let mut out = BytesMut::with_capacity(usize::try_from(length).unwrap_or(0));
    for (offset, length, files) in pieces(layout, offset, length.into()) {
        let wanted = usize::try_from(length).map_err(|_| nfsstat4::NFS4ERR_INVAL)?;
        let start = out.len();
        let mut last = nfsstat4::NFS4ERR_IO;
        // A mirror that missed writes is not data; of those that may differ, the first is.
        let most = if layout.mirrors_dirty { 1 } else { usize::MAX };
        for file in files.iter().filter(|file| !file.stale).take(most) {
            match read_piece(mds, layout, file, offset, length, &mut out).await {
                Ok(()) => {
                    last = nfsstat4::NFS4_OK;
                    break;
                }
                Err(error) => {
                    out.truncate(start);
                    last = error;
                }
            }
        }
        if last != nfsstat4::NFS4_OK {
            return Err(last);
        }
        // A data file ends where its last unit does: the rest of the file's range is a hole.
        out.resize(start + wanted, 0);
    }
    Ok(out.freeze())
}

async fn read_piece(
    mds: &Arc<Mds>,
    layout: &Layout,
    file: &DataFile,
    offset: u64,
    length: u64,
    out: &mut BytesMut,
) -> Result<(), nfsstat4> {
    let mut at = offset;
    while at < offset + length {
        let count = u32::try_from((offset + length - at).min(1 << 20)).unwrap_or(1 << 20);
        let args = |file| READ3args { file, offset: at, count };
        match call::<_, READ3res>(mds, (layout.id, file), NFSPROC3_READ, args, |res| match res {
            READ3res::NFS3_OK(_) => nfsstat3::NFS3_OK,
            READ3res::Default(status, _) => *status,
        })
        .await?
        {
            READ3res::NFS3_OK(ok) => {
                out.extend_from_slice(&ok.data);
                at += u64::try_from(ok.data.len()).unwrap_or(0);
                if ok.eof || ok.data.is_empty() {
                    return Ok(());
                }
            }
            READ3res::Default(status, _) => return Err(translate(status)),
        }
    }
    Ok(())
}

/// Writes through this server, durably at every mirror before it returns, and to what is being filled to
/// become one: false when that did not succeed.
///
/// # Errors
/// What the client is told.
pub(crate) async fn write(
    mds: &Arc<Mds>,
    layout: &Layout,
    filling: &[Filling],
    offset: u64,
    data: Bytes,
) -> Result<bool, nfsstat4> {
    let mut filled = true;
    let length = u64::try_from(data.len()).map_err(|_| nfsstat4::NFS4ERR_INVAL)?;
    for (at, length, files) in pieces(layout, offset, length) {
        let from = usize::try_from(at - offset).map_err(|_| nfsstat4::NFS4ERR_INVAL)?;
        let to = from + usize::try_from(length).map_err(|_| nfsstat4::NFS4ERR_INVAL)?;
        let good = || files.iter().filter(|file| !file.stale);
        for file in good() {
            let written = write_piece(mds, layout, file, at, data.slice(from..to)).await;
            if let Err(Unwritten::Refused(_)) = written
                && good().count() > 1
                && let Some(store) = mds.data_servers.get(file.store)
            {
                // A heartbeat may say so of all that it has, some seconds later.
                store.refused(layout.id, file.slot, mds.now());
            }
            written.map_err(Unwritten::status)?;
        }
        for target in beside(filling, layout, &files) {
            filled &= write_piece(mds, layout, &target, at, data.slice(from..to)).await.is_ok();
        }
    }
    Ok(filled)
}

/// Writes what data files begin with that are nobody's yet, durably.
///
/// # Errors
/// Which data server has not taken it, and why: nothing is held against a data file that will not be.
pub(crate) async fn write_new(
    mds: &Arc<Mds>,
    layout: &Layout,
    data: &Bytes,
) -> Result<(), (StoreId, nfsstat4)> {
    let end = u64::try_from(data.len()).unwrap_or(u64::MAX);
    let index = |at: u64| usize::try_from(at).unwrap_or(data.len()).min(data.len());
    for (at, length, files) in pieces(layout, 0, end) {
        for file in &files {
            let piece = data.slice(index(at)..index(at + length));
            let written = write_piece(mds, layout, file, at, piece).await;
            written.map_err(|why| (file.store, why.status()))?;
        }
    }
    Ok(())
}

/// Why a data file has not taken a write.
#[derive(Clone, Copy, Debug)]
enum Unwritten {
    /// Its data server could not write it, or not make it durable.
    Refused(nfsstat4),
    Otherwise(nfsstat4),
}

impl Unwritten {
    fn status(self) -> nfsstat4 {
        let (Self::Refused(status) | Self::Otherwise(status)) = self;
        status
    }
}

async fn write_piece(
    mds: &Arc<Mds>,
    layout: &Layout,
    file: &DataFile,
    offset: u64,
    data: Bytes,
) -> Result<(), Unwritten> {
    let mut done = 0;
    while done < data.len() {
        let piece = data.slice(done..(done + (1 << 20)).min(data.len()));
        let args = |file| WRITE3args {
            file,
            offset: offset + u64::try_from(done).unwrap_or(0),
            count: u32::try_from(piece.len()).unwrap_or(0),
            stable: stable_how::FILE_SYNC,
            data: piece,
        };
        match call::<_, WRITE3res>(mds, (layout.id, file), NFSPROC3_WRITE, args, |res| match res {
            WRITE3res::NFS3_OK(_) => nfsstat3::NFS3_OK,
            WRITE3res::Default(status, _) => *status,
        })
        .await
        .map_err(Unwritten::Otherwise)?
        {
            WRITE3res::NFS3_OK(ok) if ok.count > 0 => {
                done += usize::try_from(ok.count).unwrap_or(data.len());
            }
            WRITE3res::NFS3_OK(_) => return Err(Unwritten::Refused(nfsstat4::NFS4ERR_IO)),
            WRITE3res::Default(status @ (nfsstat3::NFS3ERR_IO | nfsstat3::NFS3ERR_ROFS), _) => {
                return Err(Unwritten::Refused(translate(status)));
            }
            WRITE3res::Default(status, _) => return Err(Unwritten::Otherwise(translate(status))),
        }
    }
    Ok(())
}

/// Makes all of a data file durable. It changes nothing, however late it is carried out.
///
/// # Errors
/// DELAY, IO, NOSPC.
pub(crate) async fn commit(mds: &Arc<Mds>, id: DataFileId, file: &DataFile) -> Result<(), nfsstat4> {
    let args = |file| COMMIT3args { file, offset: 0, count: 0 };
    match call::<_, COMMIT3res>(mds, (id, file), NFSPROC3_COMMIT, args, |res| match res {
        COMMIT3res::NFS3_OK(_) => nfsstat3::NFS3_OK,
        COMMIT3res::Default(status, _) => *status,
    })
    .await?
    {
        COMMIT3res::NFS3_OK(_) => Ok(()),
        COMMIT3res::Default(status, _) => Err(translate(status)),
    }
}

/// A capability of this server's own.
fn handle(mds: &Mds, id: DataFileId, file: &DataFile, write: bool) -> Result<nfs_fh3, nfsstat4> {
    let capability = Capability {
        // The logical size is judged here: the data file's own end is what we want to see.
        rights: rights(write, file.materialised, false),
        store: file.store.0,
        data_file: id.0,
        slot: file.slot,
        generation: file.generation,
        holder: MDS_HOLDER,
        ..Capability::default()
    };
    mds.data_servers.seal(capability).map(|data| nfs_fh3 { data }).ok_or(nfsstat4::NFS4ERR_SERVERFAULT)
}

/// Calls a data server, again for a while if it asks to wait or the connection breaks.
///
/// # Errors
/// DELAY when whoever asks is to look at the file anew, and to ask again.
async fn call<A: Encode, R: Decode>(
    mds: &Arc<Mds>,
    (id, file): (DataFileId, &DataFile),
    procedure: u32,
    args: impl FnOnce(nfs_fh3) -> A,
    status: impl Fn(&R) -> nfsstat3,
) -> Result<R, nfsstat4> {
    // Before the handle, whose epoch is this one or newer.
    let epoch = mds.data_servers.epoch();
    let args = args(handle(mds, id, file, procedure != NFSPROC3_READ)?);
    let store = mds.data_servers.get(file.store).ok_or(nfsstat4::NFS4ERR_IO)?;
    for attempt in 0..TRIES {
        if attempt > 0 {
            mds.env.clock.sleep(PAUSE).await;
        }
        let view = store.view();
        if view.intent == StoreState::Removed {
            return Err(nfsstat4::NFS4ERR_IO);
        }
        if view.lost {
            return Err(if given_up(mds, &view) { nfsstat4::NFS4ERR_IO } else { nfsstat4::NFS4ERR_DELAY });
        }
        // Whoever asked asks the other server, if there is one by now.
        if !mds.db.is_ours() {
            break;
        }
        let writes = procedure == NFSPROC3_WRITE;
        if writes && !view.predecessors_over && !fence::end_predecessors(mds, &store).await {
            continue;
        }
        let Some(connection) = connect(mds, &store).await else { continue };
        let mut writer = Writer::default();
        args.encode(&mut writer);
        let frame = writer.finish().map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)?;
        match connection.call(NFS3, 3, procedure, &Credential::None, frame, PATIENCE).await {
            Ok(reply) => {
                let result = R::decode(&mut Reader::new(reply)).map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)?;
                match status(&result) {
                    nfsstat3::NFS3ERR_JUKEBOX => {}
                    // It was restarted meanwhile, and an older handle cannot tell what is lost from what was never there.
                    // Nor is one good whose epoch is over by now.
                    nfsstat3::NFS3ERR_STALE | nfsstat3::NFS3ERR_ACCES
                        if mds.data_servers.epoch() != epoch =>
                    {
                        break;
                    }
                    _ => return Ok(result),
                }
            }
            Err(error) => {
                tracing::debug!(data_server = store.id.0, %error, "a proxied call failed");
                give_up(&store, &connection, procedure).await;
            }
        }
    }
    Err(nfsstat4::NFS4ERR_DELAY)
}

/// Does without a connection on which a call was not answered. A WRITE that is under way on it must not be carried out after
/// it was sent again and answered, and another one behind it. Others on it are sent again, too.
async fn give_up(store: &StoreHandle, connection: &Arc<Connection>, procedure: u32) {
    // Somebody else may have made the next one by now.
    store.nfs.lock().await.take_if(|current| Arc::ptr_eq(current, connection));
    if procedure != NFSPROC3_READ {
        connection.abort();
        connection.closed().await;
    }
}

async fn connect(mds: &Mds, store: &StoreHandle) -> Option<Arc<Connection>> {
    let mut slot = store.nfs.lock().await;
    if let Some(connection) = slot.as_ref().filter(|connection| !connection.is_closed()) {
        return Some(Arc::clone(connection));
    }
    let transport: Arc<dyn Transport> = Arc::clone(&mds.transport);
    for address in store.view().addresses {
        let mut client = Client::new(mds.env.clone(), Arc::clone(&transport)).with_connect_timeout(CONNECT);
        if let Some(keys) = &mds.config.sealed {
            client = client.with_key(keys.clone());
        }
        if let Ok(connection) = client.dial(address).await {
            *slot = Some(Arc::clone(&connection));
            return Some(connection);
        }
    }
    None
}

fn translate(status: nfsstat3) -> nfsstat4 {
    match status {
        nfsstat3::NFS3ERR_NOSPC => nfsstat4::NFS4ERR_NOSPC,
        nfsstat3::NFS3ERR_DQUOT => nfsstat4::NFS4ERR_DQUOT,
        nfsstat3::NFS3ERR_FBIG => nfsstat4::NFS4ERR_FBIG,
        nfsstat3::NFS3ERR_ROFS => nfsstat4::NFS4ERR_ROFS,
        nfsstat3::NFS3ERR_JUKEBOX => nfsstat4::NFS4ERR_DELAY,
        _ => nfsstat4::NFS4ERR_IO,
    }
}
