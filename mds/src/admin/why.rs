//! How clients get at one file's data: what `sluice why` shows.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use sluice_namespace::stable_storage::Protection;
use sluice_namespace::{Component, FsError, Inline, Inode, Layout, LayoutPolicy, Shape};
use sluice_state::client::ClientInfo;
use sluice_xdr::control::*;

use super::Admin;
use super::exports::standing;
use crate::files::{FileEntry, file_id};
use crate::layout::grant::{self, Ask, Way};
use crate::layout::heal::lost;
use crate::layout::placement::for_maker;
use crate::layout::with_mirrors;

/// What a path names.
struct Subject {
    /// As in exports: without slashes at its ends.
    path: Vec<u8>,
    inode: Inode,
    /// Of the directory that it is, or is in.
    policy: LayoutPolicy,
    state: Option<Arc<FileEntry>>,
}

impl Admin {
    pub(super) async fn why(&self, args: ADMIN_WHY_args) -> ADMIN_WHY_res {
        match self.subject(&args.path).await {
            Ok(subject) => ADMIN_WHY_res::CTL_OK(self.explain(&subject, args.client)),
            Err(FsError::Kv(error)) => ADMIN_WHY_res::Default(
                ctl_status::CTL_ERR_AGAIN,
                format!("the metadata store does not answer: {error}").into(),
            ),
            Err(error) => ADMIN_WHY_res::Default(ctl_status::CTL_ERR_INVAL, error.to_string().into()),
        }
    }

    async fn subject(&self, path: &[u8]) -> Result<Subject, FsError> {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let path = names.join(&b'/');
        let inode = self.mds.walk(&path).await?;
        let directory = match &inode {
            directory if directory.is_directory() => inode.clone(),
            _ => self.mds.walk(&names[..names.len().saturating_sub(1)].join(&b'/')).await?,
        };
        let policy = directory.directory_node().map(|node| node.policy).unwrap_or_default();
        let state = self.mds.files.get(file_id(&inode.key));
        Ok(Subject { path, inode, policy, state })
    }

    fn explain(&self, subject: &Subject, client: u64) -> ADMIN_WHY_resok {
        let inode = &subject.inode;
        let owned = inode.record.owned();
        let components = inode.layout().map(|layout| layout.components.iter().map(component).collect());
        let clients = self.mds.client_infos();
        let meant = clients.iter().filter(|info| client == 0 || info.id.0 == client);
        ADMIN_WHY_resok {
            file: inode.key.fileid.0,
            directory: inode.is_directory(),
            size: inode.size(),
            mode: owned.mode.into(),
            uid: owned.uid,
            gid: owned.gid,
            policy: subject.policy.to_string().into(),
            healing: self.healing_and_damage(inode).into(),
            components: components.unwrap_or_default(),
            clients: meant.map(|info| self.way(subject, info)).collect(),
        }
    }

    fn healing_and_damage(&self, inode: &Inode) -> String {
        let mut words = vec![self.healing(inode)];
        for (layout, file) in
            inode.layout().iter().flat_map(|layout| layout.data_files().map(move |f| (layout, f)))
        {
            let Some(store) = self.mds.data_servers.get(file.store).filter(|store| !store.is_removed())
            else {
                continue;
            };
            let damage = store.damage();
            if let [(offset, _), ..] = damage.of(layout.id, file.slot) {
                let bytes: u64 = damage.of(layout.id, file.slot).iter().map(|(_, length)| length).sum();
                words.push(format!(
                    "{bytes} bytes are damaged at data server {}, the first at {offset}: reading them there fails",
                    file.store.0
                ));
            } else if store.is_damaged(layout.id, file.slot) {
                words.push(format!(
                    "what data server {} had of it is lost: reading it there fails",
                    file.store.0
                ));
            }
        }
        words.retain(|words| !words.is_empty());
        words.join("; ")
    }

    fn healing(&self, inode: &Inode) -> String {
        if let Some((_, store)) = lost::columns(&self.mds, inode).next() {
            return format!(
                "what data server {} had of it is lost, as that was removed: reading it there fails until the file is written anew",
                store.0
            );
        }
        let words = match inode.layout() {
            _ if self.mds.heals.is_busy(inode.key.fileid) => {
                "mirrors are being made equal, or a part moves to another data server"
            }
            Some(layout) if layout.mirrors_dirty => "mirrors may differ and wait to be made equal",
            Some(layout) if layout.data_files().any(|file| file.stale) => {
                "a mirror misses writes and waits to be made equal"
            }
            Some(layout) if layout.data_files().any(|file| file.moving) => {
                "a part is on its way to another data server"
            }
            _ => "",
        };
        words.to_owned()
    }

    /// What one client gets.
    fn way(&self, subject: &Subject, info: &ClientInfo) -> ctl_way {
        let client = self.client(info);
        let from = std::str::from_utf8(&client.address).ok().and_then(|text| text.parse::<IpAddr>().ok());
        let from = from.map(|address| self.mds.origin(address));
        let table = self.mds.exports.now();
        let export = from.as_ref().and_then(|from| table.through(&subject.path, from));
        let rule = export.zip(from.as_ref()).and_then(|(export, from)| table.rule(export.id, from));
        let (holds, delegation) = held(subject.state.as_deref(), info);
        let stripes = info.supports_stripes();
        let is_file = subject.inode.file().is_some();
        let verdict = |write| {
            let wants = rule.map_or(Protection::None, |rule| rule.wants);
            let (file, way) = (subject.inode.key.fileid, Way { wants, in_clear: info.is_in_clear() });
            let ask = Ask { client: info.id, file, offset: 0, write, stripes, way };
            let refused = match rule {
                Some(rule) if write && rule.read_only => Some(crate::layout::reason::Reason::ReadOnlyExport),
                _ if !is_file => None,
                _ => grant::explain(&self.mds, &subject.inode, &ask).err(),
            };
            refused.map(|reason| self.reason(reason)).into_iter().collect()
        };
        ctl_way {
            export: export.map(|export| Bytes::from([b"/", &export.path[..]].concat())).unwrap_or_default(),
            rules: rule.as_ref().map(standing).into_iter().collect(),
            shape: match subject.inode.inline() {
                Some(inline) => inline_words(subject.inode.size(), inline).into(),
                None => {
                    let policy = with_mirrors(&self.mds, subject.policy);
                    shape(subject.inode.layout(), policy, stripes).into()
                }
            },
            holds: holds.into(),
            delegation,
            read: verdict(false),
            write: verdict(true),
            proxied: self.proxied_of(info),
            client,
        }
    }
}

/// The layout and the delegation that a client holds of a file.
fn held(state: Option<&FileEntry>, info: &ClientInfo) -> (&'static str, bool) {
    let held = state.map(|entry| {
        entry.peek(|file| {
            let layout = match file.layout_of(info.id) {
                None => "",
                Some(_) if file.is_written_by(info.id) => "read-write",
                Some(_) => "read",
            };
            (layout, file.delegated_to().contains(&info.id))
        })
    });
    held.unwrap_or_default()
}

fn component(component: &Component) -> ctl_component {
    ctl_component {
        start: component.start,
        end: component.end,
        stripe_unit: u32::try_from(component.stripe_unit).unwrap_or(u32::MAX),
        mirrors: component.mirrors.into(),
        slots: component
            .slots
            .iter()
            .map(|file| ctl_placed {
                data_server: file.store.0.into(),
                stale: file.stale,
                there: file.materialised,
            })
            .collect(),
    }
}

/// A file that needs no layout.
fn inline_words(size: u64, inline: Inline) -> String {
    let unit = |bytes: u64| {
        if bytes < 1024 { format!("{bytes} B") } else { format!("{} KiB", bytes.div_ceil(1024)) }
    };
    format!(
        "none, inline: {} in the metadata, where up to {} are kept",
        unit(size),
        unit(inline.limit.into())
    )
}

/// What its layouts look like to a client.
fn shape(layout: Option<&Layout>, policy: LayoutPolicy, stripes: bool) -> &'static str {
    let made = for_maker(policy, stripes).shape;
    let striped = match layout {
        Some(layout) => layout.components.iter().any(|component| component.width > 1),
        // One of no particular kind has one column where it has mirrors.
        None => made != Shape::Small && !(made == Shape::Default && policy.mirrors > 1),
    };
    match (striped, stripes) {
        (false, false) if layout.is_none() && made != policy.shape => {
            "the whole file from one data server, or a mirror of it, of files that it makes; those that others make in stripes it writes through the metadata server (segments): stripes take a kernel of 6.18 or newer over NFS 4.2"
        }
        (false, _) => "the whole file from one data server",
        (true, true) => "all stripes at once",
        (true, false) if policy.shape == Shape::Wide => {
            "one stripe unit at a time, which is slow: stripes take a kernel of 6.18 or newer over NFS 4.2; `wide-any` suits older ones"
        }
        (true, false) => {
            "one stripe unit at a time, coarse enough: stripes take a kernel of 6.18 or newer over NFS 4.2"
        }
    }
}
