//! OPEN with OPEN4_CREATE. RFC 8881 §18.16.3.

use std::pin::pin;
use std::sync::atomic::Ordering;

use sluice_namespace::{
    Create, CreateMode, Created, DirectoryChange, FileId, FsError, Inode, LayoutPolicy, NewMode, NewNode,
};
use sluice_state::open::Access;
use sluice_xdr::nfs4::{
    FATTR4_SIZE, OPEN4res, OPEN4resok, bitmap4, createhow4, nfs_resop4, nfsstat4, open_delegation4, stateid4,
};

use super::super::lookup::not_a_directory;
use super::super::open::{SPECIAL, Subject, make_room};
use super::super::remove::find;
use crate::attr::change_info;
use crate::attr::set::Wanted;
use crate::clients::SessionRef;
use crate::compound::{Context, OpError};
use crate::dsctl::Placing;
use crate::layout::grant;
use crate::layout::habits::Birth;
use crate::layout::{self, Placed};
use crate::quota::room;
use crate::transact::Attempts;

/// What the client wants made.
struct Plan {
    mode: CreateMode,
    wanted: Wanted,
    /// Unless the client says.
    default_mode: NewMode,
}

/// How a new file begins.
struct Beginning {
    node: NewNode,
    /// Of its data files, until the transaction is over.
    placing: Option<Placing>,
    /// With the row of a layout to write with.
    lays_out: bool,
    /// Where something is learned from what becomes of it.
    birth: Option<Birth>,
}

impl Beginning {
    /// Of a file that is not to be made.
    const NOWHERE: Self = Self {
        node: NewNode::File { layout: None, read_write_layout: false, size: 0 },
        placing: None,
        lays_out: false,
        birth: None,
    };
}

/// Makes a regular file, or takes the one that is there if the client's mode allows.
pub(in crate::ops) async fn create(
    cx: &mut Context,
    component: &[u8],
    how: &createhow4,
    access: Access,
) -> Result<Subject, OpError> {
    let name = cx.name(component)?;
    let plan = pin!(plan(cx, how)).await?;
    let directory = cx.current()?.inode;
    // What could not be opened is not made: the client's next try would find it, which is EXIST to a guarded one, and
    // be judged by its mode.
    while cx.server.files.opens_are_full(cx.client()?) && find(cx, &directory, &name).await?.is_none() {
        if !make_room(cx).await {
            return Err(nfsstat4::NFS4ERR_DELAY.into());
        }
    }
    let policy = pin!(cx.policy()).await?;
    let fileid = pin!(cx.server.next_fileid()).await?;
    let size = plan.wanted.size.unwrap_or(0);
    let begun = pin!(begin(cx, directory.fileid, policy, size, access)).await;
    // Whoever opens what is there needs no place for it.
    let nowhere = match &begun {
        Err(OpError::Status(why)) => Some(*why),
        _ => None,
    };
    let beginning = match begun {
        Err(_) if find(cx, &directory, &name).await?.is_some() => Beginning::NOWHERE,
        begun => begun?,
    };
    let making = cx.server.making(fileid, beginning.lays_out);
    let create = Create {
        directory,
        name,
        node: beginning.node,
        mode: plan.mode,
        attributes: plan.wanted.new_attributes(plan.default_mode, cx.server.env.clock.wall()),
        fileid,
    };
    let _room = pin!(room::to_create(&cx.server, &cx.who, &create)).await?;
    let made = pin!(transaction(cx, &create, plan.wanted.mask, nowhere.is_none())).await;
    drop(beginning.placing);
    let created = match made {
        // It has gone in between.
        Err(FsError::NotFound) if let Some(why) = nowhere => return Err(why.into()),
        Err(FsError::NotDirectory) => return Err(not_a_directory(cx).await),
        Err(FsError::WrongType) => return Err(SPECIAL.into()),
        other => other?,
    };
    let making = created.created.then_some(making);
    if let Some(making) = &making {
        making.made(&created.inode.key, beginning.birth);
    }
    Ok(Subject { making, ..subject(&plan, created) })
}

/// Whether the client will ask for the layout with this very COMPOUND, as it did before: what LAYOUTGET needs to
/// be durable is then part of the transaction that makes the file.
fn asks(cx: &Context, access: Access) -> bool {
    let wants = |session: &SessionRef| session.entry.wants_layouts.load(Ordering::Relaxed);
    access.writes()
        && cx.server.config.layouts
        && cx.session.as_ref().is_some_and(wants)
        && !cx.is_sealed_in_clear()
        && grant::barred(&cx.server, cx.way()).is_none()
}

async fn plan(cx: &Context, how: &createhow4) -> Result<Plan, OpError> {
    Ok(match how {
        createhow4::UNCHECKED4(attributes) => Plan {
            mode: CreateMode::Unchecked,
            wanted: Wanted::read(cx, attributes).await?,
            default_mode: NewMode::Default(0o644),
        },
        createhow4::GUARDED4(attributes) => Plan {
            mode: CreateMode::Guarded,
            wanted: Wanted::read(cx, attributes).await?,
            default_mode: NewMode::Default(0o644),
        },
        createhow4::EXCLUSIVE4(verifier) => Plan {
            mode: CreateMode::Exclusive(verifier.0),
            wanted: Wanted::default(),
            // §6.4.3, 4: its maker sets attributes at once (§18.16.3).
            default_mode: NewMode::Bare,
        },
        createhow4::EXCLUSIVE4_1(both) => Plan {
            mode: CreateMode::Exclusive(both.cva_verf.0),
            wanted: Wanted::read(cx, &both.cva_attrs).await?,
            default_mode: NewMode::Default(0o644),
        },
    })
}

/// Inline, or with data files.
async fn begin(
    cx: &Context,
    directory: FileId,
    policy: LayoutPolicy,
    size: u64,
    access: Access,
) -> Result<Beginning, OpError> {
    let (mds, asks) = (&cx.server, asks(cx, access));
    layout::inline::room_for_names(mds)?;
    let Some(inline) = layout::inline::begins(mds, &policy, size) else {
        return Box::pin(at_data_servers(cx, policy, size, asks)).await.map_err(OpError::from);
    };
    // Of others nothing would be learned.
    let birth = asks.then_some(Birth { directory, limit: inline.limit.into(), foreseen: false });
    if birth.is_some() && mds.habits.foresee_large(directory) {
        // With no place there now it is as if nothing had been foreseen.
        if let Ok(beginning) = Box::pin(at_data_servers(cx, policy, size, asks)).await {
            let birth = birth.map(|birth| Birth { foreseen: true, ..birth });
            return Ok(Beginning { birth, ..beginning });
        }
    }
    let node = NewNode::InlineFile { inline, size };
    Ok(Beginning { node, placing: None, lays_out: false, birth })
}

/// Where the data will be is decided with the file, without asking any data server.
async fn at_data_servers(
    cx: &Context,
    policy: LayoutPolicy,
    size: u64,
    lays_out: bool,
) -> Result<Beginning, nfsstat4> {
    let stripes = cx.session.as_ref().is_some_and(|session| session.entry.stripes);
    let Placed { mut layout, placing } = layout::place(&cx.server, &policy, stripes).await?;
    if let Some(first) = layout.components.first_mut() {
        first.handed_out = lays_out;
    }
    let node = NewNode::File { layout: Some(layout), read_write_layout: lays_out, size };
    Ok(Beginning { node, placing: Some(placing), lays_out, birth: None })
}

/// NotFound: there is nothing yet, and nothing `may` be made.
async fn transaction(
    cx: &Context,
    create: &Create<'_>,
    attrset: bitmap4,
    may: bool,
) -> Result<Created, FsError> {
    let attempts = Attempts::default();
    let (namespace, attempts) = (&cx.server.namespace, &attempts);
    let (pending, version) = cx
        .write(|mut txn| {
            Box::pin(async move {
                let request = cx.request(attempts.next());
                let pending = pin!(namespace.create(&mut txn, create, &request)).await?;
                let made = pending.peek();
                if made.created && !may {
                    return Err(FsError::NotFound);
                }
                // A file that was there is as it was: run again, this finds it again.
                if made.created {
                    cx.record_at(&mut txn, &without_state(made.directory, attrset), made.inode.key);
                }
                Ok(pending)
            })
        })
        .await?;
    Ok(pending.resolve(version))
}

/// The part of OPEN's result that outlives a restart (see `resume`).
pub(in crate::ops) fn without_state(directory: DirectoryChange, attrset: bitmap4) -> nfs_resop4 {
    nfs_resop4::OP_OPEN(OPEN4res::NFS4_OK(OPEN4resok {
        stateid: stateid4::default(),
        cinfo: change_info(directory),
        rflags: 0,
        attrset,
        delegation: open_delegation4::OPEN_DELEGATE_NONE,
    }))
}

fn subject(plan: &Plan, created: Created) -> Subject {
    let same_verifier = matches!(plan.mode, CreateMode::Exclusive(_));
    let truncate =
        !created.created && !same_verifier && plan.wanted.size == Some(0) && has_bytes(&created.inode);
    Subject {
        change: created.directory,
        // An exclusive create that finds its own verifier is the retry of one that succeeded.
        created: created.created || same_verifier,
        attrset: match () {
            () if created.created || same_verifier => plan.wanted.mask,
            // §18.16.3: of an existing file only a size of zero is heeded.
            () if plan.wanted.size == Some(0) => bitmap4::of(&[FATTR4_SIZE]),
            () => bitmap4::EMPTY,
        },
        truncate,
        found: !created.created && same_verifier,
        making: None,
        inode: created.inode,
    }
}

/// Anything to take away: the size in the inode may lag behind what a writer holds.
fn has_bytes(inode: &Inode) -> bool {
    inode.file().is_some()
}
