//! Classes of data servers: which of them a class means, where what leaves one goes. docs/adr/0041.
//!
//! A file has no class of its own: what takes the place of a data file goes to a data server of the class of the one that it
//! leaves.

use sluice_namespace::{Class, Layout, LayoutPolicy, StoreId};

use super::placement::{Candidate, Wanted};
use crate::server::Mds;

/// The data servers that a policy with this class means: those of it. Without one: those without one, and all where every one
/// in use has one.
pub(crate) fn wanted(mds: &Mds, class: Option<Class>) -> Wanted {
    if class.is_none() && !mds.data_servers.has_any_without_class() { Wanted::Any } else { Wanted::Of(class) }
}

/// What a file that is kept in the metadata follows when it gets data files. It cannot be given another policy: where nobody is of its
/// class any more, it has none.
pub(crate) fn of_file(mds: &Mds, policy: LayoutPolicy) -> LayoutPolicy {
    LayoutPolicy { class: policy.class.filter(|class| !is_gone(mds, *class)), ..policy }
}

/// What takes the place of something at this data server is for these. The last one of its class may have been removed: then it
/// has none.
pub(crate) fn like(mds: &Mds, store: StoreId) -> Wanted {
    let Some(store) = mds.data_servers.get(store) else { return Wanted::Any };
    let class = store.class().filter(|class| !store.is_removed() || !is_gone(mds, *class));
    wanted(mds, class)
}

/// No data server is of this class, or only such as were removed.
pub(crate) fn is_gone(mds: &Mds, class: Class) -> bool {
    mds.data_servers.all().iter().all(|store| store.class() != Some(class))
}

/// What is at this data server may be anywhere rather than there alone: it is lost, or fails.
pub(crate) fn may_leave(mds: &Mds, store: StoreId) -> bool {
    mds.data_servers.get(store).is_none_or(|store| store.given_up())
}

/// Behind "data server", for people: nothing where no data server has a class.
pub(crate) fn words(mds: &Mds, wanted: Wanted) -> String {
    match wanted {
        Wanted::Of(Some(class)) => format!(" of class {class}"),
        Wanted::Of(None) if mds.data_servers.all().iter().any(|store| store.class().is_some()) => {
            " without a class".to_owned()
        }
        Wanted::Of(None) | Wanted::Any => String::new(),
    }
}

/// Behind "no other data server" that is to take what is at this one.
pub(crate) fn of_it(mds: &Mds, store: StoreId) -> String {
    if may_leave(mds, store) { String::new() } else { words(mds, like(mds, store)) }
}

/// Of those that may take the place of so much at a data server, the ones that shall: of its class. Where none of these has room
/// and what is there may leave its class, others that have.
pub(crate) fn first(mds: &Mds, free: Vec<Candidate>, goes: StoreId, bytes: u64) -> Vec<Candidate> {
    choose(free, like(mds, goes), may_leave(mds, goes), bytes)
}

fn choose(free: Vec<Candidate>, wanted: Wanted, may_leave: bool, bytes: u64) -> Vec<Candidate> {
    let (own, others): (Vec<_>, Vec<_>) =
        free.into_iter().partition(|candidate| wanted.takes(candidate.class));
    let has_room = |list: &[Candidate]| list.iter().any(|candidate| candidate.free_bytes >= bytes);
    let leaves = may_leave && !has_room(&own) && (own.is_empty() || has_room(&others));
    if leaves { others } else { own }
}

/// Whether two files are where files of one class are, as far as can be seen.
pub(crate) fn is_one(mds: &Mds, one: &Layout, other: &Layout) -> bool {
    let class = |layout: &Layout| {
        let first = layout.data_files().next();
        first.and_then(|file| mds.data_servers.get(file.store)).and_then(|store| store.class())
    };
    class(one) == class(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(store: u16, class: Option<&str>, free_bytes: u64) -> Candidate {
        Candidate { store: StoreId(store), free_bytes, host: None, class: class.and_then(Class::parse) }
    }

    fn ids(list: Vec<Candidate>) -> Vec<u16> {
        list.into_iter().map(|candidate| candidate.store.0).collect()
    }

    #[test]
    fn what_leaves_a_data_server_stays_in_its_class_and_leaves_that_only_where_it_must() {
        let all = vec![of(1, Some("archive"), 10), of(2, Some("archive"), 30), of(3, None, 90)];
        let archive = Wanted::Of(Class::parse("archive"));
        let chosen = |bytes, may_leave| ids(choose(all.clone(), archive, may_leave, bytes));
        assert_eq!(chosen(20, false), [1, 2]);
        assert_eq!(chosen(20, true), [1, 2], "it has room");
        assert_eq!(chosen(50, false), [1, 2], "it waits for room");
        assert_eq!(chosen(50, true), [3]);
        assert_eq!(chosen(99, true), [1, 2], "nobody has room");
        let others = all[2..].to_vec();
        assert_eq!(ids(choose(others.clone(), archive, false, 1)), [] as [u16; 0]);
        assert_eq!(ids(choose(others, archive, true, 99)), [3], "rather there than nowhere");
        assert_eq!(ids(choose(all.clone(), Wanted::Of(None), false, 1)), [3]);
        assert_eq!(ids(choose(all, Wanted::Any, false, 1)), [1, 2, 3]);
    }
}
