//! A file system that is read from one store and loaded into another.

use bytes::Bytes;
use sluice_kv::{Database, Faults, KeyValue};
use sluice_namespace::stable_storage::{CapabilityEpochs, CapabilityKey};
use sluice_namespace::transfer::{Load, everything};
use sluice_namespace::*;

use crate::common::*;

const ROOT: InodeKey = InodeKey::ROOT;

async fn rows(db: &Database) -> (Vec<KeyValue>, u64) {
    let snapshot = db.snapshot().await.unwrap();
    (snapshot.page(&everything(), usize::MAX).await.unwrap(), snapshot.version())
}

async fn load(w: &World, rows: &[KeyValue], version: u64, to: &Database) -> Result<World, FsError> {
    let mut load = Load::begin(to.clone(), version).await?;
    for (key, value) in rows {
        load.row(key.clone(), value.clone()).await?;
    }
    load.finish().await?;
    Ok(World::over(to.clone(), w.env.clone(), 5_000).await)
}

async fn busy_world() -> (World, InodeKey, Inode) {
    let mut w = World::new().await;
    // Versions of the new store begin far below these.
    let dir = w.mkdir(ROOT, "d").await;
    for update in [DirectoryUpdate::Exact, DirectoryUpdate::Blind] {
        w.update = update;
        for n in 0..20 {
            w.file(dir, &format!("{update:?}{n}")).await;
        }
    }
    let file = w.file(dir, "f").await.inode;
    let ace = Ace { allow: true, inheritance: Inheritance::NONE, rights: Rights::ALL, who: Who::User(7) };
    let acl = Some(Acl::new(vec![ace]).unwrap());
    w.setattr(file.key, SetAttr { acl, ..SetAttr::default() }, &Credential::ROOT).await.unwrap();
    w.txn(async |t| {
        for sequence in
            [Sequence::FileId, Sequence::DataFile, Sequence::Fence, Sequence::Export, Sequence::Store]
        {
            lease_block(t, sequence, 1_000).await?;
        }
        stable_storage::put_capability_epochs(t, &epochs());
        stable_storage::take_epoch(t, [7; 16]).await.map(drop)
    })
    .await
    .unwrap();
    (w, dir, file)
}

fn epochs() -> CapabilityEpochs {
    let key = |id: u8, epoch| CapabilityKey { id, epoch, key: [id; 32] };
    let keys = vec![key(0, 1), key(1, 7), key(2, CapabilityKey::ANNOUNCED)];
    CapabilityEpochs { current: 9, oldest: 5, keys }
}

#[tokio::test(start_paused = true)]
async fn everything_is_there_and_nothing_goes_back() {
    let (w, dir, file) = busy_world().await;
    let (all, version) = rows(&w.db).await;
    let to = Database::memory(w.env.clone(), Faults::NONE);
    let copy = load(&w, &all, version, &to).await.unwrap();
    copy.clean().await;
    let (there, _) = rows(&to).await;
    assert_eq!(
        there.iter().map(|(key, _)| key).collect::<Vec<_>>(),
        all.iter().map(|(key, _)| key).collect::<Vec<_>>()
    );
    for key in [ROOT, dir, file.key] {
        let (before, after) = (w.stat(key).await.unwrap(), copy.stat(key).await.unwrap());
        assert!(after.change > before.change, "{key:?}: {} then {}", before.change, after.change);
        assert_eq!(after.record.mode, before.record.mode);
        assert_eq!(after.record.acl, before.record.acl);
        assert_eq!(after.directory.map(|d| d.entries), before.directory.map(|d| d.entries));
    }
    // The first change in the new store, whose versions are low.
    for update in [DirectoryUpdate::Exact, DirectoryUpdate::Blind] {
        let mut copy = load(&w, &all, version, &fresh(&w)).await.unwrap();
        copy.update = update;
        let before = copy.stat(dir).await.unwrap().change;
        copy.file(dir, "later").await;
        assert!(copy.stat(dir).await.unwrap().change > before);
        copy.clean().await;
    }
}

fn fresh(w: &World) -> Database {
    Database::memory(w.env.clone(), Faults::NONE)
}

#[tokio::test(start_paused = true)]
async fn the_copy_uses_numbers_that_the_original_cannot_have_used() {
    let (w, ..) = busy_world().await;
    let (all, version) = rows(&w.db).await;
    let copy = load(&w, &all, version, &fresh(&w)).await.unwrap();
    let next = async |w: &World, sequence: Sequence| {
        w.txn(async |t| lease_block(t, sequence, 1).await).await.unwrap().0.start
    };
    for sequence in [Sequence::FileId, Sequence::DataFile, Sequence::Fence] {
        assert!(next(&copy, sequence).await >= next(&w, sequence).await + (1 << 32), "{sequence:?}");
    }
    // Ids of exports are 32 bits wide: there is room for many, after many loads.
    let export = next(&copy, Sequence::Export).await;
    assert!(export >= next(&w, Sequence::Export).await + (1 << 16) && export < 1 << 20, "{export}");
    // Data servers know their ids.
    assert_eq!(next(&copy, Sequence::Store).await, next(&w, Sequence::Store).await);
    // Data servers refuse handles of epochs that the original retired.
    let found = async |w: &World| {
        w.read(async |t| stable_storage::capability_epochs(t).await).await.unwrap().unwrap()
    };
    let turned = CapabilityEpochs { current: epochs().current + (1 << 12), ..epochs() };
    assert_eq!(found(&copy).await, turned);
    let takes_over = async |w: &World| {
        w.txn(async |t| stable_storage::take_epoch(t, [9; 16]).await).await.unwrap().0.epoch
    };
    assert!(takes_over(&copy).await > takes_over(&w).await + 1_000);
}

/// Clients that know the original may be told of the copy instead: what they have in memory is not what the copy has.
#[tokio::test(start_paused = true)]
async fn no_change_attribute_is_one_that_the_original_gave_out_after_the_dump() {
    let (mut w, dir, file) = busy_world().await;
    for _ in 0..3 {
        let (all, version) = rows(&w.db).await;
        let copy = load(&w, &all, version, &fresh(&w)).await.unwrap();
        for n in 0..50 {
            w.file(dir, &format!("later{n}")).await;
            w.setattr(file.key, SetAttr { mode: Some(n), ..SetAttr::default() }, &Credential::ROOT)
                .await
                .unwrap();
        }
        for key in [dir, file.key] {
            let (original, there) = (w.stat(key).await.unwrap().change, copy.stat(key).await.unwrap().change);
            assert!(there > original, "{key:?}: {original} in the original, then {there}");
        }
        // A copy of a copy is above all of them, and there is room for many.
        assert!(copy.stat(dir).await.unwrap().change < 1 << 52);
        w = copy;
    }
}

/// In place: nothing goes back, and all numbers are further, as those of a load are.
#[tokio::test(start_paused = true)]
async fn a_copy_that_is_adopted_goes_on_beyond_what_it_was_copied_from() {
    let (w, dir, file) = busy_world().await;
    let (all, version) = rows(&w.db).await;
    let original = as_it_is(&w, &all, version).await;
    let (older, found) = (
        stable_storage::Older { store: [4; 16], file: DataFileId(70_000), next: DataFileId(1001) },
        async |w: &World| w.read(async |t| stable_storage::older(t).await).await.unwrap(),
    );
    let remember = w.txn(async |t| {
        stable_storage::put_older(t, &older);
        Ok(())
    });
    remember.await.unwrap();
    assert!(check(&w.db.snapshot().await.unwrap()).await.unwrap().older);
    // What the original does meanwhile.
    for n in 0..50 {
        original.file(dir, &format!("later{n}")).await;
        let mode = SetAttr { mode: Some(n), ..SetAttr::default() };
        original.setattr(file.key, mode, &Credential::ROOT).await.unwrap();
    }
    let adopted = transfer::adopt(&w.db).await.unwrap().unwrap();
    assert_eq!(adopted.older, Some(older));
    let copy = World::over(w.db.clone(), w.env.clone(), 5_000).await;
    assert_eq!(found(&copy).await, None);
    copy.clean().await;
    for key in [ROOT, dir, file.key] {
        let (there, here) = (original.stat(key).await.unwrap(), copy.stat(key).await.unwrap());
        assert!(
            here.change > there.change,
            "{key:?}: {} in the original, then {}",
            there.change,
            here.change
        );
    }
    let mut later = World::over(w.db.clone(), w.env.clone(), 6_000).await;
    for update in [DirectoryUpdate::Exact, DirectoryUpdate::Blind] {
        later.update = update;
        let before = (later.stat(dir).await.unwrap().change, later.stat(file.key).await.unwrap().change);
        later.file(dir, &format!("now{update:?}")).await;
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        later.setattr(file.key, mode, &Credential::ROOT).await.unwrap();
        assert!(later.stat(dir).await.unwrap().change > before.0);
        assert!(later.stat(file.key).await.unwrap().change > before.1);
    }
    // The same numbers as those of a load.
    let loaded = load(&w, &all, version, &fresh(&w)).await.unwrap();
    let next =
        async |w: &World, sequence: Sequence| w.read(async |t| next_number(t, sequence).await).await.unwrap();
    for sequence in [Sequence::DataFile, Sequence::Fence, Sequence::Export, Sequence::Store] {
        assert_eq!(next(&copy, sequence).await, next(&loaded, sequence).await, "{sequence:?}");
    }
    assert_eq!(next(&copy, Sequence::DataFile).await, adopted.next_data_file);
    let epochs = async |w: &World| {
        w.read(async |t| Ok((stable_storage::epoch(t).await?, stable_storage::capability_epochs(t).await?)))
            .await
    };
    assert_eq!(epochs(&copy).await.unwrap(), epochs(&loaded).await.unwrap());
    // Done twice, as when the first answer was lost.
    let again = transfer::adopt(&w.db).await.unwrap().unwrap();
    assert_eq!(again.next_data_file, adopted.next_data_file + (1 << 32));
    assert_eq!(again.older, None);
    World::over(w.db.clone(), w.env.clone(), 7_000).await.clean().await;
    assert_eq!(transfer::adopt(&fresh(&w)).await.unwrap(), None, "there is nothing");
}

/// The original may have begun with them after the copy.
#[tokio::test(start_paused = true)]
async fn numbers_that_nobody_had_leased_are_passed_over_all_the_same() {
    let w = World::new().await;
    let next =
        async |w: &World, sequence: Sequence| w.read(async |t| next_number(t, sequence).await).await.unwrap();
    assert_eq!(next(&w, Sequence::DataFile).await, 1);
    let (all, version) = rows(&w.db).await;
    let loaded = load(&w, &all, version, &fresh(&w)).await.unwrap();
    loaded.clean().await;
    transfer::adopt(&w.db).await.unwrap().unwrap();
    for w in [&w, &loaded] {
        for sequence in [Sequence::DataFile, Sequence::Fence] {
            assert_eq!(next(w, sequence).await, 1 + (1 << 32), "{sequence:?}");
        }
    }
}

/// Every row as it was, in a store whose versions go on from there.
async fn as_it_is(w: &World, rows: &[KeyValue], version: u64) -> World {
    let to = Database::memory_after(w.env.clone(), Faults::NONE, version);
    let mut txn = to.begin();
    rows.iter().for_each(|(key, value)| txn.set(key.clone(), value.clone()));
    assert!(txn.commit().await.unwrap().version > version);
    World::over(to, w.env.clone(), 5_000).await
}

/// Data servers compare 16 bits of epochs: not too many are alive, however often it is loaded without being used.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_copy_has_few_epochs() {
    let (mut w, ..) = busy_world().await;
    for _ in 0..6 {
        let (all, version) = rows(&w.db).await;
        w = load(&w, &all, version, &fresh(&w)).await.unwrap();
    }
    let found = w.read(async |t| stable_storage::capability_epochs(t).await).await.unwrap().unwrap();
    assert_eq!(found.current, 9 + 6 * (1 << 12));
    assert!(found.current - found.oldest < 0x4000, "{found:?}");
    // With the epochs go the keys that only they used.
    assert_eq!(found.keys, epochs().keys[1..]);
}

#[tokio::test(start_paused = true)]
async fn a_load_is_all_or_nothing() {
    let (w, ..) = busy_world().await;
    let (all, version) = rows(&w.db).await;
    // A store with a file system is left alone.
    assert!(matches!(Load::begin(w.db.clone(), version).await, Err(FsError::Exists)));
    // One that was broken off is no file system, and nobody makes one of it by starting a server.
    let to = fresh(&w);
    let mut load_half = Load::begin(to.clone(), version).await.unwrap();
    let superblock = all.iter().position(|(key, _)| key[0] == 1).unwrap();
    load_half.row(all[superblock].0.clone(), all[superblock].1.clone()).await.unwrap();
    for n in 0..12 {
        let key = [b"\x16stray row".as_slice(), &[n]].concat();
        load_half.row(Bytes::from(key), Bytes::from(vec![0; 100_000])).await.unwrap();
    }
    assert!(rows(&to).await.0.len() > 1);
    // Without a superblock there is no end.
    let mut without = all.clone();
    without.remove(superblock);
    assert!(matches!(load(&w, &without, version, &fresh(&w)).await, Err(FsError::Corrupt { .. })));
    drop(load_half);
    let mut txn = to.begin();
    let options = FormatOptions::new(&w.env);
    assert!(Namespace::load(&txn).await.unwrap().is_none());
    let started = Namespace::load_or_format(&mut txn, &options).await;
    assert!(matches!(started, Err(FsError::HalfLoaded)), "{started:?}");
    // Begun anew, it is whole, and nothing of the first try is left.
    load(&w, &all, version, &to).await.unwrap().clean().await;
    let (there, _) = rows(&to).await;
    assert_eq!(there.len(), all.len());
}

/// A cluster that is away for some seconds.
#[tokio::test(start_paused = true)]
async fn a_load_waits_for_a_store_that_is_away() {
    let (w, ..) = busy_world().await;
    let (all, version) = rows(&w.db).await;
    let away = Faults { unavailable: 1.0, ..Faults::NONE };
    let to = Database::memory(w.env.clone(), away);
    let back = async || {
        w.env.clock.sleep(std::time::Duration::from_secs(10)).await;
        to.set_faults(Faults::NONE);
    };
    let (begun, ()) = tokio::join!(Load::begin(to.clone(), version), back());
    let mut loading = begun.unwrap();
    for (key, value) in &all {
        loading.row(key.clone(), value.clone()).await.unwrap();
    }
    to.set_faults(away);
    let (finished, ()) = tokio::join!(loading.finish(), back());
    finished.unwrap();
    World::over(to.clone(), w.env.clone(), 5_000).await.clean().await;
}
