//! What `sluice why`, `status` and `doctor` say of quotas.

use sluice_xdr::control::{ADMIN_QUOTAS_args, ADMIN_QUOTAS_resok, ctl_limit, ctl_quota, ctl_quota_kind};

use super::{Named, Names, ask, names, one, size, standing, who};
use crate::reach::Admin;

/// Named in a line at most.
const NAMED: usize = 4;

/// Those that hold for what is at a path; nothing where the metadata server is too old to tell.
pub(crate) async fn of_path(admin: &Admin, path: &str) -> ADMIN_QUOTAS_resok {
    let named = Named { kind: ctl_quota_kind::QUOTA_OF_PATH, id: 0, path: path.to_owned() };
    ask(admin, &one(&named)).await.unwrap_or_default()
}

/// Some of those that are exceeded, as above.
pub(crate) async fn exceeded(admin: &Admin) -> ADMIN_QUOTAS_resok {
    let kind = ctl_quota_kind::QUOTA_EXCEEDED;
    let args = ADMIN_QUOTAS_args { kind, one: false, id: 0, from_start: true, path: "".into() };
    ask(admin, &args).await.unwrap_or_default()
}

/// A line for each that is nearly used up, or is.
pub(crate) fn near(told: &ADMIN_QUOTAS_resok) -> Vec<String> {
    let names = names(&told.quotas);
    told.quotas.iter().filter_map(|quota| near_one(quota, told.now, &names)).collect()
}

fn near_one(quota: &ctl_quota, now: u64, names: &Names) -> Option<String> {
    let bytes = tight(&quota.bytes, quota.used_bytes)
        .map(|limit| format!("{} of {}", size(quota.used_bytes), limit.words(size)));
    let files = tight(&quota.files, quota.used_files)
        .map(|limit| format!("{} of {} files", quota.used_files, limit.words(|files| files.to_string())));
    let used: Vec<String> = [bytes, files].into_iter().flatten().collect();
    let standing = match standing(quota, now) {
        ok if ok == "ok" => "nearly used up".to_owned(),
        standing => standing,
    };
    (!used.is_empty()).then(|| format!("quota of {}: {}: {standing}", who(quota, names), used.join(" and ")))
}

/// The limit that is next in the way.
struct Tight {
    limit: u64,
    soft: bool,
}

impl Tight {
    fn words(&self, shown: impl Fn(u64) -> String) -> String {
        format!("{}{}", shown(self.limit), if self.soft { " (soft)" } else { "" })
    }
}

/// Nine tenths are used.
fn tight(limit: &ctl_limit, used: u64) -> Option<Tight> {
    let near = |limit: u64| limit != 0 && u128::from(used) * 10 >= u128::from(limit) * 9;
    let of = |limit, soft| near(limit).then_some(Tight { limit, soft });
    of(limit.hard, false).or_else(|| of(limit.soft, true))
}

/// One line for all that can add nothing more.
pub(crate) fn used_up(told: &ADMIN_QUOTAS_resok) -> Option<String> {
    let quotas = told.quotas.iter().filter(|quota| is_used_up(quota, told.now));
    let quotas: Vec<ctl_quota> = quotas.cloned().collect();
    let names = names(&quotas);
    let named: Vec<String> = quotas.iter().take(NAMED).map(|quota| who(quota, &names)).collect();
    let more = if quotas.len() > NAMED { " and more" } else { "" };
    (!named.is_empty()).then(|| {
        format!(
            "quotas are used up, and what adds to them gets EDQUOT: {}{more} (`sluice quota list`)",
            named.join(", ")
        )
    })
}

fn is_used_up(quota: &ctl_quota, now: u64) -> bool {
    let spent = |limit: &ctl_limit, used: u64, since: u64| {
        let over = limit.hard != 0 && used >= limit.hard;
        let late = since != 0 && since.saturating_add(quota.grace.into()) <= now;
        over || (late && limit.soft != 0 && used >= limit.soft)
    };
    spent(&quota.bytes, quota.used_bytes, quota.bytes_since)
        || spent(&quota.files, quota.used_files, quota.files_since)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn told(quotas: Vec<ctl_quota>) -> ADMIN_QUOTAS_resok {
        ADMIN_QUOTAS_resok { now: 10_000, quotas, ..ADMIN_QUOTAS_resok::default() }
    }

    fn tree(path: &str, used_bytes: u64, used_files: u64) -> ctl_quota {
        ctl_quota {
            kind: ctl_quota_kind::QUOTA_TREE,
            path: path.to_owned().into(),
            bytes: ctl_limit { soft: 5 * GIB, hard: 10 * GIB },
            files: ctl_limit { soft: 0, hard: 20 },
            grace: 3600,
            used_bytes,
            used_files,
            ..ctl_quota::default()
        }
    }

    #[test]
    fn who_is_near_a_limit_is_told_how_near() {
        assert_eq!(near(&told(vec![tree("/t", 4 * GIB, 17), ctl_quota::default()])), Vec::<String>::new());
        let above = ctl_quota { bytes_since: 9_000, ..tree("/b", 6 * GIB, 3) };
        let told = told(vec![tree("/a", 4 * GIB + GIB / 2, 0), above, tree("/c", 10 * GIB, 18)]);
        let wanted = [
            "quota of /a: 4.5 GiB of 5 GiB (soft): nearly used up",
            "quota of /b: 6 GiB of 5 GiB (soft): above soft limit, 1 h left",
            "quota of /c: 10 GiB of 10 GiB and 18 of 20 files: full",
        ];
        assert_eq!(near(&told), wanted);
    }

    #[test]
    fn those_that_are_used_up_are_one_line() {
        // Above a soft limit one may grow for a while.
        let above = |since| ctl_quota { bytes_since: since, ..tree("/soft", 6 * GIB, 3) };
        assert_eq!(used_up(&told(vec![above(9_000)])), None);
        assert!(used_up(&told(vec![above(1_000)])).unwrap().contains("EDQUOT: /soft (`"));
        // What was removed since the last look counts no more.
        assert_eq!(used_up(&told(vec![tree("/now", GIB, 19)])), None);
        let all = (1..=5).map(|n| tree(&format!("/{n}"), GIB, 20)).collect();
        assert!(used_up(&told(all)).unwrap().contains("EDQUOT: /1, /2, /3, /4 and more (`"));
    }
}
