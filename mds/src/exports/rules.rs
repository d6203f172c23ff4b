//! One export: which of its rules holds for whom. Pure.

use std::cmp::Reverse;
use std::net::IpAddr;

use bytes::Bytes;
use sluice_namespace::stable_storage::{ClientName, Export, Network, Rule};
use sluice_namespace::{FileHandle, InodeKey};

use super::change::Rules;
use super::peer::{Origin, Peer, Who};

/// An export with its rules in the order in which they hold, which is that of exports(5): hosts, networks, patterns of names,
/// netgroups, everybody.
#[derive(Debug)]
pub(crate) struct Exported {
    pub(super) row: Export,
    /// Those of networks, and of the addresses that hosts had last; without the one for everybody.
    by_address: Vec<Rule>,
    /// Those for which it must be known who calls.
    by_name: Vec<Rule<ClientName>>,
    any: Option<Rule>,
}

/// What the rules by name have for somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByName {
    /// The one in this place.
    At(usize),
    /// None: it is one of everybody.
    Nothing,
    /// It cannot be told.
    Untold,
}

impl Exported {
    pub(super) fn new(mut row: Export) -> Self {
        row.rules.sort_by_key(|rule| (Reverse(rule.clients.prefix()), rule.clients));
        row.named.sort_by(|one, other| one.clients.order().cmp(&other.clients.order()));
        let is_any = |rule: &&Rule| rule.clients == Network::ANY;
        let mut by_address: Vec<Rule> = row.rules.iter().filter(|rule| !is_any(rule)).copied().collect();
        for rule in &row.named {
            let hosts = rule.clients.addresses().iter().map(|address| rule.of(Network::host(*address)));
            by_address.extend(hosts);
        }
        // The first that contains an address is then the one that says most about it. An address that was given as such comes
        // before the name of one: nobody is asked about it.
        by_address.sort_by_key(|rule| Reverse(rule.clients.prefix()));
        let asks = |rule: &&Rule<ClientName>| !matches!(rule.clients, ClientName::Host { .. });
        let by_name = row.named.iter().filter(asks).cloned().collect();
        let any = row.rules.iter().find(is_any).copied();
        Self { row, by_address, by_name, any }
    }

    /// One with these rules, wherever it is.
    pub(super) fn of(rules: &Rules) -> Self {
        let Rules { networks: rules, named } = rules.clone();
        Self::new(Export {
            id: FileHandle::ROOT_EXPORT,
            path: Bytes::new(),
            root: InodeKey::ROOT,
            rules,
            named,
        })
    }

    pub(crate) fn row(&self) -> &Export {
        &self.row
    }

    /// Whether somebody must be asked who calls.
    pub(super) fn asks(&self) -> bool {
        !self.by_name.is_empty()
    }

    /// Whether some of its rules lets somebody in.
    pub(super) fn lets_in(&self) -> bool {
        self.row.rules.iter().any(Rule::lets_in) || self.row.named.iter().any(Rule::lets_in)
    }

    /// Netgroups that it has rules for.
    pub(super) fn netgroups(&self) -> impl Iterator<Item = &str> {
        self.by_name.iter().filter_map(|rule| match &rule.clients {
            ClientName::Netgroup(group) => Some(group.as_str()),
            _ => None,
        })
    }

    /// The rule that holds for somebody, if it lets him in. One without a security flavour lets nobody in: a hole in what is wider.
    /// Of whom it cannot be told who he is, none does from where names begin to matter.
    pub(super) fn rule(&self, from: &Origin, version: u64) -> Option<Rule> {
        let address = from.address;
        let rule = match self.by_address.iter().find(|rule| rule.clients.contains(address)) {
            Some(rule) => Some(*rule),
            None if self.by_name.is_empty() => self.any,
            None => {
                let peer = from.peer.as_deref();
                let decided = peer.and_then(|peer| peer.decided(version, self.row.id));
                match decided.unwrap_or_else(|| self.decide(peer.and_then(|peer| peer.who.as_ref()))) {
                    ByName::At(place) => self.by_name.get(place).map(|rule| rule.of(Network::host(address))),
                    ByName::Nothing => self.any,
                    ByName::Untold => None,
                }
            }
        };
        rule.filter(Rule::lets_in)
    }

    /// Whether it is known which of its rules holds for somebody.
    pub(super) fn tells(&self, from: &Origin, version: u64) -> bool {
        let is_told = |peer: &Peer| {
            let decided = peer.decided(version, self.row.id);
            decided.unwrap_or_else(|| self.decide(peer.who.as_ref())) != ByName::Untold
        };
        self.by_name.is_empty()
            || self.by_address.iter().any(|rule| rule.clients.contains(from.address))
            || from.peer.as_deref().is_some_and(is_told)
    }

    /// What the rules by name have for somebody; `None`: of whom nothing is known.
    pub(super) fn decide(&self, who: Option<&Who>) -> ByName {
        let Some(who) = who else { return ByName::Untold };
        for (place, rule) in self.by_name.iter().enumerate() {
            match who.is(&rule.clients) {
                Some(true) => return ByName::At(place),
                Some(false) => {}
                None => return ByName::Untold,
            }
        }
        ByName::Nothing
    }

    /// As [`Exported::rule`], for what of a network no rule of a longer prefix holds for, whatever the names are there.
    fn rule_of_all(&self, network: &Network) -> Option<Rule> {
        let rule = self.by_address.iter().find(|rule| rule.clients.covers(network)).copied().or(self.any);
        rule.filter(Rule::lets_in)
    }

    /// Whether somebody may get less here than in `before`, going by `is_narrower`. Where names are asked for, any change may be that.
    pub(super) fn may_narrow(
        &self,
        before: &Self,
        is_narrower: fn(Option<&Rule>, Option<&Rule>) -> bool,
    ) -> bool {
        let same =
            self.by_name == before.by_name && self.by_address == before.by_address && self.any == before.any;
        if same || self.asks() || before.asks() {
            return !same;
        }
        let both = [before, self].into_iter().flat_map(|one| one.by_address.iter().chain(&one.any));
        both.map(|rule| rule.clients).any(|network| {
            is_narrower(before.rule_of_all(&network).as_ref(), self.rule_of_all(&network).as_ref())
        })
    }

    /// Whom it has rules for, for people, and what these may do, in the order in which they hold.
    pub(crate) fn shown(&self) -> Vec<(String, Rule)> {
        let networks = self.row.rules.iter().map(|rule| {
            let place = match rule.clients {
                Network::ANY => 4,
                network if network.prefix() == 128 => 0,
                _ => 2,
            };
            (place, rule.clients.to_string(), *rule)
        });
        let named = self.row.named.iter().map(|rule| {
            let place = if matches!(rule.clients, ClientName::Host { .. }) { 1 } else { 3 };
            (place, rule.clients.to_string(), rule.of(Network::ANY))
        });
        let mut all: Vec<(u8, String, Rule)> = networks.chain(named).collect();
        // Those of one kind are in their order.
        all.sort_by_key(|(place, ..)| *place);
        all.into_iter().map(|(_, clients, rule)| (clients, rule)).collect()
    }
}

/// Addresses that are one: that of a socket on `[::]` shows IPv4 ones as IPv6 ones.
pub(super) fn same(one: IpAddr, other: IpAddr) -> bool {
    one.to_canonical() == other.to_canonical()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluice_env::Wall;
    use sluice_namespace::InodeKey;
    use sluice_namespace::stable_storage::{Clients, Flavours};

    use super::super::table::Table;
    use super::*;

    fn export(clients: &[&str]) -> Export {
        let (mut rules, mut named) = (Vec::new(), Vec::new());
        // Told apart by their anonymous users.
        for (clients, anonymous_uid) in clients.iter().zip(0..) {
            match clients.parse().unwrap() {
                Clients::Network(network) => rules.push(Rule { anonymous_uid, ..Rule::new(network) }),
                Clients::Name(mut name) => {
                    if let ClientName::Host { addresses, .. } = &mut name {
                        addresses.push("10.0.0.7".parse().unwrap());
                    }
                    named.push(Rule { anonymous_uid, ..Rule::new(name) });
                }
            }
        }
        Export { id: 1, path: "a".into(), root: InodeKey::ROOT, rules, named }
    }

    fn who(name: &str, netgroups: &[(&str, bool)]) -> Option<Who> {
        let netgroups: BTreeMap<_, _> =
            netgroups.iter().map(|(group, is)| ((*group).to_owned(), *is)).collect();
        Some(Who { name: (!name.is_empty()).then(|| name.to_owned()), netgroups })
    }

    /// Which of them holds, whether that is decided for each call or once for a table.
    fn which(clients: &[&str], address: &str, who: Option<Who>) -> Option<u32> {
        let table = Table::new(vec![export(clients)], &[], Wall { seconds: 7, nanos: 0 });
        let later = Table::new(vec![export(clients)], &[], Wall { seconds: 8, nanos: 0 });
        let peer = std::sync::Arc::new(Peer::new(who, &table));
        let from = Origin { address: address.parse().unwrap(), peer: Some(peer) };
        let found = table.rule(1, &from).map(|rule| rule.anonymous_uid);
        assert_eq!(later.rule(1, &from).map(|rule| rule.anonymous_uid), found);
        found
    }

    #[test]
    fn the_order_is_that_of_exports_5() {
        let all = ["any", "@g", "@h", "*.x", "a*.x", "10.0.0.0/8", "h.x", "10.0.0.7"];
        let ask = |n: usize, name, netgroups: &[_]| which(&all[..n], "10.0.0.7", who(name, netgroups));
        let both = [("g", true), ("h", true)];
        assert_eq!(
            (1..=8).map(|n| ask(n, "ab.x", &both)).collect::<Vec<_>>(),
            [0, 1, 1, 3, 4, 5, 6, 7].map(Some)
        );
        assert_eq!(ask(5, "b.x", &both), Some(3));
        assert_eq!(ask(5, "b.y", &both), Some(1));
        assert_eq!(ask(5, "b.y", &[("g", false), ("h", true)]), Some(2));
        assert_eq!(ask(5, "", &[("g", false), ("h", false)]), Some(0));
        assert_eq!(which(&["@h", "@g"], "::1", who("", &both)), Some(0), "the one that was there first");
        assert_eq!(which(&all[..6], "::ffff:10.1.2.3", None), Some(5), "of whom nothing is known");
    }

    #[test]
    fn who_cannot_be_told_is_not_everybody() {
        assert_eq!(which(&["any", "*.x"], "::1", None), None);
        assert_eq!(which(&["any", "@g", "@h"], "::1", who("a.x", &[("g", false)])), None);
        assert_eq!(which(&["any", "@g", "@h"], "::1", who("a.x", &[("g", true)])), Some(1));
        assert_eq!(which(&["any", "*.x", "@h"], "::1", who("a.x", &[])), Some(1));
        assert_eq!(which(&["*.x"], "::1", who("a.y", &[])), None);
    }

    /// What it may do it may do again once that is told, and nobody is to have its clients meanwhile.
    #[test]
    fn nobody_may_do_as_much_as_who_cannot_be_told() {
        let [open, secret] = [(1, "10.0.0.0/8"), (2, "@g")].map(|(id, to)| Export { id, ..export(&[to]) });
        let table = Table::new(vec![open, secret], &[], Wall::default());
        let at = |address: &str, who| Origin {
            address: address.parse().unwrap(),
            peer: Some(std::sync::Arc::new(Peer::new(who, &table))),
        };
        let (member, other) =
            (at("10.0.0.1", who("", &[("g", true)])), at("10.0.0.2", who("", &[("g", false)])));
        assert!(table.gives_as_much(&member, &other) && !table.gives_as_much(&other, &member));
        for untold in [at("10.0.0.1", None), at("10.0.0.1", who("a.x", &[])), Origin::address(member.address)]
        {
            assert!(!table.tells(&untold) && !table.gives_as_much(&other, &untold), "{untold:?}");
        }
        // Whom networks settle needs no name.
        let plain = Table::new(vec![export(&["10.0.0.0/8", "@g"])], &[], Wall::default());
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(|address| Origin::address(address.parse().unwrap()));
        assert!(plain.tells(&one) && plain.gives_as_much(&two, &one));
    }

    #[test]
    fn a_change_of_rules_by_name_may_take_away_from_anybody() {
        let table = |clients: &[&str]| Table::new(vec![export(clients)], &[], Wall::default());
        let narrows = |before: &[&str], now: &[&str]| table(now).narrows_for_some(&table(before), 1);
        assert!(narrows(&["any"], &["any", "@g"]), "there may be others");
        assert!(narrows(&["*.x"], &["*.x", "10.0.0.0/8"]));
        assert!(narrows(&["h.x"], &[]), "a host is an address");
        assert!(!narrows(&["h.x"], &["h.x", "10.0.0.9"]));
        assert!(!narrows(&["*.x", "@g"], &["*.x", "@g"]));
        let hole = Export {
            named: vec![Rule { flavours: Flavours::NO_ACCESS, ..export(&["h.x"]).named.remove(0) }],
            ..export(&["any"])
        };
        let hole = Table::new(vec![hole], &[], Wall::default());
        assert!(hole.narrows_for_some(&table(&["any"]), 1));
        let from = |address: &str| Origin::address(address.parse().unwrap());
        assert_eq!(
            ["10.0.0.7", "10.0.0.8"].map(|address| hole.rule(1, &from(address)).is_some()),
            [false, true]
        );
    }
}
