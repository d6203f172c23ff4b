//! What files should have: data files that were written to, with mirrors that end alike.

use std::collections::BTreeMap;

use sluice_namespace::{DataFile, DataFileId, FsError, InodeKey, StoreId};
use sluice_xdr::control::*;

use super::{Judged, Page, SETTLE, untouched, wire, words};
use crate::admin::Admin;
use crate::dsctl::stats;
use crate::server::Mds;

/// Owners of a page.
const OWNERS: usize = 128;

/// What data servers say of data files; those on data servers that do not answer are not in it.
type Stats = BTreeMap<(DataFileId, u16), ctl_stat>;

/// A file, and what it should have.
struct Owner {
    key: InodeKey,
    id: DataFileId,
    judged: Judged,
}

impl Owner {
    /// The columns, with what is read of them. What was to move away from a data server that was
    /// removed does not.
    fn columns<'a>(&'a self, mds: &'a Mds) -> impl Iterator<Item = Vec<DataFile>> + 'a {
        let layout = self.judged.inode.layout().filter(|layout| layout.id == self.id);
        let there = |placed: &DataFile| !placed.moving || mds.data_servers.is_removed(placed.store);
        let read = move |placed: &&DataFile| placed.materialised && !placed.stale && there(placed);
        let columns = layout.into_iter().flat_map(|layout| layout.columns());
        columns.map(move |column| column.iter().filter(read).copied().collect())
    }

    /// Its mirrors may differ, and are about to be made equal.
    fn is_healing(&self) -> bool {
        self.judged.inode.layout().is_some_and(|layout| layout.is_degraded())
    }
}

/// The page with the data files up to its end, each of which was seen or skipped.
fn told(page: ADMIN_AUDIT_resok, looked: &[(DataFileId, bool)]) -> ADMIN_AUDIT_resok {
    let count = |which: fn(bool) -> bool| {
        let those = looked.iter().filter(|(id, seen)| id.0 <= page.next.file && which(*seen));
        u64::try_from(those.count()).unwrap_or(u64::MAX)
    };
    ADMIN_AUDIT_resok { examined: count(|_| true), skipped: count(|seen| !seen), ..page }
}

impl Admin {
    /// A page of files, and what they miss.
    pub(super) async fn owned(&self, args: ADMIN_AUDIT_args) -> Page {
        let ADMIN_AUDIT_args { after, only, .. } = args;
        let meant = |server: u32| only == 0 || server == only;
        let (namespace, from) = (&self.mds.namespace, DataFileId(after.file));
        let from = (from.0 != 0).then_some(from);
        let rows = self
            .mds
            .read(|txn| Box::pin(async move { namespace.data_file_owners(&txn, from, OWNERS).await }));
        let rows = rows.await.map_err(words)?;
        let mut page = ADMIN_AUDIT_resok {
            next: rows.last().map_or(after, |(id, _)| ctl_data_file { file: id.0, ..after }),
            eof: rows.len() < OWNERS,
            ..ADMIN_AUDIT_resok::default()
        };
        let owners = self.owners(&rows).await.map_err(words)?;
        let before = self.look(&owners).await;
        let mut looked = Vec::new();
        let mut suspects = Vec::new();
        for owner in owners {
            let here = owner.columns(&self.mds).flatten().filter(|placed| meant(placed.store.0.into()));
            looked.extend(here.map(|placed| (owner.id, before.contains_key(&(owner.id, placed.slot)))));
            if self.misfits(&owner, &before).await.iter().any(|finding| meant(finding.data_server)) {
                suspects.push((owner.id, owner.key));
            }
        }
        if suspects.is_empty() {
            return Ok(told(page, &looked));
        }
        self.mds.env.clock.sleep(SETTLE).await;
        // It may have been removed, or replaced, since it was read who owns what.
        let owners = self.owners(&suspects).await.map_err(words)?;
        let mut now = self.look(&owners).await;
        now.retain(|file, stat| before.get(file).is_some_and(|before| untouched(before, stat)));
        let most = CTL_FILES_MAX as usize;
        let mut last = after;
        for owner in owners {
            let mut found = self.misfits(&owner, &now).await;
            found.retain(|finding| meant(finding.data_server));
            if !page.findings.is_empty() && page.findings.len() + found.len() > most {
                // The others are told with the next page.
                (page.next, page.eof) = (last, false);
                break;
            }
            found.truncate(most);
            page.findings.append(&mut found);
            last = ctl_data_file { file: owner.id.0, ..after };
        }
        Ok(told(page, &looked))
    }

    async fn owners(&self, rows: &[(DataFileId, InodeKey)]) -> Result<Vec<Owner>, FsError> {
        let mut owners = Vec::with_capacity(rows.len());
        for &(id, key) in rows {
            let judged = self.judged(&key).await?;
            owners.extend(judged.map(|judged| Owner { key, id, judged }));
        }
        Ok(owners)
    }

    /// Asks the data servers. One that was removed has nothing: whoever still names it has lost what was there.
    async fn look(&self, owners: &[Owner]) -> Stats {
        let mut by_store: BTreeMap<StoreId, Vec<(DataFileId, DataFile)>> = BTreeMap::new();
        for owner in owners {
            for placed in owner.columns(&self.mds).flatten() {
                by_store.entry(placed.store).or_default().push((owner.id, placed));
            }
        }
        let mut found = Stats::new();
        for (id, files) in by_store {
            let Some(store) = self.mds.data_servers.get(id) else { continue };
            for some in files.chunks(CTL_FILES_MAX as usize) {
                let asked: Vec<ctl_data_file> = some.iter().map(|(id, placed)| wire(*id, placed)).collect();
                let told = match store.is_removed() {
                    true => Some(vec![ctl_stat::default(); asked.len()]),
                    false => stats(&store, &asked).await,
                };
                let named = some.iter().map(|(id, placed)| (*id, placed.slot));
                found.extend(named.zip(told.unwrap_or_default()));
            }
        }
        found
    }

    /// What does not fit of one file.
    async fn misfits(&self, owner: &Owner, stats: &Stats) -> Vec<ctl_audit_finding> {
        let mut found = Vec::new();
        let mut unequal = Vec::new();
        for column in owner.columns(&self.mds) {
            let there: Vec<(DataFile, &ctl_stat)> = column
                .into_iter()
                .filter_map(|placed| Some((placed, stats.get(&(owner.id, placed.slot))?)))
                .collect();
            // What is beyond the end of the file is a finding of its own.
            let end = |stat: &ctl_stat| stat.size.min(owner.judged.inode.size());
            let longest = there.iter().map(|(_, stat)| end(stat)).max().unwrap_or_default();
            for (placed, stat) in there {
                let finding = ctl_audit_finding {
                    data_server: placed.store.0.into(),
                    file: wire(owner.id, &placed),
                    size: stat.size,
                    ..ctl_audit_finding::default()
                };
                if !stat.exists {
                    let kind = ctl_audit_kind::AUDIT_MISSING;
                    found.push(ctl_audit_finding { kind, ..finding });
                } else if end(stat) < longest {
                    let kind = ctl_audit_kind::AUDIT_UNEQUAL;
                    unequal.push(ctl_audit_finding { kind, expected: longest, ..finding });
                }
            }
        }
        // Somebody who writes to two mirrors is not with both at once.
        if !owner.is_healing() && !owner.judged.in_use {
            found.append(&mut unequal);
        }
        for finding in &mut found {
            *finding = self.of_file(&owner.judged.inode, finding.clone()).await;
        }
        found
    }
}
