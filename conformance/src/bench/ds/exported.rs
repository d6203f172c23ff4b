//! Files of servers that are reached by the MOUNT protocol.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use sluice_rpc::AuthSys;
use sluice_xdr::nfs3::*;
use sluice_xdr::{DecodeError, Encode, Reader, Writer, from_bytes};

use super::wire::{File, Wire};

const MOUNT_PROGRAM: u32 = 100_005;
const MOUNT_V3: u32 = 3;
const MOUNTPROC3_MNT: u32 = 1;

/// The argument of MNT. RFC 1813 §5.1.
struct DirectoryPath(Bytes);

impl Encode for DirectoryPath {
    fn encode(&self, w: &mut Writer) {
        w.opaque(&self.0, 1024);
    }
}

/// New files in the root of an export, each empty.
pub(super) fn create(mount: SocketAddr, nfs: SocketAddr, path: &Path, count: usize) -> Result<Vec<File>> {
    let credential = AuthSys::root("bench");
    let mut mount = Wire::connect(mount, 0)?;
    let path = path.to_string_lossy().into_owned();
    let target = (MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_MNT);
    let reply = mount.call(target, &credential, &DirectoryPath(path.into()))?;
    let root = root_of(reply.into())?.context("the server refuses the mount")?;
    let mut wire = Wire::connect(nfs, 0)?;
    let mut files = Vec::new();
    for number in 0..count {
        let name = Bytes::from(format!("file{number}"));
        let place = diropargs3 { dir: nfs_fh3 { data: root.clone() }, name };
        let args = CREATE3args { where_: place, how: createhow3::UNCHECKED(plain()) };
        let target = (NFS3_PROGRAM, NFS_V3, NFSPROC3_CREATE);
        let result: CREATE3res = from_bytes(wire.call(target, &credential, &args)?.into())?;
        let CREATE3res::NFS3_OK(made) = result else { bail!("CREATE failed: {result:?}") };
        let post_op_fh3::TRUE(handle) = made.obj else { bail!("CREATE gave no filehandle") };
        files.push(File { handle: handle.data.to_vec(), credential: credential.clone() });
    }
    ensure!(files.len() == count, "not every file was made");
    Ok(files)
}

/// The filehandle in the result of MNT; `None` if it was refused.
fn root_of(reply: Bytes) -> Result<Option<Bytes>, DecodeError> {
    let mut r = Reader::new(reply);
    if r.u32()? != 0 { Ok(None) } else { Ok(Some(r.opaque(NFS3_FHSIZE)?)) }
}

fn plain() -> sattr3 {
    sattr3 {
        mode: set_mode3::TRUE(0o644),
        uid: set_uid3::FALSE,
        gid: set_gid3::FALSE,
        size: set_size3::FALSE,
        atime: set_atime::Default(time_how::DONT_CHANGE),
        mtime: set_mtime::Default(time_how::DONT_CHANGE),
    }
}
