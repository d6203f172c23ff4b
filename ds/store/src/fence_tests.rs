use proptest::prelude::*;

use super::*;

const KEY: FileKey = FileKey { file: 9, slot: 2 };

fn access(holder: u32, generation: u16, epoch: u16) -> Access {
    Access { holder, key: KEY, generation, epoch: Epoch(epoch), must_exist: false }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::default();
    rows.iter().for_each(|row| table.apply(row));
    table
}

#[test]
fn a_fenced_holder_is_refused_until_a_newer_epoch_lets_it_in() {
    let t = table(&[Row::Fence(Fence::Holder { holder: 1, epoch: Epoch(5) })]);
    assert_eq!(t.check(&access(1, 0, 5)), Err(Refusal::Fenced));
    assert_eq!(t.check(&access(1, 0, 4)), Err(Refusal::Fenced));
    assert_eq!(t.check(&access(1, 0, 6)), Ok(()));
    assert_eq!(t.check(&access(2, 0, 5)), Ok(()));
}

#[test]
fn a_file_fence_covers_every_slot_of_one_file() {
    let t = table(&[Row::Fence(Fence::HolderFile { holder: 1, file: 9, epoch: Epoch(5) })]);
    assert_eq!(t.check(&access(1, 0, 5)), Err(Refusal::Fenced));
    assert_eq!(
        t.check(&Access { key: FileKey { file: 9, slot: 7 }, ..access(1, 0, 5) }),
        Err(Refusal::Fenced)
    );
    assert_eq!(t.check(&Access { key: FileKey { file: 8, slot: 2 }, ..access(1, 0, 5) }), Ok(()));
}

#[test]
fn generations_and_tombstones() {
    let t = table(&[Row::Fence(Fence::Generation { key: KEY, least: 3, epoch: Epoch(5) })]);
    assert_eq!(t.check(&access(1, 2, 5)), Err(Refusal::Generation));
    assert_eq!(t.check(&access(1, 3, 5)), Ok(()));
    let t = table(&[Row::Tombstone { key: KEY, generation: 3, epoch: Epoch(5) }]);
    assert_eq!(t.check(&access(1, 3, 9)), Err(Refusal::Removed));
    assert_eq!(t.check(&access(1, 4, 5)), Ok(()));
}

#[test]
fn memory_goes_with_the_rows_of_an_epoch() {
    let row =
        |n, epoch| Row::Tombstone { key: FileKey { file: n, slot: 0 }, generation: 0, epoch: Epoch(epoch) };
    let mut t = table(&(0..10_000).map(|n| row(n, if n < 9900 { 5 } else { 6 })).collect::<Vec<_>>());
    let before = t.tombstones.capacity();
    t.apply(&Row::Oldest(Epoch(6)));
    assert_eq!(t.len(), 100);
    assert!(before >= 10_000 && (200..500).contains(&t.tombstones.capacity()), "{}", t.tombstones.capacity());
}

#[test]
fn rows_die_with_their_epoch_and_so_do_the_handles() {
    let mut t = table(&[
        Row::Fence(Fence::Holder { holder: 1, epoch: Epoch(5) }),
        Row::Fence(Fence::HolderFile { holder: 1, file: 9, epoch: Epoch(6) }),
        Row::Tombstone { key: KEY, generation: 0, epoch: Epoch(5) },
    ]);
    t.apply(&Row::Oldest(Epoch(5)));
    assert_eq!(t.len(), 3, "handles of epoch 5 are still accepted");
    t.apply(&Row::Oldest(Epoch(6)));
    assert_eq!(t.len(), 1);
    assert_eq!(t.check(&access(2, 0, 5)), Err(Refusal::Expired));
    assert_eq!(t.check(&access(2, 0, 6)), Ok(()));
    t.apply(&Row::Oldest(Epoch(4)));
    assert_eq!(t.oldest(), Some(Epoch(6)), "an epoch never comes back");
}

#[test]
fn reports_are_ticked_off_and_removed_files_are_none() {
    let mut t = table(&[Row::Materialised { key: KEY, generation: 1 }]);
    assert_eq!(t.unreported(9), [(KEY, 1)]);
    t.apply(&Row::Tombstone { key: KEY, generation: 1, epoch: Epoch(1) });
    assert!(t.unreported(9).is_empty());
    t.apply(&Row::Materialised { key: KEY, generation: 1 });
    assert!(t.unreported(9).is_empty(), "its removal overtook it");
    t.apply(&Row::Materialised { key: KEY, generation: 2 });
    t.apply(&Row::Reported { key: KEY });
    assert!(t.unreported(9).is_empty());
}

fn row() -> impl Strategy<Value = Row> {
    let key = (0..4u64, 0..2u16).prop_map(|(file, slot)| FileKey { file, slot });
    let epoch = (0..6u16).prop_map(Epoch);
    (0..7u8, key, epoch, 0..4u32, 0..4u16).prop_map(|(kind, key, epoch, holder, generation)| match kind {
        0 => Row::Fence(Fence::Holder { holder, epoch }),
        1 => Row::Fence(Fence::HolderFile { holder, file: key.file, epoch }),
        2 => Row::Fence(Fence::Generation { key, least: generation, epoch }),
        3 => Row::Tombstone { key, generation, epoch },
        4 => Row::Oldest(epoch),
        5 => Row::Materialised { key, generation },
        _ => Row::Reported { key },
    })
}

proptest! {
    /// Compaction loses nothing: the rows of a table rebuild its every answer.
    #[test]
    fn a_table_survives_its_own_rows(rows in prop::collection::vec(row(), 0..40)) {
        let before = table(&rows);
        let after = table(&before.rows());
        prop_assert_eq!(before.oldest(), after.oldest());
        prop_assert_eq!(before.unreported(99), after.unreported(99));
        for holder in 0..4 {
            for (file, slot, generation, epoch) in
                (0..4u64).flat_map(|f| (0..2u16).flat_map(move |s| (0..4u16).flat_map(move |g| (0..6u16).map(move |e| (f, s, g, e)))))
            {
                let a = Access { holder, key: FileKey { file, slot }, ..access(holder, generation, epoch) };
                prop_assert_eq!(before.check(&a), after.check(&a));
            }
        }
    }

    /// What was fenced stays refused, whatever else happens, short of a newer epoch.
    #[test]
    fn no_row_lifts_a_fence(rows in prop::collection::vec(row(), 0..30), holder in 0..4u32, epoch in 0..6u16) {
        let mut t = table(&[Row::Fence(Fence::Holder { holder, epoch: Epoch(epoch) })]);
        rows.iter().for_each(|row| t.apply(row));
        for old in 0..=epoch {
            prop_assert!(t.check(&access(holder, u16::MAX, old)).is_err());
        }
    }
}
