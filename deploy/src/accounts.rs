//! Users and groups of this host, as its nsswitch.conf has them: files, LDAP, sssd, winbind.

use std::ffi::CString;
use std::io;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use sluice_mds::Accounts;

use crate::quotas::getent;

/// This host.
#[derive(Debug)]
pub(crate) struct Host;

impl Accounts for Host {
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        User::from_uid(Uid::from_raw(uid))?.map(|user| groups(&user)).transpose()
    }

    fn user(&self, name: &str) -> io::Result<Option<u32>> {
        Ok(User::from_name(name)?.map(|user| user.uid.as_raw()))
    }

    fn group(&self, name: &str) -> io::Result<Option<u32>> {
        match Group::from_name(name) {
            // All its members come with it, and for those of the largest there is too little room.
            Err(Errno::ERANGE) => listed(name).map(Some),
            found => Ok(found?.map(|group| group.gid.as_raw())),
        }
    }

    fn name_of_user(&self, uid: u32) -> io::Result<Option<String>> {
        Ok(User::from_uid(Uid::from_raw(uid))?.map(|user| user.name))
    }

    fn name_of_group(&self, gid: u32) -> io::Result<Option<String>> {
        match Group::from_gid(Gid::from_raw(gid)) {
            Err(Errno::ERANGE) => listed_as(gid).map(Some),
            found => Ok(found?.map(|group| group.name)),
        }
    }
}

/// The number of a group that there is, by the command that has room for any.
///
/// # Errors
/// The command does not say: that is not the same as no such group.
fn listed(group: &str) -> io::Result<u32> {
    let number = entry(group).and_then(|line| line.get(2)?.parse().ok());
    number.ok_or_else(|| {
        io::Error::other(format!("group {group} is too large, and getent does not say its number"))
    })
}

/// The name of such a one.
///
/// # Errors
/// As above.
fn listed_as(gid: u32) -> io::Result<String> {
    let name = entry(&gid.to_string()).and_then(|line| line.into_iter().next());
    name.ok_or_else(|| {
        io::Error::other(format!("group {gid} is too large, and getent does not say its name"))
    })
}

/// Its line in the groups of this host, as parts.
fn entry(group: &str) -> Option<Vec<String>> {
    getent("group", &[group.to_owned()]).into_iter().next()
}

/// Numbers of all groups that the user is in, the primary one first.
pub(crate) fn groups(user: &User) -> io::Result<Vec<u32>> {
    let groups = getgrouplist(&CString::new(user.name.as_str())?, user.gid)?;
    Ok(groups.into_iter().map(Gid::as_raw).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_knows_its_own_users() {
        let root = Host.groups(0).unwrap().unwrap();
        assert!(root.contains(&0), "{root:?}");
        // Nobody has this number, and a host without a directory service can say so.
        assert_eq!(Host.groups(0xfff0_1234).unwrap(), None);
        assert_eq!((Host.user("root").unwrap(), Host.group("root").unwrap()), (Some(0), Some(0)));
        assert_eq!(listed("root").unwrap(), 0);
        assert!(
            listed("nobody-has-this-name").is_err(),
            "whoever asks has been told that there is such a group"
        );
        let root = Some("root".to_owned());
        assert_eq!((Host.name_of_user(0).unwrap(), Host.name_of_group(0).unwrap()), (root.clone(), root));
        assert_eq!(
            (Host.name_of_user(0xfff0_1234).unwrap(), Host.name_of_group(0xfff0_1234).unwrap()),
            (None, None)
        );
        assert_eq!(listed_as(0).unwrap(), "root");
        assert!(listed_as(0xfff0_1234).is_err());
        for nobody in ["nobody-has-this-name", "a\0b", ""] {
            assert_eq!((Host.user(nobody).unwrap(), Host.group(nobody).unwrap()), (None, None), "{nobody:?}");
        }
    }
}
