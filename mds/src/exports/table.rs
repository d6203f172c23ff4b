//! All exports, and what a client may do through each. Pure.

use std::collections::{BTreeMap, BTreeSet};

use sluice_env::Wall;
use sluice_namespace::stable_storage::{Export, Flavours, NOBODY, Network, Protection, Rule, Squash};
use sluice_namespace::{Credential, FileHandle, InodeKey};
use sluice_rpc::Service;
use sluice_xdr::nfs4::nfsstat4;

use super::peer::{Origin, Who};
use super::pseudo::Tree;
use super::rules::{ByName, Exported};

/// All exports at one time.
#[derive(Debug)]
pub(crate) struct Table {
    exports: BTreeMap<u32, Exported>,
    /// Those that have rules for whom a name service must tell.
    asking: Vec<u32>,
    /// The exports below the root of the file system, by their roots.
    roots: BTreeMap<InodeKey, u32>,
    pub(super) tree: Tree,
    /// When it became what it is; also the change attribute of what it shows.
    pub(crate) since: Wall,
    /// The root's rules are stored, and what is configured for it does not count.
    pub(crate) root_is_stored: bool,
}

/// What a caller may do through the export of a filehandle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// As in the filehandle.
    pub(crate) export: u32,
    /// The rule that holds for its address, or how it is refused.
    pub(crate) verdict: Result<Rule, nfsstat4>,
    /// Its connection is protected by less than the rule wants.
    pub(crate) exposed: bool,
}

/// Where a name in a directory that only leads to exports leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// To another such directory.
    Pseudo(InodeKey),
    /// To an export.
    Export(u32),
}

/// In directories that only lead to exports there is nothing to change and nothing to hide.
const PSEUDO: Rule = Rule {
    clients: Network::ANY,
    read_only: true,
    squash: Squash::None,
    anonymous_uid: NOBODY,
    anonymous_gid: NOBODY,
    flavours: Flavours::ALL,
    wants: Protection::None,
};

impl Table {
    /// `configured`: the root's rules while none are stored.
    pub(crate) fn new(rows: Vec<Export>, configured: &[Rule], since: Wall) -> Self {
        let mut exports: BTreeMap<u32, Export> = rows.into_iter().map(|row| (row.id, row)).collect();
        let root_is_stored = exports.contains_key(&FileHandle::ROOT_EXPORT);
        exports.entry(FileHandle::ROOT_EXPORT).or_insert_with(|| Export {
            id: FileHandle::ROOT_EXPORT,
            path: bytes::Bytes::new(),
            root: InodeKey::ROOT,
            rules: configured.to_vec(),
            named: Vec::new(),
        });
        let below = exports.values().filter(|export| export.id != FileHandle::ROOT_EXPORT);
        let roots = below.map(|export| (export.root, export.id)).collect();
        let tree = Tree::new(exports.values().map(|export| (export.id, &export.path[..])));
        let exports: BTreeMap<_, _> = exports.into_iter().map(|(id, row)| (id, Exported::new(row))).collect();
        let asking = exports.iter().filter(|(_, export)| export.asks()).map(|(id, _)| *id).collect();
        Self { exports, asking, roots, tree, since, root_is_stored }
    }

    /// Ascending by id; the root's first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Export> {
        self.exports.values().map(|export| &export.row)
    }

    /// The same with the order of their rules.
    pub(crate) fn ordered(&self) -> impl Iterator<Item = &Exported> {
        self.exports.values()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Export> {
        self.exports.get(&id).map(|export| &export.row)
    }

    /// Whether it must be known by name who calls.
    pub(crate) fn asks(&self) -> bool {
        !self.asking.is_empty()
    }

    fn asking(&self) -> impl Iterator<Item = &Exported> {
        self.asking.iter().filter_map(|id| self.exports.get(id))
    }

    /// Whether it is known of every export what somebody may do there.
    pub(crate) fn tells(&self, from: &Origin) -> bool {
        self.asking().all(|export| export.tells(from, self.version()))
    }

    /// Netgroups that some rule is for.
    pub(crate) fn netgroups(&self) -> BTreeSet<String> {
        self.asking().flat_map(Exported::netgroups).map(str::to_owned).collect()
    }

    /// What rules by name have for somebody, by export, where there are any.
    pub(super) fn decide(&self, who: Option<&Who>) -> BTreeMap<u32, ByName> {
        self.asking().map(|export| (export.row.id, export.decide(who))).collect()
    }

    /// The rules that hold for somebody, of all exports that let him in.
    fn rules(&self, from: &Origin) -> impl Iterator<Item = Rule> {
        self.exports.values().filter_map(|export| export.rule(from, self.version()))
    }

    /// The rule of an export that holds for somebody, if it lets him in.
    pub(crate) fn rule(&self, id: u32, from: &Origin) -> Option<Rule> {
        self.exports.get(&id)?.rule(from, self.version())
    }

    /// What a caller may do with a filehandle. `over`: what his connection has.
    pub(crate) fn judge(
        &self,
        handle: &FileHandle,
        from: &Origin,
        (caller, over): (&sluice_rpc::Credential, Protection),
    ) -> Standing {
        let mut exposed = false;
        let verdict = match handle.export {
            FileHandle::PSEUDO_EXPORT if !self.tree.has(&handle.inode) => Err(nfsstat4::NFS4ERR_STALE),
            FileHandle::PSEUDO_EXPORT if !self.leads_somewhere(&handle.inode, from) => {
                Err(nfsstat4::NFS4ERR_ACCESS)
            }
            FileHandle::PSEUDO_EXPORT => Ok(PSEUDO),
            id if !self.exports.contains_key(&id) => Err(nfsstat4::NFS4ERR_STALE),
            id => match self.rule(id, from) {
                None => Err(nfsstat4::NFS4ERR_ACCESS),
                // As Linux's server has it, whose clients take it for EPERM, at once.
                Some(rule) => {
                    exposed = over < rule.wants;
                    if exposed || !takes(&rule, caller) { Err(nfsstat4::NFS4ERR_WRONGSEC) } else { Ok(rule) }
                }
            },
        };
        Standing { export: handle.export, verdict, exposed }
    }

    /// Where a client begins: the root of the file system if it may use it, else what leads to what it may use.
    pub(crate) fn root(&self, from: &Origin) -> FileHandle {
        if self.rule(FileHandle::ROOT_EXPORT, from).is_some() {
            return FileHandle { export: FileHandle::ROOT_EXPORT, inode: InodeKey::ROOT };
        }
        FileHandle { export: FileHandle::PSEUDO_EXPORT, inode: FileHandle::pseudo(b"") }
    }

    /// The export that begins at this directory, if this client may use it: walking in, the client crosses into it.
    pub(crate) fn crossing(&self, key: &InodeKey, from: &Origin) -> Option<u32> {
        let id = *self.roots.get(key)?;
        self.rule(id, from).map(|_| id)
    }

    /// Some export begins here.
    pub(crate) fn is_root(&self, key: &InodeKey) -> bool {
        self.roots.contains_key(key)
    }

    /// The innermost export that this client has a path through, if any.
    pub(crate) fn through(&self, path: &[u8], from: &Origin) -> Option<&Export> {
        let around = self.all().filter(|export| export.path == path || is_below(path, &export.path));
        let usable = around.filter(|export| self.rule(export.id, from).is_some());
        usable.max_by_key(|export| export.path.len())
    }

    /// The innermost export around another that this client may use; `None`: directories that only lead to exports.
    pub(crate) fn around(&self, id: u32, from: &Origin) -> Option<u32> {
        let path = &self.get(id)?.path;
        let outer = self.all().filter(|outer| outer.id != id && is_below(path, &outer.path));
        let usable = outer.filter(|outer| self.rule(outer.id, from).is_some());
        usable.max_by_key(|outer| outer.path.len()).map(|outer| outer.id)
    }

    /// Security flavours of what a handle means, for SECINFO.
    pub(crate) fn flavours(&self, export: u32, from: &Origin) -> Flavours {
        self.rule(export, from).map_or(PSEUDO.flavours, |rule| rule.flavours)
    }

    /// Whether any export lets somebody in from there.
    pub(crate) fn lets_in(&self, from: &Origin) -> bool {
        self.rules(from).next().is_some()
    }

    /// Whether somebody may do whatever another may, whom some export lets in. Not if that one's name is not known, and matters.
    pub(crate) fn gives_as_much(&self, from: &Origin, as_to: &Origin) -> bool {
        let less = |export: &Exported| {
            let [other, own] = [as_to, from].map(|origin| export.rule(origin, self.version()));
            is_narrower(other.as_ref(), own.as_ref())
        };
        self.tells(as_to) && self.lets_in(as_to) && !self.exports.values().any(less)
    }

    /// Whether any export lets somebody in as the one he says he is.
    pub(crate) fn knows_users_of(&self, from: &Origin) -> bool {
        self.rules(from).any(|rule| rule.squash != Squash::All)
    }

    /// What a client gets through an export, narrower now than it was in `before`, for who it was taken for then.
    pub(crate) fn narrows(&self, before: &Self, id: u32, was: &Origin, is: &Origin) -> bool {
        is_narrower(before.rule(id, was).as_ref(), self.rule(id, is).as_ref())
    }

    /// Whether some client may get less through an export than it did in `before`.
    pub(crate) fn narrows_for_some(&self, before: &Self, id: u32) -> bool {
        match (before.exports.get(&id), self.exports.get(&id)) {
            (Some(before), Some(now)) => now.may_narrow(before, is_narrower),
            (Some(before), None) => before.lets_in(),
            (None, _) => false,
        }
    }
}

fn is_narrower(before: Option<&Rule>, now: Option<&Rule>) -> bool {
    match (before, now) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(old), Some(new)) => {
            let loses = |of: fn(&Flavours) -> bool| of(&old.flavours) && !of(&new.flavours);
            let read_only = new.read_only && !old.read_only;
            let flavours: [fn(&Flavours) -> bool; 5] =
                [|has| has.sys, |has| has.none, |has| has.krb5, |has| has.krb5i, |has| has.krb5p];
            let protection = new.wants > old.wants;
            read_only || protection || flavours.into_iter().any(loses) || takes_names_away(old, new)
        }
    }
}

/// Whether somebody is not who he was any more: what was given to him is not the other's.
fn takes_names_away(old: &Rule, new: &Rule) -> bool {
    let squashed = |squash| match squash {
        Squash::None => 0,
        Squash::Root => 1,
        Squash::All => 2,
    };
    // Whoever does not say who he is, is that one under any rule.
    // So is who has a ticket and is no user here.
    let has_anonymous = old.squash != Squash::None || old.flavours.none || old.flavours.has_tickets();
    let anonymous = |rule: &Rule| (rule.anonymous_uid, rule.anonymous_gid);
    squashed(new.squash) > squashed(old.squash) || (has_anonymous && anonymous(new) != anonymous(old))
}

/// Whether `path` lies below the directory `above`.
pub(super) fn is_below(path: &[u8], above: &[u8]) -> bool {
    above.is_empty() && !path.is_empty()
        || path.strip_prefix(above).is_some_and(|rest| rest.first() == Some(&b'/'))
}

fn takes(rule: &Rule, caller: &sluice_rpc::Credential) -> bool {
    match caller {
        sluice_rpc::Credential::Sys(_) => rule.flavours.sys,
        sluice_rpc::Credential::None => rule.flavours.none,
        sluice_rpc::Credential::Gss(caller) => match caller.service {
            Service::None => rule.flavours.krb5,
            Service::Integrity => rule.flavours.krb5i,
            Service::Privacy => rule.flavours.krb5p,
        },
        _ => false,
    }
}

/// Who a caller is to the file system under a rule.
pub(crate) fn squash(caller: &sluice_rpc::Credential, rule: &Rule) -> Credential {
    let nobody = Credential { uid: rule.anonymous_uid, gid: rule.anonymous_gid, gids: Vec::new() };
    let Some(sys) = caller.sys() else { return nobody };
    match rule.squash {
        Squash::All => nobody,
        Squash::Root if sys.uid == 0 => nobody,
        Squash::Root => {
            // Root's group opens what its owner did not mean to open.
            let spared = |gid: u32| if gid == 0 { rule.anonymous_gid } else { gid };
            let gids = sys.gids.iter().copied().map(spared).collect();
            Credential { uid: sys.uid, gid: spared(sys.gid), gids }
        }
        Squash::None => Credential { uid: sys.uid, gid: sys.gid, gids: sys.gids.clone() },
    }
}

#[cfg(test)]
mod tests {
    use sluice_namespace::{Cookie, FileId};
    use sluice_rpc::{AuthSys, Credential as Caller};

    use super::*;

    fn key(number: u64) -> InodeKey {
        InodeKey { home: FileId(2), cookie: Cookie(128), fileid: FileId(number) }
    }

    fn rule(network: &str, read_only: bool) -> Rule {
        Rule { read_only, ..Rule::new(network.parse().unwrap()) }
    }

    fn export(id: u32, path: &'static str, rules: &[Rule]) -> Export {
        Export { id, path: path.into(), root: key(id.into()), rules: rules.to_vec(), named: Vec::new() }
    }

    fn table(rows: Vec<Export>, root: &[Rule]) -> Table {
        Table::new(rows, root, Wall::default())
    }

    fn ip(text: &str) -> Origin {
        Origin::address(text.parse().unwrap())
    }

    fn status(table: &Table, id: u32, from: &str) -> Result<bool, nfsstat4> {
        let handle = FileHandle { export: id, inode: key(1) };
        let standing = table.judge(&handle, &ip(from), (&Caller::Sys(AuthSys::root("h")), Protection::None));
        standing.verdict.map(|rule| rule.read_only)
    }

    #[test]
    fn the_longest_prefix_that_contains_the_address_holds_in_whatever_order() {
        let (wide, narrow) = (rule("10.0.0.0/8", true), rule("10.1.0.0/16", false));
        for rules in [[wide, narrow], [narrow, wide]] {
            let table = table(vec![export(1, "a", &rules)], &[]);
            assert_eq!(status(&table, 1, "10.1.2.3"), Ok(false));
            assert_eq!(status(&table, 1, "10.2.0.1"), Ok(true));
            assert_eq!(status(&table, 1, "::ffff:10.1.2.3"), Ok(false));
            assert_eq!(status(&table, 1, "11.0.0.1"), Err(nfsstat4::NFS4ERR_ACCESS));
            assert_eq!(status(&table, 2, "10.1.2.3"), Err(nfsstat4::NFS4ERR_STALE));
            assert_eq!(status(&table, 0, "10.1.2.3"), Err(nfsstat4::NFS4ERR_ACCESS));
        }
    }

    #[test]
    fn the_root_is_as_configured_until_something_is_stored_for_it() {
        let any = [Rule::new(Network::ANY)];
        let configured = table(Vec::new(), &any);
        assert!(!configured.root_is_stored);
        assert_eq!(configured.root(&ip("::1")).inode, InodeKey::ROOT);
        let stored = table(vec![export(0, "", &[rule("10.0.0.0/8", true)])], &any);
        assert!(stored.root_is_stored);
        assert_eq!(status(&stored, 0, "10.0.0.1"), Ok(true));
        assert_eq!(status(&stored, 0, "::1"), Err(nfsstat4::NFS4ERR_ACCESS));
    }

    #[test]
    fn what_is_narrower_for_some_address_is_found_without_knowing_it() {
        let of = |rules: &[Rule]| table(vec![export(1, "a", rules)], &[]);
        let (all, net) = (rule("any", false), rule("10.0.0.0/8", false));
        let (host, reads) = (rule("10.0.0.9", false), rule("10.0.0.9", true));
        let hole = Rule { flavours: Flavours::NO_ACCESS, ..host };
        let narrows = |before: &[Rule], now: &[Rule]| of(now).narrows_for_some(&of(before), 1);
        for (before, now) in [(&[net][..], &[net, host][..]), (&[net], &[all]), (&[net, reads], &[net, host])]
        {
            assert!(!narrows(before, now), "{before:?}, {now:?}");
            assert!(narrows(now, before) || now.len() > before.len(), "{before:?}, {now:?}");
        }
        for now in [&[][..], &[host], &[net, reads], &[net, hole], &[rule("10.0.0.0/8", true)]] {
            assert!(narrows(&[net], now), "{now:?}");
        }
        assert!(table(Vec::new(), &[]).narrows_for_some(&of(&[net]), 1), "removed");
    }

    #[test]
    fn a_client_is_in_the_innermost_export_that_it_may_use() {
        let rows = vec![
            export(1, "a", &[rule("any", false)]),
            export(2, "a/b/c", &[rule("10.0.0.0/8", true)]),
            export(3, "ab", &[rule("any", false)]),
        ];
        let table = table(rows, &[rule("::1", false)]);
        assert_eq!(table.crossing(&key(2), &ip("10.0.0.1")), Some(2));
        assert_eq!(table.crossing(&key(2), &ip("11.0.0.1")), None, "it stays in the outer one");
        assert_eq!(table.around(2, &ip("10.0.0.1")), Some(1));
        assert_eq!(table.around(1, &ip("10.0.0.1")), None);
        assert_eq!(table.around(1, &ip("::1")), Some(0));
        assert!(!is_below(b"ab", b"a"));
    }

    #[test]
    fn flavours_are_refused_by_name_and_squashing_is_by_rule() {
        let only_sys = Rule { flavours: Flavours { sys: true, ..Flavours::NO_ACCESS }, ..rule("any", false) };
        let table = table(vec![export(1, "a", &[only_sys])], &[]);
        let handle = FileHandle { export: 1, inode: key(1) };
        let verdict = table.judge(&handle, &ip("::1"), (&Caller::None, Protection::None)).verdict;
        assert!(matches!(verdict, Err(nfsstat4::NFS4ERR_WRONGSEC)));
        let user = |uid, gid| Caller::Sys(AuthSys { uid, gid, gids: vec![0, 7], ..AuthSys::root("h") });
        let as_whom = |caller: &Caller, squash_| squash(caller, &Rule { squash: squash_, ..only_sys });
        assert_eq!(as_whom(&user(0, 0), Squash::Root).uid, NOBODY);
        assert_eq!(
            as_whom(&user(5, 0), Squash::Root),
            Credential { uid: 5, gid: NOBODY, gids: vec![NOBODY, 7] }
        );
        assert_eq!(as_whom(&user(0, 0), Squash::None), Credential { uid: 0, gid: 0, gids: vec![0, 7] });
        assert_eq!(
            as_whom(&user(5, 5), Squash::All),
            Credential { uid: NOBODY, gid: NOBODY, gids: Vec::new() }
        );
        assert_eq!(as_whom(&Caller::None, Squash::None).uid, NOBODY);
    }

    #[test]
    fn a_ticket_is_good_where_its_service_is_and_who_is_no_user_is_nobody() {
        let by = |service, user| {
            Caller::Gss(Box::new(sluice_rpc::GssCaller { principal: "a@TEST".into(), service, user }))
        };
        let alice = AuthSys { uid: 7, gid: 8, gids: vec![8, 0], ..AuthSys::default() };
        let sealed = Rule { flavours: Flavours { krb5p: true, ..Flavours::NO_ACCESS }, ..rule("any", false) };
        let table = table(vec![export(1, "a", &[sealed])], &[]);
        let handle = FileHandle { export: 1, inode: key(1) };
        let is_good =
            |caller: &Caller| table.judge(&handle, &ip("::1"), (caller, Protection::None)).verdict.is_ok();
        let services = [Service::None, Service::Integrity, Service::Privacy];
        assert_eq!(services.map(|service| is_good(&by(service, Some(alice.clone())))), [false, false, true]);
        assert!(!is_good(&Caller::Sys(alice.clone())));
        let as_whom = |user| squash(&by(Service::Privacy, user), &Rule { squash: Squash::Root, ..sealed });
        assert_eq!(as_whom(Some(alice)), Credential { uid: 7, gid: 8, gids: vec![8, NOBODY] });
        assert_eq!(as_whom(None).uid, NOBODY);
        assert_eq!(as_whom(Some(AuthSys::root("h"))).uid, NOBODY);
    }
}
