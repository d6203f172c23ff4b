//! A service manager that wants to know: systemd's notify protocol. Without one (no NOTIFY_SOCKET) nothing happens.

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
    use std::path::Path;
    use std::process::Command;

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
        ];
        let Ok(ran) = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&all).output() else {
            say!("NOT RUN: no systemd-analyze: apt-get install systemd");
            return;
        };
        let said = String::from_utf8_lossy(&ran.stderr);
        let ours = |line: &&str| line.contains("sluice");
        assert!(ran.status.success() && !said.lines().any(|line| ours(&line)), "{said}");
    }
}
