//! The procedures of RFC 1813 §3.3, one row each.

use std::sync::Arc;

use sluice_env::BoxFuture;
use sluice_rpc::{Call, Reply};

use super::{commit, fsinfo, fsstat, getattr, null, read, write};
use crate::shared::Shared;

pub(super) type Handler = for<'a> fn(&'a Arc<Shared>, Call) -> BoxFuture<'a, Reply>;

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
    serve("NULL", |_, call| Box::pin(std::future::ready(null::run(&call.args)))),
    serve("GETATTR", |shared, call| Box::pin(getattr::run(shared, call.connection, call.args))),
    refuse("SETATTR", 2),
    refuse("LOOKUP", 1),
    refuse("ACCESS", 1),
    refuse("READLINK", 1),
    serve("READ", |shared, call| Box::pin(read::run(shared, call.connection, call.args))),
    serve("WRITE", |shared, call| Box::pin(write::run(shared, call))),
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
    serve("FSSTAT", |shared, call| Box::pin(fsstat::run(shared, call.connection, call.args))),
    serve("FSINFO", |shared, call| Box::pin(fsinfo::run(shared, call.connection, call.args))),
    refuse("PATHCONF", 1),
    serve("COMMIT", |shared, call| Box::pin(commit::run(shared, call.connection, call.args))),
];
