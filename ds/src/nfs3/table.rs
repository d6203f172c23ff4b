//! The procedures of RFC 1813 §3.3, one row each.

use std::sync::Arc;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_rpc::Reply;

use super::{commit, fsinfo, fsstat, getattr, null, read, write};
use crate::shared::Shared;

/// Runs one procedure on its encoded arguments.
pub(super) type Handler = for<'a> fn(&'a Arc<Shared>, Bytes) -> BoxFuture<'a, Reply>;

pub(super) enum Run {
    Serve(Handler),
    /// NFS3ERR_NOTSUPP, followed by so many words that say "no attributes".
    Refuse(usize),
}

pub(super) struct Row {
    /// As RFC 1813 spells it; the number is the position in the table.
    pub(super) name: &'static str,
    pub(super) run: Run,
}

const fn serve(name: &'static str, run: Handler) -> Row {
    Row { name, run: Run::Serve(run) }
}

const fn refuse(name: &'static str, words: usize) -> Row {
    Row { name, run: Run::Refuse(words) }
}

pub(super) static TABLE: [Row; 22] = [
    serve("NULL", |_, args| Box::pin(std::future::ready(null::run(&args)))),
    serve("GETATTR", |shared, args| Box::pin(getattr::run(shared, args))),
    refuse("SETATTR", 2),
    refuse("LOOKUP", 1),
    refuse("ACCESS", 1),
    refuse("READLINK", 1),
    serve("READ", |shared, args| Box::pin(read::run(shared, args))),
    serve("WRITE", |shared, args| Box::pin(write::run(shared, args))),
    refuse("CREATE", 2),
    refuse("MKDIR", 2),
    refuse("SYMLINK", 2),
    refuse("MKNOD", 2),
    refuse("REMOVE", 2),
    refuse("RMDIR", 2),
    refuse("RENAME", 4),
    refuse("LINK", 3),
    refuse("READDIR", 1),
    refuse("READDIRPLUS", 1),
    serve("FSSTAT", |shared, args| Box::pin(fsstat::run(shared, args))),
    serve("FSINFO", |shared, args| Box::pin(fsinfo::run(shared, args))),
    refuse("PATHCONF", 1),
    serve("COMMIT", |shared, args| Box::pin(commit::run(shared, args))),
];
