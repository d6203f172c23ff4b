//! Lists against modes: what a mode says, its list says too, for everybody.

use proptest::prelude::*;

use super::*;
use crate::credential::{AccessMask, Credential, Owned, Want};

const OWNER: u32 = 10;
const GROUP: u32 = 20;

fn ace() -> impl Strategy<Value = Ace> {
    let who = prop_oneof![
        Just(Who::Owner),
        Just(Who::Group),
        Just(Who::Everyone),
        (9u32..13).prop_map(Who::User),
        (19u32..23).prop_map(Who::Members),
    ];
    let inheritance = (0u8..16, any::<bool>()).prop_map(|(how, came)| if came { how | 0x80 } else { how });
    (any::<bool>(), inheritance, any::<u32>(), who).prop_map(|(allow, inheritance, rights, who)| Ace {
        allow,
        inheritance: Inheritance(inheritance),
        rights: Rights(rights) & Rights::ALL,
        who,
    })
}

pub(crate) fn acl() -> impl Strategy<Value = Acl> {
    let flags = (0u8..8).prop_map(AclFlags);
    (prop::collection::vec(ace(), 0..12), flags)
        .prop_map(|(aces, flags)| Acl::new(aces).unwrap().flagged(flags))
}

fn caller() -> impl Strategy<Value = Credential> {
    (9u32..13, 19u32..23, prop::collection::vec(19u32..23, 0..3)).prop_map(|(uid, gid, gids)| Credential {
        uid,
        gid,
        gids,
    })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::File), Just(Kind::Directory), Just(Kind::Fifo)]
}

fn owned(kind: Kind, mode: u16, acl: Option<Acl>) -> Owned {
    Owned { kind, mode, uid: OWNER, gid: GROUP, acl }
}

fn ace_of(allow: bool, rights: Rights, who: Who) -> Ace {
    Ace { allow, inheritance: Inheritance::NONE, rights, who }
}

const WANTS: [Want; 4] = [Want::READ, Want::WRITE, Want::EXECUTE, Want::CHANGE_ENTRIES];

proptest! {
    #[test]
    fn a_mode_as_a_list_is_the_same_mode(kind in kind(), mode in 0u16..0o1000) {
        prop_assert_eq!(Acl::of_mode(kind, mode).mode(), mode);
    }

    #[test]
    fn a_mode_as_a_list_gives_everybody_the_same(
        kind in kind(), mode in 0u16..0o2000, who in caller(), parent in 0u16..0o2000, to in 0u16..0o1000,
    ) {
        let (plain, listed) = (owned(kind, mode, None), owned(kind, mode, Some(Acl::of_mode(kind, mode))));
        for want in WANTS {
            prop_assert_eq!(plain.permits(&who, want), listed.permits(&who, want), "{:?}", want);
        }
        prop_assert_eq!(plain.access(&who), listed.access(&who));
        prop_assert_eq!(plain.require_write_acl(&who).is_ok(), listed.require_write_acl(&who).is_ok());
        prop_assert_eq!(plain.may_set_times(&who), listed.may_set_times(&who));
        prop_assert_eq!(plain.may_take(&who), listed.may_take(&who));
        prop_assert!(listed.may_read_acl(&who));
        let list = Acl::of_mode(Kind::Directory, parent);
        let (plain_parent, listed_parent) =
            (owned(Kind::Directory, parent, None), owned(Kind::Directory, parent, Some(list)));
        let may = |parent: &Owned, entry: &Owned| parent.require_remove(entry, &who).is_ok();
        let plainly = may(&plain_parent, &plain);
        prop_assert_eq!(may(&listed_parent, &plain), plainly);
        prop_assert_eq!(may(&plain_parent, &listed), plainly);
        prop_assert_eq!(may(&listed_parent, &listed), plainly);
        for kind in [Kind::File, Kind::Directory] {
            let may = |parent: &Owned| parent.require_add(&who, kind).is_ok();
            prop_assert_eq!(may(&plain_parent), may(&listed_parent));
        }
        // And it is not stored: a change of the mode makes the list of the new one.
        prop_assert_eq!(Acl::of_mode(kind, mode).with_mode(kind, to).beyond_mode(kind, to), None);
    }

    #[test]
    fn a_mode_that_is_set_is_the_mode(acl in acl(), kind in kind(), mode in 0u16..0o1000) {
        let after = acl.with_mode(kind, mode);
        prop_assert_eq!(after.mode(), mode);
        // Set again, nothing moves.
        prop_assert_eq!(after.with_mode(kind, mode), after.clone());
        // RFC 8881 §6.4.1.1: nobody named gets what the group bits do not say.
        for ace in after.aces().iter().filter(|ace| ace.allow && ace.is_effective() && !ace.who.is_special()) {
            prop_assert!(!ace.rights.meets(Rights::READ_DATA) || mode & 0o040 != 0);
            prop_assert!(!ace.rights.meets(Rights::WRITE_DATA | Rights::APPEND_DATA) || mode & 0o020 != 0);
            prop_assert!(!ace.rights.meets(Rights::EXECUTE) || mode & 0o010 != 0);
        }
        // RFC 8881 §6.4.3.2: nobody who passes on what changes in a directory undoes it.
        let takes_part = acl.flags().has(AclFlags::AUTO_INHERIT);
        prop_assert!(!takes_part || after.flags().has(AclFlags::PROTECTED));
        // What is handed on stays.
        let handed = |acl: &Acl| acl.inherited(Kind::File).map_or(Vec::new(), |acl| acl.aces().to_vec());
        prop_assert_eq!(handed(&after), handed(&acl));
    }

    #[test]
    fn what_is_new_has_the_mode_that_was_given(
        parent in acl(), kind in kind(), mode in 0u16..0o1000, umask in 0u16..0o1000,
    ) {
        let (acl, got) = initial(Some(&parent), kind, NewMode::Given(mode), None).unwrap();
        prop_assert_eq!(got, mode);
        prop_assert!(acl.is_none_or(|acl| acl.mode() == mode));
        // Neither the umask nor what is inherited ever adds to what was asked for.
        let (acl, got) = initial(Some(&parent), kind, NewMode::Umasked { mode, umask }, None).unwrap();
        prop_assert_eq!(got & !mode, 0);
        prop_assert!(acl.is_none_or(|acl| acl.mode() == got));
        let (acl, got) = initial(Some(&parent), kind, NewMode::Default(mode), None).unwrap();
        prop_assert!(acl.is_none_or(|acl| acl.mode() == got));
        prop_assert_eq!(initial(Some(&parent), kind, NewMode::Bare, None).unwrap(), (None, 0));
    }
}

#[test]
fn the_first_entry_that_speaks_of_a_bit_decides_it() {
    let who = Credential { uid: 11, gid: 1, gids: vec![21] };
    let read = Rights::READ_DATA;
    let both = read | Rights::EXECUTE;
    for (aces, may) in [
        (vec![], false),
        (vec![ace_of(true, read, Who::User(11))], true),
        (vec![ace_of(true, read, Who::User(12))], false),
        (vec![ace_of(true, read, Who::Members(21))], true),
        (vec![ace_of(true, read, Who::Group)], false),
        (vec![ace_of(false, read, Who::Members(21)), ace_of(true, both, Who::User(11))], false),
        (vec![ace_of(true, both, Who::User(11)), ace_of(false, read, Who::Everyone)], true),
        (vec![Ace { inheritance: Inheritance(0b1011), ..ace_of(true, read, Who::Everyone) }], false),
    ] {
        let file = owned(Kind::Directory, 0, Some(Acl::new(aces.clone()).unwrap()));
        assert_eq!(file.permits(&who, Want::READ), may, "{aces:?}");
    }
}

#[test]
fn the_owner_always_sees_and_sets_the_list_and_root_always_may() {
    let nothing = owned(Kind::File, 0, Some(Acl::new(vec![]).unwrap()));
    let owner = Credential { uid: OWNER, gid: 1, gids: vec![] };
    let other = Credential { uid: 11, gid: GROUP, gids: vec![] };
    assert!(nothing.may_read_acl(&owner) && nothing.require_write_acl(&owner).is_ok());
    assert!(!nothing.may_read_acl(&other) && nothing.require_write_acl(&other).is_err());
    assert!(!nothing.permits(&owner, Want::READ));
    assert_eq!(nothing.access(&owner), AccessMask(0));
    assert!(nothing.permits(&Credential::ROOT, Want::READ | Want::WRITE));
}

/// Whether they allow, and what.
type Entries<'a> = &'a [(bool, Rights)];

#[test]
fn removal_takes_one_of_two_lists() {
    let who = Credential { uid: 11, gid: 1, gids: vec![] };
    let list = |aces: &[(bool, Rights)]| {
        let aces = aces.iter().map(|(allow, rights)| ace_of(*allow, *rights, Who::User(11)));
        Some(Acl::new(aces.collect()).unwrap())
    };
    let (child, delete) = (Rights::DELETE_CHILD, Rights::DELETE);
    let (search, add) = (Rights::EXECUTE, Rights::WRITE_DATA);
    let cases: &[(Entries<'_>, Entries<'_>, bool, bool)] = &[
        // Directory, entry; whether it may; whether it may where the directory is sticky.
        (&[(true, search | child)], &[], true, false),
        (&[(true, search)], &[(true, delete)], true, true),
        (&[(true, search | child)], &[(false, delete)], true, false),
        (&[(false, child), (true, search | add)], &[(true, delete)], true, true),
        (&[(false, child), (true, search | add)], &[], false, false),
        (&[(true, search | add)], &[(false, delete)], false, false),
        (&[(true, search | add)], &[], true, false),
        (&[(true, search)], &[], false, false),
        (&[(true, child)], &[(true, delete)], false, false),
    ];
    for (directory, entry, may, sticky) in cases {
        let entry = owned(Kind::File, 0, list(entry));
        let plain = Owned { uid: 1, ..owned(Kind::Directory, 0, list(directory)) };
        assert_eq!(plain.require_remove(&entry, &who).is_ok(), *may, "{plain:?} {entry:?}");
        let plain = Owned { mode: 0o1000, ..plain };
        assert_eq!(plain.require_remove(&entry, &who).is_ok(), *sticky, "sticky {plain:?} {entry:?}");
    }
}

#[test]
fn each_flag_says_who_inherits() {
    let (f, d, np, io) = (1, 2, 4, 8);
    let cases: &[(u8, Option<u8>, Option<u8>)] = &[
        // Flags; what a file's entry has; what a directory's has.
        (0, None, None),
        (io, None, None),
        (f, Some(0), Some(f | io)),
        (f | io, Some(0), Some(f | io)),
        (d, None, Some(d)),
        (d | io, None, Some(d)),
        (f | d, Some(0), Some(f | d)),
        (f | np, Some(0), None),
        (d | np, None, Some(0)),
        (f | d | np | io, Some(0), Some(0)),
    ];
    for (flags, file, directory) in cases {
        let entry =
            Ace { inheritance: Inheritance(*flags), ..ace_of(true, Rights::READ_DATA, Who::User(11)) };
        let got = |kind| entry.inherited(kind).map(|ace| ace.inheritance.0);
        assert_eq!(got(Kind::File), *file, "{flags}");
        assert_eq!(got(Kind::Fifo), *file, "{flags}");
        assert_eq!(got(Kind::Directory), *directory, "{flags}");
        assert_eq!(got(Kind::Symlink), None);
    }
}

/// RFC 8881 §6.4.3.2.
#[test]
fn what_came_from_a_directory_that_takes_part_is_marked() {
    let heir = Ace { inheritance: Inheritance(0x80 | 3), ..ace_of(true, Rights::READ_DATA, Who::User(11)) };
    let plain = Acl::new(vec![heir]).unwrap();
    let marks = |acl: &Acl| acl.aces().iter().map(|ace| ace.inheritance.0 & 0x80 != 0).collect::<Vec<_>>();
    for (flags, marked, inherited) in [
        (AclFlags::NONE, false, AclFlags::NONE),
        (AclFlags::PROTECTED, false, AclFlags::NONE),
        (AclFlags(7), true, AclFlags::AUTO_INHERIT),
    ] {
        let parent = plain.clone().flagged(flags);
        for kind in [Kind::File, Kind::Directory] {
            let below = parent.inherited(kind).unwrap();
            assert_eq!((marks(&below), below.flags()), (vec![marked], inherited));
            // Nobody said what it is to be; somebody did.
            let (quiet, _) = initial(Some(&parent), kind, NewMode::Default(0o644), None).unwrap();
            let (chosen, _) = initial(Some(&parent), kind, NewMode::Given(0o644), None).unwrap();
            assert_eq!(quiet.unwrap().flags(), inherited);
            assert_eq!(chosen.unwrap().flags(), inherited.chosen());
        }
        // Nothing of it is about the directory itself: the mode by default stands for no choice either.
        let files = Acl::new(vec![Ace { inheritance: Inheritance::FILES, ..heir }]).unwrap().flagged(flags);
        let (quiet, _) = initial(Some(&files), Kind::Directory, NewMode::Default(0o755), None).unwrap();
        assert_eq!(quiet.unwrap().flags(), inherited);
        assert!(parent.is_marked());
        assert!(parent.require_fit(Kind::File).is_err());
    }
    let own = Acl::new(vec![Ace { inheritance: Inheritance::INHERITED, ..heir }]).unwrap();
    assert!(own.require_fit(Kind::File).is_ok() && own.is_marked());
}

#[test]
fn lists_are_bounded_and_fit_what_they_are_on() {
    let plain = ace_of(true, Rights::READ_DATA, Who::Everyone);
    let heir = Ace { inheritance: Inheritance(3), ..plain };
    let only = Ace { inheritance: Inheritance(11), ..plain };
    let many = |ace| Acl::new(vec![ace; MAX_EACH + 1]).is_err();
    assert!(many(heir) && many(only) && !many(plain));
    assert!(Acl::new(vec![plain; MAX_EACH + FOR_MODE + 1]).is_err());
    let named = Ace { who: Who::User(7), ..only };
    let most = Acl::new([vec![named; MAX_EACH], vec![Ace { who: Who::User(8), ..plain }; MAX_EACH]].concat())
        .unwrap();
    let most = most.with_mode(Kind::Directory, 0o747);
    assert!(Acl::new(most.aces().to_vec()).is_ok(), "what was made here may be set again");
    // However deep.
    let mut below = most.clone();
    for _ in 0..4 {
        below = initial(Some(&below), Kind::Directory, NewMode::Given(0o747), None).unwrap().0.unwrap();
        assert!(below.aces().len() > MAX_EACH && below.aces().len() <= MAX_STORED, "{}", below.aces().len());
    }
    assert!(most.require_fit(Kind::Directory).is_ok());
    assert!(most.require_fit(Kind::File).is_err());
    assert!(Acl::new(vec![plain]).unwrap().require_fit(Kind::Symlink).is_err());
}
