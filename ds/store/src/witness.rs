//! A second witness, for devices that answer questions and take no writes: a file system that was frozen, a path that queues
//! what is written. A flush tells nothing: it may have much before it, and last for minutes on a device that is well. This is a
//! block of the store's own that is written over in place, past the page cache and without a flush, so that it waits for nobody
//! but the device; and, as every change does, for a file system that is frozen.

use std::io;

use crate::device::Device;
use crate::format::WITNESS;

/// Of what no device asks more.
const BLOCK: usize = 4096;

/// Makes the file, so that nothing is to be allocated later. Blocking. Where that fails there is no witness before the next start.
pub(crate) fn prepare(device: &dyn Device) {
    if let Err(error) = make(device) {
        tracing::debug!(store = %device.name(), %error, "there is no witness to the device");
    }
}

fn make(device: &dyn Device) -> io::Result<()> {
    match device.stat(WITNESS) {
        Ok(there) if there.size >= BLOCK as u64 => return Ok(()),
        // A start ended in the middle.
        Ok(_) => device.remove(WITNESS)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let file = device.create(WITNESS)?;
    file.write_at(&[0; BLOCK], 0)?;
    // Without its name it would only be made once more.
    file.sync_data()
}

/// Returns when the device has taken a block, or refuses it, which others see as well; at once where there is no witness. Blocking.
pub(crate) fn call(device: &dyn Device) {
    if let Err(error) = device.overwrite(WITNESS, &[0; BLOCK]) {
        tracing::debug!(store = %device.name(), %error, "the witness says nothing");
    }
}
