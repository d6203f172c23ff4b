//! Operations of the metadata server: whole COMPOUND in, whole COMPOUND out. One module per operation,
//! mirroring src/ops.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    missing_debug_implementations,
    reason = "tests"
)]

mod callbacks;
mod calls;
mod data_server;
mod harness;
mod inline;

mod acl;
mod admin;
mod away;
mod bind_conn_to_session;
mod callback;
mod classes;
mod client_names;
mod compare;
mod copy;
mod create;
mod create_session;
mod delegated_news;
mod delegated_times;
mod delegation;
mod denies;
mod destroy_session;
mod drain;
mod exchange_id;
mod exports;
mod failed_store;
mod fences;
mod free_stateid;
mod getattr;
mod groups;
mod layout_recall;
mod layoutcommit;
mod layouterror;
mod lock;
mod lockout;
mod locks;
mod logged;
mod lookup;
mod machine_credential;
mod mirrors;
mod monitor;
mod names;
mod notsupp;
mod open;
mod owners;
mod persistence;
mod pressure;
mod protection;
mod quota;
mod quota_book;
mod quota_races;
mod quota_writers;
mod readdir;
mod recalls;
mod reclaim_complete;
mod register;
mod removals;
mod remove;
mod sequence;
mod set_id;
mod statfs;
mod strangers;
mod tenants;
mod tickets;
mod unfreed;
mod units;
mod why;
mod write_only;
mod xattrs;
