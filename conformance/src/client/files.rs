//! Names and files, with the COMPOUNDs that a stock kernel sends.

use bytes::Bytes;
use sluice_xdr::nfs4::*;

use super::session::Client;
use super::{Error, Result, ops};

/// What a stock kernel asks of every object it meets.
pub(super) const USUAL: bitmap4 = bitmap4::of(&[
    FATTR4_TYPE,
    FATTR4_CHANGE,
    FATTR4_SIZE,
    FATTR4_FSID,
    FATTR4_FILEID,
    FATTR4_MODE,
    FATTR4_NUMLINKS,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_RAWDEV,
    FATTR4_SPACE_USED,
    FATTR4_TIME_ACCESS,
    FATTR4_TIME_METADATA,
    FATTR4_TIME_MODIFY,
    FATTR4_MOUNTED_ON_FILEID,
]);
/// What it asks for behind an operation that may have changed a file.
pub(super) const FOR_CACHES: bitmap4 =
    bitmap4::of(&[FATTR4_CHANGE, FATTR4_SIZE, FATTR4_TIME_METADATA, FATTR4_TIME_MODIFY]);
/// What it asks of every entry of a directory.
const LISTED: bitmap4 = bitmap4::of(&[
    FATTR4_TYPE,
    FATTR4_CHANGE,
    FATTR4_SIZE,
    FATTR4_FSID,
    FATTR4_RDATTR_ERROR,
    FATTR4_FILEHANDLE,
    FATTR4_FILEID,
    FATTR4_MODE,
    FATTR4_NUMLINKS,
    FATTR4_OWNER,
    FATTR4_OWNER_GROUP,
    FATTR4_RAWDEV,
    FATTR4_SPACE_USED,
    FATTR4_TIME_ACCESS,
    FATTR4_TIME_METADATA,
    FATTR4_TIME_MODIFY,
    FATTR4_MOUNTED_ON_FILEID,
]);
/// What it asks of every entry when it only wants names.
const NAMED: bitmap4 = bitmap4::of(&[FATTR4_RDATTR_ERROR, FATTR4_MOUNTED_ON_FILEID]);
/// Bytes of one page of a listing: what a kernel with the usual rsize takes.
const PAGE: u32 = 1 << 20;
const OWNER: &[u8] = b"sluice test client";

/// A name found.
#[derive(Clone, Debug)]
pub struct Found {
    pub handle: nfs_fh4,
    pub attributes: Attributes,
}

/// How to open.
#[derive(Clone, Debug)]
pub struct How {
    /// OPEN4_SHARE_ACCESS_*
    pub access: u32,
    /// OPEN4_SHARE_DENY_*
    pub deny: u32,
    /// Mode of a file that does not exist yet; `None`: it must exist.
    pub create: Option<u32>,
    /// An existing file is an error.
    pub exclusive: bool,
    /// A delegation is wanted.
    pub delegation: bool,
    pub owner: Bytes,
}

impl How {
    /// An existing file.
    #[must_use]
    pub fn existing(access: u32) -> Self {
        let owner = Bytes::from_static(OWNER);
        Self { access, deny: 0, create: None, exclusive: false, delegation: false, owner }
    }

    /// For reading and writing; made with `mode` unless it exists.
    #[must_use]
    pub fn create(mode: u32) -> Self {
        Self { create: Some(mode), ..Self::existing(OPEN4_SHARE_ACCESS_BOTH) }
    }

    /// For writing; must not exist.
    #[must_use]
    pub fn new_file(mode: u32) -> Self {
        Self { create: Some(mode), exclusive: true, ..Self::existing(OPEN4_SHARE_ACCESS_WRITE) }
    }
}

/// An open file.
#[derive(Clone, Debug)]
pub struct Open {
    pub handle: nfs_fh4,
    pub stateid: stateid4,
    pub attributes: Attributes,
}

/// A page of a directory.
#[derive(Clone, Debug)]
pub struct Page {
    pub entries: Vec<entry4>,
    pub verifier: verifier4,
    pub eof: bool,
}

impl Client {
    /// # Errors
    /// Whatever the server says.
    pub async fn lookup(&self, directory: &nfs_fh4, name: &[u8]) -> Result<Found> {
        let ops = vec![ops::putfh(directory), ops::lookup(name), ops::getfh(), ops::getattr(USUAL)];
        found(&self.compound(ops).await?)
    }

    /// # Errors
    /// Whatever the server says.
    pub async fn getattr(&self, handle: &nfs_fh4) -> Result<Attributes> {
        attributes(&self.compound(vec![ops::putfh(handle), ops::getattr(USUAL)]).await?)
    }

    /// As [`Client::getattr`], as they came: how many bytes.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn getattr_raw(&self, handle: &nfs_fh4) -> Result<usize> {
        length(&self.compound(vec![ops::putfh(handle), ops::getattr(USUAL)]).await?)
    }

    /// As [`Client::getattr_raw`], of several files with calls that are under way together: the least of them.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn getattrs_raw(&self, handles: impl IntoIterator<Item = &nfs_fh4>) -> Result<usize> {
        let look = |handle| vec![ops::putfh(handle), ops::getattr(USUAL)];
        let found = self.inner.together(handles.into_iter().map(look).collect()).await?;
        found.iter().map(|results| length(results)).try_fold(usize::MAX, |least, next| Ok(least.min(next?)))
    }

    /// Sets what is present in `attributes`; `stateid` of an open file when that is its size.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn setattr(
        &self,
        handle: &nfs_fh4,
        stateid: stateid4,
        values: &Attributes,
    ) -> Result<Attributes> {
        let ops = vec![ops::putfh(handle), ops::setattr(stateid, values)?, ops::getattr(USUAL)];
        attributes(&self.compound(ops).await?)
    }

    /// # Errors
    /// Whatever the server says.
    pub async fn mkdir(&self, parent: &nfs_fh4, name: &[u8], mode: u32) -> Result<Found> {
        let values = Attributes { mode: Some(mode), ..Attributes::default() };
        let make = ops::create(createtype4::NF4DIR, name, &values)?;
        found(&self.compound(vec![ops::putfh(parent), make, ops::getfh(), ops::getattr(USUAL)]).await?)
    }

    /// # Errors
    /// Whatever the server says.
    pub async fn remove(&self, directory: &nfs_fh4, name: &[u8]) -> Result<()> {
        self.compound(vec![ops::putfh(directory), ops::remove(name)]).await.map(drop)
    }

    /// Within one directory.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn rename(&self, directory: &nfs_fh4, from: &[u8], to: &[u8]) -> Result<()> {
        let ops = vec![ops::putfh(directory), nfs_argop4::OP_SAVEFH, ops::rename(from, to)];
        self.compound(ops).await.map(drop)
    }

    /// Opens by name.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn open(&self, directory: &nfs_fh4, name: &[u8], how: &How) -> Result<Open> {
        opened(&self.compound(opening(directory, name, how)?).await?)
    }

    /// As [`Client::open`], of several names with calls that are under way together.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn opens(&self, directory: &nfs_fh4, names: &[Vec<u8>], how: &How) -> Result<Vec<Open>> {
        let calls = names.iter().map(|name| opening(directory, name, how)).collect::<Result<_>>()?;
        self.inner.together(calls).await?.iter().map(|results| opened(results)).collect()
    }

    /// WRITE through the metadata server, with the attributes that come of it.
    ///
    /// # Errors
    /// Whatever the server says; a short WRITE.
    pub async fn write_through(&self, open: &Open, offset: u64, data: Bytes) -> Result<Attributes> {
        let length = data.len();
        let write = nfs_argop4::OP_WRITE(WRITE4args {
            stateid: open.stateid,
            offset,
            stable: stable_how4::FILE_SYNC4,
            data,
        });
        let results = self.compound(vec![ops::putfh(&open.handle), write, ops::getattr(USUAL)]).await?;
        match results.get(1) {
            Some(nfs_resop4::OP_WRITE(WRITE4res::NFS4_OK(ok)))
                if usize::try_from(ok.count).is_ok_and(|count| count == length) =>
            {
                attributes(&results)
            }
            _ => Err(Error::Protocol("WRITE")),
        }
    }

    /// READ through the metadata server.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn read_through(&self, open: &Open, offset: u64, count: u32) -> Result<Bytes> {
        let read = nfs_argop4::OP_READ(READ4args { stateid: open.stateid, offset, count });
        match self.compound(vec![ops::putfh(&open.handle), read]).await?.pop() {
            Some(nfs_resop4::OP_READ(READ4res::NFS4_OK(ok))) => Ok(ok.data),
            _ => Err(Error::Protocol("READ")),
        }
    }

    /// CLOSE with a last look, as a stock kernel closes what it has no layout of.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn look_and_close(&self, open: &Open) -> Result<()> {
        let ops = vec![ops::putfh(&open.handle), ops::getattr(USUAL), ops::close(open.stateid)];
        self.compound(ops).await.map(drop)
    }

    /// # Errors
    /// Whatever the server says.
    pub async fn close(&self, open: &Open) -> Result<()> {
        self.compound(closing(open)).await.map(drop)
    }

    /// As [`Client::close`], of several files with calls that are under way together.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn closes(&self, opens: &[Open]) -> Result<()> {
        self.inner.together(opens.iter().map(closing).collect()).await.map(drop)
    }

    /// The entries behind `cookie` (0: from the beginning), with the attributes that a kernel asks for
    /// when it lists.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn readdir_page(&self, directory: &nfs_fh4, cookie: u64, verifier: verifier4) -> Result<Page> {
        self.page(directory, (cookie, verifier), LISTED).await
    }

    /// As [`Client::readdir_page`], with what a kernel asks for that only wants names.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn names_page(&self, directory: &nfs_fh4, cookie: u64, verifier: verifier4) -> Result<Page> {
        self.page(directory, (cookie, verifier), NAMED).await
    }

    async fn page(
        &self,
        directory: &nfs_fh4,
        (cookie, verifier): (u64, verifier4),
        wanted: bitmap4,
    ) -> Result<Page> {
        let ops = vec![ops::putfh(directory), ops::readdir(cookie, verifier, PAGE, wanted)];
        match self.compound(ops).await?.pop() {
            Some(nfs_resop4::OP_READDIR(READDIR4res::NFS4_OK(page))) => {
                Ok(Page { entries: page.reply.entries, verifier: page.cookieverf, eof: page.reply.eof })
            }
            _ => Err(Error::Protocol("READDIR")),
        }
    }

    /// The whole directory.
    ///
    /// # Errors
    /// Whatever the server says.
    pub async fn readdir(&self, directory: &nfs_fh4) -> Result<Vec<entry4>> {
        let mut entries: Vec<entry4> = Vec::new();
        let mut verifier = verifier4::default();
        loop {
            let cookie = entries.last().map_or(0, |entry| entry.cookie);
            let page = self.readdir_page(directory, cookie, verifier).await?;
            if page.entries.is_empty() && !page.eof {
                return Err(Error::Protocol("an empty page that is not the last"));
            }
            entries.extend(page.entries);
            verifier = page.verifier;
            if page.eof {
                return Ok(entries);
            }
        }
    }
}

/// Opens by name.
pub(super) fn opening(directory: &nfs_fh4, name: &[u8], how: &How) -> Result<Vec<nfs_argop4>> {
    let openhow = match how.create {
        None => openflag4::Default(opentype4::OPEN4_NOCREATE),
        Some(mode) => {
            let values = Attributes { mode: Some(mode), ..Attributes::default() };
            let values = values.encode(&values.present())?;
            openflag4::OPEN4_CREATE(match how.exclusive {
                true => createhow4::GUARDED4(values),
                false => createhow4::UNCHECKED4(values),
            })
        }
    };
    let want =
        if how.delegation { OPEN4_SHARE_ACCESS_WANT_ANY_DELEG } else { OPEN4_SHARE_ACCESS_WANT_NO_DELEG };
    let open = nfs_argop4::OP_OPEN(OPEN4args {
        seqid: 0,
        share_access: how.access | want,
        share_deny: how.deny,
        owner: state_owner4 { clientid: 0, owner: how.owner.clone() },
        openhow,
        claim: open_claim4::CLAIM_NULL(Bytes::copy_from_slice(name)),
    });
    Ok(vec![ops::putfh(directory), open, ops::getfh(), ops::getattr(USUAL)])
}

/// From the results of [`opening`].
pub(super) fn opened(results: &[nfs_resop4]) -> Result<Open> {
    let found = found(results)?;
    match results.get(1) {
        Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) => {
            Ok(Open { handle: found.handle, stateid: open.stateid, attributes: found.attributes })
        }
        _ => Err(Error::Protocol("OPEN")),
    }
}

/// What came with the open.
pub(super) fn delegation(results: &[nfs_resop4]) -> Option<&open_delegation4> {
    match results.get(1) {
        Some(nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(open))) => Some(&open.delegation),
        _ => None,
    }
}

/// From results that end with GETFH, GETATTR.
fn found(results: &[nfs_resop4]) -> Result<Found> {
    match results {
        [.., nfs_resop4::OP_GETFH(GETFH4res::NFS4_OK(handle)), _] => {
            Ok(Found { handle: handle.object.clone(), attributes: attributes(results)? })
        }
        _ => Err(Error::Protocol("GETFH")),
    }
}

/// From results that end with GETATTR.
pub(super) fn attributes(results: &[nfs_resop4]) -> Result<Attributes> {
    match results {
        [.., nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(values))] => {
            Ok(Attributes::decode(&values.obj_attributes)?)
        }
        _ => Err(Error::Protocol("GETATTR")),
    }
}

/// Bytes of the attributes at the end.
fn length(results: &[nfs_resop4]) -> Result<usize> {
    match results.last() {
        Some(nfs_resop4::OP_GETATTR(GETATTR4res::NFS4_OK(got))) => Ok(got.obj_attributes.attr_vals.len()),
        _ => Err(Error::Protocol("GETATTR")),
    }
}

fn closing(open: &Open) -> Vec<nfs_argop4> {
    vec![ops::putfh(&open.handle), ops::close(open.stateid)]
}
