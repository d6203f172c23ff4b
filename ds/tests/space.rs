//! Orders on the space of data files: what is made, given back and looked for.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use sluice_xdr::capability::Rights;
use sluice_xdr::control::*;
use sluice_xdr::nfs3::*;

#[test]
fn orders_on_space() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let (fh, caller) = (handle(1, RW), w.mds.caller());
        nfs.write(&fh, 0, &[5; 20_000], stable_how::UNSTABLE).await.unwrap();
        let space = |operation, offset, length| DS_SPACE_args {
            caller,
            operation,
            target: target(1),
            offset,
            length,
        };
        let punch = space(ctl_space_operation::SPACE_DEALLOCATE, 4096, 4096);
        assert_eq!(w.mds.order::<_, ctl_status>(DS_SPACE, &punch).await, ctl_status::CTL_OK);
        assert_eq!(nfs.read(&fh, 4095, 3).await.unwrap().0, &[5u8, 0, 0][..]);
        let seek = DS_SEEK_args { target: target(1), offset: 4096, data: true };
        let found: DS_SEEK_res = w.mds.order(DS_SEEK, &seek).await;
        assert_eq!(found, DS_SEEK_res::CTL_OK(DS_SEEK_resok { found: true, offset: 8192 }));
        let seek = DS_SEEK_args { target: target(1), offset: 0, data: false };
        let found: DS_SEEK_res = w.mds.order(DS_SEEK, &seek).await;
        assert_eq!(found, DS_SEEK_res::CTL_OK(DS_SEEK_resok { found: true, offset: 4096 }));
        let grow = space(ctl_space_operation::SPACE_ALLOCATE, 0, 50_000);
        assert_eq!(w.mds.order::<_, ctl_status>(DS_SPACE, &grow).await, ctl_status::CTL_OK);
        let bad = space(ctl_space_operation(9), 0, 1);
        assert_eq!(w.mds.order::<_, ctl_status>(DS_SPACE, &bad).await, ctl_status::CTL_ERR_INVAL);
        let args = DS_STAT_args { files: vec![target(1), target(7)] };
        let DS_STAT_res::CTL_OK(stats) = w.mds.order(DS_STAT, &args).await else { panic!() };
        assert_eq!((stats[0].exists, stats[0].size, stats[1].exists), (true, 50_000, false));
        let args = DS_TRUNCATE_args { caller, target: target(1), size: 10_000, logical_size: 12_000 };
        w.mds.says.lock().unwrap().sizes.insert(1, 12_000);
        let sparse = handle(1, RW.or(Rights::SPARSE));
        for _ in 0..2 {
            assert_eq!(w.mds.order::<_, ctl_status>(DS_TRUNCATE, &args).await, ctl_status::CTL_OK);
            let (read, eof) = nfs.read(&sparse, 9_999, 100_000).await.unwrap();
            assert_eq!((read.len(), read[0], eof), (2_001, 5, true), "a hole up to the logical size");
            assert_eq!(nfs.read(&fh, 9_999, 100_000).await.unwrap(), (vec![5].into(), true));
        }
        let args = DS_INVENTORY_args { after: target(0), limit: 10 };
        let DS_INVENTORY_res::CTL_OK(page) = w.mds.order(DS_INVENTORY, &args).await else { panic!() };
        assert_eq!((page.entries.len(), page.eof, page.entries[0].file.file), (1, true, 1));
    });
}

/// One order for all stripe units that a data file has of a range, and for what lies between them nothing.
#[test]
fn orders_on_the_units_of_a_striped_file() {
    simulate(async |w| {
        let ds = w.serving().await;
        let nfs = w.client(&ds).await;
        let (fh, caller) = (handle(1, RW), w.mds.caller());
        let units = |offset, end| ctl_units { offset, end, unit: 8192, apart: 2 * 8192 };
        let find = async |file, units| {
            let args = DS_HOLE_args { target: target(file), units };
            w.mds.order::<_, DS_HOLE_res>(DS_HOLE, &args).await
        };
        let found = |found, offset| DS_HOLE_res::CTL_OK(DS_HOLE_resok { found, offset });
        assert_eq!(find(1, units(0, 99)).await, DS_HOLE_res::Default(ctl_status::CTL_ERR_NOENT));
        for unit in [0, 3, 6] {
            nfs.write(&fh, unit * 8192, &[5; 8192], stable_how::FILE_SYNC).await.unwrap();
        }
        assert_eq!(find(1, units(77, 9 * 8192)).await, found(false, 9 * 8192));
        assert_eq!(find(1, units(77, 9 * 8192 + 1)).await, found(true, 9 * 8192), "behind the end");
        let args = DS_SPACE_args {
            caller,
            operation: ctl_space_operation::SPACE_DEALLOCATE,
            target: target(1),
            offset: 6 * 8192 + 4096,
            length: 4096,
        };
        assert_eq!(w.mds.order::<_, ctl_status>(DS_SPACE, &args).await, ctl_status::CTL_OK);
        assert_eq!(find(1, units(77, 9 * 8192)).await, found(true, 6 * 8192 + 4096));
        let args = DS_ALLOCATE_args { caller, target: target(1), units: units(5, 99 * 8192 - 5) };
        let done: DS_ALLOCATE_res = w.mds.order(DS_ALLOCATE, &args).await;
        assert_eq!(done, DS_ALLOCATE_res::CTL_OK(99 * 8192 - 5));
        let stat = DS_STAT_args { files: vec![target(1)] };
        let DS_STAT_res::CTL_OK(stats) = w.mds.order(DS_STAT, &stat).await else { panic!() };
        assert_eq!(stats[0].size, 97 * 8192, "the last unit that it has");
        // Of very many some are done, and the rest is asked for again.
        let all = units(0, 30_000 * 8192);
        let (mut rest, mut orders) = (all, 0);
        while rest.offset < rest.end {
            let args = DS_ALLOCATE_args { caller, target: target(1), units: rest };
            let DS_ALLOCATE_res::CTL_OK(next) = w.mds.order(DS_ALLOCATE, &args).await else { panic!() };
            assert!(next == rest.end || next % (3 * 8192) == 0);
            assert!(next > rest.offset && (next - rest.offset) / (3 * 8192) < 5_000);
            (rest.offset, orders) = (next, orders + 1);
        }
        assert_eq!(orders, 3);
        for bad in [ctl_units { unit: 0, ..all }, units(9, 9), units(0, u64::MAX)] {
            let args = DS_ALLOCATE_args { caller, target: target(1), units: bad };
            let done: DS_ALLOCATE_res = w.mds.order(DS_ALLOCATE, &args).await;
            assert_eq!(done, DS_ALLOCATE_res::Default(ctl_status::CTL_ERR_INVAL));
            assert_eq!(find(1, bad).await, DS_HOLE_res::Default(ctl_status::CTL_ERR_INVAL));
        }
        let caller = ctl_caller { mds_epoch: caller.mds_epoch - 1, ..caller };
        let args = DS_ALLOCATE_args { caller, target: target(1), units: all };
        let done: DS_ALLOCATE_res = w.mds.order(DS_ALLOCATE, &args).await;
        assert_eq!(done, DS_ALLOCATE_res::Default(ctl_status::CTL_ERR_EPOCH), "of an older one");
    });
}
