//! Everything about an operation in one row: number, since which minor version, what it needs, how
//! large its reply can be, who handles it. RFC 8881 §17, §18; RFC 7862 §13, §15; RFC 8276 §8.

use std::fmt;
use std::pin::Pin;
use std::task::{self, Poll};

use pin_project_lite::pin_project;
use sluice_env::BoxFuture;
use sluice_xdr::nfs4::{nfs_argop4, nfs_opnum4, nfs_resop4, nfsstat4};

use super::{Context, OpResult};
use crate::ops::{
    access, allocate, backchannel_ctl, bind_conn_to_session, clone, close, commit, copy, create,
    create_session, deallocate, delegreturn, destroy_clientid, destroy_session, exchange_id, free_stateid,
    get_dir_delegation, getattr, getdeviceinfo, getfh, getxattr, io_advise, layoutcommit, layouterror,
    layoutget, layoutreturn, layoutstats, link, listxattrs, lock, lockt, locku, lookup, lookupp, notsupp,
    nverify, offload_cancel, offload_status, open, open_downgrade, openattr, putfh, putrootfh, read,
    read_plus, readdir, readlink, reclaim_complete, remove, removexattr, rename, restorefh, savefh, secinfo,
    secinfo_no_name, seek, sequence, setattr, setxattr, test_stateid, verify, write,
};

/// What an operation needs and does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(u16);

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    /// Needs a current filehandle.
    pub(crate) const CURRENT: Self = Self(1);
    /// Needs a saved filehandle.
    pub(crate) const SAVED: Self = Self(2);
    /// Changes something: its reply must be sure to fit before it runs.
    pub(crate) const MODIFIES: Self = Self(4);
    /// May stand alone without SEQUENCE.
    pub(crate) const SESSIONLESS: Self = Self(8);
    /// May not follow SEQUENCE.
    pub(crate) const ALONE: Self = Self(16);
    /// Is SEQUENCE.
    pub(crate) const SEQUENCE: Self = Self(32);
    /// Part of what it does is in memory: when a restart lost that, it runs again, given what its transaction
    /// led to ([`Context::done_before`]).
    pub(crate) const HALF: Self = Self(64);

    /// Changes files or names: refused where all is read only. OPEN and LAYOUTGET, which may, say so themselves.
    pub(crate) const CHANGES_FILES: Self = Self(128);
    /// Gives back what the client holds, or only moves filehandles: good whatever became of the export.
    pub(crate) const RELEASES: Self = Self(256);
    /// Means something in a directory that only leads to exports.
    pub(crate) const PSEUDO: Self = Self(512);
    /// Sets the current filehandle without walking there.
    pub(crate) const PUTS: Self = Self(1024);
    /// Asks which security flavours are good.
    pub(crate) const FLAVOURS: Self = Self(2048);
    /// Goes to another object by name, and judges the caller's flavour there.
    pub(crate) const WALKS: Self = Self(4096);
    /// Keeps clients and sessions alive and looks at no file: good even where the metadata are an older copy.
    pub(crate) const UPKEEP: Self = Self(8192);

    /// [`Flags::CURRENT`] of what changes a file or a name.
    const CHANGE: Self = Self::CURRENT.or(Self::MODIFIES).or(Self::CHANGES_FILES);
    /// [`Flags::CURRENT`] of what directories that only lead to exports can be asked.
    const LOOK: Self = Self::CURRENT.or(Self::PSEUDO);

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Runs one decoded operation.
#[derive(Clone, Copy)]
pub(crate) enum Handler {
    /// It waits for nothing: every COMPOUND has one or two of those, which need no future, and no memory for one.
    AtOnce(fn(&mut Context, nfs_argop4) -> OpResult<nfs_resop4>),
    Waits(for<'a> fn(&'a mut Context, nfs_argop4) -> BoxFuture<'a, OpResult<nfs_resop4>>),
}

pin_project! {
    /// A handler on its way to the arm of its result. No `async` block: that would have the handler's future copied into it
    /// once more, and its arguments twice.
    struct Answered<F, A> {
        #[pin]
        running: F,
        answer: A,
    }
}

impl<F, A, T> Future for Answered<F, A>
where
    F: Future<Output = OpResult<T>>,
    A: Fn(T) -> nfs_resop4,
{
    type Output = OpResult<nfs_resop4>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.running.poll(cx).map(|result| result.map(this.answer))
    }
}

/// One operation.
pub(crate) struct Row {
    pub(crate) op: nfs_opnum4,
    /// The RFC's name without OP_.
    pub(crate) name: &'static str,
    /// First minor version that has it; `u32::MAX` for what NFSv4.1 abolished.
    pub(crate) since: u32,
    pub(crate) flags: Flags,
    /// Largest successful result in bytes, operation number included, of an operation that MODIFIES; the fixed part
    /// otherwise, and of LAYOUTGET, which looks for room for the rest itself. The data that others are asked for: `bound.rs`.
    pub(crate) reply_max: usize,
    pub(crate) run: Handler,
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! row {
    ($op:ident, obsolete, $flags:expr, $max:expr) => {
        row!(@ $op, u32::MAX, $flags, $max, Handler::AtOnce(|_, _| Err(nfsstat4::NFS4ERR_NOTSUPP.into())))
    };
    ($op:ident, $since:expr, $flags:expr, $max:expr, declined $path:path) => {
        row!(@ $op, $since, $flags, $max, Handler::AtOnce(|cx, op| $path(cx, &op)))
    };
    ($op:ident, $since:expr, $flags:expr, $max:expr, at_once void $path:path) => {
        row!(@ $op, $since, $flags, $max, Handler::AtOnce(|cx, _| $path(cx).map(nfs_resop4::$op)))
    };
    ($op:ident, $since:expr, $flags:expr, $max:expr, at_once args $path:path) => {
        row!(@ $op, $since, $flags, $max, Handler::AtOnce(|cx, op| match op {
            nfs_argop4::$op(args) => $path(cx, args).map(nfs_resop4::$op),
            _ => Err(nfsstat4::NFS4ERR_SERVERFAULT.into()),
        }))
    };
    ($op:ident, $since:expr, $flags:expr, $max:expr, void $path:path) => {
        row!(@ $op, $since, $flags, $max, Handler::Waits(|cx, _| {
            Box::pin(Answered { running: $path(cx), answer: nfs_resop4::$op })
        }))
    };
    ($op:ident, $since:expr, $flags:expr, $max:expr, args $path:path) => {
        row!(@ $op, $since, $flags, $max, Handler::Waits(|cx, op| match op {
            nfs_argop4::$op(args) => Box::pin(Answered { running: $path(cx, args), answer: nfs_resop4::$op }),
            _ => Box::pin(std::future::ready(Err(nfsstat4::NFS4ERR_SERVERFAULT.into()))),
        }))
    };
    (@ $op:ident, $since:expr, $flags:expr, $max:expr, $run:expr) => {
        Row {
            op: nfs_opnum4::$op,
            name: stringify!($op).split_at(3).1,
            since: $since,
            flags: $flags,
            reply_max: $max,
            run: $run,
        }
    };
}

/// Ordered by number.
pub(crate) static TABLE: &[Row] = &[
    row!(OP_ACCESS, 1, Flags::LOOK, 16, args access::access),
    row!(OP_CLOSE, 1, Flags::CURRENT.or(Flags::MODIFIES.or(Flags::RELEASES)), 24, args close::close),
    row!(OP_COMMIT, 1, Flags::CURRENT.or(Flags::MODIFIES), 16, args commit::commit),
    row!(OP_CREATE, 1, Flags::CHANGE, 64, args create::create),
    row!(OP_DELEGPURGE, 1, Flags::NONE, 8, declined notsupp::notsupp),
    row!(OP_DELEGRETURN, 1, Flags::CURRENT.or(Flags::MODIFIES.or(Flags::RELEASES)), 8, at_once args delegreturn::delegreturn),
    row!(OP_GETATTR, 1, Flags::LOOK, 8, args getattr::getattr),
    row!(OP_GETFH, 1, Flags::LOOK.or(Flags::RELEASES), 140, at_once void getfh::getfh),
    row!(OP_LINK, 1, Flags::CHANGE.or(Flags::SAVED), 28, args link::link),
    row!(OP_LOCK, 1, Flags::CURRENT.or(Flags::MODIFIES), 1072, args lock::lock),
    row!(OP_LOCKT, 1, Flags::CURRENT, 1072, args lockt::lockt),
    row!(OP_LOCKU, 1, Flags::CURRENT.or(Flags::MODIFIES.or(Flags::RELEASES)), 24, at_once args locku::locku),
    row!(OP_LOOKUP, 1, Flags::LOOK.or(Flags::WALKS), 8, args lookup::lookup),
    row!(OP_LOOKUPP, 1, Flags::LOOK.or(Flags::WALKS), 8, void lookupp::lookupp),
    row!(OP_NVERIFY, 1, Flags::LOOK, 8, args nverify::nverify),
    row!(OP_OPEN, 1, Flags::LOOK.or(Flags::WALKS.or(Flags::MODIFIES.or(Flags::HALF))), 160, args open::open),
    row!(OP_OPENATTR, 1, Flags::CURRENT, 8, at_once args openattr::openattr),
    row!(OP_OPEN_CONFIRM, obsolete, Flags::NONE, 8),
    row!(OP_OPEN_DOWNGRADE, 1, Flags::CURRENT.or(Flags::MODIFIES), 24, args open_downgrade::open_downgrade),
    row!(OP_PUTFH, 1, Flags::PUTS, 8, at_once args putfh::putfh),
    row!(OP_PUTPUBFH, 1, Flags::PUTS, 8, at_once void putrootfh::putpubfh),
    row!(OP_PUTROOTFH, 1, Flags::PUTS, 8, at_once void putrootfh::putrootfh),
    row!(OP_READ, 1, Flags::LOOK, 16, args read::read),
    row!(OP_READDIR, 1, Flags::LOOK, 24, args readdir::readdir),
    row!(OP_READLINK, 1, Flags::LOOK, 12, void readlink::readlink),
    row!(OP_REMOVE, 1, Flags::CHANGE, 28, args remove::remove),
    row!(OP_RENAME, 1, Flags::CHANGE.or(Flags::SAVED), 48, args rename::rename),
    row!(OP_RENEW, obsolete, Flags::NONE, 8),
    row!(OP_RESTOREFH, 1, Flags::SAVED.or(Flags::PUTS), 8, at_once void restorefh::restorefh),
    row!(OP_SAVEFH, 1, Flags::LOOK.or(Flags::RELEASES), 8, at_once void savefh::savefh),
    row!(OP_SECINFO, 1, Flags::LOOK.or(Flags::FLAVOURS), 64, args secinfo::secinfo),
    row!(OP_SETATTR, 1, Flags::CHANGE, 32, args setattr::setattr),
    row!(OP_SETCLIENTID, obsolete, Flags::NONE, 8),
    row!(OP_SETCLIENTID_CONFIRM, obsolete, Flags::NONE, 8),
    row!(OP_VERIFY, 1, Flags::LOOK, 8, args verify::verify),
    row!(OP_WRITE, 1, Flags::CHANGE, 24, args write::write),
    row!(OP_RELEASE_LOCKOWNER, obsolete, Flags::NONE, 8),
    row!(OP_BACKCHANNEL_CTL, 1, Flags::MODIFIES.or(Flags::UPKEEP), 8, args backchannel_ctl::backchannel_ctl),
    row!(OP_BIND_CONN_TO_SESSION, 1, Flags::SESSIONLESS.or(Flags::ALONE.or(Flags::MODIFIES.or(Flags::UPKEEP))), 32, at_once args bind_conn_to_session::bind_conn_to_session),
    row!(OP_EXCHANGE_ID, 1, Flags::SESSIONLESS.or(Flags::MODIFIES.or(Flags::UPKEEP)), 2300, args exchange_id::exchange_id),
    row!(OP_CREATE_SESSION, 1, Flags::SESSIONLESS.or(Flags::MODIFIES.or(Flags::UPKEEP)), 128, args create_session::create_session),
    row!(OP_DESTROY_SESSION, 1, Flags::SESSIONLESS.or(Flags::MODIFIES.or(Flags::UPKEEP)), 8, args destroy_session::destroy_session),
    row!(OP_FREE_STATEID, 1, Flags::MODIFIES, 8, at_once args free_stateid::free_stateid),
    row!(OP_GET_DIR_DELEGATION, 1, Flags::CURRENT, 12, at_once args get_dir_delegation::get_dir_delegation),
    row!(OP_GETDEVICEINFO, 1, Flags::NONE, 16, at_once args getdeviceinfo::getdeviceinfo),
    row!(OP_GETDEVICELIST, 1, Flags::CURRENT, 8, declined notsupp::notsupp),
    row!(OP_LAYOUTCOMMIT, 1, Flags::CURRENT.or(Flags::MODIFIES), 24, args layoutcommit::layoutcommit),
    row!(OP_LAYOUTGET, 1, Flags::CURRENT.or(Flags::MODIFIES), layoutget::AROUND, args layoutget::layoutget),
    row!(OP_LAYOUTRETURN, 1, Flags::CURRENT.or(Flags::MODIFIES.or(Flags::RELEASES)), 32, args layoutreturn::layoutreturn),
    row!(OP_SECINFO_NO_NAME, 1, Flags::LOOK.or(Flags::FLAVOURS), 64, args secinfo_no_name::secinfo_no_name),
    row!(OP_SEQUENCE, 1, Flags::SEQUENCE.or(Flags::SESSIONLESS.or(Flags::UPKEEP)), 48, at_once args sequence::sequence),
    row!(OP_SET_SSV, 1, Flags::NONE, 8, declined notsupp::notsupp),
    row!(OP_TEST_STATEID, 1, Flags::NONE, 12, at_once args test_stateid::test_stateid),
    row!(OP_WANT_DELEGATION, 1, Flags::CURRENT, 8, declined notsupp::notsupp),
    row!(OP_DESTROY_CLIENTID, 1, Flags::SESSIONLESS.or(Flags::MODIFIES.or(Flags::UPKEEP)), 8, args destroy_clientid::destroy_clientid),
    row!(OP_RECLAIM_COMPLETE, 1, Flags::MODIFIES.or(Flags::UPKEEP), 8, args reclaim_complete::reclaim_complete),
    row!(OP_ALLOCATE, 2, Flags::CHANGE, 8, args allocate::allocate),
    row!(OP_COPY, 2, Flags::CHANGE.or(Flags::SAVED), 64, args copy::copy),
    row!(OP_COPY_NOTIFY, 2, Flags::CURRENT, 8, declined notsupp::notsupp),
    row!(OP_DEALLOCATE, 2, Flags::CHANGE, 8, args deallocate::deallocate),
    row!(OP_IO_ADVISE, 2, Flags::CURRENT, 48, args io_advise::io_advise),
    row!(OP_LAYOUTERROR, 1, Flags::CURRENT, 8, args layouterror::layouterror),
    row!(OP_LAYOUTSTATS, 1, Flags::CURRENT, 8, args layoutstats::layoutstats),
    row!(OP_OFFLOAD_CANCEL, 2, Flags::CURRENT.or(Flags::MODIFIES), 8, args offload_cancel::offload_cancel),
    row!(OP_OFFLOAD_STATUS, 2, Flags::CURRENT, 24, at_once args offload_status::offload_status),
    row!(OP_READ_PLUS, 2, Flags::CURRENT, 16, args read_plus::read_plus),
    row!(OP_SEEK, 2, Flags::CURRENT, 24, args seek::seek),
    row!(OP_WRITE_SAME, 2, Flags::CURRENT, 8, declined notsupp::notsupp),
    row!(OP_CLONE, 2, Flags::CHANGE.or(Flags::SAVED), 8, args clone::clone),
    row!(OP_GETXATTR, 2, Flags::CURRENT, 12, args getxattr::getxattr),
    row!(OP_SETXATTR, 2, Flags::CHANGE, 28, args setxattr::setxattr),
    row!(OP_LISTXATTRS, 2, Flags::CURRENT, 24, args listxattrs::listxattrs),
    row!(OP_REMOVEXATTR, 2, Flags::CHANGE, 28, args removexattr::removexattr),
];

/// The row of `number` in minor version `minor`. `None`: the operation is illegal there.
///
/// LAYOUTERROR and LAYOUTSTATS are accepted in minor version 1 too: Linux sends LAYOUTSTATS on such
/// mounts whenever it was built with NFSv4.2 and takes OP_ILLEGAL for a protocol error.
pub(crate) fn find(number: u32, minor: u32) -> Option<&'static Row> {
    let at = TABLE.binary_search_by_key(&number, |row| row.op.0).ok()?;
    TABLE.get(at).filter(|row| row.since <= minor || row.since == u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_ordered_by_number_and_complete() {
        assert!(TABLE.windows(2).all(|pair| pair[0].op.0 < pair[1].op.0));
        for number in 3..=75 {
            assert!(find(number, 2).is_some(), "operation {number} has no row");
        }
        assert!(find(2, 2).is_none());
        assert!(find(76, 2).is_none());
    }

    #[test]
    fn newer_operations_are_illegal_in_minor_version_one() {
        assert!(find(nfs_opnum4::OP_ALLOCATE.0, 1).is_none());
        assert!(find(nfs_opnum4::OP_LAYOUTSTATS.0, 1).is_some());
    }
}
