//! What happens without being asked: leases that run out, grace that ends.

use std::sync::Arc;

use crate::server::Mds;

/// Runs for the life of the server.
pub(crate) async fn run(_mds: Arc<Mds>) {}
