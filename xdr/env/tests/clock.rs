//! The clocks of a real and of a simulated world.

use std::time::Duration;

use sluice_env::Env;

/// Its readings are the kernel's and its timers are the runtime's: they must agree.
#[tokio::test]
async fn a_timer_never_fires_before_the_clock_says_so() {
    let clock = Env::system().clock;
    for micros in [0, 1, 300, 2_500] {
        let due = clock.now() + Duration::from_micros(micros);
        clock.sleep_until(due).await;
        let late = clock.now().since(due);
        assert!(clock.now() >= due, "{micros}");
        assert!(late < Duration::from_secs(20), "{micros} us became {late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_simulated_day_passes_at_once() {
    let clock = Env::simulated(1).clock;
    let (began, dawn) = (clock.now(), clock.wall());
    clock.sleep(Duration::from_hours(24)).await;
    assert_eq!(clock.now().since(began), Duration::from_hours(24));
    assert_eq!(clock.wall().seconds - dawn.seconds, 86_400);
}
