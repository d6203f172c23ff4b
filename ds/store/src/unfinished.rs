//! Work that others wait for, done by a thread that fails in the middle.

/// Does something if the thread that holds it fails: whoever waits must not do so for ever.
pub(crate) struct Unfinished<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for Unfinished<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}
