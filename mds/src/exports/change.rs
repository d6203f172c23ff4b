//! Adding, changing and removing exports while clients are at work.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::Wall;
use sluice_namespace::stable_storage::{self, ClientName, Export, Protection, Rule};
use sluice_namespace::{FileHandle, FsError, InodeKey, Name, Sequence, lease_block};
use sluice_state::ClientId;
use sluice_state::effect::Effect;
use sluice_state::file::LayoutFilter;

use super::peer::Peer;
use super::rules::same;
use super::{MOST, Origin, Table, read};
use crate::dsctl::lockout;
use crate::files::FileEntry;
use crate::server::Mds;

/// Before exports are looked up whose change ended nobody knows how, and each time that cannot be done.
const LOOK: Duration = Duration::from_secs(1);
/// Files that are looked at before others have their turn of the processor.
const AT_ONCE: usize = 256;

/// What an administrator wants.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Add(Rules),
    Set(Rules),
    Remove,
}

/// Those of networks, and those by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) networks: Vec<Rule>,
    pub(crate) named: Vec<Rule<ClientName>>,
}

/// For the log.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, rules) = match self {
            Self::Add(rules) => ("added for", rules),
            Self::Set(rules) => ("set for", rules),
            Self::Remove => return f.write_str("removed"),
        };
        f.write_str(what)?;
        rules.networks.iter().try_for_each(|rule| tell(rule, f))?;
        rules.named.iter().try_for_each(|rule| tell(rule, f))
    }
}

fn tell<C: fmt::Display>(rule: &Rule<C>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let access = if rule.read_only { "read-only" } else { "read-write" };
    let squash = format!("{:?}", rule.squash).to_lowercase();
    write!(f, " {} ({access}, squash {squash}", rule.clients)?;
    match rule.wants {
        Protection::None => f.write_str(")"),
        Protection::Tls => f.write_str(", under TLS)"),
        Protection::Mutual => f.write_str(", under TLS with a certificate)"),
    }
}

/// Why it is not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("exports were changed meanwhile: look again")]
    Changed,
    #[error("it is exported already: `sluice export set` changes how")]
    Exported,
    #[error("it is not exported: `sluice export list` shows what is")]
    NotExported,
    #[error("{0}")]
    Path(String),
    #[error("at most {MOST} exports, and as many networks and names of each")]
    TooMany,
    #[error(
        "so many names are too much for one export: a pattern (*.example.com) or a netgroup stands for many hosts"
    )]
    TooLarge,
    #[error("two rules are for {0}")]
    Twice(String),
    #[error("{0}: the name service of the metadata server's host knows no such host")]
    NoHost(String),
    #[error(
        "{0}: the name service of the metadata server's host cannot tell where it is ({1}): try again, or give its address"
    )]
    Untold(String, String),
    #[error(
        "@{0}: the name service of the metadata server's host knows no such netgroup, or cannot tell ({1}): see `netgroup` in its nsswitch.conf"
    )]
    NoNetgroup(String, String),
    #[error("the metadata store: {0}")]
    Store(#[from] FsError),
}

impl Mds {
    /// Makes a change durable, lets it hold, and asks clients for what they may not have any more; how much that is.
    ///
    /// # Errors
    /// Nothing was changed; or, with an error of the store, perhaps.
    pub(crate) async fn change_exports(
        self: &Arc<Self>,
        version: u64,
        path: &[u8],
        change: Change,
        from: SocketAddr,
    ) -> Result<usize, Refusal> {
        let path = normal(path)?;
        // Others may change exports while a name service takes its time.
        let change = match change {
            Change::Add(rules) => Change::Add(self.with_names(&path, rules).await?),
            Change::Set(rules) => Change::Set(self.with_names(&path, rules).await?),
            Change::Remove => Change::Remove,
        };
        let mut doubtful = self.exports.changing.lock().await;
        let done = self.change_one((version, path, change), from, &mut doubtful).await;
        self.settle_later(*doubtful);
        done
    }

    /// A change may have been made, or not, and holds from now on if it was: nobody may give another command.
    pub(super) fn settle_later(self: &Arc<Self>, doubtful: bool) {
        if doubtful && !self.exports.settling.swap(true, Ordering::Relaxed) {
            self.spawn(Arc::clone(self).look_up_exports());
        }
    }

    async fn look_up_exports(self: Arc<Self>) {
        loop {
            self.env.clock.sleep(LOOK).await;
            let mut doubtful = self.exports.changing.lock().await;
            if *doubtful {
                if let Err(error) = self.as_stored(&mut doubtful).await {
                    tracing::debug!(%error, "exports cannot be looked up; trying again");
                    continue;
                }
                tracing::info!(
                    "exports are as they are stored, with the change whose end was not known, or without"
                );
            }
            self.exports.settling.store(false, Ordering::Relaxed);
            return;
        }
    }

    /// The table that is stored. The change before, whose end its administrator was not told, may have been made: it is another one
    /// then than it was.
    ///
    /// # Errors
    /// That is not known yet.
    pub(super) async fn as_stored(self: &Arc<Self>, doubtful: &mut bool) -> Result<Arc<Table>, Refusal> {
        if *doubtful {
            self.reload(&self.exports.now()).await?;
            *doubtful = false;
        }
        Ok(self.exports.now())
    }

    async fn change_one(
        self: &Arc<Self>,
        (version, path, change): (u64, Bytes, Change),
        from: SocketAddr,
        doubtful: &mut bool,
    ) -> Result<usize, Refusal> {
        let before = self.as_stored(doubtful).await?;
        if before.version() != version {
            return Err(Refusal::Changed);
        }
        let known = before.all().find(|export| export.path == path && exported(export)).cloned();
        let row = match (&change, known) {
            (Change::Add(_), Some(_)) => return Err(Refusal::Exported),
            (Change::Set(_) | Change::Remove, None) => return Err(Refusal::NotExported),
            (Change::Add(rules), None) => self.new_row(&before, path.clone(), rules).await?,
            (Change::Set(Rules { networks, named }), Some(export)) => {
                Some(Export { rules: networks.clone(), named: named.clone(), ..export })
            }
            // Without a row the root would be exported as configured.
            (Change::Remove, Some(export)) if export.id == FileHandle::ROOT_EXPORT => {
                Some(Export { rules: Vec::new(), named: Vec::new(), ..export })
            }
            (Change::Remove, Some(export)) => {
                *doubtful = true;
                self.store(None, export.id).await?;
                None
            }
        };
        if let Some(row) = &row {
            sound(row)?;
            *doubtful = true;
            self.store(Some(row), row.id).await?;
        }
        tracing::info!(
            %from,
            path = %String::from_utf8_lossy(&[b"/", &path[..]].concat()),
            change = %change,
            "exports have changed"
        );
        let recalled = self.reload(&before).await?;
        *doubtful = false;
        Ok(recalled)
    }

    async fn with_names(self: &Arc<Self>, path: &[u8], rules: Rules) -> Result<Rules, Refusal> {
        match rules.named.is_empty() {
            true => Ok(rules),
            false => self.looked_up(path, rules).await,
        }
    }

    /// The row of an export to come.
    async fn new_row(
        self: &Arc<Self>,
        before: &Table,
        path: Bytes,
        Rules { networks, named }: &Rules,
    ) -> Result<Option<Export>, Refusal> {
        if before.all().count() >= MOST {
            return Err(Refusal::TooMany);
        }
        let root = self.directory(&path).await?;
        if before.is_root(&root) {
            return Err(Refusal::Path("the same directory is exported under another path".to_owned()));
        }
        let id = if path.is_empty() { FileHandle::ROOT_EXPORT } else { self.next_export().await? };
        Ok(Some(Export { id, path, root, rules: networks.clone(), named: named.clone() }))
    }

    async fn next_export(&self) -> Result<u32, Refusal> {
        let (block, _) = self
            .write(|mut txn| Box::pin(async move { lease_block(&mut txn, Sequence::Export, 1).await }))
            .await?;
        let id = u32::try_from(block.start).ok().filter(|id| *id < FileHandle::PSEUDO_EXPORT);
        id.ok_or(Refusal::Store(FsError::NoSpace))
    }

    /// The directory at a path.
    async fn directory(&self, path: &Bytes) -> Result<InodeKey, Refusal> {
        let found = self.walk(path).await.map_err(|error| match error {
            FsError::Kv(_) => Refusal::Store(error),
            other => Refusal::Path(other.to_string()),
        })?;
        if found.is_directory() { Ok(found.key) } else { Err(Refusal::Path("not a directory".to_owned())) }
    }

    /// Done twice it is done once: numbers are never given out again.
    pub(super) async fn store(&self, row: Option<&Export>, id: u32) -> Result<(), FsError> {
        self.write_again(|mut txn| {
            Box::pin(async move {
                match row {
                    Some(row) => stable_storage::put_export(&mut txn, row),
                    None => stable_storage::clear_export(&mut txn, id),
                }
                Ok(())
            })
        })
        .await?;
        Ok(())
    }

    /// What is stored holds from now on.
    pub(super) async fn reload(self: &Arc<Self>, before: &Table) -> Result<usize, Refusal> {
        let rows = self.read(|txn| Box::pin(async move { read(&txn).await })).await?;
        let mut since = self.env.clock.wall();
        // Other than before, whatever the clock says: clients and commands tell tables apart by it.
        if since <= before.since {
            since = just_after(before.since);
        }
        let table = Arc::new(Table::new(rows, &self.config.root_export, since));
        *self.exports.now.write() = Arc::clone(&table);
        self.callers.judge_anew(&table);
        Ok(self.take_back_from_all(self.narrowed(before, &table)).await)
    }

    /// Clients that may do less now through these exports, whatever they hold.
    fn narrowed(&self, before: &Table, now: &Table) -> BTreeMap<ClientId, BTreeSet<u32>> {
        let exports: Vec<u32> =
            before.all().map(|export| export.id).filter(|id| now.narrows_for_some(before, *id)).collect();
        if exports.is_empty() {
            return BTreeMap::new();
        }
        let one = |client| {
            let from = self.client_address(client).map(|address| self.origin(address));
            let narrower = |export: &u32| match &from {
                Some(from) => now.narrows(before, *export, from, from),
                // It is away: who knows from where it comes back.
                None => true,
            };
            (client, exports.iter().copied().filter(narrower).collect::<BTreeSet<u32>>())
        };
        let clients = self.client_infos().into_iter().filter(|info| info.confirmed).map(|info| info.id);
        clients.map(one).filter(|(_, exports)| !exports.is_empty()).collect()
    }

    /// Somebody was given something by the table `seen`, for who it was taken for then. If there is another by now, or it is another
    /// one, what it may not have for that is taken back: whoever changes it looks for what is out once it holds, so that one of the
    /// two finds it.
    pub(crate) fn given_by(self: &Arc<Self>, entry: &Arc<FileEntry>, seen: &Arc<Table>, was: &Origin) {
        let now = self.exports.now();
        let is_same =
            |peer: &Arc<Peer>| self.callers.peer(was.address).is_some_and(|is| Arc::ptr_eq(peer, &is));
        if Arc::ptr_eq(&now, seen) && was.peer.as_ref().is_none_or(is_same) {
            return;
        }
        let holders = entry.peek(|file| {
            let layouts = file.held_layouts().into_iter().map(|(client, _)| client);
            layouts.chain(file.delegated_to()).collect::<BTreeSet<ClientId>>()
        });
        for client in holders {
            let export = entry.export_of(client);
            let is_narrower = match self.client_address(client).map(|from| self.origin(from)) {
                Some(is) if same(is.address, was.address) => now.narrows(seen, export, was, &is),
                Some(is) => now.narrows(seen, export, &is, &is),
                None => now.narrows_for_some(seen, export),
            };
            if is_narrower {
                self.take_back(entry, client);
            }
        }
    }

    /// Asks clients for what they hold through these exports, and cuts them off from what they gave back; how much is asked for.
    pub(super) async fn take_back_from_all(
        self: &Arc<Self>,
        clients: BTreeMap<ClientId, BTreeSet<u32>>,
    ) -> usize {
        let mut asked = 0;
        for (client, exports) in &clients {
            let files = self.files.index().files_of(*client);
            for files in files.chunks(AT_ONCE) {
                let entries = files.iter().filter_map(|file| self.files.get(*file));
                let through = entries.filter(|entry| exports.contains(&entry.export_of(*client)));
                asked += through.map(|entry| self.take_back(&entry, *client)).sum::<usize>();
                tokio::task::yield_now().await;
            }
        }
        lockout::locked_out(self, clients.into_keys().collect());
        asked
    }

    /// Asks a client for its layout and its delegation of a file. What it does not return in time is revoked, and it is fenced off.
    fn take_back(self: &Arc<Self>, entry: &Arc<FileEntry>, client: ClientId) -> usize {
        self.step(entry, None, |file, ctx| {
            let mut effects = file.recall_layouts(ctx, LayoutFilter::Client(client), false);
            effects.extend(file.recall_delegation(ctx, client));
            (effects.iter().filter(|effect| matches!(effect, Effect::Callback(_))).count(), effects)
        })
    }

    /// Where a client is connected from.
    pub(super) fn client_address(&self, client: ClientId) -> Option<IpAddr> {
        self.address_of(&self.clients.sessions_of(client))
    }
}

fn just_after(time: Wall) -> Wall {
    match time.nanos + 1 {
        1_000_000_000 => Wall { seconds: time.seconds + 1, nanos: 0 },
        nanos => Wall { nanos, ..time },
    }
}

/// Somebody may use it.
pub(crate) fn exported(export: &Export) -> bool {
    export.id != FileHandle::ROOT_EXPORT || !export.rules.is_empty() || !export.named.is_empty()
}

/// Names and slashes, without a slash at either end.
fn normal(path: &[u8]) -> Result<Bytes, Refusal> {
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
    for name in &names {
        Name::new(name).map_err(|error| Refusal::Path(error.to_string()))?;
    }
    Ok(Bytes::from(names.join(&b'/')))
}

/// Bytes of a row at most: the store takes 100,000 of a value.
const MOST_OF_A_ROW: usize = 90_000;

pub(super) fn sound(row: &Export) -> Result<(), Refusal> {
    if row.rules.len() + row.named.len() > MOST {
        return Err(Refusal::TooMany);
    }
    if row.size() > MOST_OF_A_ROW {
        return Err(Refusal::TooLarge);
    }
    let networks = row.rules.iter().map(|rule| rule.clients.to_string());
    let mut all: Vec<_> = networks.chain(row.named.iter().map(|rule| rule.clients.to_string())).collect();
    all.sort();
    match all.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Refusal::Twice(pair[0].clone())),
        None => Ok(()),
    }
}
