//! The operations on one file whose transaction is in flight.

use super::{Held, TicketId};

/// By their numbers, which ascend. There is one, nearly always, for as long as a transaction takes: a tree would ask for a
/// node of eleven each time.
#[derive(Debug, Default, Hash)]
pub(super) struct Tickets(Vec<(TicketId, Held)>);

impl Tickets {
    /// `id` is above all that were there before.
    pub(super) fn insert(&mut self, id: TicketId, held: Held) {
        debug_assert!(self.0.last().is_none_or(|(last, _)| *last < id), "{id:?} is not new");
        if self.0.is_empty() {
            self.0.reserve_exact(1);
        }
        self.0.push((id, held));
    }

    pub(super) fn remove(&mut self, id: TicketId) -> Option<Held> {
        let at = self.0.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        let (_, held) = self.0.remove(at);
        // Files stay open for days.
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
        Some(held)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (TicketId, &Held)> {
        self.0.iter().map(|(id, held)| (*id, held))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Held> {
        self.0.iter().map(|(_, held)| held)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Held> {
        self.0.iter_mut().map(|(_, held)| held)
    }
}
