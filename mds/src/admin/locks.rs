//! Who has files open or locked, and taking it from them: `sluice lock list`, `sluice lock break`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use sluice_state::ClientId;
use sluice_state::client::ClientInfo;
use sluice_state::delegation::DelegationKind;
use sluice_state::file::{FileId, Hold, Place, What};
use sluice_state::lock::LockKind;
use sluice_xdr::control::*;

use super::{Admin, cut};
use crate::files::{FileEntry, file_id};

/// Shown at a time: with the longest names, no more than a reply carries.
const PAGE: usize = 256;
/// Files that are looked at for a page, whoever is meant.
const FILES: usize = 4096;
const READS: u32 = 1;
const WRITES: u32 = 2;

impl Admin {
    /// A page of what clients hold, of one file or of all.
    pub(super) async fn locks(&self, args: ADMIN_LOCKS_args) -> ADMIN_LOCKS_res {
        let whose = (args.client != 0).then_some(ClientId(args.client));
        let begun = args.after != ctl_hold_place::default();
        let from = FileId(args.after.file);
        let (files, all) = if args.path.is_empty() {
            let files = self.mds.files.starting_at(from, FILES);
            let all = files.len() < FILES;
            (files, all)
        } else {
            match self.file(&args.path).await {
                Ok((_, entry)) => (entry.into_iter().collect(), true),
                Err(why) => return ADMIN_LOCKS_res::Default(ctl_status::CTL_ERR_INVAL, why.into()),
            }
        };
        let mut page = Page { next: args.after, holds: Vec::new() };
        for entry in &files {
            let id = file_id(&entry.key);
            let resumed = begun && id == from;
            if resumed && args.after.whole {
                continue;
            }
            let after = resumed.then(|| place(&args.after));
            let most = PAGE - page.holds.len();
            let found = entry.peek(|file| file.holds(whose, after, most));
            let full = found.len() == most;
            page.next = match found.last().map(Hold::place) {
                Some(last) if full => wire_place(id, last),
                _ => ctl_hold_place { file: id.0, whole: true, ..ctl_hold_place::default() },
            };
            page.holds.extend(found.into_iter().map(|hold| (Arc::clone(entry), hold)));
            if full {
                return self.shown(page, false).await;
            }
        }
        self.shown(page, all).await
    }

    async fn shown(&self, page: Page, eof: bool) -> ADMIN_LOCKS_res {
        let clients = self.people(&page);
        let mut holds = Vec::with_capacity(page.holds.len());
        let mut file = ctl_named::default();
        for (entry, hold) in page.holds {
            if file.file != entry.key.fileid.0 {
                file = self.named(&entry.key, "").await;
            }
            let (name, address) = clients.get(&hold.client).cloned().unwrap_or_default();
            let age = self.mds.now().since(hold.since) / 1_000_000_000;
            holds.push(wire(&hold, (file.file, file.name.clone()), (name, address), age));
        }
        ADMIN_LOCKS_res::CTL_OK(ADMIN_LOCKS_resok { holds, next: page.next, eof })
    }

    /// Name and address of those that are on the page.
    fn people(&self, page: &Page) -> BTreeMap<ClientId, (Bytes, Bytes)> {
        if page.holds.is_empty() {
            return BTreeMap::new();
        }
        let mds = &self.mds;
        let infos: BTreeMap<ClientId, ClientInfo> =
            mds.client_infos().into_iter().map(|info| (info.id, info)).collect();
        let mut people = BTreeMap::new();
        for (_, hold) in &page.holds {
            people.entry(hold.client).or_insert_with(|| match infos.get(&hold.client) {
                None => (Bytes::new(), Bytes::new()),
                Some(info) => {
                    let sessions: Vec<_> =
                        info.sessions.iter().filter_map(|id| mds.clients.session(*id)).collect();
                    let address = mds.address_of(&sessions).map(|address| address.to_string());
                    (cut(&info.owner), address.unwrap_or_default().into())
                }
            });
        }
        people
    }

    /// Takes what one client, or every one, holds of a file. They are told, and go on without it.
    pub(super) async fn break_locks(&self, args: ADMIN_BREAK_args, from: SocketAddr) -> ADMIN_BREAK_res {
        let refuse = |status, why: String| ADMIN_BREAK_res::Default(status, why.into());
        let entry = match self.file(&args.path).await {
            Ok((_, entry)) => entry,
            Err(why) => return refuse(ctl_status::CTL_ERR_INVAL, why),
        };
        // What a client has yet to reclaim nobody knows of; what it has reclaimed it would reclaim again.
        if self.mds.in_grace() {
            let why = "clients are claiming back what they held before the metadata server was restarted (`sluice status` says for how long yet): what is in the way then can be broken";
            return refuse(ctl_status::CTL_ERR_AGAIN, why.to_owned());
        }
        let Some(entry) = entry else { return ADMIN_BREAK_res::CTL_OK(ADMIN_BREAK_resok::default()) };
        let mut holders = entry.peek(|file| file.holders());
        holders.retain(|client| args.client == 0 || client.0 == args.client);
        let mut done = ADMIN_BREAK_resok::default();
        let path = String::from_utf8_lossy(&args.path);
        for client in holders {
            match self.mds.break_state(&entry, client).await {
                Ok(broken) => {
                    tracing::info!(%from, ?path, file = entry.key.fileid.0, ?client, opens = broken.opens, locks = broken.locks, delegations = broken.delegations, layouts = broken.layouts, "an administrator broke what a client held of a file");
                    add(&mut done, &broken, &entry, client);
                }
                Err(error) => {
                    let others = match done.clients {
                        0 => "nothing is broken".to_owned(),
                        n => format!("{n} clients have lost what they held, the others have not"),
                    };
                    return refuse(
                        ctl_status::CTL_ERR_AGAIN,
                        format!("{others}, since the metadata store does not answer: {error}"),
                    );
                }
            }
        }
        ADMIN_BREAK_res::CTL_OK(done)
    }
}

/// What was found, and where it ended.
struct Page {
    next: ctl_hold_place,
    holds: Vec<(Arc<FileEntry>, Hold)>,
}

fn add(done: &mut ADMIN_BREAK_resok, broken: &crate::effects::Broken, entry: &FileEntry, client: ClientId) {
    done.clients += 1;
    done.opens += broken.opens;
    done.locks += broken.locks;
    done.delegations += broken.delegations;
    done.layouts += broken.layouts;
    done.pending += u32::from(entry.peek(|file| file.is_leaving(client)));
}

fn place(wire: &ctl_hold_place) -> Place {
    Place { part: wire.part, other: wire.other, at: wire.at }
}

fn wire_place(file: FileId, place: Place) -> ctl_hold_place {
    ctl_hold_place { file: file.0, part: place.part, other: place.other, at: place.at, whole: false }
}

fn wire(
    hold: &Hold,
    (file, name): (u64, Bytes),
    (client_name, address): (Bytes, Bytes),
    age_seconds: u64,
) -> ctl_hold {
    let (kind, access, deny) = match hold.what {
        What::Open(access, deny) => (ctl_hold_kind::HOLD_OPEN, access.bits().into(), deny.bits().into()),
        What::Lock(LockKind::Read, _) => (ctl_hold_kind::HOLD_LOCK, READS, 0),
        What::Lock(LockKind::Write, _) => (ctl_hold_kind::HOLD_LOCK, WRITES, 0),
        What::Delegation(DelegationKind::Read) => (ctl_hold_kind::HOLD_DELEGATION, READS, 0),
        What::Delegation(DelegationKind::Write) => (ctl_hold_kind::HOLD_DELEGATION, WRITES, 0),
        What::Waiting(LockKind::Read, ..) => (ctl_hold_kind::HOLD_WAITING, READS, 0),
        What::Waiting(LockKind::Write, ..) => (ctl_hold_kind::HOLD_WAITING, WRITES, 0),
    };
    let (offset, length) = match hold.what {
        What::Lock(_, range) | What::Waiting(_, range, _) => (range.start(), range.length()),
        _ => (0, 0),
    };
    ctl_hold {
        file,
        name,
        client: hold.client.0,
        address,
        client_name,
        kind,
        access,
        deny,
        offset,
        length,
        age_seconds,
        taken: hold.taken.is_some(),
    }
}
