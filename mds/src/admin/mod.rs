//! SLUICE_ADMIN: what the command line asks. xdr/spec/control.x.

mod activity;
mod audit;
mod balance;
mod classes;
mod compare;
mod doctor;
pub(crate) mod dumped;
mod exports;
mod holders;
mod keys;
mod locks;
mod looking;
mod mirrors;
mod proxied;
mod quotas;
pub(crate) mod rows;
mod scrub;
mod servers;
mod why;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use sluice_env::BoxFuture;
use sluice_namespace::{Credential, DirectoryUpdate, FsError, InodeKey, LayoutPolicy, Request, SetAttr};
use sluice_rpc::{Call, Frame, Program, Reply};
use sluice_state::client::{ClientInfo, ImplementationId};
use sluice_xdr::control::*;
use sluice_xdr::{Decode, Encode, Reader, Writer};

use crate::dsctl::StoreHandle;
use crate::layout;
use crate::metrics::lease_words;
use crate::server::Mds;

pub(crate) use looking::Looking;

/// The admin program as holders of the cluster key reach it.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) mds: Arc<Mds>,
}

impl Program for Admin {
    fn number(&self) -> u32 {
        SLUICE_ADMIN
    }

    fn versions(&self) -> RangeInclusive<u32> {
        SLUICE_ADMIN_V2..=SLUICE_ADMIN_V2
    }

    fn call<'a>(&'a self, call: Call) -> BoxFuture<'a, Reply> {
        Box::pin(async move {
            match call.procedure {
                ADMIN_NULL => Reply::Success(Frame::default()),
                ADMIN_STATUS => encode(&self.status(&call).await),
                ADMIN_POLICY => answer(&call, async |args| self.policy(args, from(&call)).await).await,
                ADMIN_LAYOUTS => answer(&call, async |args| self.layouts(args).await).await,
                ADMIN_RECALL => answer(&call, async |args| self.recall(args, from(&call)).await).await,
                ADMIN_EVICT => answer(&call, async |args| self.evict(args, from(&call)).await).await,
                ADMIN_ROWS => answer(&call, async |args| self.rows(args).await).await,
                ADMIN_ACTIVITY => encode(&self.activity()),
                ADMIN_EXPORTS => encode(&self.exports()),
                ADMIN_SEC_EXPORTS => encode(&self.sec_exports()),
                ADMIN_TLS_EXPORTS => encode(&self.tls_exports()),
                ADMIN_DOCTOR => encode(&self.doctor().await),
                ADMIN_PROXIED => encode(&self.proxied()),
                ADMIN_WHY => answer(&call, async |args| self.why(args).await).await,
                ADMIN_QUOTAS => answer(&call, async |args| self.quotas(args).await).await,
                ADMIN_QUOTA => answer(&call, async |args| self.quota(args, from(&call)).await).await,
                ADMIN_SERVERS => encode(&self.servers().await),
                ADMIN_DRAIN => answer(&call, async |args| self.drain(args, from(&call)).await).await,
                ADMIN_REMOVE => answer(&call, async |args| self.remove(args, from(&call)).await).await,
                ADMIN_ACCEPT_OLDER => {
                    answer(&call, async |args| self.accept_older(args, from(&call)).await).await
                }
                ADMIN_CLASSES => encode(&self.classes()),
                ADMIN_GUARDS => encode(&self.guards()),
                ADMIN_CLASS => answer(&call, async |args| self.class(args, from(&call)).await).await,
                ADMIN_ROOM => encode(&self.room()),
                ADMIN_DUMPED => answer(&call, async |args| self.dumped(args, from(&call)).await).await,
                ADMIN_LAST_DUMP => encode(&self.last_dump()),
                ADMIN_CLUSTER_KEYS => encode(&self.cluster_keys(&call.connection)),
                ADMIN_LOCKS => answer(&call, async |args| self.locks(args).await).await,
                ADMIN_BREAK => answer(&call, async |args| self.break_locks(args, from(&call)).await).await,
                ADMIN_BALANCE => answer(&call, async |args| self.balance(args, from(&call)).await).await,
                ADMIN_COMPARE => answer(&call, async |args| self.compare(args, from(&call)).await).await,
                ADMIN_MEND => answer(&call, async |args| self.mend(args, from(&call)).await).await,
                ADMIN_MIRRORS => answer(&call, async |args| self.mirrors(args, from(&call)).await).await,
                ADMIN_KEYS => answer(&call, async |args| self.keys(args, from(&call)).await).await,
                ADMIN_AUDIT => answer(&call, async |args| self.audit(args).await).await,
                ADMIN_SCRUB => answer(&call, async |args| self.scrub(args).await).await,
                ADMIN_EXPORT => answer(&call, async |args| self.export(args, from(&call)).await).await,
                ADMIN_SEC_EXPORT => {
                    answer(&call, async |args| self.sec_export(args, from(&call)).await).await
                }
                ADMIN_TLS_EXPORT => {
                    answer(&call, async |args| self.tls_export(args, from(&call)).await).await
                }
                ADMIN_NAMES => encode(&self.names()),
                ADMIN_REFRESH_NAMES => encode(&self.refresh_names().await),
                _ => Reply::ProcUnavail,
            }
        })
    }
}

/// Decodes the arguments, runs the procedure, encodes what it says.
async fn answer<A: Decode, R: Encode>(call: &Call, run: impl AsyncFnOnce(A) -> R) -> Reply {
    match A::decode(&mut Reader::new(call.args.clone())) {
        Ok(args) => encode(&run(args).await),
        Err(_) => Reply::GarbageArgs,
    }
}

/// Who asks, for the log: changes are traced to a host.
fn from(call: &Call) -> SocketAddr {
    call.connection.peer()
}

fn encode<R: Encode>(result: &R) -> Reply {
    let mut writer = Writer::default();
    result.encode(&mut writer);
    writer.finish().map_or(Reply::SystemErr, Reply::Success)
}

impl Admin {
    async fn status(&self, call: &Call) -> ADMIN_STATUS_res {
        let mds = &self.mds;
        let (files, used_bytes, degraded_files) = match mds.totals().await {
            Ok(counts) => counts,
            Err(error) => {
                let why = format!("the metadata store does not answer: {error}");
                return ADMIN_STATUS_res::Default(ctl_status::CTL_ERR_AGAIN, why.into());
            }
        };
        let (metrics, work) = (&mds.metrics, mds.db.work());
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let grace = mds.clients.lock().grace().next_deadline();
        let left = if grace == sluice_state::Time::NEVER { 0 } else { grace.since(mds.now()) };
        ADMIN_STATUS_res::CTL_OK(ADMIN_STATUS_resok {
            cluster: ctl_uuid(mds.namespace.superblock().uuid),
            version: mds.config.version.clone().into(),
            listen: call.connection.local().to_string().into(),
            mds_epoch: mds.data_servers.mds_epoch(),
            uptime_seconds: mds.now().since(mds.started) / 1_000_000_000,
            grace_seconds_left: u32::try_from(left.div_ceil(1_000_000_000)).unwrap_or(u32::MAX),
            files,
            used_bytes,
            proxied_bytes_read: count(&metrics.proxied_read),
            proxied_bytes_written: count(&metrics.proxied_written),
            inline_bytes_read: count(&metrics.inline_read),
            inline_bytes_written: count(&metrics.inline_written),
            layouts_granted: count(&metrics.layouts_granted),
            recalls_sent: count(&metrics.recalls_sent),
            transactions: work.transactions,
            transaction_groups: work.groups,
            conflicts: work.conflicts,
            views: work.views,
            reads: work.reads,
            orders: mds.data_servers.orders(),
            reports: count(&metrics.reports),
            degraded_files,
            healed_files: count(&metrics.healed_files),
            healed_bytes: count(&metrics.healed_bytes),
            healing: mds.heals.words().into(),
            clients: mds.client_infos().iter().map(|info| self.client(info)).collect(),
            data_servers: mds.data_servers.all().iter().map(|store| self.data_server(store)).collect(),
        })
    }

    fn room(&self) -> ADMIN_ROOM_resok {
        let room = self.mds.db.room();
        room.map(|room| ADMIN_ROOM_resok { total_bytes: room.total, free_bytes: room.free })
            .unwrap_or_default()
    }

    fn client(&self, info: &ClientInfo) -> ctl_client_status {
        let mds = &self.mds;
        let usage = mds.files.index().usage(info.id);
        let sessions: Vec<_> = info.sessions.iter().filter_map(|id| mds.clients.session(*id)).collect();
        let address = mds.address_of(&sessions).map(|address| address.to_string());
        let release = info
            .implementation
            .as_ref()
            .and_then(ImplementationId::kernel)
            .map(|kernel| format!("{}.{}{}", kernel.major, kernel.minor, kernel.suffix));
        ctl_client_status {
            client: info.id.0,
            address: address.unwrap_or_default().into(),
            name: cut(&info.owner),
            kernel: release.unwrap_or_default().into(),
            minor_version: info.minor_version,
            state: Bytes::from_static(lease_words(info.confirmed, info.lease).as_bytes()),
            opens: usage.opens,
            locks: usage.locks,
            layouts: usage.layouts,
            proxied_bytes: mds.proxied.bytes_of(info.id),
        }
    }

    fn data_server(&self, store: &Arc<StoreHandle>) -> ctl_data_server_status {
        let view = store.view();
        let connected = store.connection().is_some() && !view.lost;
        let silent = self.mds.now().since(view.last_heard) / 1_000_000_000;
        let older = store.older();
        let state = match view.health {
            _ if !connected && let Some(older) = older => older.words(),
            _ if !connected && self.mds.data_servers.refuses(&store.uuid).is_some() => {
                "refused, as it remembers newer metadata than these: see sluice doctor".to_owned()
            }
            None => "not seen since the start".to_owned(),
            Some(_) if !connected => format!("unreachable for {silent} s"),
            Some(ctl_health::HEALTH_OK) => String::new(),
            Some(_) => view.detail.clone(),
        };
        // None of it is hidden by another: a data server that is full may hold what is damaged, and be emptied for that.
        let mut words = vec![state, view.damage.words()];
        if connected {
            words.extend([servers::drain_words(&self.mds, store.id), balance::words(&self.mds, store.id)]);
        }
        words.retain(|words| !words.is_empty());
        let state = words.join("; ");
        ctl_data_server_status {
            id: store.id.0.into(),
            store: ctl_uuid(store.uuid),
            addresses: view
                .addresses
                .iter()
                .map(|address| ctl_address {
                    host: address.ip().to_string().into(),
                    port: address.port().into(),
                })
                .collect(),
            connected,
            health: view.health.unwrap_or(ctl_health::HEALTH_OK),
            state: state.into(),
            capacity: view.capacity,
            counters: view.counters,
            version: view.version,
        }
    }

    async fn policy(&self, args: ADMIN_POLICY_args, from: SocketAddr) -> ADMIN_POLICY_res {
        let refuse = |why: String| ADMIN_POLICY_res::Default(ctl_status::CTL_ERR_INVAL, why.into());
        // Who does not speak of inline files, or of a class, leaves that as it is.
        let says = |what: &str| args.policy.windows(what.len()).any(|part| part == what.as_bytes());
        let kept = Kept { inline: !says(",inline="), class: !says(",class=") };
        let set = if args.policy.is_empty() {
            None
        } else {
            let text = String::from_utf8_lossy(&args.policy).into_owned();
            match LayoutPolicy::parse(&text) {
                Some(policy) => Some(policy),
                None => {
                    return refuse(format!(
                        "no policy is called {text}: default, small, wide or wide-any, with copies (1 to 36) as in wide,mirrors=2, and with small files kept in the metadata as in default,inline=16KiB (at most 64KiB, or off), and on data servers of a class as in default,class=archive (or none)"
                    ));
                }
            }
        };
        let (key, before) = match self.mds.walk(&args.path).await {
            Ok(found) => match found.directory_node() {
                Some(directory) => (found.key, directory.policy),
                None => return refuse("not a directory".to_owned()),
            },
            Err(error) => return refuse(error.to_string()),
        };
        let Some(mut policy) = set else { return ADMIN_POLICY_res::CTL_OK(before.to_string().into()) };
        policy.inline = if kept.inline { before.inline } else { policy.inline };
        policy.class = if kept.class { before.class } else { policy.class };
        let amiss = match self.no_such_class(&policy) {
            // One that nobody speaks of may be gone since.
            Some(why) => Some(why).filter(|_| !kept.class),
            None => self.too_few(&policy, kept),
        };
        if let Some(why) = amiss {
            return refuse(why);
        }
        if let Err(error) = self.apply(&key, policy).await {
            return refuse(error.to_string());
        }
        let path = String::from_utf8_lossy(&args.path);
        tracing::info!(%from, %path, %policy, "an administrator set a layout policy");
        ADMIN_POLICY_res::CTL_OK(policy.to_string().into())
    }

    /// Why no file of this policy could be made. Before there are data servers anything may be said of those to come.
    fn too_few(&self, policy: &LayoutPolicy, kept: Kept) -> Option<String> {
        let mut all = self.mds.data_servers.all();
        all.retain(|store| store.is_active());
        let wanted = layout::classes::wanted(&self.mds, policy.class);
        // Who chooses a class must have as many of it as this server makes where a policy does not say. Elsewhere only what is said
        // is looked at.
        let chosen = policy.class.is_some() && !kept.class;
        let mirrors = if chosen { layout::with_mirrors(&self.mds, *policy) } else { *policy }.mirrors;
        let any = !all.is_empty();
        all.retain(|store| wanted.takes(store.class()));
        let (active, class) = (all.len(), layout::classes::words(&self.mds, wanted));
        (any && usize::from(mirrors) > active).then(|| {
            format!(
                "mirrors={mirrors} needs {mirrors} data servers{class}, and {active} take new files (active in `sluice ds list`): add some first, or take fewer mirrors"
            )
        })
    }

    async fn apply(&self, key: &InodeKey, policy: LayoutPolicy) -> Result<(), FsError> {
        let (namespace, who) = (&self.mds.namespace, &Credential::ROOT);
        let change = SetAttr { policy: Some(policy), ..SetAttr::default() };
        let request = Request { who, now: self.mds.env.clock.wall(), directory: DirectoryUpdate::Exact };
        let (change, request) = (&change, &request);
        let set = self.mds.write(|mut txn| {
            Box::pin(async move { namespace.setattr(&mut txn, key, change, request).await })
        });
        set.await.map(drop)
    }
}

/// What of a policy stays as it is.
#[derive(Clone, Copy, Debug)]
struct Kept {
    inline: bool,
    class: bool,
}

/// As much of a name as the protocol carries.
fn cut(name: &Bytes) -> Bytes {
    name.slice(..name.len().min(CTL_STRING_MAX as usize))
}
