//! Outgoing calls that wait for their replies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The calls of one connection, by xid.
#[derive(Debug)]
pub(crate) struct PendingCalls {
    next: AtomicU32,
    /// `None` once the connection is closed.
    waiting: Mutex<Option<BTreeMap<u32, oneshot::Sender<Bytes>>>>,
}

impl PendingCalls {
    /// The first xid is drawn at random, so that a peer's reply cache does not mistake a new connection's
    /// calls for an old one's.
    pub(crate) fn new(first: u32) -> Self {
        Self { next: first.into(), waiting: Mutex::new(Some(BTreeMap::new())) }
    }

    /// Enlists a call; `None` when the connection is closed.
    pub(crate) fn enlist(&self) -> Option<PendingCall<'_>> {
        let mut waiting = self.waiting.lock();
        let waiting = waiting.as_mut()?;
        let (sender, reply) = oneshot::channel();
        loop {
            let xid = self.next.fetch_add(1, Ordering::Relaxed);
            if let std::collections::btree_map::Entry::Vacant(entry) = waiting.entry(xid) {
                entry.insert(sender);
                return Some(PendingCall { calls: self, xid, reply });
            }
        }
    }

    /// Hands a reply to its caller; false if nobody waits for it (any more).
    pub(crate) fn complete(&self, xid: u32, record: Bytes) -> bool {
        let sender = self.waiting.lock().as_mut().and_then(|waiting| waiting.remove(&xid));
        sender.is_some_and(|sender| sender.send(record).is_ok())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().as_ref().is_none_or(BTreeMap::is_empty)
    }

    /// Fails every call and refuses new ones.
    pub(crate) fn close(&self) {
        drop(self.waiting.lock().take());
    }
}

/// One call; forgotten on drop, so that a late reply finds nobody.
#[derive(Debug)]
pub(crate) struct PendingCall<'a> {
    calls: &'a PendingCalls,
    pub(crate) xid: u32,
    reply: oneshot::Receiver<Bytes>,
}

impl PendingCall<'_> {
    /// The reply's record; `None` when the connection closed first.
    pub(crate) async fn reply(&mut self) -> Option<Bytes> {
        (&mut self.reply).await.ok()
    }
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.calls.waiting.lock().as_mut() {
            waiting.remove(&self.xid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn replies_find_their_callers_and_nobody_else() {
        let calls = PendingCalls::new(u32::MAX);
        let mut a = calls.enlist().unwrap();
        let mut b = calls.enlist().unwrap();
        assert_eq!((a.xid, b.xid), (u32::MAX, 0), "xids wrap");
        assert!(calls.complete(b.xid, "b".into()));
        assert!(calls.complete(a.xid, "a".into()));
        assert!(!calls.complete(a.xid, "again".into()));
        assert_eq!(a.reply().await.unwrap(), "a");
        assert_eq!(b.reply().await.unwrap(), "b");
    }

    #[tokio::test]
    async fn closing_fails_the_waiting_and_forgets_the_gone() {
        let calls = PendingCalls::new(1);
        let mut a = calls.enlist().unwrap();
        let xid = calls.enlist().unwrap().xid;
        assert!(!calls.complete(xid, Bytes::new()), "its caller is gone");
        calls.close();
        assert_eq!(a.reply().await, None);
        assert!(calls.enlist().is_none() && calls.is_empty());
    }
}
