//! A service manager that wants to know: systemd's notify protocol. Without one (no NOTIFY_SOCKET) nothing happens.

use std::pin::pin;
use std::sync::Once;
use std::time::Duration;

use sd_notify::NotifyState;

/// The server answers, or would as soon as it is its turn. From now on the watchdog, if one is asked for, is told that tasks
/// still run: three times in the time it waits, so that one that comes late does no harm.
pub(crate) fn ready() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tell(&[NotifyState::Ready]);
        let Some(patience) = sd_notify::watchdog_enabled() else { return };
        tokio::spawn(async move {
            let mut due = tokio::time::interval(patience / 3);
            loop {
                due.tick().await;
                tell(&[NotifyState::Watchdog]);
            }
        });
    });
}

/// A start that waits gives a sign of itself for so long ahead.
const SIGN: Duration = Duration::from_secs(120);

/// Completes with `work`, which takes as long as it takes. A service manager that would give up on the start hears that it
/// goes on, and `what` it waits for. Once `waits` completes it does so for another server, perhaps for months: that has started, and
/// whoever starts it (an administrator, a package that holds its lock) is not to wait as well.
pub(crate) async fn patiently<T>(
    what: &str,
    waits: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> T {
    giving_signs(SIGN, what, waits, work).await
}

async fn giving_signs<T>(
    sign: Duration,
    what: &str,
    waits: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> T {
    let ahead = u32::try_from(sign.as_micros()).unwrap_or(u32::MAX);
    let (mut waits, mut work) = (pin!(waits), pin!(work));
    let mut due = tokio::time::interval(sign / 4);
    let mut starts = true;
    loop {
        tokio::select! {
            biased;
            _ = due.tick(), if starts => {
                tell(&[NotifyState::ExtendTimeoutUsec(ahead), NotifyState::Status(what)]);
            }
            () = &mut waits, if starts => {
                starts = false;
                ready();
            }
            done = &mut work => {
                tell(&[NotifyState::Status("")]);
                return done;
            }
        }
    }
}

/// The server drains and goes.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::warn!(%error, "the service manager does not listen");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    /// In a process of its own (of the test below), which alone is told of the socket.
    #[tokio::test]
    #[ignore = "run by the test below"]
    async fn waits() {
        let work = tokio::time::sleep(Duration::from_millis(500));
        let never = std::future::pending();
        super::giving_signs(Duration::from_millis(400), "waits for the other", never, work).await;
        super::ready();
        super::stopping();
    }

    /// The same for the other one below.
    #[tokio::test]
    #[ignore = "run by the test below"]
    async fn stands_by() {
        let turn = tokio::time::sleep(Duration::from_millis(1500));
        let waits = tokio::time::sleep(Duration::from_millis(50));
        super::giving_signs(Duration::from_millis(400), "standby", waits, turn).await;
        super::ready();
        super::stopping();
    }

    /// What a service manager is told until it stops.
    fn heard_of(test: &str, watchdog: Option<Duration>) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", &format!("supervised::tests::{test}")])
            .env("NOTIFY_SOCKET", &path)
            .envs(watchdog.map(|patience| ("WATCHDOG_USEC", patience.as_micros().to_string())))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut heard = Vec::new();
        while heard.last().is_none_or(|last| last != "STOPPING=1") {
            let mut message = [0; 256];
            let length = manager.recv(&mut message).unwrap();
            heard.push(String::from_utf8(message[..length].to_vec()).unwrap().trim().to_owned());
        }
        assert!(child.wait().unwrap().success());
        heard
    }

    #[test]
    fn a_start_that_waits_is_heard_of() {
        let heard = heard_of("waits", None);
        let signs = heard.iter().take_while(|heard| *heard != "STATUS=").count();
        let sign = "EXTEND_TIMEOUT_USEC=400000\nSTATUS=waits for the other";
        assert!(signs >= 3 && heard[..signs].iter().all(|heard| heard == sign), "{heard:?}");
        assert_eq!(heard[signs..], ["STATUS=", "READY=1", "STOPPING=1"]);
    }

    #[test]
    fn who_waits_for_its_turn_has_started_and_is_watched() {
        let heard = heard_of("stands_by", Some(Duration::from_millis(600)));
        let sign = "EXTEND_TIMEOUT_USEC=400000\nSTATUS=standby";
        let starts = heard.iter().take_while(|heard| *heard == sign).count();
        assert!(starts >= 1 && heard[starts] == "READY=1", "{heard:?}");
        let turn = heard.iter().position(|heard| heard == "STATUS=").unwrap();
        let waiting = &heard[starts + 1..turn];
        assert!(waiting.len() >= 3 && waiting.iter().all(|heard| heard == "WATCHDOG=1"), "{heard:?}");
        let rest: Vec<&String> = heard[turn + 1..].iter().filter(|heard| *heard != "WATCHDOG=1").collect();
        assert_eq!(rest, ["STOPPING=1"], "it is ready once");
    }

    /// deploy/systemd, with a program that is there in place of ours.
    #[test]
    fn systemd_takes_the_units() {
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
        let dir = tempfile::tempdir().unwrap();
        let copy = |unit: &str, to: &str| {
            let text = std::fs::read_to_string(units.join(unit)).unwrap();
            assert!(text.contains("ExecStart=/usr/bin/sluice "), "{unit}");
            let to = dir.path().join(to);
            std::fs::write(&to, text.replace("/usr/bin/sluice", "/bin/true")).unwrap();
            to
        };
        let all = [
            copy("sluice-mds.service", "sluice-mds.service"),
            copy("sluice-ds@.service", "sluice-ds@disk1.service"),
            copy("sluice-dump.service", "sluice-dump.service"),
            dir.path().join("sluice-dump.timer"),
        ];
        std::fs::copy(units.join("sluice-dump.timer"), &all[3]).unwrap();
        let Ok(ran) = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&all).output() else {
            say!("NOT RUN: no systemd-analyze: apt-get install systemd");
            return;
        };
        let said = String::from_utf8_lossy(&ran.stderr);
        let ours = |line: &&str| line.contains("sluice");
        assert!(ran.status.success() && !said.lines().any(|line| ours(&line)), "{said}");
    }
}
