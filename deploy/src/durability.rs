//! The control of the power-loss test: servers that acknowledge without syncing must fail it. No option, so that
//! nobody takes it for tuning.

const VARIABLE: &str = "SLUICE_UNSAFE_NO_SYNC";

/// Whether the environment asks this role (`mds` or `ds`) not to sync; then says loudly what that means.
pub(crate) fn unsafe_no_sync(role: &str) -> bool {
    let asked = std::env::var(VARIABLE).is_ok_and(|value| names(&value, role));
    if asked {
        tracing::error!(
            "{VARIABLE} is set: this {role} acknowledges what it has not synced, and a power failure WILL LOSE \
             DATA; it exists for one test, never set it"
        );
    }
    asked
}

fn names(value: &str, role: &str) -> bool {
    value.split(',').any(|name| name == role)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_roles_that_are_named_do_without_syncs() {
        assert!(names("mds", "mds"));
        assert!(names("mds,ds", "ds"));
        assert!(!names("mds", "ds"));
        for value in ["", "0", "1", "no", "mdss"] {
            assert!(!names(value, "mds") && !names(value, "ds"), "{value}");
        }
    }
}
