//! Groups of callers as this host knows them. AUTH_SYS carries 16 (RFC 5531 appendix A): of a user in more, the client
//! leaves some out, and what only those permit is denied. With an [`Accounts`] the client's list is not looked at.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use sluice_env::Env;
use sluice_rpc::Credential;

use crate::accounts::{Accounts, Answers, Question, Unknown};

/// Whose groups are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Uid(u32);

impl Question for Uid {
    type Answer = Arc<[u32]>;
    /// Some 300 bytes each.
    const MOST: usize = 1 << 16;

    fn ask(&self, accounts: &dyn Accounts) -> io::Result<Option<Arc<[u32]>>> {
        Ok(accounts.groups(self.0)?.map(Into::into))
    }

    fn unanswered(&self, error: &io::Error, known: bool) {
        tracing::warn!(
            uid = self.0,
            %error,
            known,
            "this host cannot tell the groups of a user: who is not known from before waits. Is its directory service up?"
        );
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Groups {
    inner: Option<Arc<Answers<Uid>>>,
}

impl Groups {
    pub(crate) fn new(accounts: Option<Arc<dyn Accounts>>) -> Self {
        Self { inner: accounts.map(Answers::new) }
    }

    /// Whether anybody is asked.
    pub(crate) fn asks(&self) -> bool {
        self.inner.is_some()
    }

    /// Puts in the groups of a caller at `from`. Those of the client stand if this host does not know the user, and for root,
    /// who needs none.
    ///
    /// # Errors
    /// The host was asked and has not answered, or is asked for too many users already.
    pub(crate) async fn complete(
        &self,
        env: &Env,
        from: IpAddr,
        caller: &mut Credential,
    ) -> Result<(), Unknown> {
        let sys = match caller {
            Credential::Sys(sys) => Some(sys),
            Credential::Gss(caller) => caller.user.as_mut(),
            _ => None,
        };
        let (Some(host), Some(sys)) = (&self.inner, sys) else { return Ok(()) };
        if sys.uid == 0 {
            return Ok(());
        }
        if let Some(groups) = host.get(env, from, &Uid(sys.uid)).await? {
            // One that he was in when his process began, or that only his client has him in.
            if let Some(primary) = groups.first().filter(|_| !groups.contains(&sys.gid)) {
                sys.gid = *primary;
            }
            sys.gids = groups.to_vec();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
