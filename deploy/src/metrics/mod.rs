//! Metrics for Prometheus: `GET /metrics` on an address of its own, off unless asked for. Nothing is kept for it: each
//! scrape takes a snapshot of the server's counters and writes it down.

pub(crate) mod ds;
pub(crate) mod mds;
mod page;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use sluice_env::BoxFuture;
use sluice_rpc::Tcp;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::ports;

/// Scrapers at a time; more wait. Each costs a snapshot.
const CONNECTIONS: usize = 8;
/// How long a scraper may take to ask, and in all.
const ASK: Duration = Duration::from_secs(5);
const WHOLE: Duration = Duration::from_secs(60);
/// What the library writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A server that can be scraped. An error is one line.
pub(crate) trait Source: Send + Sync + 'static {
    fn snapshot(&self) -> BoxFuture<'_, Result<Box<dyn Collector>, String>>;
}

/// Where scrapers will be answered, if there is such a place: taken before a server begins anything that others notice.
///
/// # Errors
/// One line for an operator: the port is taken.
pub(crate) fn bind(address: Option<SocketAddr>) -> Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let bound = Tcp::bind(address);
    bound.map(Some).map_err(|error| anyhow!(ports::explain("--metrics", address, &error)))
}

/// Answers scrapers for the life of the process; where it listens, with the port that was picked.
///
/// # Errors
/// The listener has no address.
pub(crate) fn serve(listener: TcpListener, source: Arc<dyn Source>) -> Result<SocketAddr> {
    let local = listener.local_addr()?;
    tokio::spawn(accept(listener, source));
    tracing::info!(listen = %local, "metrics at http://{local}/metrics");
    Ok(local)
}

async fn accept(listener: TcpListener, source: Arc<dyn Source>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never closed: an error cannot happen.
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = Arc::clone(&source);
                tokio::spawn(async move {
                    answer(stream, source).await;
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of descriptors, most likely: clients of the file system need them more.
                tracing::debug!(%error, "cannot accept a scraper");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, source: Arc<dyn Source>) {
    let service = service_fn(|request| respond(request, Arc::clone(&source)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ASK)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A scraper that goes away in the middle is its own business.
    drop(tokio::time::timeout(WHOLE, connection).await);
}

async fn respond(
    request: Request<Incoming>,
    source: Arc<dyn Source>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match scrape(source.as_ref()).await {
            Ok(page) => (StatusCode::OK, OPEN_METRICS, page),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{why}\n")),
        },
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET only\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "text/plain", "there is only /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    Ok(response)
}

/// The page as text.
async fn scrape(source: &dyn Source) -> Result<String, String> {
    page::write(source.snapshot().await?)
}
