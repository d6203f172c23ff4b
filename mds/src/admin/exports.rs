//! Exports: showing and changing them.

use std::net::SocketAddr;
use std::str;

use bytes::Bytes;
use sluice_namespace::stable_storage::{Flavours, Network, Rule, Squash};
use sluice_xdr::control::*;

use super::Admin;
use crate::exports::change::{Change, Refusal, exported};

impl Admin {
    pub(super) fn exports(&self) -> ADMIN_EXPORTS_res {
        let table = self.mds.exports.now();
        let exports = table.all().filter(|export| exported(export)).map(|export| ctl_export {
            id: export.id,
            path: Bytes::from([b"/", &export.path[..]].concat()),
            stored: export.id != 0 || table.root_is_stored,
            rules: export.rules.iter().map(wire).collect(),
        });
        ADMIN_EXPORTS_res::CTL_OK(ADMIN_EXPORTS_resok {
            version: table.version(),
            exports: exports.collect(),
        })
    }

    /// The same with the tickets that are taken.
    pub(super) fn sec_exports(&self) -> ADMIN_SEC_EXPORTS_res {
        let table = self.mds.exports.now();
        let exports = table.all().filter(|export| exported(export)).map(|export| ctl_sec_export {
            id: export.id,
            path: Bytes::from([b"/", &export.path[..]].concat()),
            stored: export.id != 0 || table.root_is_stored,
            rules: export.rules.iter().map(sec_wire).collect(),
        });
        ADMIN_SEC_EXPORTS_res::CTL_OK(ADMIN_SEC_EXPORTS_resok {
            version: table.version(),
            kerberos: self.mds.config.kerberos,
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
        let table = self.mds.exports.now();
        let name = path.strip_prefix(b"/").unwrap_or(&path);
        if let Some(before) = table.all().find(|export| export.path == name) {
            for rule in &mut rules {
                let same = before.rules.iter().find(|old| old.network == rule.network);
                let Some(Rule { flavours: old, .. }) = same else { continue };
                // Where they were all that was taken, that is no change. Who takes the others away means to let nobody in.
                let (was, is) = (old.sys || old.none, rule.flavours.sys || rule.flavours.none);
                if was && !is {
                    continue;
                }
                let (krb5, krb5i, krb5p) = (old.krb5, old.krb5i, old.krb5p);
                rule.flavours = Flavours { krb5, krb5i, krb5p, ..rule.flavours };
            }
        }
        self.change_export((version, action, path), rules, from).await
    }

    /// One that says all.
    pub(super) async fn sec_export(&self, args: ADMIN_SEC_EXPORT_args, from: SocketAddr) -> ADMIN_EXPORT_res {
        let ADMIN_SEC_EXPORT_args { version, action, path, rules } = args;
        match rules.iter().map(sec_rule).collect::<Result<Vec<_>, _>>() {
            Ok(rules) => self.change_export((version, action, path), rules, from).await,
            Err(why) => refuse(ctl_status::CTL_ERR_INVAL, why),
        }
    }

    async fn change_export(
        &self,
        (version, action, path): (u64, ctl_export_action, Bytes),
        rules: Vec<Rule>,
        from: SocketAddr,
    ) -> ADMIN_EXPORT_res {
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
                    Refusal::Changed | Refusal::Store(_) => ctl_status::CTL_ERR_AGAIN,
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

fn sec_wire(rule: &Rule) -> ctl_sec_rule {
    let Flavours { krb5, krb5i, krb5p, .. } = rule.flavours;
    ctl_sec_rule { rule: wire(rule), krb5, krb5i, krb5p }
}

fn sec_rule(wire: &ctl_sec_rule) -> Result<Rule, String> {
    let plain = rule(&wire.rule)?;
    let ctl_sec_rule { krb5, krb5i, krb5p, .. } = *wire;
    Ok(Rule { flavours: Flavours { krb5, krb5i, krb5p, ..plain.flavours }, ..plain })
}

/// Of what a client gets by it, whatever it comes with.
pub(super) fn standing(rule: &Rule) -> ctl_rule {
    let by_ticket = rule.flavours.has_tickets() && !rule.flavours.sys && !rule.flavours.none;
    ctl_rule { sys: rule.flavours.sys || by_ticket, ..wire(rule) }
}

pub(super) fn wire(rule: &Rule) -> ctl_rule {
    ctl_rule {
        network: rule.network.to_string().into(),
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

fn rule(wire: &ctl_rule) -> Result<Rule, String> {
    let network = str::from_utf8(&wire.network).map_err(|_| "a network is no text".to_owned())?;
    let network: Network = network.parse().map_err(|error| format!("{error}"))?;
    Ok(Rule {
        network,
        read_only: wire.read_only,
        squash: match wire.squash {
            ctl_squash::SQUASH_ROOT => Squash::Root,
            ctl_squash::SQUASH_NONE => Squash::None,
            ctl_squash::SQUASH_ALL => Squash::All,
            _ => return Err(format!("{network}: an unknown way to squash: upgrade the server")),
        },
        anonymous_uid: wire.anonymous_uid,
        anonymous_gid: wire.anonymous_gid,
        flavours: Flavours { sys: wire.sys, none: wire.none, ..Flavours::NO_ACCESS },
    })
}
