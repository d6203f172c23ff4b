//! Where the metadata server may be.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use sluice_env::BoxFuture;

/// Asked before each round of attempts: a name may stand for other addresses by then.
pub trait Whereabouts: fmt::Debug + Send + Sync {
    /// All addresses, tried in turn.
    fn look(&self) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>>;
}

/// Always there.
impl Whereabouts for Vec<SocketAddr> {
    fn look(&self) -> BoxFuture<'_, io::Result<Vec<SocketAddr>>> {
        Box::pin(std::future::ready(Ok(self.clone())))
    }
}
