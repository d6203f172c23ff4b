//! Exports: showing and changing them.

use std::net::SocketAddr;
use std::str;

use bytes::Bytes;
use sluice_namespace::stable_storage::{Clients, Flavours, Protection, Rule, Squash};
use sluice_xdr::control::*;

use super::Admin;
use crate::exports::change::{Change, Refusal, Rules, exported};
use crate::exports::hosts::hosts;
use crate::exports::protection;
use crate::exports::rules::Exported;

/// Callers that are shown at most.
const SHOWN: usize = 4096;

/// As much of what a name service says as is told.
fn cut(mut text: String) -> Bytes {
    text.truncate(text.floor_char_boundary(CTL_STRING_MAX as usize));
    text.into()
}

impl Admin {
    pub(super) fn exports(&self) -> ADMIN_EXPORTS_res {
        let table = self.mds.exports.now();
        let exports = table.ordered().filter(|export| exported(export.row())).map(|export| ctl_export {
            id: export.row().id,
            path: path(export),
            stored: export.row().id != 0 || table.root_is_stored,
            rules: shown(export, |clients, rule| wire(clients, &rule)),
        });
        ADMIN_EXPORTS_res::CTL_OK(ADMIN_EXPORTS_resok {
            version: table.version(),
            exports: exports.collect(),
        })
    }

    /// The same with the tickets that are taken.
    pub(super) fn sec_exports(&self) -> ADMIN_SEC_EXPORTS_res {
        let table = self.mds.exports.now();
        let exports = table.ordered().filter(|export| exported(export.row())).map(|export| ctl_sec_export {
            id: export.row().id,
            path: path(export),
            stored: export.row().id != 0 || table.root_is_stored,
            rules: shown(export, |clients, rule| sec_wire(clients, &rule)),
        });
        ADMIN_SEC_EXPORTS_res::CTL_OK(ADMIN_SEC_EXPORTS_resok {
            version: table.version(),
            kerberos: self.mds.config.kerberos,
            exports: exports.collect(),
        })
    }

    /// The same with what is wanted of connections.
    pub(super) fn tls_exports(&self) -> ADMIN_TLS_EXPORTS_res {
        let (table, config) = (self.mds.exports.now(), &self.mds.config);
        let exports = table.ordered().filter(|export| exported(export.row())).map(|export| ctl_tls_export {
            id: export.row().id,
            path: path(export),
            stored: export.row().id != 0 || table.root_is_stored,
            rules: shown(export, |clients, rule| tls_wire(clients, &rule)),
        });
        ADMIN_TLS_EXPORTS_res::CTL_OK(ADMIN_TLS_EXPORTS_resok {
            version: table.version(),
            kerberos: config.kerberos,
            protection: protection::wire(config.protection),
            exports: exports.collect(),
        })
    }

    /// A change by a command that knows of no tickets: whoever came with one does so still.
    pub(super) async fn export(&self, args: ADMIN_EXPORT_args, from: SocketAddr) -> ADMIN_EXPORT_res {
        let ADMIN_EXPORT_args { version, action, path, rules } = args;
        let mut rules = match rules.iter().map(rule).collect::<Result<Vec<_>, _>>() {
            Ok(rules) => rules,
            Err(why) => return refuse(ctl_status::CTL_ERR_INVAL, why),
        };
        for (rule, before) in self.with_before(&path, &mut rules) {
            rule.wants = before.wants;
            let old = before.flavours;
            // Where they were all that was taken, that is no change. Who takes the others away means to let nobody in.
            let (was, is) = (old.sys || old.none, rule.flavours.sys || rule.flavours.none);
            if was && !is {
                continue;
            }
            let (krb5, krb5i, krb5p) = (old.krb5, old.krb5i, old.krb5p);
            rule.flavours = Flavours { krb5, krb5i, krb5p, ..rule.flavours };
        }
        self.change_export((version, action, path), rules, from).await
    }

    /// One by a command that does not know what may be wanted of connections: what was wanted of these clients is so still.
    pub(super) async fn sec_export(&self, args: ADMIN_SEC_EXPORT_args, from: SocketAddr) -> ADMIN_EXPORT_res {
        let ADMIN_SEC_EXPORT_args { version, action, path, rules } = args;
        let mut rules = match rules.iter().map(sec_rule).collect::<Result<Vec<_>, _>>() {
            Ok(rules) => rules,
            Err(why) => return refuse(ctl_status::CTL_ERR_INVAL, why),
        };
        for (rule, before) in self.with_before(&path, &mut rules) {
            rule.wants = before.wants;
        }
        self.change_export((version, action, path), rules, from).await
    }

    /// One that says all.
    pub(super) async fn tls_export(&self, args: ADMIN_TLS_EXPORT_args, from: SocketAddr) -> ADMIN_EXPORT_res {
        let ADMIN_TLS_EXPORT_args { version, action, path, rules } = args;
        match rules.iter().map(tls_rule).collect::<Result<Vec<_>, _>>() {
            Ok(rules) => self.change_export((version, action, path), rules, from).await,
            Err(why) => refuse(ctl_status::CTL_ERR_INVAL, why),
        }
    }

    /// Those of the rules whose clients have one at this path already, with that one.
    fn with_before<'a>(
        &self,
        path: &[u8],
        rules: &'a mut [Rule<Clients>],
    ) -> Vec<(&'a mut Rule<Clients>, Rule)> {
        let table = self.mds.exports.now();
        let name = path.strip_prefix(b"/").unwrap_or(path);
        let before = table.ordered().find(|export| export.row().path == name);
        let known = before.map(|export| shown(export, |clients, rule| (clients, rule))).unwrap_or_default();
        let before = |rule: &Rule<Clients>| {
            let clients = rule.clients.to_string();
            known.iter().find(|(old, _)| *old == clients).map(|(_, old)| *old)
        };
        rules.iter_mut().filter_map(|rule| before(rule).map(|old| (rule, old))).collect()
    }

    /// What exports have by name, and what is known of it.
    pub(super) fn names(&self) -> ADMIN_NAMES_res {
        let mds = &self.mds;
        let (table, now) = (mds.exports.now(), mds.env.clock.now());
        let hosts = hosts(&table).into_iter().map(|(name, addresses)| {
            let news = mds.hosts.of(&name).unwrap_or_default();
            ctl_named_host {
                name: name.into(),
                addresses: addresses.iter().map(|address| address.to_string().into()).collect(),
                told_seconds: news.told.into_iter().map(|when| (now - when).as_secs()).collect(),
                trouble: cut(news.trouble.unwrap_or_default()),
            }
        });
        let hosts = hosts.take(CTL_LIST_MAX as usize).collect();
        let mut callers = mds.callers.shown(now);
        let left_out = callers.len().saturating_sub(SHOWN);
        callers.truncate(SHOWN);
        let callers = callers.into_iter().map(|shown| {
            let who = shown.who.unwrap_or_default();
            let groups = who.netgroups.into_iter().filter(|(_, is_in)| *is_in).map(|(group, _)| group.into());
            ctl_named_caller {
                address: shown.address.to_string().into(),
                name: who.name.unwrap_or_default().into(),
                netgroups: groups.take(CTL_NETGROUPS_MAX as usize).collect(),
                told_seconds: shown.told_seconds.into_iter().collect(),
                trouble: cut(shown.trouble.unwrap_or_default()),
            }
        });
        ADMIN_NAMES_res::CTL_OK(ADMIN_NAMES_resok {
            hosts,
            callers: callers.collect(),
            left_out: u32::try_from(left_out).unwrap_or(u32::MAX),
        })
    }

    /// The same after all of it was asked for.
    pub(super) async fn refresh_names(&self) -> ADMIN_NAMES_res {
        if !self.mds.lookups.can() {
            let why = "this metadata server asks no name service";
            return ADMIN_NAMES_res::Default(ctl_status::CTL_ERR_NOTSUPP, why.into());
        }
        self.mds.look_up_all().await;
        self.names()
    }

    async fn change_export(
        &self,
        (version, action, path): (u64, ctl_export_action, Bytes),
        rules: Vec<Rule<Clients>>,
        from: SocketAddr,
    ) -> ADMIN_EXPORT_res {
        let rules = split(rules);
        let change = match action {
            ctl_export_action::EXPORT_ADD => Change::Add(rules),
            ctl_export_action::EXPORT_SET => Change::Set(rules),
            ctl_export_action::EXPORT_REMOVE => Change::Remove,
            _ => {
                return refuse(
                    ctl_status::CTL_ERR_NOTSUPP,
                    "an unknown change: upgrade the server".to_owned(),
                );
            }
        };
        match self.mds.change_exports(version, &path, change, from).await {
            Ok(recalled) => ADMIN_EXPORT_res::CTL_OK(u32::try_from(recalled).unwrap_or(u32::MAX)),
            Err(error) => {
                let status = match error {
                    Refusal::Changed | Refusal::Store(_) | Refusal::Untold(..) => ctl_status::CTL_ERR_AGAIN,
                    Refusal::NotExported => ctl_status::CTL_ERR_NOENT,
                    _ => ctl_status::CTL_ERR_INVAL,
                };
                refuse(status, error.to_string())
            }
        }
    }
}

fn refuse(status: ctl_status, why: String) -> ADMIN_EXPORT_res {
    ADMIN_EXPORT_res::Default(status, why.into())
}

fn path(export: &Exported) -> Bytes {
    Bytes::from([b"/", &export.row().path[..]].concat())
}

/// The rules of an export in the order in which they hold.
fn shown<T>(export: &Exported, each: impl Fn(String, Rule) -> T) -> Vec<T> {
    export.shown().into_iter().map(|(clients, rule)| each(clients, rule)).collect()
}

fn split(rules: Vec<Rule<Clients>>) -> Rules {
    let mut split = Rules::default();
    for rule in rules {
        match &rule.clients {
            Clients::Network(network) => split.networks.push(rule.of(*network)),
            Clients::Name(name) => split.named.push(rule.of(name.clone())),
        }
    }
    split
}

fn sec_wire(clients: String, rule: &Rule) -> ctl_sec_rule {
    let Flavours { krb5, krb5i, krb5p, .. } = rule.flavours;
    ctl_sec_rule { rule: wire(clients, rule), krb5, krb5i, krb5p }
}

fn tls_wire(clients: String, rule: &Rule) -> ctl_tls_rule {
    ctl_tls_rule { sec: sec_wire(clients, rule), wants: protection::wire(rule.wants) }
}

fn tls_rule(wire: &ctl_tls_rule) -> Result<Rule<Clients>, String> {
    let rule = sec_rule(&wire.sec)?;
    match protection::from_wire(wire.wants) {
        Some(wants) => Ok(Rule { wants, ..rule }),
        None => Err(format!("{}: an unknown protection is wanted: upgrade the server", rule.clients)),
    }
}

fn sec_rule(wire: &ctl_sec_rule) -> Result<Rule<Clients>, String> {
    let plain = rule(&wire.rule)?;
    let ctl_sec_rule { krb5, krb5i, krb5p, .. } = *wire;
    Ok(Rule { flavours: Flavours { krb5, krb5i, krb5p, ..plain.flavours }, ..plain })
}

/// Of what a client gets by it, whatever it comes with.
pub(super) fn standing(rule: &Rule) -> ctl_rule {
    let by_ticket = rule.flavours.has_tickets() && !rule.flavours.sys && !rule.flavours.none;
    ctl_rule { sys: rule.flavours.sys || by_ticket, ..wire(rule.clients.to_string(), rule) }
}

fn wire(clients: String, rule: &Rule) -> ctl_rule {
    ctl_rule {
        network: clients.into(),
        read_only: rule.read_only,
        squash: match rule.squash {
            Squash::Root => ctl_squash::SQUASH_ROOT,
            Squash::None => ctl_squash::SQUASH_NONE,
            Squash::All => ctl_squash::SQUASH_ALL,
        },
        anonymous_uid: rule.anonymous_uid,
        anonymous_gid: rule.anonymous_gid,
        sys: rule.flavours.sys,
        none: rule.flavours.none,
    }
}

fn rule(wire: &ctl_rule) -> Result<Rule<Clients>, String> {
    let clients = str::from_utf8(&wire.network).map_err(|_| "a network is no text".to_owned())?;
    let clients: Clients = clients.parse().map_err(|error| format!("{error}"))?;
    Ok(Rule {
        read_only: wire.read_only,
        squash: match wire.squash {
            ctl_squash::SQUASH_ROOT => Squash::Root,
            ctl_squash::SQUASH_NONE => Squash::None,
            ctl_squash::SQUASH_ALL => Squash::All,
            _ => return Err(format!("{clients}: an unknown way to squash: upgrade the server")),
        },
        anonymous_uid: wire.anonymous_uid,
        anonymous_gid: wire.anonymous_gid,
        flavours: Flavours { sys: wire.sys, none: wire.none, ..Flavours::NO_ACCESS },
        wants: Protection::None,
        clients,
    })
}
