//! Client implementation: `nfs_impl_id4`, RFC 8881 §3.3.21, and the Linux kernel release in it.

use bytes::Bytes;

/// Longest name or domain kept, in bytes; the rest is cut off.
pub const MAX_IMPLEMENTATION: usize = 512;

/// What a client says about itself. Advisory: RFC 8881 §2.4 forbids to rely on it for correctness, so
/// it only chooses between two encodings that are both right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImplementationId {
    /// `nii_domain`
    pub domain: Bytes,
    /// `nii_name`; of Linux: `sysname release version machine`.
    pub name: Bytes,
    /// `nii_date`: seconds and nanoseconds.
    pub date: (i64, u32),
}

impl ImplementationId {
    /// Keeps at most [`MAX_IMPLEMENTATION`] bytes of each string, in memory of their own.
    #[must_use]
    pub fn new(domain: &[u8], name: &[u8], date: (i64, u32)) -> Self {
        let cut = |b: &[u8]| Bytes::copy_from_slice(b.get(..MAX_IMPLEMENTATION).unwrap_or(b));
        Self { domain: cut(domain), name: cut(name), date }
    }

    /// The kernel release, if this is a Linux kernel.
    #[must_use]
    pub fn kernel(&self) -> Option<KernelRelease> {
        KernelRelease::parse(std::str::from_utf8(&self.name).ok()?)
    }
}

/// A Linux kernel release such as `6.12.0-55.el10.x86_64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRelease {
    /// 6
    pub major: u32,
    /// 12
    pub minor: u32,
    /// What follows: `.0-55.el10.x86_64`.
    pub suffix: String,
}

impl KernelRelease {
    /// Reads the second word of a `nii_name` whose first word is `Linux`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut words = name.split_ascii_whitespace();
        if words.next() != Some("Linux") {
            return None;
        }
        let release = words.next()?;
        let (major, rest) = number(release)?;
        let (minor, suffix) = number(rest.strip_prefix('.')?)?;
        Some(Self { major, minor, suffix: suffix.to_owned() })
    }

    /// Understands several data servers in one mirror: Linux 6.18 and later over NFSv4.2.
    ///
    /// The number alone decides. A vendor kernel with an older number may have the feature backported,
    /// but a wrong guess is an EIO for the application, and a wrong "no" only another encoding.
    #[must_use]
    pub fn supports_stripes(&self, minor_version: u32) -> bool {
        minor_version >= 2 && (self.major, self.minor) >= (6, 18)
    }

    /// Speaks in clear with data servers, whatever its mount has with this one: Linux before 6.18.
    ///
    /// Again the number decides: what it writes would be in clear before a data server refuses it, and a wrong guess only takes the
    /// other way.
    #[must_use]
    pub fn is_in_clear(&self) -> bool {
        (self.major, self.minor) < (6, 18)
    }
}

/// A leading decimal number and the rest.
fn number(s: &str) -> Option<(u32, &str)> {
    let end = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    let (digits, rest) = s.split_at(end);
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripes(name: &str, minor_version: u32) -> bool {
        ImplementationId::new(b"kernel.org", name.as_bytes(), (0, 0))
            .kernel()
            .is_some_and(|k| k.supports_stripes(minor_version))
    }

    #[test]
    fn kernels_that_speak_in_clear_with_data_servers_are_known() {
        let clear = |name| KernelRelease::parse(name).unwrap().is_in_clear();
        assert!(clear("Linux 6.17.9 #1 SMP x86_64") && clear("Linux 5.14.0-1.el9 #1"));
        assert!(!clear("Linux 6.18.0 #1 SMP x86_64") && !clear("Linux 7.2.7 #1"));
    }

    #[test]
    fn release_is_parsed() {
        let k = KernelRelease::parse("Linux 6.12.0-55.el10.x86_64 #1 SMP x86_64").unwrap();
        assert_eq!((k.major, k.minor, k.suffix.as_str()), (6, 12, ".0-55.el10.x86_64"));
        let k = KernelRelease::parse("Linux 7.2 #1").unwrap();
        assert_eq!((k.major, k.minor, k.suffix.as_str()), (7, 2, ""));
    }

    #[test]
    fn stripes_need_6_18_and_4_2() {
        assert!(stripes("Linux 6.18.0-1-amd64 #1 SMP x86_64", 2));
        assert!(stripes("Linux 7.2.0 #1 SMP x86_64", 2));
        assert!(stripes("Linux 10.0.0 #1 SMP x86_64", 2));
        assert!(!stripes("Linux 6.18.0 #1 SMP x86_64", 1));
        assert!(!stripes("Linux 6.17.9 #1 SMP x86_64", 2));
        assert!(!stripes("Linux 6.2.0 #1 SMP x86_64", 2));
        assert!(!stripes("Linux 5.19.0 #1 SMP x86_64", 2));
    }

    #[test]
    fn unknown_is_old() {
        for name in [
            "",
            "Linux",
            "Linux 6",
            "Linux x.y",
            "Linux 6.",
            "FreeBSD 15.0",
            "linux 7.2",
            "Linux -1.2",
            "Linux 99999999999.1",
            "Linux .7.2",
        ] {
            assert!(!stripes(name, 2), "{name}");
        }
        assert!(ImplementationId::new(b"", b"Linux 7.2 \xff", (0, 0)).kernel().is_none());
    }

    #[test]
    fn strings_are_cut() {
        let id = ImplementationId::new(&[b'a'; 600], &[b'b'; 512], (0, 0));
        assert_eq!((id.domain.len(), id.name.len()), (512, 512));
    }
}
