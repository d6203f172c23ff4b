//! RPC with TLS (RFC 9289), as clients meet it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "certificates are good or not by the real time, whatever is simulated"
)]

mod common;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use common::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use sluice_rpc::gss::{Accepted, Gss, Mechanism, Rejected};
use sluice_rpc::tls::{Files, FilesError, Identity, TlsClient, TlsError};
use sluice_rpc::{
    CallError, Client, ClusterKey, ConnectError, Connection, Credential, Demand, Frame, Limits, Server,
    SimConfig, Tls, auth_stat,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

macro_rules! everywhere {
    ($($name:ident),* $(,)?) => {
        mod tcp { $(#[test] fn $name() { super::on_tcp("127.0.0.1:0", super::$name); })* }
        mod sim { $(#[test] fn $name() { (0..4).for_each(|seed| super::simulate(seed, super::$name)); })* }
    };
}

everywhere!(
    who_asks_is_encrypted_and_who_does_not_is_served_too,
    where_it_is_demanded_nothing_but_null_is_answered_in_clear,
    where_it_is_demanded_no_ticket_is_looked_at_that_comes_in_clear,
    certificates_are_asked_for_where_they_are_demanded,
    another_certificate_is_shown_to_who_comes_next,
    what_is_sent_in_clear_behind_the_question_ends_it,
    a_server_without_it_says_so,
    a_program_that_is_not_there_has_none,
    who_begins_to_shake_hands_and_falls_silent_is_let_go,
    holders_of_the_key_reach_the_same_programs,
);

/// Fewer seeds: encryption is slow in an unoptimised build.
#[test]
fn payloads_survive() {
    on_tcp("127.0.0.1:0", large_records_and_the_back_channel);
    simulate(1, large_records_and_the_back_channel);
    simulate_with(
        2,
        SimConfig { buffer: 10_000, ..SimConfig::default() },
        large_records_and_the_back_channel,
    );
}

/// An authority, and what it has signed, in files.
struct Office {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Office {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn authority(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Certificate and key, for an address, good from ten days ago to so many days behind yesterday.
    fn signs(&self, name: &str, address: &str, days: u32) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![SanType::IpAddress(address.parse().unwrap())];
        let (now, day) = (SystemTime::now(), Duration::from_secs(24 * 3600));
        params.not_before = (now - 10 * day).into();
        params.not_after = (now - day + days * day).into();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (pem, own) =
            (self.dir.path().join(format!("{name}.pem")), self.dir.path().join(format!("{name}.key")));
        std::fs::write(&pem, certificate.pem()).unwrap();
        std::fs::write(&own, key.serialize_pem()).unwrap();
        (pem, own)
    }

    fn identity(&self, name: &str, address: &str, clients: Option<&Self>) -> Identity {
        let (certificate, key) = self.signs(name, address, 31);
        Files { certificate, key, clients: clients.map(Self::authority) }.read().unwrap()
    }

    fn believer(&self) -> TlsClient {
        TlsClient::trusting(&self.authority(), None).unwrap()
    }
}

/// The server's address in each world, as certificates have it.
fn address(addr: SocketAddr) -> String {
    addr.ip().to_canonical().to_string()
}

fn server(w: &World, limits: Limits, tls: Option<Tls>) -> Server {
    Server::new(w.env.clone(), w.at_server.clone(), limits, vec![Echo::new(&w.env, ECHO)]).with_tls(tls)
}

/// A certificate for every address that a world may have.
async fn run(
    w: &World,
    office: &Office,
    demand: Demand,
    clients: Option<&Office>,
) -> (Arc<Server>, SocketAddr, Tls) {
    // The address is known when it listens; TLS is shown to who comes later.
    let tls = Tls::new(demand, &office.identity("first", "192.0.2.99", clients)).unwrap();
    let (served, addr) = w.run(server(w, Limits::default(), Some(tls.clone()))).await;
    tls.replace(&office.identity("server", &address(addr), clients)).unwrap();
    (served, addr, tls)
}

fn under(w: &World, tls: &TlsClient) -> Client {
    w.client().with_tls(tls.clone(), (ECHO, 3))
}

async fn echo(c: &Connection) -> Result<Bytes, CallError> {
    c.call(ECHO, 3, procedure::ECHO, &Credential::None, Bytes::from_static(b"hear me.").into(), LONG).await
}

async fn null(c: &Connection) -> Result<Bytes, CallError> {
    c.call(ECHO, 3, procedure::NULL, &Credential::None, Frame::empty(), LONG).await
}

async fn who_asks_is_encrypted_and_who_does_not_is_served_too(w: World) {
    let office = Office::new("authority");
    let (served, addr, _) = run(&w, &office, Demand::Offer, None).await;
    let plain = w.client().dial(addr).await.unwrap();
    let encrypted = under(&w, &office.believer()).dial(addr).await.unwrap();
    for c in [&plain, &encrypted] {
        assert_eq!(echo(c).await.unwrap(), &b"hear me."[..]);
    }
    assert_eq!(served.admission().tls, 1);
    let how: Vec<_> =
        served.connections().iter().map(|c| c.encrypted().map(|e| e.has_certificate())).collect();
    assert_eq!(how, [None, Some(false)]);
    encrypted.close();
    encrypted.closed().await;
    w.env.clock.sleep(SECOND).await;
    assert_eq!(served.admission().tls, 0);

    // Its certificate is another's, or for another address.
    let stranger = Office::new("stranger").believer();
    let refused = under(&w, &stranger).dial(addr).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Tls { error: TlsError::Handshake(_), .. }), "{refused}");
    echo(&plain).await.unwrap();
}

async fn where_it_is_demanded_nothing_but_null_is_answered_in_clear(w: World) {
    let office = Office::new("authority");
    let (_served, addr, _) = run(&w, &office, Demand::Require, None).await;
    let plain = w.client().dial(addr).await.unwrap();
    null(&plain).await.unwrap();
    let too_weak = Err(CallError::Auth(auth_stat::AUTH_TOOWEAK));
    assert_eq!(echo(&plain).await, too_weak);
    for procedure in [procedure::NOW, procedure::SOON, procedure::WRITE] {
        let args = Bytes::from(vec![0; 200 << 10]);
        for args in [args.slice(..64), args] {
            let said = plain.call(ECHO, 3, procedure, &Credential::None, args.into(), LONG).await;
            assert_eq!(said, too_weak, "{procedure}");
        }
    }
    let encrypted = under(&w, &office.believer()).dial(addr).await.unwrap();
    echo(&encrypted).await.unwrap();
}

/// Nobody's ticket is to be looked at.
#[derive(Debug)]
struct Tickets;

impl Mechanism for Tickets {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Box<Rejected>> {
        panic!("{token:?}")
    }
}

async fn where_it_is_demanded_no_ticket_is_looked_at_that_comes_in_clear(w: World) {
    let office = Office::new("authority");
    let tls = Tls::new(Demand::Require, &office.identity("server", "192.0.2.1", None)).unwrap();
    let gss = Gss::new(w.env.clone(), Arc::new(Tickets), 64);
    let server = Server::new(
        w.env.clone(),
        w.at_server.clone(),
        Limits::default(),
        vec![Echo::new(&w.env, ECHO) as Arc<dyn sluice_rpc::Program>],
    );
    let (_server, addr) = w.run(server.with_tls(Some(tls)).with_gss(Some(gss))).await;
    let mut peer = w.at_client.connect(addr).await.unwrap();
    for form in 0..4 {
        let head = [form, 0, 2, ECHO, 3, 0, 6, 20, 1, form, 1, 1, 0];
        peer.writer.write_all(&raw_record(&words(&[&head[..], &[0, 0, 4, 7]].concat()))).await.unwrap();
        let mut said = [0; 24];
        peer.reader.read_exact(&mut said).await.unwrap();
        assert_eq!(said[4..], words(&[form, 1, 1, 1, 5]), "AUTH_TOOWEAK");
    }
}

async fn certificates_are_asked_for_where_they_are_demanded(w: World) {
    let (office, clients) = (Office::new("authority"), Office::new("of clients"));
    let (served, addr, _) = run(&w, &office, Demand::Mutual, Some(&clients)).await;
    let with = |from: &Office, days| {
        let (certificate, key) = from.signs("client", "192.0.2.7", days);
        TlsClient::trusting(&office.authority(), Some((&certificate, &key))).unwrap()
    };
    let known = under(&w, &with(&clients, 3)).dial(addr).await.unwrap();
    echo(&known).await.unwrap();
    assert!(served.connections()[0].encrypted().unwrap().has_certificate());
    for (stranger, why) in [
        (office.believer(), "shows none"),
        (with(&office, 3), "of another authority"),
        (with(&clients, 0), "of yesterday"),
    ] {
        // TLS 1.3 tells the client only when it has begun to talk.
        let said = match under(&w, &stranger).dial(addr).await {
            Ok(c) => echo(&c).await,
            Err(_) => Err(CallError::Closed),
        };
        assert_eq!(said, Err(CallError::Closed), "{why}");
    }
    echo(&known).await.unwrap();
}

async fn another_certificate_is_shown_to_who_comes_next(w: World) {
    let (first, second) = (Office::new("first"), Office::new("second"));
    let (_served, addr, tls) = run(&w, &first, Demand::Offer, None).await;
    let before = under(&w, &first.believer()).dial(addr).await.unwrap();
    tls.replace(&second.identity("server", &address(addr), None)).unwrap();
    echo(&before).await.unwrap();
    under(&w, &first.believer()).dial(addr).await.unwrap_err();
    let after = under(&w, &second.believer()).dial(addr).await.unwrap();
    echo(&after).await.unwrap();

    // What clients would find fault with is told to who only looks.
    let looking = TlsClient::looking().unwrap();
    let shown =
        async || looking.connect(w.at_client.connect(addr).await.unwrap(), (ECHO, 3)).await.unwrap().1;
    let now = SystemTime::now();
    let good = shown().await;
    let month = Duration::from_secs(31 * 24 * 3600);
    assert!(
        good.is_for_its_address() && !good.is_outside_its_time(now) && good.is_outside_its_time(now + month)
    );
    let (certificate, key) = second.signs("elsewhere", "192.0.2.1", 0);
    tls.replace(&Files { certificate, key, clients: None }.read().unwrap()).unwrap();
    let bad = shown().await;
    assert!(!bad.is_for_its_address() && bad.is_outside_its_time(now));
}

/// Otherwise who sits between the two could put calls in front of the client's.
async fn what_is_sent_in_clear_behind_the_question_ends_it(w: World) {
    let office = Office::new("authority");
    let (_served, addr, _) = run(&w, &office, Demand::Offer, None).await;
    let question = words(&[0x8000_0028, 9, 0, 2, ECHO, 3, 0, 7, 0, 0, 0]);
    let mut stream = w.at_client.connect(addr).await.unwrap();
    stream.write_all(&question).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = [0; 36];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer[24..32], *b"STARTTLS");
    let mut stream = w.at_client.connect(addr).await.unwrap();
    stream.write_all(&[&question[..], &question[..]].concat()).await.unwrap();
    stream.flush().await.unwrap();
    let mut end = Vec::new();
    let _ = stream.read_to_end(&mut end).await;
    assert_eq!(end, b"");
}

async fn a_server_without_it_says_so(w: World) {
    let (_served, addr) = w.run(server(&w, Limits::default(), None)).await;
    let refused = under(&w, &TlsClient::looking().unwrap()).dial(addr).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Tls { error: TlsError::NotOffered, .. }), "{refused}");
}

async fn a_program_that_is_not_there_has_none(w: World) {
    let office = Office::new("authority");
    let (_served, addr, _) = run(&w, &office, Demand::Offer, None).await;
    let refused = w.client().with_tls(office.believer(), (ECHO + 1, 3)).dial(addr).await.unwrap_err();
    assert!(matches!(refused, ConnectError::Tls { error: TlsError::NotOffered, .. }), "{refused}");
}

async fn who_begins_to_shake_hands_and_falls_silent_is_let_go(w: World) {
    let office = Office::new("authority");
    let tls = Tls::new(Demand::Offer, &office.identity("server", "127.0.0.1", None)).unwrap();
    let limits = Limits { first_record: SECOND, ..Limits::default() };
    let (served, addr) = w.run(server(&w, limits, Some(tls))).await;
    let mut stream = w.at_client.connect(addr).await.unwrap();
    stream.write_all(&words(&[0x8000_0028, 9, 0, 2, ECHO, 3, 0, 7, 0, 0, 0])).await.unwrap();
    stream.flush().await.unwrap();
    stream.read_exact(&mut [0; 36]).await.unwrap();
    w.env.clock.sleep(3 * SECOND).await;
    assert_eq!(served.admission().open, 0);
}

async fn holders_of_the_key_reach_the_same_programs(w: World) {
    let office = Office::new("authority");
    let tls = Tls::new(Demand::Require, &office.identity("server", "192.0.2.1", None)).unwrap();
    let key = ClusterKey::from_bytes([1; 32]);
    let (served, addr) = w.run(server(&w, Limits::default(), Some(tls)).with_keys(key.clone())).await;
    let c = w.client().with_key(key).dial(addr).await.unwrap();
    echo(&c).await.unwrap();
    let calls = |served: &Server| served.metrics().iter().filter(|p| p.program == ECHO).count();
    let before = calls(&served);
    null(&w.client().dial(addr).await.unwrap()).await.unwrap();
    assert_eq!(calls(&served), before + 1, "each procedure is counted once");
}

async fn large_records_and_the_back_channel(w: World) {
    let office = Office::new("authority");
    let (_served, addr, _) = run(&w, &office, Demand::Require, None).await;
    let c =
        under(&w, &office.believer()).with_programs(vec![Echo::new(&w.env, BACK)]).dial(addr).await.unwrap();
    for size in [0, 1000, 16 << 10, 100 << 10, 1 << 20] {
        let data: Bytes = (0..size).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
        let said = c.call(ECHO, 3, procedure::ECHO, &Credential::None, data.clone().into(), LONG).await;
        assert_eq!(said.unwrap(), data);
        let read = words(&[size]);
        let said = c.call(ECHO, 3, procedure::READ, &Credential::None, read.into(), LONG).await;
        assert_eq!(said.unwrap().len(), size as usize);
    }
    let back = Bytes::from_static(b"and back");
    let said = c.call(ECHO, 3, procedure::CALL_BACK, &Credential::None, back.into(), LONG).await;
    assert!(said.is_ok(), "{said:?}");
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let office = Office::new("authority");
    let (certificate, key) = office.signs("server", "127.0.0.1", 2);
    let (_, other) = office.signs("other", "127.0.0.1", 2);
    let nothing = office.dir.path().join("nothing");
    let read = |certificate: &Path, key: &Path| {
        let files = Files { certificate: certificate.to_owned(), key: key.to_owned(), clients: None };
        files.read().and_then(|identity| Tls::new(Demand::Offer, &identity)).map(drop)
    };
    read(&certificate, &key).unwrap();
    let told = |error: Result<(), FilesError>| error.unwrap_err().to_string();
    assert!(told(read(&nothing, &key)).contains("nothing"));
    assert!(told(read(&certificate, &nothing)).contains("nothing"));
    assert!(told(read(&key, &key)).contains("BEGIN CERTIFICATE"));
    assert!(told(read(&certificate, &certificate)).contains("server.pem"));
    assert!(matches!(read(&certificate, &other), Err(FilesError::Useless(_))));
    let identity = office.identity("server", "127.0.0.1", None);
    assert!(matches!(Tls::new(Demand::Mutual, &identity), Err(FilesError::NoClients)));
}
