//! The journal on the device: append, flush, compact, recover. Blocking.

use std::sync::Arc;

use crate::StoreError;
use crate::device::{Device, DeviceFile};
use crate::fence::Row;
use crate::format::{JOURNAL, RECORD, Record, Said};

/// Zeroes are written so far ahead of the end: a full device still takes fences, and a flush of an
/// overwrite costs no metadata.
const AHEAD: usize = 256 * 1024;

/// Records beyond which a journal is rewritten, if most of them are dead.
const COMPACT_FLOOR: u64 = 8192;

#[derive(Debug)]
pub(crate) struct Log {
    file: Arc<dyn DeviceFile>,
    /// Names this journal: records of an earlier one in reused blocks are not ours.
    id: u64,
    /// Records written.
    next: u64,
    /// Records known durable.
    synced: u64,
    /// Records there is zeroed room for.
    room: u64,
    /// A write or flush failed, and what the device holds is unknown; or the file may have lost its name to a newer one.
    /// Only a rewrite helps.
    broken: bool,
}

/// What a journal says, up to a torn tail.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) id: u64,
    /// The greatest id of a data file that has come into being, 0 if that is not known.
    pub(crate) made: u64,
    pub(crate) rows: Vec<Row>,
}

/// Writes a whole file so that after a power failure either the old or the new one is there.
pub(crate) fn replace(device: &dyn Device, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    prepare(device, name, bytes)?;
    put_in_place(device, name)
}

/// The new file is there, whole and durable. The old one still has the name.
fn prepare(device: &dyn Device, name: &str, bytes: &[u8]) -> Result<Arc<dyn DeviceFile>, StoreError> {
    let new = new_name(name);
    match device.remove(&new) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let file = device.create(&new)?;
    file.write_at(bytes, 0)?;
    file.sync_data()?;
    Ok(file)
}

/// The new file gets the name. After an error either of the two may have it.
fn put_in_place(device: &dyn Device, name: &str) -> Result<(), StoreError> {
    device.rename(&new_name(name), name)?;
    device.sync_dir("")?;
    Ok(())
}

fn new_name(name: &str) -> String {
    format!("{name}.new")
}

/// All of a small file.
pub(crate) fn read_all(device: &dyn Device, name: &str) -> Result<Vec<u8>, StoreError> {
    let file = device.open(name)?;
    let size = usize::try_from(file.stat()?.size).map_err(|_| StoreError::TooBig)?;
    let mut bytes = vec![0; size];
    let n = file.read_at(&mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}

impl Log {
    /// A journal that says this, under a new id, replacing what is there.
    pub(crate) fn create(device: &dyn Device, is: &Recovered) -> Result<Self, StoreError> {
        let log = Self::prepare(device, is)?;
        put_in_place(device, JOURNAL)?;
        Ok(log)
    }

    /// The same without its name yet.
    fn prepare(device: &dyn Device, is: &Recovered) -> Result<Self, StoreError> {
        let Recovered { id, made, rows } = is;
        let total = rows.len() as u64 + 1;
        let mut bytes = Vec::with_capacity((rows.len() + 1) * RECORD + AHEAD);
        let all = std::iter::once(Said::Head(*made)).chain(rows.iter().copied().map(Said::Row));
        for (said, index) in all.zip(0..) {
            // Everything in a fresh journal is durable or the journal is not there at all.
            bytes.extend_from_slice(&Record { said, index, synced: total, journal: *id }.encode());
        }
        bytes.resize(bytes.len() + AHEAD, 0);
        let file = prepare(device, JOURNAL, &bytes)?;
        let room = (bytes.len() / RECORD) as u64;
        Ok(Self { file, id: *id, next: total, synced: total, room, broken: false })
    }

    /// What the journal on the device says.
    ///
    /// # Errors
    /// `Corrupt` when a record that had been flushed is bad: rows may be missing, so nothing can
    /// be said about who is fenced. `NewerRecord` for the same reason.
    pub(crate) fn recover(device: &dyn Device) -> Result<Recovered, StoreError> {
        let damaged = |why: String| StoreError::Corrupt(device.name(), JOURNAL.into(), why);
        let bytes = match read_all(device, JOURNAL) {
            Err(StoreError::Missing) => return Err(damaged("it is missing".into())),
            other => other?,
        };
        let (chunks, _) = bytes.as_chunks::<RECORD>();
        let mut records = chunks.iter().map(Record::decode);
        let Some(Some(Ok(Record { said: Said::Head(mut made), index: 0, journal: id, synced }))) =
            records.next()
        else {
            return Err(damaged("its first record is bad".into()));
        };
        let mut rows = Vec::new();
        let mut durable = synced;
        let mut end = None;
        for (record, index) in records.zip(1u64..) {
            match record {
                // Whoever wrote it may have acknowledged it.
                Some(Err(unknown)) if unknown.journal == id && unknown.index == index => {
                    return Err(StoreError::NewerRecord(device.name(), JOURNAL.into(), unknown.kind));
                }
                Some(Ok(Record { said: Said::Row(row), synced, index: at, journal }))
                    if journal == id && at == index =>
                {
                    durable = durable.max(synced);
                    if let Row::Materialised { key, .. } = row {
                        made = made.max(key.file);
                    }
                    if end.is_none() {
                        rows.push(row);
                    }
                }
                _ => {
                    end.get_or_insert(index);
                }
            }
        }
        // Records of one unfinished flush may survive in any order. But a record that says that an
        // earlier one had been flushed convicts the device, or whoever wrote to this file.
        if let Some(end) = end
            && end < durable
        {
            return Err(damaged(format!("record {end} is bad, {durable} were durable")));
        }
        Ok(Recovered { id, made, rows })
    }

    /// Whether it is time to rewrite the journal, with `live` rows worth keeping.
    pub(crate) fn wants_compaction(&self, live: usize) -> bool {
        self.broken || self.next > COMPACT_FLOOR && self.next > 4 * live as u64
    }

    /// Appends and flushes. After an error the journal must be rewritten, and if this does not return.
    pub(crate) fn append(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        let broken = std::mem::replace(&mut self.broken, true);
        let result = self.try_append(rows);
        self.broken = broken || result.is_err();
        result
    }

    fn try_append(&mut self, rows: &[Row]) -> Result<(), StoreError> {
        let mut bytes = Vec::with_capacity(rows.len() * RECORD);
        for (row, index) in rows.iter().zip(self.next..) {
            let record = Record { said: Said::Row(*row), index, synced: self.synced, journal: self.id };
            bytes.extend_from_slice(&record.encode());
        }
        let end = self.next + rows.len() as u64;
        if end > self.room {
            bytes.resize(bytes.len() + AHEAD, 0);
            self.room = self.next + (bytes.len() / RECORD) as u64;
        }
        self.file.write_at(&bytes, self.next * RECORD as u64)?;
        self.file.sync_data()?;
        self.next = end;
        self.synced = end;
        Ok(())
    }

    /// Whether only a rewrite helps.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Replaces this journal by one that says only this, under the next id. One that was not broken, and is not after an error, is as
    /// good as before.
    pub(crate) fn rewrite(
        &mut self,
        device: &dyn Device,
        made: u64,
        rows: Vec<Row>,
    ) -> Result<(), StoreError> {
        let new = Self::prepare(device, &Recovered { id: self.id + 1, made, rows })?;
        // Until it is known which of the two has the name, what is appended here might be lost.
        self.broken = true;
        put_in_place(device, JOURNAL)?;
        *self = new;
        Ok(())
    }
}
