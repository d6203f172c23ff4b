//! Who holds what, and taking it back: `sluice layout show`, `sluice layout recall`, `sluice client evict`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use sluice_namespace::{FsError, Inode};
use sluice_state::client::{ClientInfo, Error, Principal};
use sluice_state::effect::Effect;
use sluice_state::file::LayoutFilter;
use sluice_state::{ClientId, StateId, Time};
use sluice_xdr::control::*;

use super::{Admin, cut};
use crate::dsctl::lockout;
use crate::files::{FileEntry, file_id};

impl Admin {
    /// Clients under SP4_MACH_CRED, and whose tickets make and end their sessions.
    pub(super) fn guards(&self) -> ADMIN_GUARDS_resok {
        let guard = |info: ClientInfo| match info.guard()?.principal {
            Principal::Gss(name) => Some(ctl_client_guard { client: info.id.0, principal: cut(&name) }),
            Principal::None | Principal::Sys { .. } => None,
        };
        ADMIN_GUARDS_resok { clients: self.mds.client_infos().into_iter().filter_map(guard).collect() }
    }

    /// The layouts of one file.
    pub(super) async fn layouts(&self, args: ADMIN_LAYOUTS_args) -> ADMIN_LAYOUTS_res {
        match self.file(&args.path).await {
            Ok((inode, entry)) => ADMIN_LAYOUTS_res::CTL_OK(ADMIN_LAYOUTS_resok {
                file: inode.key.fileid.0,
                layouts: entry.map(|entry| self.holders(&entry)).unwrap_or_default(),
            }),
            Err(why) => ADMIN_LAYOUTS_res::Default(ctl_status::CTL_ERR_INVAL, why.into()),
        }
    }

    /// Asks for the layouts of one file back; how many were asked for. A client that does not give its back in time
    /// is fenced, as after any recall.
    pub(super) async fn recall(&self, args: ADMIN_RECALL_args, from: SocketAddr) -> ADMIN_RECALL_res {
        let entry = match self.file(&args.path).await {
            Ok((_, Some(entry))) => entry,
            Ok((_, None)) => return ADMIN_RECALL_res::CTL_OK(0),
            Err(why) => return ADMIN_RECALL_res::Default(ctl_status::CTL_ERR_INVAL, why.into()),
        };
        let those = match args.client {
            0 => LayoutFilter::All,
            client => LayoutFilter::Client(ClientId(client)),
        };
        let asked = self.mds.step(&entry, None, |file, ctx| {
            let effects = file.recall_layouts(ctx, those, false);
            (effects.iter().filter(|effect| matches!(effect, Effect::Callback(_))).count(), effects)
        });
        tracing::info!(%from, file = entry.key.fileid.0, layouts = asked, "an administrator recalls layouts");
        ADMIN_RECALL_res::CTL_OK(u32::try_from(asked).unwrap_or(u32::MAX))
    }

    /// Ends a client, whatever its lease: its opens, locks and layouts are gone, and it is fenced off what it holds and what it
    /// gave back.
    pub(super) async fn evict(&self, args: ADMIN_EVICT_args, from: SocketAddr) -> ADMIN_EVICT_res {
        let client = ClientId(args.client);
        let files = self.mds.files.index().files_of(client).len();
        let step = self.mds.clients.lock().evict(client);
        let refuse = |status, why: &str| ADMIN_EVICT_res::Default(status, why.to_owned().into());
        match step {
            Ok(effects) => {
                let ends = self.mds.apply_client(effects);
                let (fenced, ended) = tokio::join!(lockout::evicted(&self.mds, client), ends);
                match fenced.and(ended) {
                    Ok(()) => {
                        tracing::info!(%from, ?client, files, "an administrator evicted a client");
                        ADMIN_EVICT_res::CTL_OK(u32::try_from(files).unwrap_or(u32::MAX))
                    }
                    Err(error) => refuse(
                        ctl_status::CTL_ERR_AGAIN,
                        &format!("it is gone as soon as the metadata store answers: {error}"),
                    ),
                }
            }
            Err(Error::Delay) => {
                // What its last requests are granted yet is fenced with the rest of its state; an error is tried again.
                _ = lockout::evicted(&self.mds, client).await;
                refuse(
                    ctl_status::CTL_ERR_AGAIN,
                    "requests of it are being served: it is gone as soon as they are done",
                )
            }
            Err(_) => refuse(ctl_status::CTL_ERR_NOENT, "there is no such client"),
        }
    }

    /// A regular file, and its state if it has any; or why not.
    pub(super) async fn file(&self, path: &[u8]) -> Result<(Inode, Option<Arc<FileEntry>>), String> {
        let inode = self.mds.walk(path).await.map_err(|error: FsError| error.to_string())?;
        if inode.is_directory() {
            return Err("is a directory: layouts and locks are of files".to_owned());
        }
        let entry = self.mds.files.get(file_id(&inode.key));
        Ok((inode, entry))
    }

    fn holders(&self, entry: &FileEntry) -> Vec<ctl_layout> {
        let mds = &self.mds;
        let clients: BTreeMap<ClientId, _> =
            mds.client_infos().into_iter().map(|info| (info.id, info)).collect();
        let held = entry.peek(|file| {
            let all = file.held_layouts().into_iter();
            all.map(|(client, stateid)| {
                let recalled = file.layout_of(client).is_some_and(|(_, recalled)| recalled);
                (client, stateid, file.is_written_by(client), recalled, file.layout_since(client))
            })
            .collect::<Vec<_>>()
        });
        let one =
            |(client, stateid, write, recalled, since): (ClientId, StateId, bool, bool, Option<Time>)| {
                let info = clients.get(&client);
                let sessions: Vec<_> = info
                    .map(|info| info.sessions.iter().filter_map(|id| mds.clients.session(*id)).collect())
                    .unwrap_or_default();
                let address = mds.address_of(&sessions).map(|address| address.to_string());
                ctl_layout {
                    client: client.0,
                    address: address.unwrap_or_default().into(),
                    name: info.map(|info| cut(&info.owner)).unwrap_or_default(),
                    seqid: stateid.seqid,
                    other: stateid.other,
                    write,
                    recalled,
                    age_seconds: since.map_or(0, |since| mds.now().since(since) / 1_000_000_000),
                }
            };
        held.into_iter().map(one).collect()
    }
}
