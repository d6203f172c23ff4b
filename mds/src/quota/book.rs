//! How much is used at most, known without asking the store.
//!
//! Only this server changes what is used. So what was read once, and whatever was let through since then (and was
//! under way then), is never less than what is used now; while that stays within the limits, nothing is read. Only
//! when it does not is the store asked again.

use std::collections::BTreeMap;

use sluice_namespace::{Limit, Limits, OverSince, Subject, Usage};

/// Files and bytes that are about to be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) files: u64,
    pub(crate) bytes: u128,
}

impl Amount {
    pub(crate) const fn new(files: u64, bytes: u64) -> Self {
        Self { files, bytes: bytes as u128 }
    }
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }
    fn plus(self, other: Self) -> Self {
        Self { files: self.files.saturating_add(other.files), bytes: self.bytes.saturating_add(other.bytes) }
    }
    fn minus(self, other: Self) -> Self {
        Self { files: self.files.saturating_sub(other.files), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

impl From<Usage> for Amount {
    fn from(used: Usage) -> Self {
        Self { files: used.files, bytes: used.bytes }
    }
}

/// What was true of a subject when somebody began to read what it uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    granted: Amount,
    flying: Amount,
    forgotten: u64,
}

/// What is known of a subject.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// As read.
    used: Amount,
    over: OverSince,
    read: bool,
    /// Let through since that read began, or under way when it did.
    since: Amount,
    /// Let through ever.
    granted: Amount,
    /// Under way now.
    flying: Amount,
}

/// What is known of everybody with limits who used something lately.
#[derive(Debug, Default)]
pub(crate) struct Book {
    known: BTreeMap<Subject, Known>,
    /// How often everything was to be read anew.
    forgotten: u64,
    /// When somebody asked last, in seconds.
    asked: u64,
}

/// Whether something may be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Yes,
    /// Not by what is known: these are to be read.
    Read(Vec<Subject>),
}

/// Seconds that a clock goes back by itself at most, being kept right.
const SET_BACK: u64 = 60;

/// Subjects known; beyond it those with nothing under way are forgotten.
const MOST: usize = 1 << 16;

impl Book {
    /// Takes what is wanted if all of them may have it, in one go.
    pub(crate) fn take(&mut self, bound: &[(Subject, Limits)], amount: Amount, now: u64) -> Verdict {
        // The clock was set back: what is remembered of soft limits is from a time to come.
        if now.saturating_add(SET_BACK) < self.asked {
            self.forget();
        }
        self.asked = now;
        let within = |(subject, limits): &&(Subject, Limits)| {
            !self.known.get(subject).is_some_and(|known| {
                known.read && fits(limits, &known.over, known.used.plus(known.since), amount, now)
            })
        };
        let unknown: Vec<Subject> = bound.iter().filter(within).map(|(subject, _)| *subject).collect();
        if !unknown.is_empty() {
            return Verdict::Read(unknown);
        }
        self.give(bound.iter().map(|(subject, _)| *subject), amount);
        Verdict::Yes
    }

    /// The same for those whose limits do not bind whoever takes it: it is used all the same.
    pub(crate) fn give(&mut self, subjects: impl IntoIterator<Item = Subject>, amount: Amount) {
        for subject in subjects {
            let known = self.known.entry(subject).or_default();
            known.since = known.since.plus(amount);
            known.granted = known.granted.plus(amount);
            known.flying = known.flying.plus(amount);
        }
    }

    /// What was let through is done, or was not done after all.
    pub(crate) fn done(&mut self, subjects: &[Subject], amount: Amount) {
        for subject in subjects {
            if let Some(known) = self.known.get_mut(subject) {
                known.flying = known.flying.minus(amount);
            }
        }
    }

    /// Something was added without being asked for.
    pub(crate) fn note(&mut self, subject: Subject, amount: Amount) {
        if let Some(known) = self.known.get_mut(&subject) {
            known.since = known.since.plus(amount);
            known.granted = known.granted.plus(amount);
        }
    }

    /// Somebody begins to read what a subject uses.
    pub(crate) fn mark(&mut self, subject: Subject) -> Mark {
        if self.known.len() >= MOST {
            self.known.retain(|_, known| !known.flying.is_none());
        }
        let known = self.known.entry(subject).or_default();
        Mark { granted: known.granted, flying: known.flying, forgotten: self.forgotten }
    }

    /// What was read; whether anything was under way, so that it may be counted twice.
    pub(crate) fn read(&mut self, subject: Subject, mark: Mark, used: Usage, over: OverSince) -> bool {
        let known = self.known.entry(subject).or_default();
        // What it was to be read anew for may have come after it was read.
        (known.used, known.over, known.read) = (used.into(), over, mark.forgotten == self.forgotten);
        known.since = known.granted.minus(mark.granted).plus(mark.flying);
        !known.since.is_none()
    }

    /// By what is known, one more byte is let through.
    pub(crate) fn has_room(&self, subject: Subject, limits: &Limits, now: u64) -> bool {
        let known = self.known.get(&subject).filter(|known| known.read);
        known.is_some_and(|known| {
            fits(limits, &known.over, known.used.plus(known.since), Amount::new(0, 1), now)
        })
    }

    /// What a subject uses at most.
    #[cfg(test)]
    fn most(&self, subject: Subject) -> Option<Amount> {
        let known = self.known.get(&subject).filter(|known| known.read)?;
        Some(known.used.plus(known.since))
    }

    /// Those who were over a soft limit when they were read.
    pub(crate) fn over(&self) -> Vec<Subject> {
        let over = |known: &Known| known.over != OverSince::default();
        self.known.iter().filter(|(_, known)| over(known)).map(|(subject, _)| *subject).collect()
    }

    /// Everything is to be read anew.
    pub(crate) fn forget(&mut self) {
        self.known.values_mut().for_each(|known| known.read = false);
        self.forgotten += 1;
    }
}

/// Whether `amount` may come on top of what is used. Nobody is refused what adds nothing.
pub(crate) fn fits(limits: &Limits, over: &OverSince, used: Amount, amount: Amount, now: u64) -> bool {
    let one = |limit: Limit, since: Option<u64>, used: u128, more: u128| {
        let within = |most: u64| most == 0 || used.saturating_add(more) <= most.into();
        let graced = since.is_some_and(|since| now < since.saturating_add(limits.grace.into()));
        more == 0 || (within(limit.hard) && (within(limit.soft) || graced))
    };
    one(limits.bytes, over.bytes, used.bytes, amount.bytes)
        && one(limits.files, over.files, used.files.into(), amount.files.into())
}

/// What is remembered of soft limits as it can be: nothing of a time to come, which is from before the clock was set right. A clock
/// that has not been set yet itself says nothing: it is earlier than the file system, made at `created`.
pub(crate) fn until_now(over: &OverSince, now: u64, created: u64) -> OverSince {
    let latest = if now < created { u64::MAX } else { now };
    let one = |since: Option<u64>| since.map(|since| since.min(latest));
    OverSince { bytes: one(over.bytes), files: one(over.files) }
}

/// What is to be remembered of soft limits once `amount` is added, where `over` is remembered now.
pub(crate) fn over_with(
    limits: &Limits,
    over: &OverSince,
    used: Amount,
    amount: Amount,
    now: u64,
) -> OverSince {
    let one = |limit: Limit, since: Option<u64>, used: u128, more: u128| {
        let exceeded = |used: u128| limit.soft != 0 && used > limit.soft.into();
        // Who was within the limit in between begins anew.
        let since = since.filter(|_| exceeded(used));
        since.or_else(|| exceeded(used.saturating_add(more)).then_some(now))
    };
    OverSince {
        bytes: one(limits.bytes, over.bytes, used.bytes, amount.bytes),
        files: one(limits.files, over.files, used.files.into(), amount.files.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANNA: Subject = Subject::User(7);

    fn limits(soft: u64, hard: u64) -> Limits {
        Limits { bytes: Limit { soft, hard }, files: Limit::default(), grace: 100 }
    }

    fn read(book: &mut Book, bytes: u128) {
        let mark = book.mark(ANNA);
        book.read(ANNA, mark, Usage { files: 0, bytes }, OverSince::default());
    }

    #[test]
    fn what_is_known_is_never_less_than_what_is_used() {
        let (mut book, bound) = (Book::default(), [(ANNA, limits(0, 100))]);
        let ten = Amount::new(0, 10);
        assert_eq!(book.take(&bound, ten, 0), Verdict::Read(vec![ANNA]));
        read(&mut book, 75);
        assert_eq!(book.take(&bound, ten, 0), Verdict::Yes);
        assert_eq!(book.take(&bound, ten, 0), Verdict::Yes);
        assert_eq!(book.take(&bound, ten, 0), Verdict::Read(vec![ANNA]));
        // One of the two is done and in what is read; the other may be or not.
        book.done(&[ANNA], ten);
        let mark = book.mark(ANNA);
        book.note(ANNA, Amount::new(0, 1));
        assert!(book.read(ANNA, mark, Usage { files: 0, bytes: 85 }, OverSince::default()));
        assert_eq!(book.most(ANNA), Some(Amount::new(0, 96)));
        book.done(&[ANNA], ten);
        read(&mut book, 96);
        assert_eq!(book.most(ANNA), Some(Amount::new(0, 96)));
        assert_eq!(book.take(&bound, Amount::new(5, 4), 0), Verdict::Yes);
    }

    #[test]
    fn a_clock_that_was_ahead_puts_no_soft_limit_off() {
        let (limits, more, used) = (limits(50, 100), Amount::new(0, 10), Amount::new(0, 60));
        let ahead = OverSince { bytes: Some(9_000), files: None };
        let over = over_with(&limits, &until_now(&ahead, 1_000, 500), used, more, 1_000);
        assert_eq!(over.bytes, Some(1_000));
        assert!(fits(&limits, &over, used, more, 1_099) && !fits(&limits, &over, used, more, 1_100));
        // One that is not set yet shortens nobody's grace.
        assert_eq!(until_now(&ahead, 400, 500), ahead);
        // What was read under the clock that was ahead is read anew.
        let mut book = Book { asked: 9_000, ..Book::default() };
        let mark = book.mark(ANNA);
        book.read(ANNA, mark, Usage { files: 0, bytes: 60 }, ahead);
        assert_eq!(book.take(&[(ANNA, limits)], more, 9_001), Verdict::Yes);
        assert_eq!(book.take(&[(ANNA, limits)], more, 8_990), Verdict::Yes);
        assert_eq!(book.take(&[(ANNA, limits)], more, 1_000), Verdict::Read(vec![ANNA]));
    }

    #[test]
    fn a_soft_limit_holds_after_its_grace() {
        let limits = limits(50, 100);
        let more = Amount::new(0, 10);
        let used = |bytes| Amount::new(0, bytes);
        assert!(fits(&limits, &OverSince::default(), used(40), more, 0));
        assert!(!fits(&limits, &OverSince::default(), used(41), more, 0));
        let over = over_with(&limits, &OverSince::default(), used(41), more, 1_000);
        assert_eq!(over.bytes, Some(1_000));
        assert!(fits(&limits, &over, used(90), more, 1_099));
        assert!(!fits(&limits, &over, used(90), more, 1_100));
        assert!(!fits(&limits, &over, used(91), more, 1_000));
        // What adds nothing is let through, whatever is used.
        assert!(fits(&limits, &over, used(900), Amount::new(1, 0), 2_000));
        // Within it again, it begins anew.
        assert_eq!(over_with(&limits, &over, used(50), more, 2_000).bytes, Some(2_000));
        assert_eq!(over_with(&limits, &over, used(40), more, 2_000).bytes, None);
        assert_eq!(over_with(&limits, &over, used(60), more, 2_000).bytes, Some(1_000));
    }
}
