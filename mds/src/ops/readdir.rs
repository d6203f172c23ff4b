//! READDIR. RFC 8881 §18.23.

use bytes::BytesMut;
use sluice_namespace::{Cookie, DirectoryPage, Dirent, Entry, FileHandle, FsError, Inode, Kind, ReadDir};
use sluice_xdr::nfs4::*;

use super::lookup::not_a_directory;
use crate::attr::acl;
use crate::attr::current::{Listing, at_rest};
use crate::attr::{get, straight};
use crate::compound::{Context, OpError, OpResult};
use crate::exports::Place;
use crate::exports::pseudo::Listed;
use crate::owners;
use crate::quota::standing::Standing;

/// Fixed part of the result: number, status, verifier, the end of the list, eof.
const FIXED: usize = 4 + 4 + 8 + 4 + 4;
/// Entries read in one transaction.
const PAGE: usize = 512;
/// Bytes that an entry takes at least, to guess how many fit: cookie, name, empty attributes, list marks.
const LEAST: usize = 4 + 8 + 8 + 8 + 4;

/// Bytes of one block that values are written into.
const BLOCK: usize = 64 << 10;

/// Bytes that the usual attributes of an entry take at most: owners are ten digits, filehandles 64 bytes.
const ENTRY: usize = 256;

/// Attributes for which no inode is read: without others, which is what Linux asks for when it only wants names, a
/// listing reads the directory alone.
const FREE: bitmap4 = straight::OF_ENTRY;

pub(crate) async fn readdir(cx: &mut Context, args: READDIR4args) -> OpResult<READDIR4res> {
    if !args.attr_request.and(get::WRITE_ONLY).is_empty() {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    // §18.23.3: 1 and 2 stand for . and .. in other protocols and are never given out; a cookie beyond the
    // highest was not either.
    if matches!(args.cookie, 1 | 2) || i64::try_from(args.cookie).is_err() {
        return Err(nfsstat4::NFS4ERR_BAD_COOKIE.into());
    }
    let verifier = verifier4::default();
    // Cookies never change their meaning, so the verifier is constant (§18.23.4).
    if args.cookie != 0 && args.cookieverf != verifier {
        return Err(nfsstat4::NFS4ERR_NOT_SAME.into());
    }
    let room = usize::try_from(args.maxcount).unwrap_or(usize::MAX).min(cx.reply_room);
    let Some(mut room) = room.checked_sub(FIXED) else { return Err(nfsstat4::NFS4ERR_TOOSMALL.into()) };
    let directory = cx.current()?;
    let mut after = Cookie(args.cookie);
    let mut entries: Vec<entry4> = Vec::new();
    let mut listing = Listing::default();
    let mut values = BytesMut::new();
    loop {
        let limit = (room / LEAST).clamp(1, PAGE);
        let attributes = !args.attr_request.without(FREE).is_empty();
        let read = ReadDir { directory: directory.inode, after, limit, attributes };
        let mut page = match cx.pseudo() {
            Some(_) => exports(cx, &read).await?,
            None => page(cx, &read).await?,
        };
        let denied = page.unsearchable && attributes;
        // §18.23.3: an entry's own trouble, if the client wants to hear of it there.
        if denied && !page.entries.is_empty() && !args.attr_request.contains(FATTR4_RDATTR_ERROR) {
            return Err(nfsstat4::NFS4ERR_ACCESS.into());
        }
        entries.reserve(page.entries.len());
        let by_name = cx.server.names.tells(&cx.wire_credential, &args.attr_request);
        if by_name {
            let inodes = page.entries.iter().filter_map(|found| found.inode.as_ref());
            let whose = inodes.flat_map(|inode| owners::whose(inode, &args.attr_request)).collect();
            Box::pin(cx.server.names.learn(&cx.server.env, cx.from.address, whose)).await;
        }
        for found in &mut page.entries {
            if !args.attr_request.and(get::MOVES_WITH_DATA).is_empty()
                && let Some(inode) = &found.inode
                && !at_rest(cx, inode)
            {
                if !entries.is_empty() && listing.has_enough(cx) {
                    return finish(verifier, entries, false);
                }
                if let Some(now) = Box::pin(listing.current(cx, inode)).await {
                    found.inode = Some(now);
                }
            }
            let standing = match &found.inode {
                Some(inode) => get::standing(&cx.server, inode, &args.attr_request).await?,
                None => None,
            };
            if values.capacity() < ENTRY {
                values = BytesMut::with_capacity(room.clamp(ENTRY, BLOCK));
            }
            let attrs = if denied {
                unsearched(&found.entry, &args.attr_request)?
            } else {
                let of = (&*found, standing.as_ref());
                wire_attributes(cx, &directory, of, (&args.attr_request, by_name), &mut values)?
            };
            let name = std::mem::take(&mut found.entry.name);
            let entry = entry4 { cookie: found.entry.cookie.0, name, attrs };
            let size = encoded(&entry);
            if size > room {
                return finish(verifier, entries, false);
            }
            room -= size;
            after = found.entry.cookie;
            entries.push(entry);
        }
        if page.eof {
            return finish(verifier, entries, true);
        }
        if room < LEAST || args.maxcount < 1024 {
            return finish(verifier, entries, false);
        }
    }
}

/// §18.23.4: when not even one entry fits, the client must come with a larger buffer.
fn finish(cookieverf: verifier4, entries: Vec<entry4>, eof: bool) -> OpResult<READDIR4res> {
    if entries.is_empty() && !eof {
        return Err(nfsstat4::NFS4ERR_TOOSMALL.into());
    }
    Ok(READDIR4res::NFS4_OK(READDIR4resok { cookieverf, reply: dirlist4 { entries, eof } }))
}

/// Bytes of an entry on the wire: the mark before it, its cookie, its name, which attributes and their values, each
/// but the first two with its length (RFC 4506).
fn encoded(entry: &entry4) -> usize {
    let mask = 4 * entry.attrs.attrmask.words().len();
    4 + 8 + 4 + entry.name.len().next_multiple_of(4) + 4 + mask + 4 + entry.attrs.attr_vals.len()
}

async fn page(cx: &mut Context, read: &ReadDir) -> Result<DirectoryPage, OpError> {
    let (namespace, who) = (&cx.server.namespace, &cx.who);
    let page = cx.server.read(|txn| Box::pin(async move { namespace.readdir(&txn, read, who).await })).await;
    match page {
        Err(FsError::NotDirectory) => Err(not_a_directory(cx).await),
        other => Ok(other?),
    }
}

/// A page of a directory that only leads to exports.
async fn exports(cx: &Context, read: &ReadDir) -> Result<DirectoryPage, OpError> {
    let listed = cx.exports.list(&read.directory, &cx.from);
    let mut rest = listed.into_iter().filter(|listed| listed.cookie > read.after);
    let mut entries = Vec::new();
    for Listed { cookie, name, place } in rest.by_ref().take(read.limit) {
        let (inode, key) = match place {
            Place::Pseudo(key) => (cx.exports.inode(&key, &cx.from), key),
            Place::Export(id) => {
                let key = cx.exports.get(id).ok_or(nfsstat4::NFS4ERR_STALE)?.root;
                let namespace = &cx.server.namespace;
                let root =
                    cx.server.read(|txn| Box::pin(async move { namespace.getattr(&txn, &key).await })).await;
                match root {
                    Err(FsError::Stale) => (None, key),
                    other => (Some(other?), key),
                }
            }
        };
        entries.push(Entry { entry: Dirent { cookie, name, kind: Kind::Directory, inode: key }, inode });
    }
    Ok(DirectoryPage { entries, eof: rest.next().is_none(), unsearchable: false })
}

/// What is shown of an entry whose attributes cannot be had.
fn failed(status: nfsstat4, asked: &bitmap4) -> Result<fattr4, nfsstat4> {
    let attributes = Attributes { rdattr_error: Some(status), ..Attributes::default() };
    attributes.encode(asked).map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)
}

/// What a directory says itself, and that there is no more of an entry to see: POSIX has names and numbers read without search
/// permission, and nothing of the files.
fn unsearched(entry: &Dirent, asked: &bitmap4) -> Result<fattr4, nfsstat4> {
    let fileid = Some(entry.inode.fileid.0);
    let attributes = Attributes {
        type_: Some(get::wire_type(entry.kind)),
        rdattr_error: Some(nfsstat4::NFS4ERR_ACCESS),
        fileid,
        mounted_on_fileid: fileid,
        ..Attributes::default()
    };
    attributes.encode(asked).map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)
}

fn wire_attributes(
    cx: &Context,
    directory: &FileHandle,
    (found, standing): (&Entry, Option<&Standing>),
    (asked, by_name): (&bitmap4, bool),
    values: &mut BytesMut,
) -> Result<fattr4, OpError> {
    // §7.4: where another export begins, what is shown is that.
    let export = cx.exports.crossing(&found.entry.inode, &cx.from).unwrap_or(directory.export);
    let denied = |inode: &Inode| acl::permit(asked, inode, &cx.who).is_err();
    Ok(match &found.inode {
        // §18.23.3: an entry's own trouble, if the client wants to hear of it there.
        Some(inode) if denied(inode) && !asked.contains(FATTR4_RDATTR_ERROR) => {
            return Err(nfsstat4::NFS4ERR_ACCESS.into());
        }
        Some(inode) if denied(inode) => failed(nfsstat4::NFS4ERR_ACCESS, asked)?,
        Some(inode) if !by_name && straight::is_all(asked) => {
            straight::of_inode(&cx.server, export, inode, asked, values)
        }
        Some(inode) => {
            let mut values = get::attributes(&cx.server, cx.minor, export, (inode, standing), asked);
            if by_name {
                cx.server.names.name(&cx.server.env, &mut values);
            }
            values.encode(asked).map_err(|_| nfsstat4::NFS4ERR_SERVERFAULT)?
        }
        // The entry went, or its inode did, while the page was read: a client that asks for rdattr_error
        // hears it there, another gets no attributes.
        None if asked.contains(FATTR4_RDATTR_ERROR) && !asked.without(FREE).is_empty() => {
            failed(nfsstat4::NFS4ERR_NOENT, asked)?
        }
        None if asked.without(FREE).is_empty() => straight::of_entry(&found.entry, asked, values),
        None => fattr4::default(),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sluice_xdr::{Encode, Writer};

    use super::*;

    #[test]
    fn the_size_of_an_entry_is_what_it_takes_on_the_wire() {
        for name in ["a", "four", "fives", "a longer name."] {
            for attrmask in [bitmap4::EMPTY, bitmap4::of(&[1]), bitmap4::of(&[1, 33]), bitmap4::of(&[80])] {
                let attrs = fattr4 { attrmask, attr_vals: Bytes::from_static(&[0; 12]) };
                let entry = entry4 { cookie: 77, name: name.into(), attrs };
                let mut writer = Writer::default();
                writer.bool(true);
                entry.encode(&mut writer);
                assert_eq!(encoded(&entry), writer.len(), "{name} {attrmask:?}");
            }
        }
    }
}
