//! Users and groups of this host, as its nsswitch.conf has them: files, LDAP, sssd, winbind.

use std::ffi::CString;
use std::io;

use nix::unistd::{Uid, User, getgrouplist};
use sluice_mds::Accounts;

/// This host.
#[derive(Debug)]
pub(crate) struct Host;

impl Accounts for Host {
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        let Some(user) = User::from_uid(Uid::from_raw(uid))? else { return Ok(None) };
        let name = CString::new(user.name)?;
        let groups = getgrouplist(&name, user.gid)?;
        Ok(Some(groups.into_iter().map(nix::unistd::Gid::as_raw).collect()))
    }
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
