//! OPEN. RFC 8881 §18.16.

use std::collections::BTreeSet;
use std::pin::pin;

use sluice_namespace::{DirectoryChange, FsError, Inode, Kind, SetAttr, Want as Permission};
use sluice_state::file::{Error, Intent, Reply};
use sluice_state::grace::Claim as Admission;
use sluice_state::open::{Access, Claim, Deny, History, OpenRequest, Want};
use sluice_state::owner::{MAX_OWNER_BYTES, OpenOwner};
use sluice_xdr::nfs4::*;

use super::lookup::not_a_directory;
use super::opening::create::{self, without_state};
use super::opening::delegation;
use super::opening::resume::resume;
use super::remove::PATIENCE;
use super::setattr::{SIZE_ONLY, set_size};
use crate::attr::set::Wanted;
use crate::attr::{change_info, delegated};
use crate::compound::context::to_wire;
use crate::compound::{Context, OpError, OpResult};
use crate::files::{FileEntry, Held, Making, file_id};
use crate::layout::settle;

/// Bits of share_access besides access and want: the client wants to be told when a delegation can be had.
/// Such wants are not kept, which is allowed.
const SIGNALS: u32 = OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL
    | OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED
    | OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS
    | OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION;

/// What is no access in share_access.
pub(super) const WANTS: u32 = OPEN4_SHARE_ACCESS_WANT_DELEG_MASK | SIGNALS;

/// A file to open, found or just made.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) inode: Inode,
    pub(super) change: DirectoryChange,
    /// Made by this OPEN (or an earlier try of it): its mode does not bind its maker yet.
    pub(super) created: bool,
    /// An earlier try of it made it, or somebody else with the same verifier.
    pub(super) found: bool,
    pub(super) attrset: bitmap4,
    /// An existing file is to become empty (UNCHECKED with size 0).
    pub(super) truncate: bool,
    /// Made by this very request.
    pub(super) making: Option<Making>,
}

pub(crate) async fn open(cx: &mut Context, args: OPEN4args) -> OpResult<OPEN4res> {
    let mut request = request(cx, &args)?;
    let session = cx.session.clone().ok_or(nfsstat4::NFS4ERR_OP_NOT_IN_SESSION)?;
    let admission = admission(&args.claim);
    let keeps_times = keeps_times(&args);
    let creates = matches!(args.openhow, openflag4::OPEN4_CREATE(_));
    // §18.16.3: only a name can be created.
    if creates && !matches!(args.claim, open_claim4::CLAIM_NULL(_)) {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    if let Some(done) = cx.done_before.take() {
        return Box::pin(resume(cx, &args, request, *done)).await;
    }
    cx.server.admit(&session, admission)?;
    for _ in 0..PATIENCE {
        let mut subject = pin!(subject(cx, &args, &mut request)).await?;
        request.history = history(cx, &subject);
        let inode = &subject.inode;
        request.times = keeps_times.then(|| delegated::stamps(inode.record.atime, inode.mtime()));
        request.truncates = subject.truncate;
        if subject.truncate {
            // What the client will be shown of it is not known yet.
            request.want = Want::None;
        }
        let admitted = pin!(admit(cx, &request, &subject)).await;
        let granted = match admitted {
            Ok(held) if subject.truncate => {
                // Under the ticket: an OPEN that fails to cut its file leaves no open that its client knows nothing of.
                Box::pin(empty(cx, &subject)).await?;
                return finish(cx, &args, subject, &held.commit()?);
            }
            Ok(held) => held.commit().map_err(OpError::from),
            Err(error) => Err(error),
        };
        match granted {
            // The file went between finding its name and asking for its state: the name means another now.
            Err(OpError::Status(nfsstat4::NFS4ERR_STALE)) if named(&args.claim) => {}
            Err(error) => return Err(error),
            Ok(reply) => {
                // From here on the open keeps the row.
                if subject.making.take().is_some() {
                    cx.has_made(subject.inode.key);
                }
                if admission == Admission::Reclaim {
                    cx.server.note_reclaim();
                }
                return finish(cx, &args, subject, &reply);
            }
        }
    }
    Err(nfsstat4::NFS4ERR_DELAY.into())
}

/// RFC 9754 §5: who wants to answer for times says so; who reclaims names what it held.
fn keeps_times(args: &OPEN4args) -> bool {
    match &args.claim {
        open_claim4::CLAIM_PREVIOUS(held) => *held == open_delegation_type4::OPEN_DELEGATE_WRITE_ATTRS_DELEG,
        _ => args.share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_TIMESTAMPS != 0,
    }
}

fn admission(claim: &open_claim4) -> Admission {
    match claim {
        open_claim4::CLAIM_PREVIOUS(_) => Admission::Reclaim,
        open_claim4::CLAIM_DELEGATE_CUR(_) | open_claim4::CLAIM_DELEG_CUR_FH(_) => Admission::UnderDelegation,
        _ => Admission::New,
    }
}

fn named(claim: &open_claim4) -> bool {
    matches!(claim, open_claim4::CLAIM_NULL(_) | open_claim4::CLAIM_DELEGATE_CUR(_))
}

/// What the client asks of the file's state; the claim is completed by [`subject`].
fn request(cx: &Context, args: &OPEN4args) -> Result<OpenRequest, OpError> {
    let want_bits = args.share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
    let access = args.share_access & !WANTS;
    if args.owner.owner.len() > MAX_OWNER_BYTES {
        return Err(nfsstat4::NFS4ERR_INVAL.into());
    }
    let want = match want_bits {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => Want::Unsaid,
        OPEN4_SHARE_ACCESS_WANT_ANY_DELEG => Want::Any,
        OPEN4_SHARE_ACCESS_WANT_READ_DELEG => Want::Read,
        OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG => Want::Write,
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG | OPEN4_SHARE_ACCESS_WANT_CANCEL => Want::None,
        _ => return Err(nfsstat4::NFS4ERR_INVAL.into()),
    };
    Ok(OpenRequest {
        owner: OpenOwner::new(cx.client()?, &args.owner.owner),
        access: Access::from_bits(access).ok_or(nfsstat4::NFS4ERR_INVAL)?,
        deny: Deny::from_bits(args.share_deny).ok_or(nfsstat4::NFS4ERR_INVAL)?,
        claim: Claim::New,
        truncates: false,
        again: false,
        // What cannot be recalled is not given (§10.2.1).
        want: if cx.can_be_called() { want } else { Want::None },
        either: args.share_access & OPEN4_SHARE_ACCESS_WANT_OPEN_XOR_DELEGATION != 0,
        times: None,
        history: History::default(),
    })
}

/// What its inode says about delegating it.
fn history(cx: &Context, subject: &Subject) -> History {
    let inode = &subject.inode;
    // Times that clients chose say nothing.
    let quiet = i64::try_from(cx.server.config.delegation_quiet.as_secs()).unwrap_or(i64::MAX);
    let since = cx.server.env.clock.wall().seconds.saturating_sub(inode.ctime().seconds);
    History { change: inode.change, restless: subject.created || since < quiet }
}

/// The file that the claim means, made if the client wants that.
async fn subject(cx: &mut Context, args: &OPEN4args, request: &mut OpenRequest) -> Result<Subject, OpError> {
    match &args.claim {
        open_claim4::CLAIM_NULL(component) => match &args.openhow {
            openflag4::OPEN4_CREATE(how) if cx.is_read_only() => there(cx, component, how).await,
            // In a box: what lies around it is copied with it, and other OPENs need no room for it.
            openflag4::OPEN4_CREATE(how) => {
                Box::pin(create::create(cx, component, how, request.access)).await
            }
            openflag4::Default(opentype4::OPEN4_NOCREATE) => by_name(cx, component).await,
            openflag4::Default(_) => Err(nfsstat4::NFS4ERR_INVAL.into()),
        },
        open_claim4::CLAIM_FH => by_handle(cx).await,
        open_claim4::CLAIM_PREVIOUS(delegation) => {
            request.claim = Claim::Previous {
                delegation: match *delegation {
                    open_delegation_type4::OPEN_DELEGATE_NONE => Want::None,
                    open_delegation_type4::OPEN_DELEGATE_READ
                    | open_delegation_type4::OPEN_DELEGATE_READ_ATTRS_DELEG => Want::Read,
                    open_delegation_type4::OPEN_DELEGATE_WRITE
                    | open_delegation_type4::OPEN_DELEGATE_WRITE_ATTRS_DELEG => Want::Write,
                    _ => return Err(nfsstat4::NFS4ERR_INVAL.into()),
                },
            };
            by_handle(cx).await
        }
        open_claim4::CLAIM_DELEGATE_CUR(current) => {
            request.claim = under(cx, &current.delegate_stateid)?;
            by_name(cx, &current.file).await
        }
        open_claim4::CLAIM_DELEG_CUR_FH(stateid) => {
            request.claim = under(cx, stateid)?;
            by_handle(cx).await
        }
        // Delegations do not outlive a client's restart here (§10.2.1).
        open_claim4::CLAIM_DELEGATE_PREV(_) | open_claim4::CLAIM_DELEG_PREV_FH => {
            Err(nfsstat4::NFS4ERR_NOTSUPP.into())
        }
    }
}

/// The file knows its delegations only; one of before a restart and one that was revoked are told apart here (§8.2.4).
fn under(cx: &Context, wire: &stateid4) -> Result<Claim, OpError> {
    let stateid = cx.stateid(wire)?;
    cx.locate(&stateid)?;
    Ok(Claim::Delegation { stateid })
}

async fn by_name(cx: &mut Context, component: &[u8]) -> Result<Subject, OpError> {
    let name = cx.name(component)?;
    let directory = cx.current()?.inode;
    if cx.pseudo().is_some() {
        cx.exports.lookup(&directory, name.bytes(), &cx.from)?;
        return Err(nfsstat4::NFS4ERR_ISDIR.into());
    }
    let (namespace, who, name) = (&cx.server.namespace, &cx.who, &name);
    // The directory does not change; its change attribute is read for the sake of change_info4.
    let found = cx
        .server
        .read(|txn| {
            Box::pin(async move { namespace.lookup_with_directory(&txn, &directory, name, who).await })
        })
        .await;
    let (parent, inode) = match found {
        Err(FsError::NotDirectory) => return Err(not_a_directory(cx).await),
        found => found?,
    };
    if inode.kind().is_special() {
        return Err(SPECIAL.into());
    }
    let change = parent.change;
    Ok(existing(inode, DirectoryChange { before: change, after: change, atomic: false }))
}

/// Where all is read only nothing is made or emptied; what is there can be opened all the same (flock(1) and others do).
async fn there(cx: &mut Context, component: &[u8], how: &createhow4) -> Result<Subject, OpError> {
    let found = match by_name(cx, component).await {
        Err(OpError::Status(nfsstat4::NFS4ERR_NOENT)) => return Err(nfsstat4::NFS4ERR_ROFS.into()),
        found => found?,
    };
    match how {
        createhow4::UNCHECKED4(attributes) => {
            let empties = Wanted::read(cx, attributes).await?.size == Some(0);
            if empties { Err(nfsstat4::NFS4ERR_ROFS.into()) } else { Ok(found) }
        }
        _ => Err(nfsstat4::NFS4ERR_EXIST.into()),
    }
}

async fn by_handle(cx: &mut Context) -> Result<Subject, OpError> {
    let inode = cx.inode().await?;
    Ok(existing(inode, DirectoryChange { before: 0, after: 0, atomic: false }))
}

/// What an OPEN by name says of devices, sockets and FIFOs (RFC 7530 §16.16.6). RFC 8881 has WRONG_TYPE, which Linux does not
/// know: EIO to whoever opens a FIFO that this machine has not looked up yet. At this one it looks it up, and opens it itself.
pub(super) const SPECIAL: nfsstat4 = nfsstat4::NFS4ERR_SYMLINK;

fn existing(inode: Inode, change: DirectoryChange) -> Subject {
    let attrset = bitmap4::EMPTY;
    Subject { inode, change, created: false, found: false, attrset, truncate: false, making: None }
}

/// Cuts off the file, which is the current one from here on.
async fn empty(cx: &mut Context, subject: &Subject) -> Result<(), OpError> {
    let result = without_state(subject.change, SIZE_ONLY);
    cx.set_current_known(subject.inode.clone());
    set_size(cx, None, 0, &SetAttr::default(), &result).await
}

/// Judges permissions and asks the file's state.
pub(super) async fn admit(cx: &Context, request: &OpenRequest, subject: &Subject) -> Result<Held, OpError> {
    let inode = &subject.inode;
    match inode.kind() {
        Kind::File => {}
        Kind::Directory => return Err(nfsstat4::NFS4ERR_ISDIR.into()),
        Kind::Symlink => return Err(nfsstat4::NFS4ERR_SYMLINK.into()),
        _ => return Err(nfsstat4::NFS4ERR_WRONG_TYPE.into()),
    }
    // A file that was open for writing when its export became read only stays open: its data is refused.
    if cx.is_read_only() && request.claim == Claim::New && request.access.writes() && !subject.created {
        return Err(nfsstat4::NFS4ERR_ROFS.into());
    }
    permit_deny(cx, request, subject)?;
    let mut request = request.clone();
    if forfeits(cx, &request, inode)? {
        request.claim = Claim::Previous { delegation: Want::None };
    }
    // What an exclusive create finds is whose it is, whoever knows the verifier.
    let foreign = subject.found && inode.record.owned().require_owner(&cx.who).is_err();
    if !subject.created || foreign {
        permit_claim(cx, &mut request, subject)?;
    }
    let entry = cx.server.file(&inode.key).await?;
    if request.claim == Claim::New
        && !subject.created
        && !subject.truncate
        && settle::before_open(&cx.server, &entry, cx.came).await?
    {
        let now = settle::inode(&cx.server, inode.key).await?;
        remember(&mut request, &now);
    }
    if !entry.through(cx.client()?, cx.current()?.export) {
        request.want = Want::None;
    }
    let (mut expelled, mut behind) = (BTreeSet::new(), false);
    loop {
        let prepared = pin!(cx.server.prepare(&entry, &Intent::Open(request.clone()))).await;
        match prepared {
            // Courteous, but not in the way: a holder whose lease is over gives way (§8.3).
            // There may be several, each asked once.
            Err(Error::ShareDenied { holder })
                if expelled.insert(holder) && cx.server.expel_if_courtesy(holder).await => {}
            Err(Error::Resource) if make_room(cx).await || make_room_in(cx, &entry).await? => {}
            // It has lost a name since. While somebody is about to take one his ticket keeps it from being delegated.
            Ok(_) if forfeits(cx, &request, inode)? => {
                request.claim = Claim::Previous { delegation: Want::None };
            }
            Ok(held) if held.waited() && may_delegate_writing(&request) => {
                let now = Box::pin(settle::inode(&cx.server, inode.key)).await?;
                if now.change == request.history.change {
                    return Ok(held);
                }
                // Once: where it goes on changing it is delegated to nobody.
                match std::mem::replace(&mut behind, true) {
                    false => remember(&mut request, &now),
                    true => request.want = Want::None,
                }
            }
            held => return Ok(held?),
        }
    }
}

/// Whether it claims a delegation that its client does not get back.
fn forfeits(cx: &Context, request: &OpenRequest, inode: &Inode) -> Result<bool, nfsstat4> {
    let claims = matches!(request.claim, Claim::Previous { delegation } if delegation != Want::None);
    Ok(claims && cx.server.forfeits(cx.client()?, file_id(&inode.key)))
}

fn may_delegate_writing(request: &OpenRequest) -> bool {
    request.claim == Claim::New && request.want != Want::None && request.access.writes()
}

/// What its holder is shown of a file that is delegated to it is what is compared later with what it says.
fn remember(request: &mut OpenRequest, now: &Inode) {
    request.history.change = now.change;
    request.times = request.times.map(|_| delegated::stamps(now.record.atime, now.mtime()));
}

/// Where all clients together have too many files open, one whose lease is over gives way. False: there is none. Where those of one host
/// have, nobody else does.
pub(super) async fn make_room(cx: &Context) -> bool {
    cx.server.files.opens_of_all_are_full() && cx.server.expel_longest_silent(|held| held.opens > 0).await
}

/// Where one file is open too often, somebody gives way who has it open.
async fn make_room_in(cx: &Context, entry: &FileEntry) -> Result<bool, OpError> {
    let holders = cx.server.files.in_the_way_of_open(entry, cx.client()?);
    Ok(cx.server.expel_longest_silent_of(&holders).await)
}

/// Whether the client may have what it claims.
fn permit_claim(cx: &Context, request: &mut OpenRequest, subject: &Subject) -> Result<(), OpError> {
    let inode = &subject.inode;
    match request.claim {
        Claim::New => permit(cx, inode, request.access, subject.truncate),
        // Judged when the delegation was given; for what, the file's state knows (§10.4).
        Claim::Delegation { .. } => Ok(()),
        // Its owner may have made it with any mode, or may have changed the mode since.
        Claim::Previous { .. } if inode.record.owned().require_owner(&cx.who).is_ok() => Ok(()),
        Claim::Previous { delegation } => {
            permit(cx, inode, request.access, false)?;
            // What is opened under it is not judged again. Somebody else of this client may have been given it, and
            // reclaims it with an open of his own.
            if delegation == Want::Write && permit(cx, inode, Access::BOTH, false).is_err() {
                request.claim = Claim::Previous { delegation: Want::None };
            }
            Ok(())
        }
    }
}

/// Whether the caller may keep others from what it denies them, whatever it claims. Who may only read a file could keep everybody from
/// it: to deny reading takes the right to write, as with knfsd. To deny writing does not, where something may be written at all: what
/// is read stays as it is.
fn permit_deny(cx: &Context, request: &OpenRequest, subject: &Subject) -> Result<(), OpError> {
    if request.deny == Deny::NONE {
        return Ok(());
    }
    if cx.is_read_only() {
        return Err(nfsstat4::NFS4ERR_ROFS.into());
    }
    let owned = subject.inode.record.owned();
    // As with what is claimed, its owner may have made it with any mode.
    let own = (request.claim != Claim::New || subject.created) && owned.require_owner(&cx.who).is_ok();
    if request.deny.reads() && !own {
        owned.require(&cx.who, Permission::WRITE)?;
    }
    Ok(())
}

fn permit(cx: &Context, inode: &Inode, access: Access, truncate: bool) -> Result<(), OpError> {
    let owned = inode.record.owned();
    if access.reads() && !owned.permits(&cx.who, Permission::READ) {
        // A client that executes a file must read it.
        owned.require(&cx.who, Permission::EXECUTE)?;
    }
    if access.writes() || truncate {
        owned.require(&cx.who, Permission::WRITE)?;
    }
    Ok(())
}

pub(super) fn finish(
    cx: &mut Context,
    args: &OPEN4args,
    subject: Subject,
    reply: &Reply,
) -> OpResult<OPEN4res> {
    let Reply::Opened { stateid, delegation } = reply else {
        return Err(nfsstat4::NFS4ERR_SERVERFAULT.into());
    };
    if let Some(grant) = delegation {
        tracing::debug!(file = subject.inode.key.fileid.0, kind = ?grant.kind, "a delegation");
        if let Some(entry) = cx.server.files.get(file_id(&subject.inode.key)) {
            cx.server.given_by(&entry, &cx.exports, &cx.from);
        }
    }
    if !subject.truncate {
        cx.set_current_known(subject.inode);
    }
    if stateid.is_none() {
        // What comes with a delegation is from after it was given: its holder asks nobody any more. Beside an open it is read
        // again in any case.
        cx.forget_inode();
    }
    // RFC 9754 §4.1: with a delegation in place of the open, that is what the rest of the COMPOUND works under.
    cx.current_stateid = stateid.or(delegation.map(|grant| grant.stateid));
    // Open-unlinked files keep their data here: clients need no hidden names for them.
    let always = OPEN4_RESULT_LOCKTYPE_POSIX | OPEN4_RESULT_PRESERVE_UNLINKED | OPEN4_RESULT_MAY_NOTIFY_LOCK;
    Ok(OPEN4res::NFS4_OK(OPEN4resok {
        stateid: stateid.as_ref().map(to_wire).unwrap_or_default(),
        cinfo: change_info(subject.change),
        rflags: if stateid.is_some() { always } else { always | OPEN4_RESULT_NO_OPEN_STATEID },
        attrset: if subject.truncate { SIZE_ONLY } else { subject.attrset },
        delegation: delegation::wire(args.share_access, delegation.as_ref()),
    }))
}
