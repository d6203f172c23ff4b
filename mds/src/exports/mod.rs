//! What clients may mount, and which of them. RFC 8881 §7; docs/adr/0013.
//!
//! | module | what |
//! | --- | --- |
//! | `table` | all exports, and what a client may do through each; in memory, replaced as a whole |
//! | `rules` | which rule of one export holds for whom |
//! | `peer` | where a caller calls from, and who that is by name |
//! | `protection` | what protects the connection that a call came over |
//! | `callers` | finding that out, for rules by name: docs/adr/0042 |
//! | `hosts` | where hosts are that have rules by name |
//! | `lookups` | asking the name service of this host |
//! | `pseudo` | the directories that lead to exports (§7.3) |
//! | `change` | adding, changing and removing them while clients are at work |

pub(crate) mod callers;
pub(crate) mod change;
pub(crate) mod hosts;
pub(crate) mod lookups;
pub(crate) mod peer;
pub(crate) mod protection;
pub(crate) mod pseudo;
pub(crate) mod rules;
pub(crate) mod table;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use lookups::Resolver;
use parking_lot::RwLock;
pub(crate) use peer::Origin;
use sluice_env::Env;
use sluice_kv::{Database, Transaction};
use sluice_namespace::stable_storage::{self, Export, Protection};
use sluice_namespace::{FileHandle, FsError};
pub(crate) use table::{Place, Standing, Table};

use crate::config::Config;
use crate::server::Mds;

/// Exports at most, and rules of one.
pub(crate) const MOST: usize = 1024;

/// The table that holds now.
#[derive(Debug)]
pub(crate) struct Exports {
    now: RwLock<Arc<Table>>,
    /// Held by who changes them. True: what is stored may be another table than this one.
    changing: tokio::sync::Mutex<bool>,
    /// Somebody looks which it is, and does so until that is known.
    settling: AtomicBool,
}

impl Exports {
    /// What is stored, and the root's as configured unless something is stored for it.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn load(env: &Env, db: &Database, config: &Config) -> Result<Self, FsError> {
        let rows = db
            .run_read::<_, FsError, _>(sluice_kv::RunLimits::default(), |txn| {
                Box::pin(async move { read(&txn).await })
            })
            .await?;
        let table = Table::new(rows, &config.root_export, env.clock.wall());
        Ok(Self {
            now: RwLock::new(Arc::new(table)),
            changing: tokio::sync::Mutex::default(),
            settling: AtomicBool::default(),
        })
    }

    pub(crate) fn now(&self) -> Arc<Table> {
        Arc::clone(&self.now.read())
    }
}

/// An export, for an administrator's eye at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSummary {
    /// Begins with a slash.
    pub path: String,
    /// Stored by `sluice export`; else as configured.
    pub stored: bool,
    /// Those that let somebody in.
    pub rules: Vec<stable_storage::Rule>,
    /// The same of rules by name: whom they are for.
    pub names: Vec<String>,
    /// The most that any of them wants of connections.
    pub wants: Protection,
}

impl Mds {
    /// What clients may mount now.
    pub fn exports(&self) -> Vec<ExportSummary> {
        let table = self.exports.now();
        let one = |export: &Export| {
            let by_network = export.rules.iter().filter(|rule| rule.lets_in()).map(|rule| rule.wants);
            let by_name = export.named.iter().filter(|rule| rule.lets_in()).map(|rule| rule.wants);
            ExportSummary {
                path: format!("/{}", String::from_utf8_lossy(&export.path)),
                stored: export.id != FileHandle::ROOT_EXPORT || table.root_is_stored,
                rules: export.rules.iter().filter(|rule| rule.lets_in()).copied().collect(),
                names: export
                    .named
                    .iter()
                    .filter(|rule| rule.lets_in())
                    .map(|rule| rule.clients.to_string())
                    .collect(),
                wants: by_network.chain(by_name).max().unwrap_or_default(),
            }
        };
        table.all().map(one).collect()
    }
}

/// Every row.
async fn read(txn: &Transaction) -> Result<Vec<Export>, FsError> {
    // One more than there can be: the row of a root that is not exported counts too.
    stable_storage::exports(txn, None, MOST + 1).await
}
