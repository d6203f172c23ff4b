//! CREATE: everything but regular files. RFC 8881 §18.4.

use bytes::Bytes;
use sluice_namespace::{Create, CreateMode, DirectoryChange, FsError, NewMode, NewNode};
use sluice_xdr::nfs4::{
    CREATE4args, CREATE4res, CREATE4resok, FATTR4_SIZE, bitmap4, createtype4, nfs_resop4, nfsstat4,
};

use super::lookup::not_a_directory;
use super::remove::find;
use crate::attr::change_info;
use crate::attr::set::Wanted;
use crate::compound::{Context, OpResult};
use crate::layout::inline;
use crate::quota::room;
use crate::transact::Attempts;

pub(crate) async fn create(cx: &mut Context, args: CREATE4args) -> OpResult<CREATE4res> {
    let node = match args.objtype {
        createtype4::NF4LNK(target) => NewNode::Symlink { target: Bytes::copy_from_slice(&target) },
        createtype4::NF4BLK(device) => {
            NewNode::BlockDevice { major: device.specdata1, minor: device.specdata2 }
        }
        createtype4::NF4CHR(device) => {
            NewNode::CharDevice { major: device.specdata1, minor: device.specdata2 }
        }
        createtype4::NF4SOCK => NewNode::Socket,
        createtype4::NF4FIFO => NewNode::Fifo,
        createtype4::NF4DIR => NewNode::Directory,
        // §18.4.3: regular files are made by OPEN.
        createtype4::Default(_) => return Err(nfsstat4::NFS4ERR_BADTYPE.into()),
    };
    if matches!(&node, NewNode::Symlink { target } if target.is_empty()) {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    let objname = cx.name(&args.objname)?;
    let wanted = Wanted::read(cx, &args.createattrs).await?;
    if wanted.mask.contains(FATTR4_SIZE) {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    let now = cx.server.env.clock.wall();
    let default = if matches!(node, NewNode::Symlink { .. }) { 0o777 } else { 0o755 };
    let request = Create {
        directory: cx.current()?.inode,
        name: objname,
        node,
        mode: CreateMode::Guarded,
        attributes: wanted.new_attributes(NewMode::Default(default), now),
        fileid: cx.server.next_fileid().await?,
    };
    // What is there already is said to be.
    if let Err(full) = inline::room_for_names(&cx.server)
        && find(cx, &request.directory, &request.name).await?.is_none()
    {
        return Err(full.into());
    }
    let _room = room::to_create(&cx.server, &cx.who, &request).await?;
    let attempts = Attempts::default();
    let (namespace, create, context, attempts) = (&cx.server.namespace, &request, &*cx, &attempts);
    let mask = wanted.mask;
    let made = cx
        .write(|mut txn| {
            Box::pin(async move {
                let pending = namespace.create(&mut txn, create, &context.request(attempts.next())).await?;
                let made = pending.peek();
                let result = nfs_resop4::OP_CREATE(answer(made.directory, mask));
                context.record_at(&mut txn, &result, made.inode.key);
                Ok(pending)
            })
        })
        .await;
    let (pending, version) = match made {
        Err(FsError::NotDirectory) => return Err(not_a_directory(cx).await),
        other => other?,
    };
    let created = pending.resolve(version);
    let answer = answer(created.directory, mask);
    cx.set_current_known(created.inode);
    Ok(answer)
}

fn answer(directory: DirectoryChange, attrset: bitmap4) -> CREATE4res {
    CREATE4res::NFS4_OK(CREATE4resok { cinfo: change_info(directory), attrset })
}
