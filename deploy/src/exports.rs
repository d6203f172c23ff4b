//! `sluice export`.

pub(crate) mod names;

use anyhow::{Result, bail, ensure};
use serde_json::json;
use sluice_mds::{ClientName, Clients, NOBODY, Network};
use sluice_xdr::control::{
    ADMIN_EXPORT, ADMIN_EXPORT_args, ADMIN_EXPORT_res, ADMIN_EXPORTS, ADMIN_EXPORTS_res, ADMIN_SEC_EXPORT,
    ADMIN_SEC_EXPORT_args, ADMIN_SEC_EXPORTS, ADMIN_SEC_EXPORTS_res, ADMIN_TLS_EXPORT, ADMIN_TLS_EXPORT_args,
    ADMIN_TLS_EXPORTS, ADMIN_TLS_EXPORTS_res, ADMIN_TLS_EXPORTS_resok, ctl_export_action, ctl_protection,
    ctl_rule, ctl_sec_rule, ctl_squash, ctl_tls_export, ctl_tls_rule,
};

use crate::cli::{self, Flavour, RuleOptions, Squash};
use crate::reach::{Admin, Unknown};
use crate::status::{table, text};

pub(crate) async fn run(command: cli::Export) -> Result<()> {
    match command {
        cli::Export::List { reach, json } => list(&Admin::reach(&reach).await?, json).await,
        cli::Export::Names { reach, json } => names::run(&Admin::reach(&reach).await?, false, json).await,
        cli::Export::Refresh { reach, json } => names::run(&Admin::reach(&reach).await?, true, json).await,
        cli::Export::Add { path, clients, options, reach, json } => {
            let admin = Admin::reach(&reach).await?;
            let rules = with(&[], &clients, &options);
            change(&admin, ctl_export_action::EXPORT_ADD, &path, |_| Ok(rules), json).await
        }
        cli::Export::Set { path, clients, options, reach, json } => {
            if clients.is_empty() && options.is_empty() {
                bail!("nothing to set: name --client networks or names, options, or both");
            }
            let admin = Admin::reach(&reach).await?;
            let rules = |now: &[ctl_tls_rule]| {
                if clients.is_empty()
                    && !now.is_empty()
                    && now.iter().all(|rule| lets_nobody_in(&plain(rule)))
                {
                    bail!(
                        "{path} has no access from any network: name those that are to have some with --client"
                    );
                }
                Ok(with(now, &clients, &options))
            };
            change(&admin, ctl_export_action::EXPORT_SET, &path, rules, json).await
        }
        cli::Export::Remove { path, clients, reach, json } => {
            let admin = Admin::reach(&reach).await?;
            if clients.is_empty() {
                return change(&admin, ctl_export_action::EXPORT_REMOVE, &path, |_| Ok(Vec::new()), json)
                    .await;
            }
            let rules = |now: &[ctl_tls_rule]| without(now, &clients);
            change(&admin, ctl_export_action::EXPORT_SET, &path, rules, json).await
        }
    }
}

/// All exports as they are.
pub(crate) async fn ask(admin: &Admin) -> Result<ADMIN_TLS_EXPORTS_resok> {
    match admin.call_if_known(ADMIN_TLS_EXPORTS, &()).await? {
        Some(ADMIN_TLS_EXPORTS_res::CTL_OK(exports)) => Ok(exports),
        Some(ADMIN_TLS_EXPORTS_res::Default(_, reason)) => bail!("{}", text(&reason)),
        None => ask_older(admin).await,
    }
}

/// A metadata server of the release before, for which all connections are alike.
async fn ask_older(admin: &Admin) -> Result<ADMIN_TLS_EXPORTS_resok> {
    let known = match admin.call_if_known(ADMIN_SEC_EXPORTS, &()).await? {
        Some(ADMIN_SEC_EXPORTS_res::CTL_OK(exports)) => exports,
        Some(ADMIN_SEC_EXPORTS_res::Default(_, reason)) => bail!("{}", text(&reason)),
        None => return ask_oldest(admin).await,
    };
    let whole = |sec| ctl_tls_rule { sec, ..ctl_tls_rule::default() };
    let exports = known.exports.into_iter().map(|export| ctl_tls_export {
        id: export.id,
        path: export.path,
        stored: export.stored,
        rules: export.rules.into_iter().map(whole).collect(),
    });
    Ok(ADMIN_TLS_EXPORTS_resok {
        version: known.version,
        kerberos: known.kerberos,
        exports: exports.collect(),
        ..ADMIN_TLS_EXPORTS_resok::default()
    })
}

/// And of the one before that, which knows no tickets.
async fn ask_oldest(admin: &Admin) -> Result<ADMIN_TLS_EXPORTS_resok> {
    let known = match admin.call(ADMIN_EXPORTS, &()).await? {
        ADMIN_EXPORTS_res::CTL_OK(exports) => exports,
        ADMIN_EXPORTS_res::Default(_, reason) => bail!("{}", text(&reason)),
    };
    let whole = |rule| {
        let sec = ctl_sec_rule { rule, ..ctl_sec_rule::default() };
        ctl_tls_rule { sec, ..ctl_tls_rule::default() }
    };
    let exports = known.exports.into_iter().map(|export| ctl_tls_export {
        id: export.id,
        path: export.path,
        stored: export.stored,
        rules: export.rules.into_iter().map(whole).collect(),
    });
    let exports = exports.collect();
    Ok(ADMIN_TLS_EXPORTS_resok { version: known.version, exports, ..ADMIN_TLS_EXPORTS_resok::default() })
}

async fn change(
    admin: &Admin,
    action: ctl_export_action,
    path: &str,
    rules: impl FnOnce(&[ctl_tls_rule]) -> Result<Vec<ctl_tls_rule>>,
    as_json: bool,
) -> Result<()> {
    let known = ask(admin).await?;
    let now = known.exports.iter().find(|export| names(&text(&export.path)).eq(names(path)));
    let before: &[ctl_tls_rule] = now.map_or(&[], |export| &export.rules);
    let rules = rules(before)?;
    let tickets = |rules: &[ctl_tls_rule]| rules.iter().filter(|rule| takes_tickets(rule)).count();
    // What was set when it did stays until it is taken away.
    if !known.kerberos && tickets(&rules) > tickets(before) {
        bail!("the metadata server knows nobody by a ticket: start it with --kerberos-keytab FILE first");
    }
    let is_unheard =
        |rule: &&ctl_tls_rule| rule.wants.0 > known.protection.0 && !lets_nobody_in(&plain(rule));
    let unheard = |rules: &[ctl_tls_rule]| rules.iter().filter(is_unheard).count();
    if unheard(&rules) > unheard(before) {
        bail!("{}", cannot_want(known.protection));
    }
    let arguments =
        ADMIN_TLS_EXPORT_args { version: known.version, action, path: path.to_owned().into(), rules };
    let recalled = match send(admin, arguments).await? {
        ADMIN_EXPORT_res::CTL_OK(recalled) => recalled,
        ADMIN_EXPORT_res::Default(_, reason) => bail!("{path}: {}", text(&reason)),
    };
    if as_json {
        say!("{}", json!({ "recalled": recalled }));
        return Ok(());
    }
    if recalled > 0 {
        say!(
            "{path}: clients are asked for {recalled} layouts and delegations that they may not have any more"
        );
    }
    list(admin, false).await
}

/// Why nobody could come as a rule wants it.
fn cannot_want(protection: ctl_protection) -> &'static str {
    match protection {
        ctl_protection::PROTECTION_NONE => {
            "the metadata server does not speak TLS with clients, or is of a release that does not do so by export: start it with --tls-certificate FILE and --tls-key FILE first"
        }
        _ => {
            "the metadata server believes no certificate of a client: start it with --tls-clients FILE first"
        }
    }
}

async fn send(admin: &Admin, arguments: ADMIN_TLS_EXPORT_args) -> Result<ADMIN_EXPORT_res> {
    // Names are looked up before it answers.
    match admin.call_within(names::PATIENCE, ADMIN_TLS_EXPORT, &arguments).await {
        Err(error) if error.downcast_ref::<Unknown>().is_some() => {}
        answer => return answer,
    }
    let ADMIN_TLS_EXPORT_args { version, action, path, rules } = arguments;
    ensure!(
        rules.iter().all(|rule| rule.wants == ctl_protection::PROTECTION_NONE),
        "another metadata server answers now, of the release before: it does not speak TLS by export"
    );
    let rules: Vec<_> = rules.into_iter().map(|rule| rule.sec).collect();
    let arguments = ADMIN_SEC_EXPORT_args { version, action, path, rules };
    match admin.call_within(names::PATIENCE, ADMIN_SEC_EXPORT, &arguments).await {
        Err(error) if error.downcast_ref::<Unknown>().is_some() => {}
        answer => return answer,
    }
    let ADMIN_SEC_EXPORT_args { version, action, path, rules } = arguments;
    ensure!(
        !rules.iter().any(|rule| rule.krb5 || rule.krb5i || rule.krb5p),
        "another metadata server answers now, of the release before: it knows no tickets"
    );
    let rules = rules.into_iter().map(|rule| rule.rule).collect();
    admin.call(ADMIN_EXPORT, &ADMIN_EXPORT_args { version, action, path, rules }).await
}

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

async fn list(admin: &Admin, as_json: bool) -> Result<()> {
    let exports = ask(admin).await?.exports;
    if as_json {
        let all: Vec<_> = exports.iter().map(to_json).collect();
        say!("{}", serde_json::to_string_pretty(&all)?);
        return Ok(());
    }
    if exports.is_empty() {
        say!("nothing is exported: sluice export add PATH --client CLIENTS");
        return Ok(());
    }
    let mut rows =
        vec![["PATH", "CLIENTS", "ACCESS", "SQUASH", "ANONYMOUS", "SECURITY", "SET BY"].map(str::to_owned)];
    for export in &exports {
        let mut path = printable(&export.path);
        if export.rules.is_empty() {
            rows.push([path.as_str(), "nobody", "-", "-", "-", "-", set_by(export)].map(str::to_owned));
        }
        for full in &export.rules {
            let rule = &plain(full);
            if lets_nobody_in(rule) {
                let (path, network) = (std::mem::take(&mut path), text(&rule.network));
                let row = [path.as_str(), &network, access(rule), "-", "-", "-", set_by(export)];
                rows.push(row.map(str::to_owned));
                continue;
            }
            rows.push([
                std::mem::take(&mut path),
                text(&rule.network),
                access(rule).to_owned(),
                squash(rule).to_owned(),
                format!("{}:{}", rule.anonymous_uid, rule.anonymous_gid),
                secured(full),
                set_by(export).to_owned(),
            ]);
        }
    }
    table(&rows);
    Ok(())
}

/// What `up` says of the exports: one line each.
pub(crate) fn lines(exports: &[ctl_tls_export]) -> Vec<String> {
    let mut lines = Vec::new();
    for export in exports {
        let all: Vec<ctl_rule> = export.rules.iter().map(plain).collect();
        let mut rest: Vec<&ctl_rule> = all.iter().collect();
        while let Some(first) = rest.first().copied() {
            let alike = |rule: &&ctl_rule| access(rule) == access(first) && rule.squash == first.squash;
            let networks: Vec<String> =
                rest.iter().copied().filter(alike).map(|rule| text(&rule.network)).collect();
            lines.push(format!("{} {}, to {}", printable(&export.path), standing(first), networks.join(" ")));
            rest.retain(|rule| !alike(rule));
        }
    }
    lines
}

/// The rules with more of them, or other ones: those named, or all if none is. But who was locked out by name comes back by name
/// only.
fn with(now: &[ctl_tls_rule], clients: &[Clients], options: &RuleOptions) -> Vec<ctl_tls_rule> {
    let mut rules = now.to_vec();
    let named: Vec<String> = clients.iter().map(Clients::to_string).collect();
    for (client, network) in clients.iter().zip(&named) {
        if !rules.iter().any(|rule| text(&rule.sec.rule.network) == *network) {
            // A hole is, once it is closed, what was around it.
            let around = options.no_access.then(|| around(client, now)).flatten();
            let of = around.map(|outer| {
                let mut rule = outer.clone();
                rule.sec.rule.network = network.clone().into();
                rule
            });
            rules.push(of.unwrap_or_else(|| new_rule(network)));
        }
    }
    let is_meant = |full: &ctl_tls_rule| match named.is_empty() {
        true => !lets_nobody_in(&plain(full)),
        false => named.contains(&text(&full.sec.rule.network)),
    };
    for full in rules.iter_mut().filter(|full| is_meant(full)) {
        let rule = &mut full.sec.rule;
        if options.read_only || options.read_write {
            rule.read_only = options.read_only;
        }
        if let Some(squash) = options.squash {
            rule.squash = match squash {
                Squash::Root => ctl_squash::SQUASH_ROOT,
                Squash::None => ctl_squash::SQUASH_NONE,
                Squash::All => ctl_squash::SQUASH_ALL,
            };
        }
        if let Some(anonymous) = options.anonymous {
            (rule.anonymous_uid, rule.anonymous_gid) = anonymous;
        }
        if !options.sec.is_empty() || options.no_access {
            let has = |flavour| options.sec.contains(&flavour);
            (rule.sys, rule.none) = (has(Flavour::Sys), has(Flavour::None));
            (full.sec.krb5, full.sec.krb5i, full.sec.krb5p) =
                (has(Flavour::Krb5), has(Flavour::Krb5i), has(Flavour::Krb5p));
        }
        if let Some(wants) = options.xprtsec {
            full.wants = wants.protection();
        }
    }
    rules
}

/// What holds for a network that has no rule of its own: of those that cover it the one with the longest prefix. For a name, what
/// holds for all.
fn around<'a>(client: &Clients, rules: &'a [ctl_tls_rule]) -> Option<&'a ctl_tls_rule> {
    let client = match client {
        Clients::Network(network) => network,
        Clients::Name(_) => &Network::ANY,
    };
    let networks =
        rules.iter().filter_map(|rule| Some((text(&rule.sec.rule.network).parse::<Network>().ok()?, rule)));
    let covering = networks.filter(|(network, _)| network.covers(client));
    covering.max_by_key(|(network, _)| network.prefix()).map(|(_, rule)| rule)
}

/// The rules but those of some networks and names.
fn without(now: &[ctl_tls_rule], clients: &[Clients]) -> Result<Vec<ctl_tls_rule>> {
    let mut rules = now.to_vec();
    for client in clients {
        let before = rules.len();
        rules.retain(|rule| text(&rule.sec.rule.network) != client.to_string());
        if rules.len() == before {
            bail!("it has no rule for {client}: `sluice export list` shows which it has");
        }
    }
    Ok(rules)
}

fn new_rule(network: &str) -> ctl_tls_rule {
    let rule = ctl_rule {
        network: network.to_owned().into(),
        read_only: false,
        squash: ctl_squash::SQUASH_ROOT,
        anonymous_uid: NOBODY,
        anonymous_gid: NOBODY,
        sys: true,
        none: true,
    };
    ctl_tls_rule { sec: ctl_sec_rule { rule, ..ctl_sec_rule::default() }, ..ctl_tls_rule::default() }
}

fn takes_tickets(rule: &ctl_tls_rule) -> bool {
    rule.sec.krb5 || rule.sec.krb5i || rule.sec.krb5p
}

/// What somebody gets by it who comes with what it takes.
fn plain(rule: &ctl_tls_rule) -> ctl_rule {
    let by_ticket = takes_tickets(rule) && lets_nobody_in(&rule.sec.rule);
    ctl_rule { sys: rule.sec.rule.sys || by_ticket, ..rule.sec.rule.clone() }
}

/// What clients of a rule may do, for people.
pub(crate) fn standing(rule: &ctl_rule) -> String {
    if lets_nobody_in(rule) {
        return access(rule).to_owned();
    }
    let root = match rule.squash {
        ctl_squash::SQUASH_NONE => "root is root",
        ctl_squash::SQUASH_ROOT => "root is nobody",
        _ => "all are nobody",
    };
    format!("{}, {root}", access(rule))
}

pub(crate) fn access(rule: &ctl_rule) -> &'static str {
    match rule {
        rule if lets_nobody_in(rule) => "no access",
        ctl_rule { read_only: true, .. } => "read-only",
        _ => "read-write",
    }
}

fn lets_nobody_in(rule: &ctl_rule) -> bool {
    !rule.sys && !rule.none
}

pub(crate) fn squash(rule: &ctl_rule) -> &'static str {
    match rule.squash {
        ctl_squash::SQUASH_ROOT => "root",
        ctl_squash::SQUASH_NONE => "none",
        _ => "all",
    }
}

fn security(rule: &ctl_tls_rule) -> Vec<&'static str> {
    let all = [
        (rule.sec.rule.sys, "sys"),
        (rule.sec.krb5, "krb5"),
        (rule.sec.krb5i, "krb5i"),
        (rule.sec.krb5p, "krb5p"),
        (rule.sec.rule.none, "none"),
    ];
    all.into_iter().filter(|(good, _)| *good).map(|(_, name)| name).collect()
}

/// Flavours, and what is wanted of connections where that is anything.
fn secured(rule: &ctl_tls_rule) -> String {
    let flavours = security(rule).join(",");
    match rule.wants {
        ctl_protection::PROTECTION_NONE => flavours,
        _ => format!("{flavours} under {}", transport(rule)),
    }
}

/// What is wanted of connections at least, as `--xprtsec` and mount options name it.
fn transport(rule: &ctl_tls_rule) -> &'static str {
    match rule.wants {
        ctl_protection::PROTECTION_NONE => "none",
        ctl_protection::PROTECTION_TLS => "tls",
        ctl_protection::PROTECTION_MUTUAL => "mtls",
        // Of a metadata server that knows more.
        _ => "unknown",
    }
}

fn set_by(export: &ctl_tls_export) -> &'static str {
    if export.stored { "sluice export" } else { "start options" }
}

fn printable(path: &[u8]) -> String {
    crate::clients::printable(path)
}

/// What a rule is for, for scripts.
fn kind(clients: &str) -> &'static str {
    match clients.parse() {
        Ok(Clients::Network(_)) => "network",
        Ok(Clients::Name(ClientName::Host { .. })) => "host",
        Ok(Clients::Name(ClientName::Pattern(_))) => "wildcard",
        Ok(Clients::Name(ClientName::Netgroup(_))) => "netgroup",
        // Of a metadata server that knows more.
        Err(_) => "unknown",
    }
}

fn to_json(export: &ctl_tls_export) -> serde_json::Value {
    let rules: Vec<_> = export
        .rules
        .iter()
        .map(|full| {
            let rule = &full.sec.rule;
            json!({
                "clients": text(&rule.network),
                "kind": kind(&text(&rule.network)),
                "read_only": rule.read_only,
                "squash": squash(rule),
                "anonymous_uid": rule.anonymous_uid,
                "anonymous_gid": rule.anonymous_gid,
                "security": security(full),
                "xprtsec": transport(full),
            })
        })
        .collect();
    json!({ "id": export.id, "path": text(&export.path), "stored": export.stored, "rules": rules })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Transport;

    #[test]
    fn names_have_rules_like_networks() {
        let read_only = RuleOptions { read_only: true, ..RuleOptions::default() };
        let rules =
            with(&[], &networks(&["any", "*.Example.com", "@trusted", "client7.example.com."]), &read_only);
        let all = ["any", "*.example.com", "@trusted", "client7.example.com"];
        assert_eq!(shown(&rules), all.map(|clients| format!("{clients} read-only root")));
        assert_eq!(all.map(kind), ["network", "wildcard", "netgroup", "host"]);
        // A hole that is closed is as all others are.
        let hole = RuleOptions { no_access: true, ..RuleOptions::default() };
        let rules = with(&rules[..1], &networks(&["@bad"]), &hole);
        assert_eq!(access(&plain(&rules[1])), "no access");
        let sys = RuleOptions { sec: vec![Flavour::Sys], ..RuleOptions::default() };
        assert_eq!(shown(&with(&rules, &networks(&["@bad"]), &sys))[1], "@bad read-only root");
        assert_eq!(shown(&without(&rules, &networks(&["@bad"])).unwrap()), ["any read-only root"]);
    }

    fn networks(all: &[&str]) -> Vec<Clients> {
        all.iter().map(|network| network.parse().unwrap()).collect()
    }

    fn export(rules: Vec<ctl_tls_rule>) -> ctl_tls_export {
        ctl_tls_export { id: 0, path: "/".into(), stored: false, rules }
    }

    fn shown(rules: &[ctl_tls_rule]) -> Vec<String> {
        rules
            .iter()
            .map(plain)
            .map(|rule| format!("{} {} {}", text(&rule.network), access(&rule), squash(&rule)))
            .collect()
    }

    #[test]
    fn options_are_for_the_networks_named_or_for_all() {
        let added = with(&[], &networks(&["10.0.0.0/8", "::1"]), &RuleOptions::default());
        assert_eq!(shown(&added), ["10.0.0.0/8 read-write root", "::1 read-write root"]);
        let read_only = RuleOptions { read_only: true, ..RuleOptions::default() };
        let one = with(&added, &networks(&["::1"]), &read_only);
        assert_eq!(shown(&one), ["10.0.0.0/8 read-write root", "::1 read-only root"]);
        let none = RuleOptions { squash: Some(Squash::None), ..RuleOptions::default() };
        assert_eq!(shown(&with(&one, &[], &none)), ["10.0.0.0/8 read-write none", "::1 read-only none"]);
        let more = with(&one, &networks(&["10.1.0.0/16"]), &none);
        assert_eq!(shown(&more)[2], "10.1.0.0/16 read-write none");
        assert_eq!(
            shown(&without(&more, &networks(&["::1", "10.0.0.0/8"])).unwrap()),
            [shown(&more)[2].clone()]
        );
        assert!(without(&more, &networks(&["any"])).unwrap_err().to_string().contains("any"));
        let sec = RuleOptions { sec: vec![Flavour::None], anonymous: Some((7, 8)), ..RuleOptions::default() };
        let rule = &with(&added, &[], &sec)[0].sec.rule;
        assert_eq!((rule.sys, rule.none, rule.anonymous_uid, rule.anonymous_gid), (false, true, 7, 8));
    }

    #[test]
    fn a_network_without_access_is_a_hole_until_it_is_given_a_flavour() {
        let hole = RuleOptions { no_access: true, ..RuleOptions::default() };
        let rules = with(&[new_rule("any")], &networks(&["10.0.0.7"]), &hole);
        assert_eq!(
            rules.iter().map(plain).map(|rule| standing(&rule)).collect::<Vec<_>>(),
            ["read-write, root is nobody", "no access"]
        );
        let back = RuleOptions { sec: vec![Flavour::Sys], ..RuleOptions::default() };
        let rules = with(&rules, &networks(&["10.0.0.7"]), &back);
        assert_eq!((access(&plain(&rules[1])), security(&rules[1])), ("read-write", vec!["sys"]));
    }

    #[test]
    fn tickets_are_flavours_like_others() {
        let sec = RuleOptions { sec: vec![Flavour::Krb5, Flavour::Krb5p], ..RuleOptions::default() };
        let rules = with(&[new_rule("any")], &[], &sec);
        assert_eq!((access(&plain(&rules[0])), security(&rules[0])), ("read-write", vec!["krb5", "krb5p"]));
        assert_eq!((rules[0].sec.rule.sys, rules[0].sec.rule.none), (false, false), "nobody comes without");
        let hole = RuleOptions { no_access: true, ..RuleOptions::default() };
        assert_eq!(access(&plain(&with(&rules, &[], &hole)[0])), "no access");
    }

    #[test]
    fn what_is_wanted_of_connections_stays_until_it_is_told_otherwise() {
        let xprtsec = |wants| RuleOptions { xprtsec: Some(wants), ..RuleOptions::default() };
        let rules = with(&[new_rule("any")], &[], &xprtsec(Transport::Tls));
        let rules = with(&rules, &networks(&["10.0.0.0/8"]), &xprtsec(Transport::Mtls));
        let read_only = RuleOptions { read_only: true, ..RuleOptions::default() };
        let rules = with(&rules, &networks(&["any", "10.0.0.0/8", "::1"]), &read_only);
        let shown = |rules: &[ctl_tls_rule]| {
            rules.iter().map(|rule| (transport(rule), secured(rule))).collect::<Vec<_>>()
        };
        let under = |how| (how, format!("sys,none under {how}"));
        assert_eq!(shown(&rules), [under("tls"), under("mtls"), ("none", "sys,none".to_owned())]);
        assert_eq!(to_json(&export(rules.clone()))["rules"][1]["xprtsec"], "mtls");
        // A hole is, once it is closed, what was around it.
        let hole = RuleOptions { no_access: true, ..RuleOptions::default() };
        let rules = with(&rules, &networks(&["10.0.0.7"]), &hole);
        let sys = RuleOptions { sec: vec![Flavour::Sys], ..RuleOptions::default() };
        let rules = with(&rules, &networks(&["10.0.0.7"]), &sys);
        assert_eq!(transport(&rules[3]), "mtls");
        assert_eq!(shown(&with(&rules, &[], &xprtsec(Transport::None)))[0], ("none", "sys,none".to_owned()));
    }

    #[test]
    fn a_hole_stays_one_where_others_are_changed_and_closes_as_what_is_around_it() {
        let (ro, hole) = (RuleOptions { read_only: true, ..RuleOptions::default() }, || RuleOptions {
            no_access: true,
            ..RuleOptions::default()
        });
        let rules = with(&[], &networks(&["any"]), &ro);
        let squash = RuleOptions { squash: Some(Squash::None), ..RuleOptions::default() };
        let more = RuleOptions { anonymous: Some((7, 8)), read_only: true, ..squash.clone() };
        let rules = with(&rules, &networks(&["10.0.0.0/8"]), &more);
        let rules = with(&rules, &networks(&["10.0.0.7"]), &hole());
        assert_eq!(access(&plain(&rules[2])), "no access");
        // Of all others that is true now.
        let sys = RuleOptions { sec: vec![Flavour::Sys], ..RuleOptions::default() };
        let rules = with(&rules, &[], &sys);
        assert_eq!(
            rules.iter().map(|rule| (access(&plain(rule)), security(rule))).collect::<Vec<_>>(),
            [("read-only", vec!["sys"]), ("read-only", vec!["sys"]), ("no access", vec![])]
        );
        let rules = with(&rules, &networks(&["10.0.0.7"]), &sys);
        assert_eq!(shown(&rules)[2], "10.0.0.7 read-only none");
        assert_eq!((rules[2].sec.rule.anonymous_uid, rules[2].sec.rule.anonymous_gid), (7, 8));
        // What has a rule of its own keeps it.
        let own =
            with(&rules, &networks(&["10.0.0.7"]), &RuleOptions { squash: Some(Squash::All), ..sys.clone() });
        let own = with(&with(&own, &networks(&["10.0.0.7"]), &hole()), &networks(&["10.0.0.7"]), &sys);
        assert_eq!(shown(&own)[2], "10.0.0.7 read-only all");
    }

    #[test]
    fn what_up_says_puts_networks_that_are_treated_alike_together() {
        let mut rules = with(&[], &networks(&["10.0.0.0/8", "::1", "127.0.0.0/8"]), &RuleOptions::default());
        rules[1].sec.rule.read_only = true;
        assert_eq!(
            lines(&[export(rules)]),
            [
                "/ read-write, root is nobody, to 10.0.0.0/8 127.0.0.0/8",
                "/ read-only, root is nobody, to ::1"
            ]
        );
    }
}
