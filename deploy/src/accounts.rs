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
}

/// The number of a group that there is, by the command that has room for any.
///
/// # Errors
/// The command does not say: that is not the same as no such group.
fn listed(group: &str) -> io::Result<u32> {
    let found = getent("group", &[group.to_owned()]);
    let number = found.first().and_then(|line| line.get(2)).and_then(|number| number.parse().ok());
    number.ok_or_else(|| {
        io::Error::other(format!("group {group} is too large, and getent does not say its number"))
    })
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
        for nobody in ["nobody-has-this-name", "a\0b", ""] {
            assert_eq!((Host.user(nobody).unwrap(), Host.group(nobody).unwrap()), (None, None), "{nobody:?}");
        }
    }
}
