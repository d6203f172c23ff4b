//! The client that checkers must find out: what was not answered it sends as another request.

use std::time::Duration;

use sluice_conformance::client::ops;

use crate::NEW;
use crate::client::persistent;
use crate::stage::simulate;

/// Each time a slot is left behind.
#[test]
fn it_is_served_however_often_its_connection_goes() {
    simulate(31, async |world| {
        let asks = persistent(world, "a", NEW).await.forgetful();
        let mut again = 0;
        for _ in 0..100 {
            let breaks = async {
                world.sleep(Duration::from_micros(50)).await;
                asks.disconnect().await;
            };
            let asked = asks.request(vec![ops::putrootfh()]);
            let (answer, ()) = tokio::join!(world.env.clock.timeout(Duration::from_secs(5), asked), breaks);
            again += u32::from(answer.unwrap().unwrap().sent > 1);
        }
        assert!(again > 64, "{again}, as many as there are slots");
    });
}
