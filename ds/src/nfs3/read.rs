//! READ, RFC 1813 §3.3.6.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use sluice_env::BoxFuture;
use sluice_rpc::{Connection, Frame, Owed, Payload, Reply, Sent};
use sluice_store::{InPlace, Read, StoreError};
use sluice_xdr::capability::Rights;
use sluice_xdr::nfs3::{READ3args, READ3res, READ3resfail, READ3resok, nfsstat3};
use sluice_xdr::{Reader, from_bytes};

use super::{NO_ATTRIBUTES, now};
use crate::access::Admitted;
use crate::error::nfs_status;
use crate::logical_size::End;
use crate::shared::{IO_MAX, Shared};

/// Most bytes of a READ that is answered at once.
const NOW_MAX: usize = 16 << 10;

/// Least bytes of a READ whose data is not copied: for fewer, copying is cheaper.
const IN_PLACE_MIN: usize = 64 << 10;

/// Bytes in front of the data of a successful READ.
const HEAD: usize = 20;

/// What stands in front of `count` bytes of data that do not meet the end of the file.
fn head(count: u32) -> [u8; HEAD] {
    // nfsstat3, no attributes, count, no end of file, length of the data.
    let words = [0, 0, count, 0, count].map(u32::to_be_bytes);
    let mut head = [0; HEAD];
    head.copy_from_slice(words.as_flattened());
    head
}

/// The count a call asks for, 0 when it cannot be told; for the reply's bound.
pub(super) fn count_of(args: &Bytes) -> u32 {
    let mut r = Reader::new(args.clone());
    READ3args::peek_count(&mut r).unwrap_or(0)
}

trait PeekCount {
    fn peek_count(r: &mut Reader) -> Option<u32>;
}

impl PeekCount for READ3args {
    fn peek_count(r: &mut Reader) -> Option<u32> {
        r.opaque(sluice_xdr::nfs3::NFS3_FHSIZE).ok()?;
        r.u64().ok()?;
        r.u32().ok()
    }
}

pub(super) async fn run(shared: &Arc<Shared>, from: Arc<Connection>, args: Bytes) -> Reply {
    let Ok(args) = from_bytes::<READ3args>(args) else { return Reply::GarbageArgs };
    let result = match shared.admit(&from, &args.file.data, Rights::READ) {
        Ok(admitted) => match in_place(shared, &admitted, &args) {
            Some(reply) => return reply,
            None => read(shared, admitted, &args).await,
        },
        Err(status) => Err(status),
    };
    let result = match result {
        Ok((data, eof)) => {
            shared.counters.read(data.len());
            READ3res::NFS3_OK(READ3resok {
                file_attributes: NO_ATTRIBUTES,
                count: data.len() as u32,
                eof,
                data,
            })
        }
        Err(status) => READ3res::Default(status, READ3resfail { file_attributes: NO_ATTRIBUTES }),
    };
    super::reply(&result)
}

/// A READ of few bytes, wherever they are.
fn small(args: &[u8]) -> Option<(now::Range<'_>, usize)> {
    let asked = now::read_args(args)?;
    let count = asked.count as usize;
    let usual = count > 0 && count <= NOW_MAX && asked.offset <= i64::MAX as u64 - u64::from(IO_MAX);
    usual.then_some((asked, count))
}

/// Answers a small READ of data that is on its way from the device, from the thread that waits for it. Gives back any other,
/// and takes the usual way where the bytes do not come.
pub(super) fn soon(shared: &Arc<Shared>, args: &Bytes, owed: Owed) -> Option<Owed> {
    let Some((asked, count)) = small(args) else { return Some(owed) };
    let Ok(admitted) = shared.admit(owed.connection(), asked.handle, Rights::READ) else { return Some(owed) };
    let Some(soon) = shared.store.soon(admitted.access.key) else { return Some(owed) };
    let mut result = BytesMut::with_capacity(HEAD + count.next_multiple_of(4));
    result.put_slice(&head(asked.count));
    result.put_bytes(0, count);
    let (here, args) = (Arc::clone(shared), args.clone());
    soon.read(asked.offset, result, HEAD, move |full| match full {
        Some(mut result) => {
            here.counters.read(count);
            // First: who has the answer may close the store, and open it again.
            drop(here);
            result.put_bytes(0, count.next_multiple_of(4) - count);
            owed.answer(Reply::Success(Frame::from(result.freeze())));
        }
        None => {
            let env = here.env.clone();
            env.spawn.spawn(Box::pin(async move {
                let reply = run(&here, Arc::clone(owed.connection()), args).await;
                drop(here);
                owed.answer(reply);
            }));
        }
    });
    None
}

/// Answers a small READ of data in memory. Ends of files, holes at them and everything unusual go the other way.
pub(super) fn now(shared: &Shared, from: &Connection, args: &[u8], result: &mut BytesMut) -> bool {
    let Some((asked, count)) = small(args) else { return false };
    let begin = result.len();
    let data = begin + HEAD;
    result.put_bytes(0, HEAD + count.next_multiple_of(4));
    let key = match shared.admit(from, asked.handle, Rights::READ) {
        Ok(admitted) => admitted.access.key,
        Err(status) => {
            result.truncate(begin);
            return now::refuse(result, status, 1);
        }
    };
    let place = result.get_mut(data..data + count).unwrap_or_default();
    if !shared.store.read_now(key, asked.offset, place) {
        result.truncate(begin);
        return false;
    }
    if let Some(place) = result.get_mut(begin..data) {
        place.copy_from_slice(&head(asked.count));
    }
    shared.counters.read(count);
    true
}

/// A large READ of data in memory, which goes to the socket without being copied. `None`: the other way.
fn in_place(shared: &Arc<Shared>, admitted: &Admitted, args: &READ3args) -> Option<Reply> {
    let count = args.count.min(IO_MAX);
    // Whole words: no padding has to follow them.
    if (count as usize) < IN_PLACE_MIN || !count.is_multiple_of(4) {
        return None;
    }
    let data = shared.store.in_place(&admitted.access, args.offset, count as usize)?;
    shared.counters.read(count as usize);
    Some(Reply::Data(Bytes::copy_from_slice(&head(count)).into(), Arc::new(Data(data))))
}

#[derive(Debug)]
struct Data(InPlace);

impl Payload for Data {
    fn length(&self) -> usize {
        self.0.length()
    }

    fn send(&self, from: usize, socket: BorrowedFd<'_>) -> io::Result<Sent> {
        Ok(self.0.send(from, socket)?.map_or(Sent::Absent, Sent::Bytes))
    }

    fn load(self: Arc<Self>, from: usize, most: usize) -> BoxFuture<'static, io::Result<Bytes>> {
        Box::pin(async move { self.0.load(from, most).await.map_err(io::Error::other) })
    }
}

async fn read(shared: &Arc<Shared>, admitted: Admitted, args: &READ3args) -> Result<(Bytes, bool), nfsstat3> {
    // Where signed offsets end no file system holds a byte, and refuses to be asked.
    let before_the_edge = (i64::MAX as u64).saturating_sub(args.offset);
    if before_the_edge == 0 {
        return Ok((Bytes::new(), true));
    }
    let count = u64::from(args.count.min(IO_MAX)).min(before_the_edge) as usize;
    // Nothing asked for still has to say whether this is the end.
    let probe = count.max(1);
    let found = stored(shared, &admitted, args.offset, probe).await?;
    let (mut data, eof) = if found.end {
        to_the_end(shared, &admitted, args.offset, found.data, probe).await?
    } else {
        (found.data, false)
    };
    data.truncate(count);
    let at_the_edge = data.len() as u64 == before_the_edge;
    Ok((data, eof || at_the_edge))
}

/// What the data file has there.
async fn stored(
    shared: &Arc<Shared>,
    admitted: &Admitted,
    offset: u64,
    count: usize,
) -> Result<Read, nfsstat3> {
    match shared.store.read_at(admitted.access.key, offset, count).await {
        Ok(found) => Ok(found),
        Err(StoreError::Missing) => {
            shared.absent(&admitted.access)?;
            // A valid handle to a data file never written is an empty file.
            Ok(Read { data: Bytes::new(), end: true })
        }
        Err(error) => {
            shared.counters.error();
            Err(nfs_status(&error))
        }
    }
}

/// `data` met the data file's end. What lies between it and the file's own end is a hole, for those whose handle says
/// that there may be such.
async fn to_the_end(
    shared: &Arc<Shared>,
    admitted: &Admitted,
    offset: u64,
    data: Bytes,
    count: usize,
) -> Result<(Bytes, bool), nfsstat3> {
    let key = admitted.access.key;
    let end = offset + data.len() as u64;
    let (size, ends) = if admitted.sparse {
        match shared.logical_size(key, offset + count as u64).await {
            Some(End::At(size)) => (size, true),
            // It will not be known soon: whoever waits for it waits for ever (Linux asks again after JUKEBOX).
            Some(End::Behind(known)) if known.max(end) == offset => return Err(nfsstat3::NFS3ERR_IO),
            Some(End::Behind(known)) => (known, false),
            // The metadata server is away: neither zeros nor an end may be claimed.
            None => return Err(nfsstat3::NFS3ERR_JUKEBOX),
        }
    } else {
        // Who asks knows the file's own end, if there is another.
        (0, true)
    };
    let hole = size.saturating_sub(end).min((count - data.len()) as u64) as usize;
    let eof = ends && size <= end + hole as u64;
    if hole == 0 {
        return Ok((data, eof));
    }
    // The size may count what was written here since the data file was read: only what is still not there is a hole.
    let since = stored(shared, admitted, end, hole).await?.data;
    Ok((with_zeros(shared, data, since, hole), eof))
}

/// `data`, what came behind it `since`, and zeros for what is left of the `hole`.
fn with_zeros(shared: &Shared, data: Bytes, since: Bytes, hole: usize) -> Bytes {
    let left = hole.saturating_sub(since.len());
    let zeros = shared.zeros.slice(..left.min(shared.zeros.len()));
    if data.is_empty() && since.is_empty() {
        return zeros;
    }
    let mut all = BytesMut::with_capacity(data.len() + since.len() + zeros.len());
    all.put(data);
    all.put(since);
    all.put(zeros);
    all.freeze()
}
