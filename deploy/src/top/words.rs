//! Figures as people read them, three digits at most before a unit.

/// Bytes a second.
pub(super) fn bytes_rate(rate: f64) -> String {
    scaled(rate, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// So many a second.
pub(super) fn plain_rate(rate: f64) -> String {
    scaled(rate, 1000.0, &["", "k", "M", "G"])
}

#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub(super) fn count(n: u64) -> String {
    scaled(n as f64, 1000.0, &["", "k", "M", "G", "T"])
}

/// Seconds.
pub(super) fn latency(seconds: f64) -> String {
    match seconds {
        0.0 => "-".to_owned(),
        s if s.is_infinite() => "minutes".to_owned(),
        s if s < 0.001 => format!("{:.0} us", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s => format!("{s:.1} s"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a percentage")]
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.0}%", 100.0 * part as f64 / whole as f64) }
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = units.iter();
    let mut name = unit.next().copied().unwrap_or_default();
    while value >= step
        && let Some(next) = unit.next()
    {
        value /= step;
        name = next;
    }
    let digits = if name.is_empty() || name == "B" || value >= 100.0 { 0 } else { 1 };
    let gap = if step > 1000.0 { " " } else { "" };
    format!("{value:.digits$}{gap}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_units() {
        let rates: Vec<_> =
            [0.0, 512.0, 1536.0, 300.0 * 1048576.0, 2.5 * 1073741824.0].map(bytes_rate).into();
        assert_eq!(rates, ["0 B", "512 B", "1.5 KiB", "300 MiB", "2.5 GiB"]);
        assert_eq!([0.4, 999.0, 12_345.0, 2e6].map(plain_rate), ["0", "999", "12.3k", "2.0M"]);
        let times = [0.0, 0.000_064, 0.0042, 1.5, f64::INFINITY].map(latency);
        assert_eq!(times, ["-", "64 us", "4.2 ms", "1.5 s", "minutes"]);
        assert_eq!(
            (percent(1, 3), percent(0, 0), count(1_200_000)),
            ("33%".into(), "-".into(), "1.2M".into())
        );
    }
}
