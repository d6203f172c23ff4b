//! ONC RPC (RFC 5531) over TCP, for both servers and for every client of ours.
//!
//! One [`Connection`] carries calls in both directions: a server answers calls with its [`Program`]s and
//! may itself call its peer on the same connection (the NFSv4.1 back channel, RFC 8881 §2.10.3.1, and the
//! control program both live from that).
//!
//! | module | what |
//! | --- | --- |
//! | [`program`] | [`Program`], [`Call`], [`Reply`] |
//! | [`connection`] | one TCP connection: reads records, bounded calls in flight, ordered writes, outgoing calls |
//! | [`server`] | listeners, connection limit, sniffing plain from secure, graceful drain |
//! | [`client`] | outgoing connections, and a client that reconnects |
//! | [`credential`] | AUTH_NONE, AUTH_SYS, RPCSEC_GSS |
//! | [`gss`] | who shows a Kerberos ticket (RFC 2203) |
//! | [`limits`] | every bound and timeout |
//! | [`payload`] | data of a reply that goes to the socket from where it is |
//! | [`tail`] | data of a call that goes from the socket to where it belongs |
//! | [`transport`] | the seam: [`Tcp`], and [`SimNet`] for simulations |
//! | [`tls`] | RPC with TLS (RFC 9289), for clients |
//! | [`secure`], [`key`], [`keyring`] | mutual authentication and encryption under the cluster key |
//! | [`metrics`] | counters and latency per procedure |

mod arrivals;
mod budget;
pub mod client;
pub mod connection;
mod courtesy;
pub mod credential;
mod crowd;
pub mod gss;
pub mod key;
pub mod keyring;
pub mod limits;
mod line;
mod message;
pub mod metrics;
mod outbox;
mod owed;
pub mod payload;
mod pending;
pub mod program;
mod reader;
mod recycle;
mod said;
pub mod secure;
pub mod server;
pub mod tail;
pub mod tls;
pub mod transport;

pub use client::{Client, ConnectError, ReconnectingClient};
pub use connection::Connection;
pub use credential::{AuthSys, Credential};
pub use gss::{Gss, GssCaller, Service};
pub use key::{ClusterKey, KeyError};
pub use keyring::{KeyFile, Keyring, Keys, Role, Shown};
pub use limits::{Limits, Share};
pub use message::CallError;
pub use metrics::{Metrics, ProcedureSnapshot};
pub use owed::Owed;
pub use payload::{Payload, Sent};
pub use program::{Call, NOW_BOUND, Program, Reply};
pub use said::Sparing;
pub use server::{Admission, Server};
pub use sluice_xdr::Frame;
pub use sluice_xdr::rpc::auth_stat;
pub use tail::Tail;
pub use tls::{Demand, Tls};
pub use transport::sim::{SimConfig, SimNet};
pub use transport::tcp::Tcp;
pub use transport::{Listener, Stream, Transport};
