//! NULL, RFC 1813 §3.3.0: the first thing a client sends, before its layout is of any use.

use bytes::Bytes;
use sluice_rpc::{Frame, Reply};

pub(super) fn run(args: &Bytes) -> Reply {
    if args.is_empty() { Reply::Success(Frame::empty()) } else { Reply::GarbageArgs }
}
