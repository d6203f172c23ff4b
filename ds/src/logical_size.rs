//! Where a file ends whose data file may end before it.
//!
//! A data file of a striped file, or of one that was made longer without being written, may end long before the file does. Its
//! logical size is asked for when a read needs more than is known. A bound once known answers reads below it; at or beyond it
//! the file may have grown since, so the metadata server is asked again. It tells of an end that it moves back (and, before this release, of one that it moved on).

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use parking_lot::Mutex;
use sluice_store::FileKey;
use sluice_xdr::control::{CONTROL_LOGICAL_SIZE, LOGICAL_SIZE_args, LOGICAL_SIZE_res};
use tokio::sync::oneshot;

use crate::shared::Shared;

/// Files remembered; the cache starts anew when it is full.
const MOST: usize = 1 << 16;

/// Where a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    At(u64),
    /// Behind this, and only a data server knows that is given up.
    Behind(u64),
}

type Waiter = oneshot::Sender<Option<End>>;

#[derive(Debug, Default)]
struct Known {
    /// In bytes, if anything is known.
    size: Option<u64>,
    /// Pushes so far: an answer that a push has overtaken is void.
    pushes: u64,
    asking: bool,
    waiters: Vec<Waiter>,
    /// They came after the question was asked: the file may have grown since, and they may know that it has.
    next: Vec<Waiter>,
}

/// What is known, by data file id: all slots of a file share its size.
#[derive(Debug, Default)]
pub(crate) struct LogicalSizes {
    files: Mutex<HashMap<u64, Known, FixedState>>,
}

impl LogicalSizes {
    /// The size known for `file`, in bytes.
    pub(crate) fn known(&self, file: u64) -> Option<u64> {
        self.files.lock().get(&file).and_then(|known| known.size)
    }

    /// The metadata server says so.
    pub(crate) fn push(&self, file: u64, size: u64) {
        let mut files = self.files.lock();
        make_room(&mut files);
        let known = files.entry(file).or_default();
        known.size = Some(size);
        known.pushes += 1;
    }

    /// Pushes may have been missed.
    pub(crate) fn forget(&self) {
        let mut files = self.files.lock();
        files.retain(|_, known| known.asking);
        for known in files.values_mut() {
            known.size = None;
            known.pushes += 1;
        }
    }

    /// Pushes so far, if the caller is to ask.
    fn start(&self, file: u64, waiter: Waiter) -> Option<u64> {
        let mut files = self.files.lock();
        make_room(&mut files);
        let known = files.entry(file).or_default();
        if std::mem::replace(&mut known.asking, true) {
            known.next.push(waiter);
            return None;
        }
        known.waiters.push(waiter);
        Some(known.pushes)
    }

    /// Ends a question that was begun after `pushes` pushes. Pushes so far, if the caller is to ask again.
    fn finish(&self, file: u64, pushes: u64, answer: Option<End>) -> Option<u64> {
        let mut files = self.files.lock();
        let known = files.get_mut(&file)?;
        let overtaken = known.pushes != pushes;
        let answer = match answer {
            Some(End::At(_)) if overtaken => known.size.map(End::At),
            // It may be known since.
            Some(End::Behind(_)) if overtaken => None,
            Some(End::At(size)) => {
                known.size = Some(size);
                answer
            }
            // Not remembered: whoever reads up to what is remembered is told of an end there.
            Some(End::Behind(_)) | None => answer,
        };
        for waiter in known.waiters.drain(..) {
            // A reader that went away needs no answer.
            let _ = waiter.send(answer);
        }
        known.waiters = std::mem::take(&mut known.next);
        known.asking = !known.waiters.is_empty();
        known.asking.then_some(known.pushes)
    }
}

fn make_room(files: &mut HashMap<u64, Known, FixedState>) {
    if files.len() >= MOST {
        files.retain(|_, known| known.asking);
    }
}

impl Shared {
    /// The logical size of the file of `key`, good enough to judge bytes below `end`; `None` when the
    /// metadata server does not answer. Those who come while it is asked share the next question.
    pub(crate) async fn logical_size(self: &Arc<Self>, key: FileKey, end: u64) -> Option<End> {
        let known = self.sizes.known(key.file);
        if let Some(size) = known.filter(|size| *size >= end) {
            return Some(End::At(size));
        }
        let (waiter, wait) = oneshot::channel();
        let mut lead = self.sizes.start(key.file, waiter);
        if lead.is_some() {
            let shared = Arc::clone(self);
            // A task of its own: others wait for the answer even if this reader goes away.
            self.env.spawn.spawn(Box::pin(async move {
                while let Some(pushes) = lead {
                    let answer = shared.ask_logical_size(key).await;
                    lead = shared.sizes.finish(key.file, pushes, answer);
                }
            }));
        }
        wait.await.ok().flatten()
    }

    async fn ask_logical_size(&self, key: FileKey) -> Option<End> {
        let args = LOGICAL_SIZE_args { file: key.file, slot: u32::from(key.slot) };
        let result: LOGICAL_SIZE_res = match self.mds.call(CONTROL_LOGICAL_SIZE, &args).await {
            Ok(result) => result,
            Err(error) => {
                tracing::debug!(file = %key, %error, "the logical size cannot be asked for");
                return None;
            }
        };
        match result {
            LOGICAL_SIZE_res::CTL_OK(size) => Some(End::At(size)),
            LOGICAL_SIZE_res::CTL_ERR_END(known) => Some(End::Behind(known)),
            LOGICAL_SIZE_res::Default(status) => {
                tracing::debug!(file = %key, ?status, "the logical size is refused");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_beats_an_answer_it_overtook() {
        let sizes = LogicalSizes::default();
        let (a, mut first) = oneshot::channel();
        let (b, mut second) = oneshot::channel();
        let pushes = sizes.start(1, a);
        assert_eq!(pushes, Some(0));
        assert_eq!(sizes.start(1, b), None, "already asked");
        sizes.push(1, 10);
        assert_eq!(sizes.finish(1, 0, Some(End::At(99))), Some(1));
        assert_eq!((first.try_recv().ok(), second.try_recv().ok()), (Some(Some(End::At(10))), None));
        assert_eq!(sizes.known(1), Some(10));
        // Whoever came later may know that the file has grown since it was asked.
        assert_eq!(sizes.finish(1, 1, Some(End::At(20))), None);
        assert_eq!((second.try_recv().ok(), sizes.known(1)), (Some(Some(End::At(20))), Some(20)));
        let (c, mut third) = oneshot::channel();
        let pushes = sizes.start(1, c);
        assert_eq!(pushes, Some(1));
        assert_eq!(sizes.finish(1, 1, None), None);
        assert_eq!(third.try_recv().ok(), Some(None), "no answer is not the old answer");
        sizes.forget();
        assert_eq!(sizes.known(1), None);
    }
}
