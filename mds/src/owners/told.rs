//! Owners by name in answers: `name@domain` (RFC 8881 §5.9), for clients whose users have other numbers than this host's.
//! Whoever cannot be told by name is told by number, which every client takes.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_env::Env;
use sluice_namespace::{Inode, Who};
use sluice_rpc::Credential;
use sluice_xdr::nfs4::*;

use super::{NAMED, Names, is_askable};
use crate::accounts::{Accounts, Question};
use crate::attr::set::id;

/// Whom owners are told by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TellNames {
    /// All are told numbers.
    #[default]
    Nobody,
    /// Who comes with a Kerberos ticket.
    Tickets,
    Everybody,
}

impl TellNames {
    fn has(self, caller: &Credential) -> bool {
        match self {
            Self::Nobody => false,
            Self::Tickets => matches!(caller, Credential::Gss(_)),
            Self::Everybody => true,
        }
    }
}

/// How long a GETATTR, or a page of a listing, waits for names that nobody has told yet. Behind a directory service that is away
/// each of them would take as long.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whose name is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Numbered {
    User(u32),
    Group(u32),
}

impl Question for Numbered {
    type Answer = Arc<str>;
    /// With the longest names 30 MB, with those that there are 12.
    const MOST: usize = 1 << 16;

    fn ask(&self, accounts: &dyn Accounts) -> io::Result<Option<Arc<str>>> {
        let name = match self {
            Self::User(uid) => accounts.name_of_user(*uid),
            Self::Group(gid) => accounts.name_of_group(*gid),
        };
        // Told otherwise, it could not be given back.
        Ok(name?.filter(|name| is_askable(name)).map(Arc::from))
    }

    fn unanswered(&self, error: &io::Error, known: bool) {
        tracing::warn!(
            number = ?self,
            %error,
            known,
            "this host cannot tell whose number this is: clients are told the number. Is its directory service up?"
        );
    }
}

/// All whom the attributes that are asked for name.
pub(crate) fn whose(inode: &Inode, asked: &bitmap4) -> impl Iterator<Item = Numbered> {
    let wants = |number| asked.contains(number);
    let owner = wants(FATTR4_OWNER).then_some(Numbered::User(inode.record.uid));
    let group = wants(FATTR4_OWNER_GROUP).then_some(Numbered::Group(inode.record.gid));
    let aces = if wants(FATTR4_ACL) || wants(FATTR4_DACL) { inode.acl().aces().to_vec() } else { Vec::new() };
    let listed = aces.into_iter().filter_map(|ace| match ace.who {
        Who::User(id) => Some(Numbered::User(id)),
        Who::Members(id) => Some(Numbered::Group(id)),
        Who::Owner | Who::Group | Who::Everyone => None,
    });
    owner.into_iter().chain(group).chain(listed)
}

impl Names {
    /// Whether this caller is told by name whom these attributes name.
    pub(crate) fn tells(&self, caller: &Credential, asked: &bitmap4) -> bool {
        self.host.as_ref().is_some_and(|host| host.tell.has(caller)) && !asked.and(NAMED).is_empty()
    }

    /// Has this host asked for those names that are not known, for a call from there.
    pub(crate) async fn learn(&self, env: &Env, from: IpAddr, whose: BTreeSet<Numbered>) {
        if let Some(host) = &self.host {
            host.told.learn(env, from, whose, PATIENCE).await;
        }
    }

    /// Puts the names that are known in the place of numbers.
    pub(crate) fn name(&self, env: &Env, values: &mut Attributes) {
        let Some(host) = &self.host else { return };
        let now = env.clock.now();
        let name = |text: &mut Bytes, numbered: fn(u32) -> Numbered| {
            let known = id(text).ok().and_then(|id| host.told.last(now, &numbered(id)));
            if let Some(name) = known {
                *text = format!("{name}@{}", host.domain).into();
            }
        };
        values.owner.iter_mut().for_each(|owner| name(owner, Numbered::User));
        values.owner_group.iter_mut().for_each(|group| name(group, Numbered::Group));
        let dacl = values.dacl.iter_mut().flat_map(|dacl| &mut dacl.na41_aces);
        for ace in values.acl.iter_mut().flatten().chain(dacl) {
            let by_group = ace.flag & ACE4_IDENTIFIER_GROUP != 0;
            name(&mut ace.who, if by_group { Numbered::Group } else { Numbered::User });
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_rpc::{GssCaller, Service};

    use super::*;

    #[test]
    fn who_is_told_names_is_said() {
        let principal = Arc::from("alice@EXAMPLE.COM");
        let ticket = GssCaller { principal, service: Service::None, user: None };
        let ticket = Credential::Gss(Box::new(ticket));
        for (tell, told) in [
            (TellNames::Nobody, [false, false]),
            (TellNames::Tickets, [false, true]),
            (TellNames::Everybody, [true, true]),
        ] {
            assert_eq!([&Credential::None, &ticket].map(|caller| tell.has(caller)), told, "{tell:?}");
        }
    }
}
