//! Classes of data servers.

use std::net::SocketAddr;

use bytes::Bytes;
use sluice_namespace::{Class, LayoutPolicy};
use sluice_xdr::control::*;

use super::Admin;
use super::servers::{refused, store_id};
use crate::layout::classes;
use crate::layout::drain::change::{self, Refusal};

impl Admin {
    pub(super) fn classes(&self) -> ADMIN_CLASSES_resok {
        let all = self.mds.data_servers.all();
        let servers =
            all.iter().map(|store| ctl_class_of { id: store.id.0.into(), class: name(store.class()) });
        ADMIN_CLASSES_resok { servers: servers.collect() }
    }

    pub(super) async fn class(&self, args: ADMIN_CLASS_args, from: SocketAddr) -> ADMIN_CLASS_res {
        let given = String::from_utf8_lossy(&args.class).into_owned();
        let changed = match (store_id(args.id), wanted(&given)) {
            (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
            (Ok(id), Ok(class)) => change::set_class(&self.mds, id, class).await,
        };
        match changed.map_err(refused) {
            Ok(changed) => {
                let class = if given.is_empty() { LayoutPolicy::NO_CLASS } else { given.as_str() };
                tracing::info!(%from, data_server = args.id, %class, "an administrator set the class of a data server");
                let left = u32::try_from(changed.left).unwrap_or(u32::MAX);
                ADMIN_CLASS_res::CTL_OK(ADMIN_CLASS_resok { before: name(changed.before), left })
            }
            Err((status, reason)) => ADMIN_CLASS_res::Default(status, reason),
        }
    }

    /// Why no file could be made that is to be of this class. Before there are data servers anything may be said of those to come.
    pub(super) fn no_such_class(&self, policy: &LayoutPolicy) -> Option<String> {
        let class = policy.class?;
        let unknown = classes::is_gone(&self.mds, class) && !self.mds.data_servers.all().is_empty();
        unknown.then(|| {
            format!("no data server is of class {class}: `sluice ds list` shows which there are, and `sluice ds class` gives one to a data server")
        })
    }
}

fn wanted(given: &str) -> Result<Option<Class>, Refusal> {
    let class = Class::parse(given);
    if class.is_none() && !given.is_empty() {
        return Err(Refusal::No(format!(
            "`{given}` is no name of a class: 1 to {} lower-case letters, digits and hyphens, and neither none nor any",
            Class::MAX
        )));
    }
    Ok(class)
}

fn name(class: Option<Class>) -> Bytes {
    class.map_or_else(Bytes::new, |class| class.to_string().into())
}
