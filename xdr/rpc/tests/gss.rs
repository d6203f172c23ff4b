//! RPCSEC_GSS as a client speaks it: whole records in and out, with a mechanism that tests can reckon with.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use sluice_rpc::gss::{Accepted, GssError, Mechanism, Rejected, SecurityContext};
use sluice_rpc::{AuthSys, Gss, Limits, Server, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A proof is a hash of key and message, and what is hidden is turned round behind its proof.
#[derive(Clone, Debug)]
struct Key(u8);

impl Key {
    fn proof(&self, message: &[u8]) -> Bytes {
        Bytes::copy_from_slice(&blake3::hash(&[&[self.0], message].concat()).as_bytes()[..17])
    }

    fn hide(&self, message: &[u8]) -> Bytes {
        let turned = message.iter().map(|byte| byte ^ 0xff).collect::<Vec<_>>();
        Bytes::from([&self.proof(message)[..], &turned].concat())
    }

    fn show(&self, hidden: &[u8]) -> Option<Bytes> {
        let (proof, turned) = hidden.split_at_checked(17)?;
        let message: Bytes = turned.iter().map(|byte| byte ^ 0xff).collect::<Vec<_>>().into();
        (self.proof(&message) == proof).then_some(message)
    }
}

impl SecurityContext for Key {
    fn sign(&mut self, message: &[u8]) -> Result<Bytes, GssError> {
        Ok(self.proof(message))
    }
    fn verify(&mut self, message: &[u8], proof: &[u8]) -> Result<(), GssError> {
        if self.proof(message) == proof { Ok(()) } else { Err(GssError) }
    }
    fn wrap(&mut self, message: &[u8]) -> Result<Bytes, GssError> {
        Ok(self.hide(message))
    }
    fn unwrap(&mut self, message: &[u8]) -> Result<Bytes, GssError> {
        self.show(message).ok_or(GssError)
    }
}

/// A token is a key and a uid; that of key 0 is not good.
#[derive(Debug, Default)]
struct Tickets(AtomicUsize);

impl Mechanism for Tickets {
    fn accept(&self, token: &[u8]) -> Result<Accepted, Box<Rejected>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let (key, uid) = (token[0], u32::from(token[1]));
        if key == 0 {
            let why = "no such key".to_owned();
            return Err(Box::new(Rejected { major: 13 << 16, minor: 7, token: Bytes::new(), why }));
        }
        let user = (uid != 0xff).then(|| AuthSys { uid, ..AuthSys::default() });
        Ok(Accepted {
            principal: format!("user{uid}@TEST").into(),
            user,
            token: Bytes::from_static(b"welcome"),
            context: Box::new(Key(key)),
            lifetime: Duration::from_secs(3600),
        })
    }
}

const NONE: u32 = 1;
const INTEGRITY: u32 = 2;
const PRIVACY: u32 = 3;
const CREDPROBLEM: u32 = 13;
const CTXPROBLEM: u32 = 14;

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = words(&[u32::try_from(bytes.len()).unwrap()]).to_vec();
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn take(bytes: &mut Bytes) -> Bytes {
    let length = word(bytes) as usize;
    let body = bytes.slice(4..4 + length);
    *bytes = bytes.slice(4 + length.next_multiple_of(4)..);
    body
}

/// What a record says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// Its verifier, accept_stat and what follows.
    Accepted(Bytes, u32, Bytes),
    /// auth_stat
    Denied(u32),
}

/// A peer that writes its records by hand.
struct Peer {
    stream: Stream,
    xid: u32,
}

impl Peer {
    async fn of(w: &World, addr: std::net::SocketAddr) -> Self {
        Self { stream: w.at_client.connect(addr).await.unwrap(), xid: 0 }
    }

    async fn send(&mut self, record: &[u8]) {
        self.stream.writer.write_all(&raw_record(record)).await.unwrap();
    }

    /// The connection does, without a word.
    async fn ends(&mut self) -> bool {
        self.stream.reader.read_u8().await.is_err()
    }

    async fn reply(&mut self) -> Said {
        let mark = self.stream.reader.read_u32().await.unwrap();
        let mut record = vec![0; (mark & 0x7fff_ffff) as usize];
        self.stream.reader.read_exact(&mut record).await.unwrap();
        let mut rest = Bytes::from(record);
        let head: Vec<u32> = (0..3).map(|at| word(&rest[4 * at..])).collect();
        assert_eq!(head[..2], [self.xid, 1], "the reply to the last call");
        rest = rest.slice(12..);
        if head[2] == 1 {
            assert_eq!(word(&rest), 1, "AUTH_ERROR");
            return Said::Denied(word(&rest[4..]));
        }
        let flavour = word(&rest);
        rest = rest.slice(4..);
        let proof = take(&mut rest);
        assert_eq!(flavour == 6, !proof.is_empty());
        Said::Accepted(proof, word(&rest), rest.slice(4..))
    }

    /// From the xid to the end of the credential.
    fn head(&mut self, procedure: u32, (form, number, service): (u32, u32, u32), handle: &[u8]) -> Vec<u8> {
        self.xid += 1;
        let credential = [&words(&[1, form, number, service])[..], &opaque(handle)].concat();
        [&words(&[self.xid, 0, 2, ECHO, 3, procedure, 6])[..], &opaque(&credential)].concat()
    }

    async fn begin(&mut self, token: &[u8]) -> Said {
        let head = self.head(0, (1, 0, NONE), &[]);
        self.send(&[&head[..], &words(&[0, 0]), &opaque(token)].concat()).await;
        self.reply().await
    }

    async fn begin_well(&mut self, key: u8, uid: u8) -> Context {
        let Said::Accepted(proof, 0, mut result) = self.begin(&[key, uid, 0, 0]).await else { panic!() };
        let handle = take(&mut result);
        assert_eq!([word(&result), word(&result[4..])], [0, 0], "GSS_S_COMPLETE");
        let window = word(&result[8..]);
        result = result.slice(12..);
        assert_eq!(take(&mut result), "welcome");
        assert_eq!(proof, Key(key).proof(&words(&[window])));
        Context { handle, key: Key(key), number: 0, window }
    }

    async fn call(&mut self, context: &mut Context, service: u32, procedure: u32, args: &[u8]) -> Said {
        context.number += 1;
        self.call_as(context, context.number, service, procedure, args).await;
        self.reply().await
    }

    async fn call_as(&mut self, context: &Context, number: u32, service: u32, procedure: u32, args: &[u8]) {
        let head = self.head(procedure, (0, number, service), &context.handle);
        let proof = context.key.proof(&head);
        let args = context.around(number, service, args);
        self.send(&[&head[..], &words(&[6]), &opaque(&proof), &args].concat()).await;
    }
}

struct Context {
    handle: Bytes,
    key: Key,
    number: u32,
    window: u32,
}

impl Context {
    fn around(&self, number: u32, service: u32, args: &[u8]) -> Vec<u8> {
        let body = [&words(&[number])[..], args].concat();
        match service {
            INTEGRITY => [opaque(&body), opaque(&self.key.proof(&body))].concat(),
            PRIVACY => opaque(&self.key.hide(&body)),
            _ => args.to_vec(),
        }
    }

    /// The result of the last call, which must have been carried out.
    fn result(&self, service: u32, said: Said) -> Bytes {
        let Said::Accepted(proof, 0, mut body) = said else { panic!("{said:?}") };
        assert_eq!(proof, self.key.proof(&words(&[self.number])));
        let inner = match service {
            NONE => return body,
            INTEGRITY => {
                let inner = take(&mut body);
                assert_eq!(take(&mut body), self.key.proof(&inner));
                inner
            }
            _ => self.key.show(&take(&mut body)).unwrap(),
        };
        assert!(body.is_empty());
        assert_eq!(word(&inner), self.number);
        inner.slice(4..)
    }
}

async fn serve(w: &World) -> (Arc<Server>, Arc<Gss>, std::net::SocketAddr) {
    let gss = Gss::new(w.env.clone(), Arc::new(Tickets::default()), 64);
    let server = Server::new(
        w.env.clone(),
        w.at_server.clone(),
        Limits::default(),
        vec![Echo::new(&w.env, ECHO) as Arc<dyn sluice_rpc::Program>],
    );
    let (server, addr) = w.run(server.with_gss(Some(Arc::clone(&gss)))).await;
    (server, gss, addr)
}

#[test]
fn a_caller_is_who_his_ticket_says_however_calls_are_protected() {
    simulate(1, async |w| {
        let (_server, gss, addr) = serve(&w).await;
        let mut peer = Peer::of(&w, addr).await;
        let mut context = peer.begin_well(1, 77).await;
        let large: Vec<u8> = (0..300_000u32).map(|n| n.to_be_bytes()[3]).collect();
        for service in [NONE, INTEGRITY, PRIVACY] {
            let said = peer.call(&mut context, service, procedure::WHO, &[]).await;
            assert_eq!(word(&context.result(service, said)), 77);
            let said = peer.call(&mut context, service, procedure::ECHO, b"four").await;
            assert_eq!(context.result(service, said), "four");
            let said = peer.call(&mut context, service, procedure::ECHO, &large).await;
            assert_eq!(context.result(service, said), large);
            let said = peer.call(&mut context, service, procedure::UNKNOWN, &[]).await;
            let proof = context.key.proof(&words(&[context.number]));
            assert_eq!(
                said,
                Said::Accepted(proof, 3, Bytes::new()),
                "PROC_UNAVAIL has its proof, and no result"
            );
        }
        context.number += 1;
        peer.xid += 1;
        let credential = [&words(&[1, 0, context.number, NONE])[..], &opaque(&context.handle)].concat();
        let head = [&words(&[peer.xid, 0, 2, 7, 3, 0, 6])[..], &opaque(&credential)].concat();
        peer.send(&[&head[..], &words(&[6]), &opaque(&context.key.proof(&head))].concat()).await;
        let proof = context.key.proof(&words(&[context.number]));
        assert_eq!(peer.reply().await, Said::Accepted(proof, 1, Bytes::new()), "and so has PROG_UNAVAIL");
        let mut other = peer.begin_well(2, 0xff).await;
        let said = peer.call(&mut other, PRIVACY, procedure::WHO, &[]).await;
        assert_eq!(word(&other.result(PRIVACY, said)), u32::MAX, "no user here");
        assert_eq!(gss.contexts(), 2);
    });
}

#[test]
fn a_context_serves_on_any_connection_until_it_is_destroyed() {
    simulate(2, async |w| {
        let (_server, gss, addr) = serve(&w).await;
        let mut context = Peer::of(&w, addr).await.begin_well(1, 7).await;
        let mut peer = Peer::of(&w, addr).await;
        let said = peer.call(&mut context, INTEGRITY, procedure::WHO, &[]).await;
        assert_eq!(word(&context.result(INTEGRITY, said)), 7);
        context.number += 1;
        let head = peer.head(0, (3, context.number, NONE), &context.handle);
        let proof = context.key.proof(&head);
        peer.send(&[&head[..], &words(&[6]), &opaque(&proof)].concat()).await;
        let said = peer.reply().await;
        assert_eq!(context.result(NONE, said), "");
        assert_eq!(gss.contexts(), 0);
        assert_eq!(peer.call(&mut context, NONE, procedure::WHO, &[]).await, Said::Denied(CREDPROBLEM));
    });
}

#[test]
fn what_somebody_else_says_or_changes_is_not_carried_out() {
    simulate(3, async |w| {
        let (_server, _gss, addr) = serve(&w).await;
        let mut peer = Peer::of(&w, addr).await;
        let mut context = peer.begin_well(1, 7).await;
        // By whoever does not have the key.
        let mut thief = Context { handle: context.handle.clone(), key: Key(9), number: 0, window: 0 };
        assert_eq!(peer.call(&mut thief, NONE, procedure::WHO, &[]).await, Said::Denied(CREDPROBLEM));
        // With another procedure than he meant.
        let head = peer.head(procedure::WHO, (0, 1, NONE), &context.handle);
        let mut changed = [&head[..], &words(&[6]), &opaque(&context.key.proof(&head))].concat();
        changed[23] = u8::try_from(procedure::NULL).unwrap();
        peer.send(&changed).await;
        assert_eq!(peer.reply().await, Said::Denied(CREDPROBLEM));
        // With other arguments.
        for service in [INTEGRITY, PRIVACY] {
            context.number += 1;
            let head = peer.head(procedure::ECHO, (0, context.number, service), &context.handle);
            let proof = context.key.proof(&head);
            let mut args = context.around(context.number, service, b"four");
            let at = args.iter().position(|byte| matches!(byte, b'f' | 0x99)).unwrap();
            args[at] ^= 1;
            peer.send(&[&head[..], &words(&[6]), &opaque(&proof), &args].concat()).await;
            let Said::Accepted(_, 4, _) = peer.reply().await else { panic!("not GARBAGE_ARGS") };
        }
        // With those of another call.
        context.number += 1;
        let head = peer.head(procedure::ECHO, (0, context.number, PRIVACY), &context.handle);
        let proof = context.key.proof(&head);
        let args = context.around(context.number - 1, PRIVACY, b"four");
        peer.send(&[&head[..], &words(&[6]), &opaque(&proof), &args].concat()).await;
        let Said::Accepted(_, 4, _) = peer.reply().await else { panic!("not GARBAGE_ARGS") };
        let said = peer.call(&mut context, PRIVACY, procedure::WHO, &[]).await;
        assert_eq!(word(&context.result(PRIVACY, said)), 7, "he is heard after all that");
    });
}

#[test]
fn what_was_said_before_is_not_carried_out_again() {
    simulate(4, async |w| {
        let (_server, _gss, addr) = serve(&w).await;
        let mut peer = Peer::of(&w, addr).await;
        let mut context = peer.begin_well(1, 7).await;
        assert!(context.window >= 128, "{}", context.window);
        let last = context.window * 2;
        peer.call_as(&context, last, NONE, procedure::WHO, &[]).await;
        context.number = last;
        let said = peer.reply().await;
        assert_eq!(word(&context.result(NONE, said)), 7);
        // One that has only been overtaken is heard.
        context.number = last - context.window + 1;
        peer.call_as(&context, context.number, NONE, procedure::WHO, &[]).await;
        let said = peer.reply().await;
        assert_eq!(word(&context.result(NONE, said)), 7);
        // The same once more, and one that comes too late: nobody answers, and who waits hears that nobody will.
        for number in [last, last - context.window] {
            let mut peer = Peer::of(&w, addr).await;
            peer.call_as(&context, number, NONE, procedure::WHO, &[]).await;
            assert!(peer.ends().await, "{number}");
        }
        let mut peer = Peer::of(&w, addr).await;
        peer.call_as(&context, 0x8000_0001, NONE, procedure::WHO, &[]).await;
        assert_eq!(peer.reply().await, Said::Denied(CTXPROBLEM));
        context.number = last;
        let said = peer.call(&mut context, NONE, procedure::WHO, &[]).await;
        assert_eq!(word(&context.result(NONE, said)), 7);
    });
}

#[test]
fn a_ticket_that_is_not_good_begins_nothing_and_one_that_is_over_ends() {
    simulate(5, async |w| {
        let (_server, gss, addr) = serve(&w).await;
        let mut peer = Peer::of(&w, addr).await;
        let Said::Accepted(proof, 0, mut result) = peer.begin(&[0, 0, 0, 0]).await else { panic!() };
        assert!(proof.is_empty() && take(&mut result).is_empty());
        assert_eq!([word(&result), word(&result[4..])], [13 << 16, 7]);
        assert_eq!(gss.contexts(), 0);
        let mut context = peer.begin_well(1, 7).await;
        w.env.clock.sleep(Duration::from_secs(3599)).await;
        let said = peer.call(&mut context, NONE, procedure::WHO, &[]).await;
        assert_eq!(word(&context.result(NONE, said)), 7);
        w.env.clock.sleep(Duration::from_secs(2)).await;
        assert_eq!(peer.call(&mut context, NONE, procedure::WHO, &[]).await, Said::Denied(CREDPROBLEM));
        peer.begin_well(2, 8).await;
        assert_eq!(gss.contexts(), 1, "the one that was over is gone");
    });
}

#[test]
fn who_shows_a_ticket_again_and_again_takes_the_places_of_its_principal_only() {
    simulate(8, async |w| {
        let (_server, gss, addr) = serve(&w).await;
        let mut peer = Peer::of(&w, addr).await;
        let mut other = peer.begin_well(2, 8).await;
        for _ in 0..200 {
            w.env.clock.sleep(Duration::from_millis(10)).await;
            peer.begin_well(1, 7).await;
        }
        assert!(gss.contexts() <= 9, "{}", gss.contexts());
        let said = peer.call(&mut other, NONE, procedure::WHO, &[]).await;
        assert_eq!(word(&other.result(NONE, said)), 8);
        // And all together are so many at most; who came last is good.
        let mut last = other;
        for uid in 10..250 {
            w.env.clock.sleep(Duration::from_millis(10)).await;
            last = peer.begin_well(3, uid).await;
            assert!(gss.contexts() <= 64, "{}", gss.contexts());
        }
        let said = peer.call(&mut last, NONE, procedure::WHO, &[]).await;
        assert_eq!(word(&last.result(NONE, said)), 249);
    });
}

#[test]
fn what_begins_and_ends_contexts_is_no_other_procedure() {
    simulate(9, async |w| {
        let (_server, gss, addr) = serve(&w).await;
        let mut peer = Peer::of(&w, addr).await;
        let head = peer.head(procedure::WHO, (1, 0, NONE), &[]);
        peer.send(&[&head[..], &words(&[0, 0]), &opaque(&[1, 7, 0, 0])].concat()).await;
        assert_eq!((peer.reply().await, gss.contexts()), (Said::Denied(1), 0));
    });
}

#[test]
fn credentials_that_mean_nothing_are_refused() {
    simulate(6, async |w| {
        let (_server, _gss, addr) = serve(&w).await;
        let mut peer = Peer::of(&w, addr).await;
        // Another version, form and service; a handle that is none of ours; a second token.
        for (version, form, service, stat) in [
            (2, 0, NONE, 1),
            (1, 4, NONE, 1),
            (1, 0, 4, 1),
            (1, 0, NONE, CREDPROBLEM),
            (1, 2, NONE, CREDPROBLEM),
        ] {
            let procedure = if form == 2 { 0 } else { procedure::WHO };
            peer.xid += 1;
            let credential = [&words(&[version, form, 1, service])[..], &opaque(b"someone's")].concat();
            let head = [&words(&[peer.xid, 0, 2, ECHO, 3, procedure, 6])[..], &opaque(&credential)].concat();
            peer.send(&[&head[..], &words(&[6]), &opaque(b"proof")].concat()).await;
            assert_eq!(peer.reply().await, Said::Denied(stat), "{version} {form} {service}");
        }
    });
}

#[test]
fn where_there_are_no_tickets_nobody_comes_with_one() {
    simulate(7, async |w| {
        let (_server, addr) = w.serve(Limits::default(), vec![Echo::new(&w.env, ECHO)]).await;
        let mut peer = Peer::of(&w, addr).await;
        assert_eq!(peer.begin(&[1, 7, 0, 0]).await, Said::Denied(2), "AUTH_REJECTEDCRED");
    });
}
