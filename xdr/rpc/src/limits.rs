//! Every bound and timeout of a connection, in one place.

use std::time::Duration;

/// Places beyond the limit for peers that may turn out to hold the cluster key: a crowd of clients must not
/// keep data servers and administrators out.
pub(crate) const RESERVED: usize = 64;

/// Connections beyond all places, of which as many are being closed.
pub(crate) const LEAVING: usize = 64;

/// What there may be more than places.
const BEYOND: usize = RESERVED + LEAVING;

/// So many connections are let in however few descriptors there are.
const FEW: usize = 16;

/// A limit that grows with the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub base: usize,
    pub per_connection: usize,
}

impl Share {
    /// The same for any number of connections.
    pub const fn fixed(base: usize) -> Self {
        Self { base, per_connection: 0 }
    }

    pub(crate) fn with(self, connections: usize) -> usize {
        self.base.saturating_add(self.per_connection.saturating_mul(connections))
    }
}

/// What one peer, and all peers together, may cost. The defaults suit an NFS server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections a server holds at once; of more, who has been silent makes room, or they are refused at the door.
    pub max_connections: usize,
    /// Of an address that has more connections than this, idle ones make room for others once all places are taken.
    pub part_of_address: usize,
    /// Largest record accepted, in bytes. Must be below 0x5300_0000, so that no legal record mark begins
    /// with the first byte of [`crate::secure::MAGIC`]; larger values are lowered.
    pub max_record: usize,
    /// Calls of one connection whose handlers run at once; the reader pauses at this many.
    pub max_in_flight: usize,
    /// Bytes of one connection's calls in flight and replies not yet handed to the kernel; the reader
    /// pauses when the next call would exceed it. Also bounds the bytes of outgoing calls queued.
    pub connection_budget: usize,
    /// The same sum over all connections of a server.
    pub server_budget: Share,
    /// Bytes of large records that are arriving, or have arrived and wait for room in the budget, over all connections of a
    /// server; who finds no room is not read from until there is some. Peers that owe a reply may have as much again.
    pub arriving: Share,
    /// A connection that has not sent one whole record (or finished the secure handshake) this long after
    /// it was accepted is closed. A client that comes back after a restart may wait for most of a lease before it speaks.
    pub first_record: Duration,
    /// A record that was begun must be complete within this time.
    pub partial_record: Duration,
    /// A connection with nothing in flight and nothing received for this long is closed. NFS clients keep
    /// idle connections for five minutes and more, and sessions for longer.
    pub idle: Duration,
    /// A peer that takes none of the bytes queued for it for this long is gone.
    pub write_stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 16 * 1024,
            part_of_address: 4 * 1024,
            // A 1 MiB WRITE with its headers, with room to spare.
            max_record: (1 << 20) + (64 << 10),
            max_in_flight: 1024,
            connection_budget: 64 << 20,
            server_budget: Share::fixed(2 << 30),
            arriving: Share::fixed(512 << 20),
            first_record: Duration::from_secs(300),
            partial_record: Duration::from_secs(60),
            idle: Duration::from_secs(24 * 3600),
            write_stall: Duration::from_secs(120),
        }
    }
}

impl Limits {
    /// With no more connections than a process that may have `descriptors` of them (0: the system does not tell) can have
    /// beside the `others`, but a few in any case.
    #[must_use]
    pub fn within(self, descriptors: u64, others: u64) -> Self {
        if descriptors == 0 {
            return self;
        }
        let beyond = u64::try_from(BEYOND).unwrap_or(u64::MAX);
        let left = descriptors.saturating_sub(others).saturating_sub(beyond);
        let max_connections = self.max_connections.min(usize::try_from(left).unwrap_or(usize::MAX)).max(FEW);
        Self {
            max_connections,
            part_of_address: self.part_of_address.min((max_connections / 4).max(1)),
            ..self
        }
    }

    /// The largest record, cut below the first byte of the secure magic.
    pub(crate) fn record(&self) -> usize {
        self.max_record.min(0x52ff_ffff)
    }

    /// How often the timeouts are looked at: a quarter of the shortest, between 10 ms and 2 s.
    pub(crate) fn tick(&self) -> Duration {
        let shortest = self.first_record.min(self.partial_record).min(self.idle).min(self.write_stall);
        (shortest / 4).clamp(Duration::from_millis(10), Duration::from_secs(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_let_in_than_there_are_descriptors() {
        let within = |descriptors, others| {
            let limits = Limits::default().within(descriptors, others);
            (limits.max_connections, limits.part_of_address)
        };
        let usual = (16 * 1024, 4 * 1024);
        assert_eq!(within(0, 1024), usual, "nobody says how many there are");
        assert_eq!(within(1 << 20, 1024), usual);
        assert_eq!(within(4096, 1024), (2944, 736));
        assert_eq!(within(256, 1024), (16, 4), "the process may fail, but not for want of a try");
    }
}
