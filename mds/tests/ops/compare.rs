//! Mirrors are compared at data servers of the release before, which cannot.

use std::time::Duration;

use sluice_xdr::control::*;

use crate::admin::ask;
use crate::harness::*;
use crate::mirrors::{mirrored, two_copies};

async fn compare(world: &World, what: ctl_compare_what) -> ctl_compare {
    let args = ADMIN_COMPARE_args { what, ..ADMIN_COMPARE_args::default() };
    match ask(world, ADMIN_COMPARE, &args).await {
        ADMIN_COMPARE_res::CTL_OK(mut told) => told.last.remove(0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_data_server_of_the_release_before_is_named_and_its_files_are_counted() {
    simulate_with(1, mirrored(), async |mut world: World| {
        two_copies(&mut world).await;
        compare(&world, ctl_compare_what::COMPARE_BEGIN).await;
        // Nobody waits for them to be upgraded.
        world.sleep(Duration::from_secs(3)).await;
        let how = compare(&world, ctl_compare_what::COMPARE_LOOK).await;
        assert_eq!((how.state, how.seen), (ctl_compare_state::COMPARE_DONE, 1), "{how:?}");
        assert_eq!((how.compared, how.differ), (0, 0));
        let [missed] = &how.not_compared[..] else { panic!("{how:?}") };
        assert_eq!((missed.files, &missed.examples[0].name[..]), (1, &b"f"[..]));
        let why = String::from_utf8_lossy(&missed.reason);
        assert!(why.contains("of a release that cannot compare: upgrade it"), "{why}");
    });
}
