//! What a backend provides, and the dispatch to it: an enum, so that a read costs no allocation.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;

use crate::embedded::Embedded;
use crate::foundation::Foundation;
use crate::memory::Memory;
use crate::reads::ReadSet;
use crate::views::View as Versioned;
use crate::writes::WriteSet;
use crate::{Committed, KeyRange, KeyValue, KvError};

/// A transaction on its way to commit. The view is held until validation, so that the history it
/// needs is kept.
#[derive(Debug)]
pub(crate) struct Request<V> {
    pub(crate) view: Option<V>,
    pub(crate) reads: ReadSet,
    pub(crate) writes: WriteSet,
    pub(crate) write_conflicts: Vec<KeyRange>,
    /// As [`crate::Transaction::approximate_size`].
    pub(crate) bytes: usize,
}

/// A backend.
pub(crate) trait Store {
    /// One version of the store, readable as long as it is held.
    type View;

    /// The newest committed version.
    fn view(&self) -> impl Future<Output = Result<Self::View, KvError>> + Send;
    fn get(
        &self,
        view: &Self::View,
        key: &[u8],
    ) -> impl Future<Output = Result<Option<Bytes>, KvError>> + Send;
    /// The first (last when `reverse`) `limit` pairs of `[begin, end)`.
    fn range(
        &self,
        view: &Self::View,
        begin: &[u8],
        end: &[u8],
        limit: usize,
        reverse: bool,
    ) -> impl Future<Output = Result<Vec<KeyValue>, KvError>> + Send;
    /// Validates, applies and makes durable. The request writes something.
    fn commit(&self, request: Request<Self::View>)
    -> impl Future<Output = Result<Committed, KvError>> + Send;
    /// Makes everything acknowledged durable. Commits already are.
    fn flush(&self) -> impl Future<Output = Result<(), KvError>> + Send;
    /// Refuses everything from now on; completes when nothing is in flight.
    fn close(&self) -> impl Future<Output = Result<(), KvError>> + Send;
}

#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Memory(Arc<Memory>),
    Embedded(Arc<Embedded>),
    Foundation(Arc<Foundation>),
}

#[derive(Debug)]
pub(crate) enum View {
    Memory(<Memory as Store>::View),
    Embedded(<Embedded as Store>::View),
    Foundation(<Foundation as Store>::View),
}

impl View {
    pub(crate) fn version(&self) -> u64 {
        match self {
            Self::Memory(v) => v.version,
            Self::Embedded(v) => v.version,
            Self::Foundation(v) => v.version,
        }
    }
}

/// A view is used only with the backend it came from, and each [`crate::Transaction`] has one backend.
fn mismatch() -> KvError {
    KvError::Corrupt { what: "a view of another backend".into() }
}

/// What goes over a network is in a box, and what only tests ask, so that not every future that asks a store on this machine
/// has room for it.
impl Backend {
    /// Whether it may be asked later what became of a commit. A store on this machine that does not know what became of one
    /// answers nothing more.
    pub(crate) fn loses_answers(&self) -> bool {
        !matches!(self, Self::Embedded(_))
    }

    /// Another server has taken over: that is for good.
    pub(crate) fn superseded(&self) {
        if let Self::Foundation(foundation) = self {
            foundation.superseded();
        }
    }

    pub(crate) async fn view(&self) -> Result<View, KvError> {
        match self {
            Self::Memory(m) => Box::pin(m.view()).await.map(View::Memory),
            Self::Embedded(e) => e.view().await.map(View::Embedded),
            Self::Foundation(f) => Box::pin(f.view()).await.map(View::Foundation),
        }
    }

    pub(crate) async fn get(&self, view: &View, key: &[u8]) -> Result<Option<Bytes>, KvError> {
        match (self, view) {
            (Self::Memory(m), View::Memory(v)) => Box::pin(m.get(v, key)).await,
            (Self::Embedded(e), View::Embedded(v)) => e.get(v, key).await,
            (Self::Foundation(f), View::Foundation(v)) => Box::pin(f.get(v, key)).await,
            _ => Err(mismatch()),
        }
    }

    pub(crate) async fn range(
        &self,
        view: &View,
        begin: &[u8],
        end: &[u8],
        limit: usize,
        reverse: bool,
    ) -> Result<Vec<KeyValue>, KvError> {
        match (self, view) {
            (Self::Memory(m), View::Memory(v)) => Box::pin(m.range(v, begin, end, limit, reverse)).await,
            (Self::Embedded(e), View::Embedded(v)) => e.range(v, begin, end, limit, reverse).await,
            (Self::Foundation(f), View::Foundation(v)) => {
                Box::pin(f.range(v, begin, end, limit, reverse)).await
            }
            _ => Err(mismatch()),
        }
    }

    /// As [`Self::range`], for who can wait: where rows were changed very often since the view, there is much to step over, and a
    /// thread that serves others would stand still meanwhile.
    pub(crate) async fn range_at_leisure(
        &self,
        view: &View,
        begin: &[u8],
        end: &[u8],
        limit: usize,
    ) -> Result<Vec<KeyValue>, KvError> {
        match (self, view) {
            (Self::Embedded(e), View::Embedded(v)) => e.range_at_leisure(v, begin, end, limit).await,
            _ => self.range(view, begin, end, limit, false).await,
        }
    }

    pub(crate) async fn commit(&self, request: Request<View>) -> Result<Committed, KvError> {
        let Request { view, reads, writes, write_conflicts, bytes } = request;
        match self {
            Self::Memory(m) => {
                let view = match view {
                    None => None,
                    Some(View::Memory(v)) => Some(v),
                    Some(_) => return Err(mismatch()),
                };
                Box::pin(m.commit(Request { view, reads, writes, write_conflicts, bytes })).await
            }
            Self::Embedded(e) => {
                let view = match view {
                    None => None,
                    Some(View::Embedded(v)) => Some(v),
                    Some(_) => return Err(mismatch()),
                };
                e.commit(Request { view, reads, writes, write_conflicts, bytes }).await
            }
            Self::Foundation(f) => {
                let view = match view {
                    None => None,
                    Some(View::Foundation(v)) => Some(v),
                    Some(_) => return Err(mismatch()),
                };
                Box::pin(f.commit(Request { view, reads, writes, write_conflicts, bytes })).await
            }
        }
    }

    pub(crate) async fn flush(&self) -> Result<(), KvError> {
        match self {
            Self::Memory(m) => m.flush().await,
            Self::Embedded(e) => e.flush().await,
            Self::Foundation(f) => f.flush().await,
        }
    }

    pub(crate) async fn close(&self) -> Result<(), KvError> {
        match self {
            Self::Memory(m) => m.close().await,
            Self::Embedded(e) => e.close().await,
            Self::Foundation(f) => f.close().await,
        }
    }
}

/// A versioned view, shared by the transactions that read it.
pub(crate) type Shared<S> = Arc<Versioned<S>>;
