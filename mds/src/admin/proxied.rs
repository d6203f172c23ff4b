//! What went through this server instead of straight to the data servers, and why.

use sluice_state::client::ClientInfo;
use sluice_xdr::control::*;

use super::Admin;
use crate::layout::reason::Reason;

impl Admin {
    pub(super) fn proxied(&self) -> ADMIN_PROXIED_res {
        let clients = self.mds.client_infos();
        let proxied = clients.iter().flat_map(|client| self.proxied_of(client)).collect();
        ADMIN_PROXIED_res::CTL_OK(ADMIN_PROXIED_resok { proxied })
    }

    pub(super) fn proxied_of(&self, client: &ClientInfo) -> Vec<ctl_proxied> {
        let now = self.mds.now();
        let tallies = self.mds.proxied.of(client.id).into_iter();
        tallies
            .map(|(reason, tally)| ctl_proxied {
                client: client.id.0,
                reason: self.reason(reason),
                calls: tally.calls,
                bytes: tally.bytes,
                last_seconds: now.since(tally.last) / 1_000_000_000,
                file: tally.file.0,
            })
            .collect()
    }

    pub(super) fn reason(&self, reason: Reason) -> ctl_reason {
        ctl_reason { code: reason.code().into(), words: self.words(reason).into() }
    }

    /// What it is, and what to do about it.
    fn words(&self, reason: Reason) -> String {
        let server = reason.store().map(|store| self.server_words(store)).unwrap_or_default();
        match reason {
            Reason::Off => "layouts are switched off in the metadata server's configuration".to_owned(),
            Reason::Sealed => "it asks for krb5i or krb5p on a connection in clear, and data servers know no Kerberos: mount with xprtsec=tls, too, or with sec=krb5".to_owned(),
            Reason::InClear(_) => format!(
                "the export wants TLS, or a ticket that seals does, and {server} cannot ask clients for that: give it --tls-certificate and --tls-key, for mtls --tls-clients, too; or upgrade it"
            ),
            Reason::ClientInClear => "the export wants TLS, or a ticket that seals does, and a kernel before 6.18 speaks in clear with data servers, whatever it mounts with: a newer one reaches them".to_owned(),
            Reason::ReadOnlyExport => "the export is read-only for this client".to_owned(),
            Reason::OtherExport => {
                "the client has the file open through another export: it gets layouts through that one".to_owned()
            }
            Reason::OtherMount => {
                "another mount of the same host has the file open, and one of the two writes: it has the layout until it closes the file".to_owned()
            }
            Reason::Away(_) => format!("{server} does not serve: look at `sluice status`"),
            Reason::ReadOnly(_) => format!("{server} takes no writes: its device is read-only or failing"),
            Reason::Full(_) => format!("{server} is full"),
            Reason::TooLong => {
                "it was written behind the longest file that a data server's file system holds (16 TiB with ext4): keep such files on XFS".to_owned()
            }
            Reason::NoPlace => "too few data servers take new files: the others are full, failing or away".to_owned(),
            Reason::Unreachable(_) => format!(
                "the client fails at {server}, by its own report: look for a firewall or a route that is missing between the two"
            ),
            Reason::DataFile(_) => format!(
                "what {server} has of the file cannot be read or written: it is lost or damaged if `sluice ds scrub` or `sluice ds audit` names it"
            ),
            Reason::HandlesRefused => {
                "data servers refuse the handles that this client has for the file: it was fenced off; remount if it lasts longer than a minute".to_owned()
            }
            Reason::SetId => "its set-user-id or set-group-id bit goes with the first write by others than root, which must be seen here".to_owned(),
            Reason::WriteOnly => "who writes to the file may not read it, and with a layout could do so at data servers".to_owned(),
            Reason::Inline => "its data is in the metadata: a client asks for a layout when the file outgrows that".to_owned(),
            Reason::Quota => "the owner, the group or the tree of the file has used up its quota".to_owned(),
            Reason::Healing => "mirrors of the file may differ and are being made equal".to_owned(),
            Reason::Segments => {
                "the file has mirrors and is several layout segments to this client's kernel, which would mix them up: with Linux 6.18 or newer and 4.2 it is one, and for every client new files of the policies `default` and `small` are".to_owned()
            }
            Reason::TooMany => {
                "the client has as many layouts as it may have, or all have together: it is asked for those that it does not use".to_owned()
            }
            Reason::NeverAsked => {
                "the client has asked for no layout of any file: is the module nfs_layout_flexfiles there?".to_owned()
            }
            Reason::NotAsked => {
                "the client has asked for no layout of this file: after an error it does without for up to two minutes".to_owned()
            }
            Reason::Unused => {
                "the client has a layout and does not use it: after an error at a data server it avoids that one for two minutes".to_owned()
            }
        }
    }

    fn server_words(&self, store: sluice_namespace::StoreId) -> String {
        let view = self.mds.data_servers.get(store).map(|store| store.view());
        let address = view.and_then(|view| view.addresses.first().copied());
        match address {
            Some(address) => format!("data server {} ({address})", store.0),
            None => format!("data server {}", store.0),
        }
    }
}
