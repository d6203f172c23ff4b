//! The callback service of a client: records what it is asked, answers as the test says.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use sluice_env::{BoxFuture, Env};
use sluice_rpc::{Call, Credential, Frame, Program, Reply};
use sluice_xdr::nfs4::*;
use sluice_xdr::{Decode, Reader, to_frame};

use crate::calls::CALLBACK_PROGRAM;

/// What to say to one callback.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// CB_SEQUENCE succeeds, the operation says this.
    Status(nfsstat4),
    /// CB_GETATTR says this change attribute and size.
    Attributes(u64, u64),
    /// CB_GETATTR says this change attribute and size, and these delegated times of access and of modification.
    Times(u64, u64, nfstime4, nfstime4),
    /// CB_GETATTR says this change attribute and size, after so long.
    LateAttributes(Duration, u64, u64),
    /// CB_SEQUENCE itself says this.
    Sequence(nfsstat4),
    /// CB_SEQUENCE succeeds, the operation says this, after so long.
    Late(Duration, nfsstat4),
    /// Nothing at all.
    Silence,
    /// The RPC layer turns it away.
    Denied,
}

/// One callback received.
#[derive(Clone, Debug)]
pub struct Received {
    pub sequence: CB_SEQUENCE4args,
    pub operation: nfs_cb_argop4,
    pub minor: u32,
    pub credential: Credential,
}

#[derive(Debug)]
pub struct Callbacks {
    env: Env,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// For the next callbacks; after these, NFS4_OK.
    script: VecDeque<Answer>,
    received: Vec<Received>,
    /// CB_NULL, how often.
    probes: usize,
    /// The seqid of the layout that the client knows, if it is as particular as Linux.
    knows: Option<u32>,
    /// The layout recalls that it took then.
    taken: Vec<layoutrecall_file4>,
    /// Sequence id of the last callback per slot.
    slots: BTreeMap<(sessionid4, u32), u32>,
}

impl Callbacks {
    pub fn new(env: &Env) -> Self {
        Self { env: env.clone(), state: Mutex::default() }
    }

    /// Answers the next callbacks so.
    pub fn script(&self, answers: &[Answer]) {
        self.state.lock().script.extend(answers);
    }

    /// From now on layout recalls are answered as by Linux with a layout of this seqid: DELAY, unless they name the next one, or
    /// calls that are over.
    pub fn knows(&self, seqid: u32) {
        self.state.lock().knows = Some(seqid);
    }

    /// The first layout recall that was not answered so.
    pub fn taken(&self) -> Option<layoutrecall_file4> {
        self.state.lock().taken.first().cloned()
    }

    pub fn received(&self) -> Vec<Received> {
        self.state.lock().received.clone()
    }

    pub fn count(&self) -> usize {
        self.state.lock().received.len()
    }

    /// How often CB_NULL was received.
    pub fn probes(&self) -> usize {
        self.state.lock().probes
    }

    /// The layout recalls received.
    pub fn layout_recalls(&self) -> Vec<CB_LAYOUTRECALL4args> {
        let received = self.received().into_iter();
        received
            .filter_map(|callback| match callback.operation {
                nfs_cb_argop4::OP_CB_LAYOUTRECALL(args) => Some(args),
                _ => None,
            })
            .collect()
    }

    /// The ends of copies that were told.
    pub fn offloads(&self) -> Vec<CB_OFFLOAD4args> {
        let received = self.received().into_iter();
        received
            .filter_map(|callback| match callback.operation {
                nfs_cb_argop4::OP_CB_OFFLOAD(args) => Some(args),
                _ => None,
            })
            .collect()
    }

    /// How long the answer to this takes.
    fn lateness(&self, call: &Call) -> Duration {
        match self.state.lock().script.front() {
            Some(Answer::Late(late, _) | Answer::LateAttributes(late, ..)) if call.procedure != 0 => *late,
            _ => Duration::ZERO,
        }
    }

    fn answer(&self, call: &Call) -> Reply {
        if call.procedure == 0 {
            self.state.lock().probes += 1;
            return Reply::Success(Frame::default());
        }
        let mut reader = Reader::new(call.args.clone());
        let args = CB_COMPOUND4args::decode(&mut reader).unwrap();
        reader.finish().unwrap();
        assert_eq!(args.argarray.len(), 2, "Linux takes two operations");
        let Some(nfs_cb_argop4::OP_CB_SEQUENCE(sequence)) = args.argarray.first().cloned() else {
            panic!("CB_SEQUENCE comes first: {args:?}");
        };
        let operation = args.argarray[1].clone();
        let mut state = self.state.lock();
        state.received.push(Received {
            sequence: sequence.clone(),
            operation: operation.clone(),
            minor: args.minorversion,
            credential: call.credential.clone(),
        });
        let answer = match state.particular(&sequence, &operation) {
            Some(status) => Answer::Status(status),
            None => state.script.pop_front().unwrap_or(Answer::Status(nfsstat4::NFS4_OK)),
        };
        match answer {
            Answer::Silence => {
                state.see(&sequence);
                Reply::Drop
            }
            Answer::Denied => Reply::AuthError(sluice_rpc::auth_stat::AUTH_BADCRED),
            Answer::Sequence(status) => {
                let failed = nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::Default(status));
                compound(status, vec![failed])
            }
            Answer::Status(_)
            | Answer::Late(..)
            | Answer::Attributes(..)
            | Answer::LateAttributes(..)
            | Answer::Times(..) => {
                let (status, told) = match answer {
                    Answer::Status(status) | Answer::Late(_, status) => (status, Attributes::default()),
                    Answer::Attributes(change, size) | Answer::LateAttributes(_, change, size) => {
                        (nfsstat4::NFS4_OK, holds(change, size))
                    }
                    Answer::Times(change, size, access, modify) => {
                        let times = (Some(access), Some(modify));
                        let (time_deleg_access, time_deleg_modify) = times;
                        let told = Attributes { time_deleg_access, time_deleg_modify, ..holds(change, size) };
                        (nfsstat4::NFS4_OK, told)
                    }
                    _ => unreachable!(),
                };
                let (first, status) = match state.see(&sequence) {
                    Seen::New => (done(&sequence), status),
                    // Nothing is kept here: the operation hears so, as Linux has it.
                    Seen::Again => (done(&sequence), nfsstat4::NFS4ERR_RETRY_UNCACHED_REP),
                    Seen::Misordered => {
                        let wrong = nfsstat4::NFS4ERR_SEQ_MISORDERED;
                        let failed = nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::Default(wrong));
                        return compound(wrong, vec![failed]);
                    }
                };
                compound(status, vec![first, result(&operation, status, &told)])
            }
        }
    }
}

enum Seen {
    New,
    Again,
    Misordered,
}

impl State {
    fn particular(&mut self, sequence: &CB_SEQUENCE4args, operation: &nfs_cb_argop4) -> Option<nfsstat4> {
        let knows = self.knows?;
        let nfs_cb_argop4::OP_CB_LAYOUTRECALL(asked) = operation else { return None };
        let layoutrecall4::LAYOUTRECALL4_FILE(file) = &asked.clora_recall else { return None };
        let told = &sequence.csa_referring_call_lists;
        let told = told
            .iter()
            .any(|list| list.rcl_sessionid == sequence.csa_sessionid && !list.rcl_referring_calls.is_empty());
        if file.lor_stateid.seqid > knows + 1 && !told {
            return Some(nfsstat4::NFS4ERR_DELAY);
        }
        self.taken.push(file.clone());
        Some(nfsstat4::NFS4_OK)
    }

    fn see(&mut self, sequence: &CB_SEQUENCE4args) -> Seen {
        let last = self.slots.entry((sequence.csa_sessionid, sequence.csa_slotid)).or_default();
        match sequence.csa_sequenceid.wrapping_sub(*last) {
            1 => {
                *last = sequence.csa_sequenceid;
                Seen::New
            }
            0 => Seen::Again,
            _ => Seen::Misordered,
        }
    }
}

fn done(sequence: &CB_SEQUENCE4args) -> nfs_cb_resop4 {
    nfs_cb_resop4::OP_CB_SEQUENCE(CB_SEQUENCE4res::NFS4_OK(CB_SEQUENCE4resok {
        csr_sessionid: sequence.csa_sessionid,
        csr_sequenceid: sequence.csa_sequenceid,
        csr_slotid: sequence.csa_slotid,
        csr_highest_slotid: sequence.csa_highest_slotid,
        csr_target_highest_slotid: 15,
    }))
}

fn holds(change: u64, size: u64) -> Attributes {
    Attributes { change: Some(change), size: Some(size), ..Attributes::default() }
}

fn result(operation: &nfs_cb_argop4, status: nfsstat4, told: &Attributes) -> nfs_cb_resop4 {
    match operation {
        nfs_cb_argop4::OP_CB_GETATTR(args) => nfs_cb_resop4::OP_CB_GETATTR(match status {
            nfsstat4::NFS4_OK => CB_GETATTR4res::NFS4_OK(CB_GETATTR4resok {
                obj_attributes: told.encode(&args.attr_request).unwrap(),
            }),
            status => CB_GETATTR4res::Default(status),
        }),
        nfs_cb_argop4::OP_CB_LAYOUTRECALL(_) => {
            nfs_cb_resop4::OP_CB_LAYOUTRECALL(CB_LAYOUTRECALL4res { clorr_status: status })
        }
        nfs_cb_argop4::OP_CB_RECALL(_) => nfs_cb_resop4::OP_CB_RECALL(CB_RECALL4res { status }),
        nfs_cb_argop4::OP_CB_NOTIFY_LOCK(_) => {
            nfs_cb_resop4::OP_CB_NOTIFY_LOCK(CB_NOTIFY_LOCK4res { cnlr_status: status })
        }
        nfs_cb_argop4::OP_CB_RECALL_ANY(_) => {
            nfs_cb_resop4::OP_CB_RECALL_ANY(CB_RECALL_ANY4res { crar_status: status })
        }
        nfs_cb_argop4::OP_CB_OFFLOAD(_) => {
            nfs_cb_resop4::OP_CB_OFFLOAD(CB_OFFLOAD4res { cor_status: status })
        }
        other => panic!("an unexpected callback: {other:?}"),
    }
}

fn compound(status: nfsstat4, resarray: Vec<nfs_cb_resop4>) -> Reply {
    let reply = CB_COMPOUND4res { status, tag: Bytes::new(), resarray };
    Reply::Success(to_frame(&reply, 65536).unwrap())
}

impl Program for Callbacks {
    fn number(&self) -> u32 {
        CALLBACK_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            let late = self.lateness(&call);
            let reply = self.answer(&call);
            self.env.clock.sleep(late).await;
            reply
        })
    }
}
