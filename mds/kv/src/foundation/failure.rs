//! FoundationDB's error codes, by what the caller should do about them.
//!
//! The codes are those of <https://apple.github.io/foundationdb/api-error-codes.html>.

use foundationdb::FdbError;

use crate::{KvError, MAX_KEY, MAX_VALUE};

/// Of a read. Nothing was applied.
pub(crate) fn of_read(error: FdbError) -> KvError {
    match error.code() {
        // transaction_too_old
        1007 => KvError::TooOld,
        // transaction_cancelled
        1025 => KvError::Closed,
        code if is_passing(code) => unavailable(error),
        _ => other(error),
    }
}

/// Of a commit of about `bytes` bytes.
pub(crate) fn of_commit(error: FdbError, bytes: usize) -> KvError {
    match error.code() {
        // transaction_too_old: told before anything is applied.
        1007 => KvError::TooOld,
        // not_committed
        1020 => KvError::Conflict,
        // commit_unknown_result: the library reports it only when the commit is no longer in flight. Of the others
        // that leave it open (cluster_version_changed, a time-out, a cancelled commit) none is expected: there is
        // one client version, no time-out, and nobody cancels.
        1021 | 1025 | 1031 | 1039 => KvError::CommitUnknown,
        // transaction_too_large
        2101 => KvError::TooLarge { bytes },
        // key_too_large, value_too_large: the limits above are stricter.
        2102 => KvError::KeyTooLong { bytes: MAX_KEY },
        2103 => KvError::ValueTooLong { bytes: MAX_VALUE },
        code if is_passing(code) => unavailable(error),
        _ => other(error),
    }
}

/// Of a call that asks the cluster nothing.
pub(crate) fn of_call(error: FdbError) -> KvError {
    other(error)
}

/// Whether the same may succeed later, and nothing was applied.
fn is_passing(code: i32) -> bool {
    matches!(
        code,
        1004 // timed_out
        | 1009 // future_version: the storage server is behind the read version
        | 1031 // transaction_timed_out: nobody answered in time
        | 1037 // process_behind
        | 1038 // database_locked: a restore is under way
        | 1039 // cluster_version_changed
        | 1042 // commit_proxy_memory_limit_exceeded
        | 1051 // batch_transaction_throttled
        | 1078 // grv_proxy_memory_limit_exceeded
        | 1213 // tag_throttled
        | 1223 // proxy_tag_throttled
        | 1235 // transaction_throttled_hot_shard
        | 1236 // transaction_rejected_range_locked
    )
}

fn unavailable(error: FdbError) -> KvError {
    KvError::Unavailable { what: described(error) }
}

fn other(error: FdbError) -> KvError {
    KvError::Io { what: described(error) }
}

fn described(error: FdbError) -> String {
    format!("FoundationDB: {} ({})", error.message(), error.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(code: i32) -> KvError {
        of_read(FdbError::from_code(code))
    }

    fn commit(code: i32) -> KvError {
        of_commit(FdbError::from_code(code), 7)
    }

    #[test]
    fn what_may_have_been_applied_is_never_called_retryable() {
        for code in [1021, 1025, 1031, 1039] {
            assert!(commit(code).maybe_committed() && !commit(code).is_retryable(), "{code}");
        }
    }

    #[test]
    fn what_passes_is_tried_again() {
        for code in [1004, 1007, 1009, 1031, 1037, 1038, 1039, 1213] {
            assert!(read(code).is_retryable(), "{code}");
        }
        for code in [1007, 1009, 1020, 1037, 1038, 1042] {
            assert!(commit(code).is_retryable() && !commit(code).maybe_committed(), "{code}");
        }
        assert_eq!(commit(1020), KvError::Conflict);
        assert_eq!(commit(2101), KvError::TooLarge { bytes: 7 });
    }

    #[test]
    fn what_does_not_pass_is_not() {
        for code in [2000, 2004, 2200, 4100] {
            assert!(!read(code).is_retryable() && !commit(code).is_retryable(), "{code}");
        }
    }
}
