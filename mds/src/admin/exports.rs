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

    pub(super) async fn export(&self, args: ADMIN_EXPORT_args, from: SocketAddr) -> ADMIN_EXPORT_res {
        let refuse = |status, why: String| ADMIN_EXPORT_res::Default(status, why.into());
        let rules = match args.rules.iter().map(rule).collect::<Result<Vec<_>, _>>() {
            Ok(rules) => rules,
            Err(why) => return refuse(ctl_status::CTL_ERR_INVAL, why),
        };
        let change = match args.action {
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
        match self.mds.change_exports(args.version, &args.path, change, from).await {
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
        flavours: Flavours { sys: wire.sys, none: wire.none },
    })
}
