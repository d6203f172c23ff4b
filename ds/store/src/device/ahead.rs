//! What a file system sets aside behind the end of a file that grows. XFS takes as much again as the file has there in
//! one piece, for what will be written next. In a data file of a striped file that comes further on: what was set
//! aside stays in the file, and a striped file takes twice its space. So it is given back before a write that leaves a
//! gap behind the end.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};
use rustix::fs::{FallocateFlags, fallocate};

/// Shorter gaps stay as they are: the least that XFS sets aside.
const GAP: u64 = 64 << 10;
/// What is freed are whole blocks, of any file system.
const BLOCK: u64 = 64 << 10;

/// Of one open file.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Where the file ends, as far as is known. Too low, and its end is asked for once too often; too high, after a write
    /// that failed, and a gap is missed.
    end: AtomicU64,
    /// Shared by those who write, or move the end.
    changing: RwLock<()>,
}

impl Ahead {
    /// Before a change of the file that ends at `end`, and that leaves what lies before `offset` as it is. A write or
    /// a reservation. What is returned is to be held until it is done.
    pub(super) fn change(&self, file: &File, offset: u64, end: u64) -> RwLockReadGuard<'_, ()> {
        if offset >= self.end.load(Ordering::Acquire).saturating_add(GAP) {
            self.give_back(file, offset);
        }
        let changing = self.changing.read();
        self.end.fetch_max(end, Ordering::AcqRel);
        changing
    }

    /// The end was moved back, perhaps.
    pub(super) fn cut(&self) {
        self.end.store(0, Ordering::Release);
    }

    /// Frees what is between the end of the file and `offset`. No write is under way, so there is nothing written;
    /// and a reservation that was asked for moved the end.
    fn give_back(&self, file: &File, offset: u64) {
        let _alone = self.changing.write();
        // It is about space alone: where this fails, the write goes on, and says what there is to say.
        let Ok(found) = file.metadata() else { return };
        self.end.fetch_max(found.len(), Ordering::AcqRel);
        let from = found.len().next_multiple_of(BLOCK);
        if let Some(length) = offset.checked_sub(from).filter(|length| *length > 0) {
            fallocate(file, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, from, length).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    const PIECE: u64 = 128 << 10;

    /// In memory: it frees what lies behind the end, as XFS does and ext4 does not.
    fn file() -> File {
        tempfile::tempfile_in("/dev/shm").unwrap()
    }

    /// As XFS does it.
    fn set_aside(file: &File, from: u64, length: u64) {
        fallocate(file, FallocateFlags::KEEP_SIZE, from, length).unwrap();
    }

    fn write(ahead: &Ahead, file: &File, offset: u64, byte: u8) {
        let _changing = ahead.change(file, offset, offset + PIECE);
        file.write_all_at(&[byte; PIECE as usize], offset).unwrap();
    }

    fn taken(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn what_was_set_aside_is_given_back_before_a_gap() {
        let (ahead, file) = (Ahead::default(), file());
        write(&ahead, &file, 0, 1);
        set_aside(&file, PIECE, 8 << 20);
        assert!(taken(&file) > 8 << 20);
        write(&ahead, &file, PIECE, 2);
        assert!(taken(&file) > 8 << 20, "there is no gap: it is of use");
        write(&ahead, &file, 32 << 20, 3);
        assert!(taken(&file) < 1 << 20, "{}", taken(&file));
        let mut read = vec![0; 2 * PIECE as usize];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read[..PIECE as usize].iter().all(|byte| *byte == 1), "what was written stays");
        assert!(read[PIECE as usize..].iter().all(|byte| *byte == 2), "what was written stays");
    }

    #[test]
    fn an_opened_file_is_asked_where_it_ends() {
        let file = file();
        file.write_all_at(&[1; 4 << 20], 0).unwrap();
        // As when it is opened again: nothing is known of it.
        write(&Ahead::default(), &file, 2 << 20, 2);
        let mut read = vec![0; 2 << 20];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read.iter().all(|byte| *byte == 1), "a write into a file that is longer frees nothing");
    }

    #[test]
    fn after_a_cut_there_are_gaps_again() {
        let (ahead, file) = (Ahead::default(), file());
        write(&ahead, &file, 64 << 20, 1);
        file.set_len(0).unwrap();
        ahead.cut();
        write(&ahead, &file, 0, 1);
        set_aside(&file, PIECE, 8 << 20);
        write(&ahead, &file, 32 << 20, 1);
        assert!(taken(&file) < 1 << 20, "{}", taken(&file));
    }

    #[test]
    fn a_reservation_stays() {
        let (ahead, file) = (Ahead::default(), file());
        {
            let _changing = ahead.change(&file, 0, 8 << 20);
            fallocate(&file, FallocateFlags::empty(), 0, 8 << 20).unwrap();
        }
        write(&ahead, &file, 32 << 20, 1);
        assert!(taken(&file) >= (8 << 20) + PIECE);
    }

    #[test]
    fn writes_beside_it_are_never_freed() {
        const WRITERS: u64 = 8;
        for round in 0..16 {
            let (ahead, file) = (Ahead::default(), file());
            // Whoever is ahead leaves gaps, which the others fill meanwhile.
            let pieces = 4..200u64;
            std::thread::scope(|scope| {
                for writer in 0..WRITERS {
                    let (ahead, file, pieces) = (&ahead, &file, pieces.clone());
                    scope.spawn(move || {
                        for piece in pieces.filter(|piece| piece % WRITERS == writer) {
                            write(ahead, file, piece * PIECE, 1);
                        }
                    });
                }
            });
            let mut read = vec![0; ((pieces.end - pieces.start) * PIECE) as usize];
            file.read_exact_at(&mut read, pieces.start * PIECE).unwrap();
            let lost = read.chunks(PIECE as usize).filter(|piece| piece.contains(&0)).count();
            assert_eq!(lost, 0, "pieces that were written, round {round}");
        }
    }
}
