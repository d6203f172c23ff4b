//! RPCSEC_GSS (RFC 2203, RFC 5403 not): callers who show a Kerberos ticket, once, and prove with every call that they hold its key.
//!
//! What the tickets mean is a [`Mechanism`]'s business; here are the contexts that came of them, the order of their calls, and what
//! is around arguments and results.

mod contexts;
mod seal;
mod window;
mod wire;

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::Env;
use sluice_xdr::Frame;
use sluice_xdr::rpc::auth_stat;
use thiserror::Error;
use tokio::sync::Semaphore;

use crate::connection::Connection;
use crate::credential::{AuthSys, Credential};
use crate::message::{CallHeader, Verdict};
use crate::said::Said;
use contexts::{Context, Contexts};
pub(crate) use seal::Seal;
use window::WINDOW;
pub(crate) use wire::{Form, GssCall, GssCredential};

/// A caller's last number: with it the context has had its day (RFC 2203 §5.3.3.1).
const LAST_NUMBER: u32 = 0x8000_0000;

/// The longest that a context is kept, however long its ticket is good.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Tokens that are looked at at once.
const AT_ONCE: usize = 8;

/// How calls of a context are protected (RFC 2203 §5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// Who calls is proved: `sec=krb5`.
    None,
    /// And nobody has changed what was said: `sec=krb5i`.
    Integrity,
    /// And nobody has read it: `sec=krb5p`.
    Privacy,
}

/// Who made a call, as Kerberos says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GssCaller {
    /// `alice@EXAMPLE.COM`, `nfs/host.example.com@EXAMPLE.COM`.
    pub principal: Arc<str>,
    /// How this call is protected.
    pub service: Service,
    /// The user of this host that he is, if he is one.
    pub user: Option<AuthSys>,
}

/// What came of a token.
#[derive(Debug)]
pub struct Accepted {
    pub principal: Arc<str>,
    pub user: Option<AuthSys>,
    /// For the caller.
    pub token: Bytes,
    pub context: Box<dyn SecurityContext>,
    /// For so long it is good.
    pub lifetime: Duration,
}

/// Why a token was refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{why}")]
pub struct Rejected {
    /// GSS-API's own words for it (RFC 2744 §3.9.1), for the caller.
    pub major: u32,
    pub minor: u32,
    /// For the caller.
    pub token: Bytes,
    /// For people.
    pub why: String,
}

/// A message cannot be taken or made: the context is over, or the message is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a message that cannot be taken or made")]
pub struct GssError;

/// Who knows what tickets mean.
pub trait Mechanism: Debug + Send + Sync {
    /// Begins a context from its only token. May block for long: it reads a keytab and asks for users.
    ///
    /// # Errors
    /// Why not.
    fn accept(&self, token: &[u8]) -> Result<Accepted, Box<Rejected>>;
}

/// The key that caller and server share (RFC 2743 §2.3). Does not block.
pub trait SecurityContext: Debug + Send {
    /// A proof for `message`.
    ///
    /// # Errors
    /// The context is over.
    fn sign(&mut self, message: &[u8]) -> Result<Bytes, GssError>;
    /// Whether `proof` is one of the caller for `message`.
    ///
    /// # Errors
    /// It is not.
    fn verify(&mut self, message: &[u8], proof: &[u8]) -> Result<(), GssError>;
    /// `message` so that nobody else can read it.
    ///
    /// # Errors
    /// The context is over.
    fn wrap(&mut self, message: &[u8]) -> Result<Bytes, GssError>;
    /// What the caller has wrapped so.
    ///
    /// # Errors
    /// It was not he, or not so that nobody can read it.
    fn unwrap(&mut self, message: &[u8]) -> Result<Bytes, GssError>;
}

/// The callers of one server that have shown a ticket.
pub struct Gss {
    mechanism: Arc<dyn Mechanism>,
    contexts: Contexts,
    env: Env,
    /// Anybody may come with a token, which takes a thread while it is looked at.
    turns: Semaphore,
    /// Whose tickets were refused, and why.
    said: Mutex<Said>,
}

impl Debug for Gss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gss({:?}, {} contexts)", self.mechanism, self.contexts.len())
    }
}

/// What has become of a call.
pub(crate) enum Opened {
    Call(CallHeader),
    Refused(Verdict),
    /// There is nothing to do, or nothing to be understood.
    Answer(Verdict, Box<Seal>),
    Begin(Bytes),
    /// It came before, or too late: no answer (RFC 2203 §5.3.3.1).
    Dropped,
}

const CREDENTIAL: Opened = Opened::Refused(Verdict::AuthError(auth_stat::RPCSEC_GSS_CREDPROBLEM));
const CONTEXT: Opened = Opened::Refused(Verdict::AuthError(auth_stat::RPCSEC_GSS_CTXPROBLEM));

impl Gss {
    /// With so many contexts at most, each of which takes some ten KiB of memory.
    pub fn new(env: Env, mechanism: Arc<dyn Mechanism>, most: usize) -> Arc<Self> {
        let (contexts, turns, said) = (Contexts::new(most), Semaphore::new(AT_ONCE), Mutex::default());
        Arc::new(Self { mechanism, contexts, env, turns, said })
    }

    /// Contexts there are.
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// Looks who has made the call whose record is `record`, and takes out its arguments.
    pub(crate) fn open(&self, record: &Bytes, call: GssCall) -> Opened {
        let Some(GssCredential { form, sequence, service, handle }) = call.credential else {
            return Opened::Refused(Verdict::AuthError(auth_stat::AUTH_BADCRED));
        };
        if form != Form::Data && call.procedure != 0 {
            // §5.2.2, §5.4: NULL of the program.
            return Opened::Refused(Verdict::AuthError(auth_stat::AUTH_BADCRED));
        }
        match form {
            Form::Init => return call.token().map_or(Opened::Refused(Verdict::GarbageArgs), Opened::Begin),
            // The mechanism needs one token: there is nothing to go on with.
            Form::ContinueInit => return CREDENTIAL,
            Form::Data | Form::Destroy => {}
        }
        let Some(context) = handle.and_then(|handle| self.contexts.get(handle, self.env.clock.now())) else {
            return CREDENTIAL;
        };
        // RFC 2203 §5.3.3.1, in its order: who it is, whether the number can be, whether it is new.
        let signed = record.get(..call.signed).unwrap_or_default();
        if context.key.lock().verify(signed, &call.verifier).is_err() {
            return CREDENTIAL;
        }
        if sequence > LAST_NUMBER {
            return CONTEXT;
        }
        if !context.window.lock().take(sequence) {
            return Opened::Dropped;
        }
        let seal = Box::new(Seal { context: Arc::clone(&context), sequence, service });
        if form == Form::Destroy {
            handle.into_iter().for_each(|handle| self.contexts.remove(handle));
            return Opened::Answer(Verdict::Success, seal);
        }
        let Ok(args) = seal.open(call.args) else { return Opened::Answer(Verdict::GarbageArgs, seal) };
        let Context { principal, user, .. } = &*context;
        let caller = GssCaller { principal: Arc::clone(principal), service, user: user.clone() };
        Opened::Call(CallHeader {
            xid: call.xid,
            program: call.program,
            version: call.version,
            procedure: call.procedure,
            credential: Credential::Gss(Box::new(caller)),
            args,
            seal: Some(seal),
        })
    }

    /// Makes a context of a token: the result of the call, and the proof that goes with it.
    pub(crate) async fn begin(self: &Arc<Self>, connection: &Connection, token: Bytes) -> Begun {
        let _turn = self.turns.acquire().await;
        let (work, mechanism) = (Arc::new(Mutex::new(None)), Arc::clone(&self.mechanism));
        let done = Arc::clone(&work);
        // It may ask a directory service.
        self.env.spawn.blocking(Box::new(move || *done.lock() = Some(mechanism.accept(&token)))).await;
        let told = work.lock().take();
        match told {
            Some(Ok(accepted)) => self.keep(connection, accepted),
            Some(Err(rejected)) => {
                self.tell(connection, &rejected);
                Begun { result: wire::refusal(&rejected), proof: None }
            }
            None => Begun { result: None, proof: None },
        }
    }

    fn keep(&self, connection: &Connection, accepted: Accepted) -> Begun {
        let Accepted { principal, user, token, mut context, lifetime } = accepted;
        let Ok(proof) = context.sign(&WINDOW.to_be_bytes()) else {
            return Begun { result: None, proof: None };
        };
        tracing::debug!(peer = %connection.peer(), %principal, uid = ?user.as_ref().map(|user| user.uid), "a Kerberos ticket");
        let now = self.env.clock.now();
        let ends = now + lifetime.min(LONGEST);
        let context = Context::new(principal, user, context, ends, now);
        let (handle, gone) = self.contexts.keep(&self.env, context);
        if !gone.is_empty() {
            // To end thousands takes a while.
            drop(self.env.spawn.blocking(Box::new(move || drop(gone))));
        }
        Begun { result: wire::acceptance(handle, &token), proof: Some(proof) }
    }

    fn tell(&self, connection: &Connection, rejected: &Rejected) {
        let peer = connection.peer();
        if self.said.lock().is_news(peer.ip(), &rejected.why, self.env.clock.now()) {
            tracing::warn!(%peer, "a Kerberos ticket was refused: {rejected}");
        }
    }
}

/// The answer to a caller who begins.
pub(crate) struct Begun {
    /// `None`: something went wrong that the protocol has no words for.
    pub(crate) result: Option<Frame>,
    pub(crate) proof: Option<Bytes>,
}
