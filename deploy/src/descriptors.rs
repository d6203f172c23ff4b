//! As many file descriptors as this process may have.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit to what the system permits: shells give 1024, which keeps select(2) of old programs happy, and a
/// server wants one for each connection and open file. Where that cannot be had, `sluice doctor` says so.
pub(crate) fn raise() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most).map(|()| most));
    match raised {
        Ok(most) => tracing::debug!(most, "file descriptors"),
        Err(error) => tracing::warn!(%error, "cannot have more file descriptors"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_permitted_is_taken() {
        let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        raise();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (most, most));
    }
}
