//! A service manager that wants to know: systemd's notify protocol. Without one (no NOTIFY_SOCKET) nothing happens.

use std::pin::pin;
use std::time::Duration;

use sd_notify::NotifyState;

/// The server answers. From now on the watchdog, if one is asked for, is told that tasks still run: three times in
/// the time it waits, so that one that comes late does no harm.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    tokio::spawn(async move {
        let mut due = tokio::time::interval(patience / 3);
        loop {
            due.tick().await;
            tell(&[NotifyState::Watchdog]);
        }
    });
}

/// A start that waits gives a sign of itself for so long ahead.
const SIGN: Duration = Duration::from_secs(120);

/// Completes with `work`, which takes as long as it takes. A service manager that would give up on the start hears that it
/// goes on, and what it waits for.
pub(crate) async fn patiently<T>(what: &str, work: impl Future<Output = T>) -> T {
    giving_signs(SIGN, what, work).await
}

async fn giving_signs<T>(sign: Duration, what: &str, work: impl Future<Output = T>) -> T {
    let ahead = u32::try_from(sign.as_micros()).unwrap_or(u32::MAX);
    let mut work = pin!(work);
    let mut due = tokio::time::interval(sign / 4);
    loop {
        tokio::select! {
            biased;
            _ = due.tick() => tell(&[NotifyState::ExtendTimeoutUsec(ahead), NotifyState::Status(what)]),
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

    /// In a process of its own (the one below), which alone is told of the socket.
    #[tokio::test]
    #[ignore = "run by the test below"]
    async fn waits() {
        let work = tokio::time::sleep(Duration::from_millis(500));
        super::giving_signs(Duration::from_millis(400), "waits for the other", work).await;
        super::ready();
    }

    #[test]
    fn a_start_that_waits_is_heard_of() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "supervised::tests::waits"])
            .env("NOTIFY_SOCKET", &path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut heard = Vec::new();
        while heard.last().is_none_or(|last| last != "READY=1") {
            let mut message = [0; 256];
            let length = manager.recv(&mut message).unwrap();
            heard.push(String::from_utf8(message[..length].to_vec()).unwrap().trim().to_owned());
        }
        assert!(child.wait().unwrap().success());
        let signs = heard.iter().take_while(|heard| *heard != "STATUS=").count();
        let sign = "EXTEND_TIMEOUT_USEC=400000\nSTATUS=waits for the other";
        assert!(signs >= 3 && heard[..signs].iter().all(|heard| heard == sign), "{heard:?}");
        assert_eq!(heard[signs..], ["STATUS=", "READY=1"]);
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
