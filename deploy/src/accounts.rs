//! Users and groups of this host, as its nsswitch.conf has them: files, LDAP, sssd, winbind.

use std::ffi::CString;
use std::io;

use nix::unistd::{Gid, Uid, User, getgrouplist};
use sluice_mds::Accounts;

/// This host.
#[derive(Debug)]
pub(crate) struct Host;

impl Accounts for Host {
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        User::from_uid(Uid::from_raw(uid))?.map(|user| groups(&user)).transpose()
    }
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
    }
}
