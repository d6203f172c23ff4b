//! Small reads of bytes that are on their way from the device: one thread waits for many of them, and answers them itself.

use std::sync::Arc;

use bytes::BytesMut;

use crate::FileKey;
use crate::data_file::DataFile;
use crate::lane::Turn;
use crate::store::Store;

/// A data file that is open, a few bytes of which were asked for by [`Store::read_now`] in vain.
#[derive(Debug)]
pub struct Soon {
    store: Arc<Store>,
    file: Arc<DataFile>,
}

impl Store {
    /// `None` where the data file is not open, or nothing was begun: each such read wants a thread for itself.
    pub fn soon(self: &Arc<Self>, key: FileKey) -> Option<Soon> {
        let file = self.files.get(key).filter(|file| file.file.begins_reads())?;
        Some(Soon { file, store: Arc::clone(self) })
    }
}

impl Soon {
    /// Fills `buffer` from `at` on and hands it to `then`, on a thread that may block; `None`, if that cannot be done in
    /// full: [`Store::read_at`] knows why.
    pub fn read(
        self,
        offset: u64,
        mut buffer: BytesMut,
        at: usize,
        then: impl FnOnce(Option<BytesMut>) + Send + 'static,
    ) {
        let Self { store, file } = self;
        let work = move || {
            let place = buffer.get_mut(at..).unwrap_or_default();
            let full = file.file.read_at(place, offset).is_ok_and(|n| n == place.len());
            // First: who has the answer may close the store, and open it again.
            drop(file);
            then(full.then_some(buffer));
        };
        store.wait_lane.run(&store.env, Turn::Any, work);
    }
}
