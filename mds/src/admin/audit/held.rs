//! One data server: what it has, and the fences that it should have.

use std::collections::BTreeSet;

use sluice_namespace::stable_storage::{Fence, PendingFence, fences};
use sluice_namespace::{DataFile, DataFileId, FsError, StoreId};
use sluice_xdr::control::*;

use super::{Judged, Page, SETTLE, untouched, words};
use crate::admin::Admin;
use crate::dsctl::{Damage, StoreHandle, inventory, stats};

/// Data files of a page: with two findings each, and the fences, it is never more than a reply carries.
const PAGE: u32 = 256;
/// Fences of a data server that are looked at.
const FENCES: usize = 256;
/// An order may take ten seconds, and waits for writes that are on their way.
const FENCE_LOOKS: u32 = 7;

/// What the metadata says of a data file at one moment.
enum Claim {
    /// It belongs to this file.
    Owned(Box<Judged>, DataFile),
    /// It is to be removed, or to take the place of another one.
    Pending,
    None,
}

impl Admin {
    /// A page of what one data server has.
    pub(super) async fn held(&self, args: ADMIN_AUDIT_args) -> Page {
        let id = u16::try_from(args.id).map(StoreId).ok();
        let store = id.and_then(|id| self.mds.data_servers.get(id)).filter(|store| !store.is_removed());
        let store =
            store.ok_or_else(|| format!("there is no data server {}: sluice ds list shows them", args.id))?;
        let found = inventory(&store, args.after, PAGE).await?;
        let mut page = ADMIN_AUDIT_resok {
            examined: u64::try_from(found.entries.len()).unwrap_or(u64::MAX),
            next: found.entries.last().map_or(args.after, |entry| entry.file),
            eof: found.eof,
            ..ADMIN_AUDIT_resok::default()
        };
        if args.after == ctl_data_file::default() {
            page.findings = self.fences(&store).await.map_err(words)?;
        }
        let mut suspects = Vec::new();
        for entry in found.entries {
            let claim = self.claim(store.id, &entry.file).await.map_err(words)?;
            if !self.suspicions(&store, &entry, claim).await.is_empty() {
                suspects.push(entry);
            }
        }
        if suspects.is_empty() {
            return Ok(page);
        }
        self.mds.env.clock.sleep(SETTLE).await;
        // The metadata first: what changes after that shows at the data server as touched.
        let mut claims = Vec::with_capacity(suspects.len());
        for suspect in &suspects {
            claims.push(self.claim(store.id, &suspect.file).await.map_err(words)?);
        }
        let files: Vec<ctl_data_file> = suspects.iter().map(|entry| entry.file).collect();
        let now = stats(&store, &files).await;
        let now = now.ok_or_else(|| format!("data server {} does not answer", args.id))?;
        for ((before, stat), claim) in suspects.into_iter().zip(now).zip(claims) {
            // Gone, or written to: it was on its way.
            if untouched(&before.stat, &stat) {
                let entry = ctl_inventory_entry { stat, ..before };
                page.findings.extend(self.suspicions(&store, &entry, claim).await);
            }
        }
        Ok(page)
    }

    async fn suspicions(
        &self,
        store: &StoreHandle,
        entry: &ctl_inventory_entry,
        claim: Claim,
    ) -> Vec<ctl_audit_finding> {
        let finding = ctl_audit_finding {
            kind: ctl_audit_kind::AUDIT_NO_OWNER,
            data_server: store.id.0.into(),
            file: entry.file,
            size: entry.stat.size,
            ..ctl_audit_finding::default()
        };
        let (owner, placed) = match claim {
            Claim::Pending => return Vec::new(),
            Claim::None => return vec![finding],
            Claim::Owned(owner, placed) => (owner, placed),
        };
        // What is filled, or missed writes, is not read.
        if placed.stale || placed.moving {
            return Vec::new();
        }
        let mut found = Vec::new();
        if let Some(damaged) = damaged(&store.damage(), &finding, &placed) {
            found.push(self.of_file(&owner.inode, damaged).await);
        }
        if entry.stat.size > owner.inode.size() && !owner.in_use {
            let kind = ctl_audit_kind::AUDIT_BEYOND;
            let beyond = ctl_audit_finding { kind, expected: owner.inode.size(), ..finding };
            found.push(self.of_file(&owner.inode, beyond).await);
        }
        found
    }

    async fn claim(&self, store: StoreId, file: &ctl_data_file) -> Result<Claim, FsError> {
        let (id, Ok(slot)) = (DataFileId(file.file), u16::try_from(file.slot)) else {
            return Ok(Claim::None);
        };
        let namespace = &self.mds.namespace;
        let before = match slot.checked_sub(1) {
            Some(slot) => (id, slot),
            None => (DataFileId(id.0.saturating_sub(1)), u16::MAX),
        };
        let owner = self.mds.read(|txn| Box::pin(async move { namespace.data_file_owner(&txn, id).await }));
        let owner = match owner.await? {
            Some(key) => self.judged(&key).await?,
            None => None,
        };
        let placed = owner.as_ref().and_then(|owner| owner.inode.layout()).and_then(|layout| {
            let mut mine = layout.data_files().filter(|placed| layout.id == id && placed.slot == slot);
            mine.find(|placed| placed.store == store).copied()
        });
        if let (Some(owner), Some(placed)) = (owner, placed) {
            return Ok(Claim::Owned(Box::new(owner), placed));
        }
        let pending = self.mds.read(|txn| {
            Box::pin(async move {
                let spares = namespace.spares(&txn, Some(before), 1).await?;
                let spare = spares.iter().any(|spare| (spare.id, spare.slot) == (id, slot));
                Ok(spare || namespace.is_garbage(&txn, id).await?)
            })
        });
        Ok(if pending.await? { Claim::Pending } else { Claim::None })
    }

    /// Fences that were to hold at a data server that answers, and that it does not confirm. One that is away hears of
    /// them before it serves anybody.
    async fn fences(&self, store: &StoreHandle) -> Result<Vec<ctl_audit_finding>, FsError> {
        let id = store.id;
        let rows =
            async || self.mds.read(|txn| Box::pin(async move { fences(&txn, id, None, FENCES).await })).await;
        let mut pending = rows().await?;
        for _ in 0..FENCE_LOOKS {
            if pending.is_empty() {
                break;
            }
            self.mds.env.clock.sleep(SETTLE).await;
            let now: BTreeSet<u64> = rows().await?.iter().map(|row| row.id).collect();
            pending.retain(|row| now.contains(&row.id));
        }
        Ok(pending.iter().map(|row| unconfirmed(store, row)).collect())
    }
}

/// What of it is in quarantine.
fn damaged(told: &Damage, of: &ctl_audit_finding, placed: &DataFile) -> Option<ctl_audit_finding> {
    let ranges = told.of(DataFileId(of.file.file), placed.slot);
    (!ranges.is_empty()).then(|| ctl_audit_finding {
        kind: ctl_audit_kind::AUDIT_DAMAGED,
        size: ranges.iter().map(|(_, length)| length).sum(),
        expected: u64::try_from(ranges.len()).unwrap_or(u64::MAX),
        ..of.clone()
    })
}

fn unconfirmed(store: &StoreHandle, row: &PendingFence) -> ctl_audit_finding {
    let (holder, file) = match row.fence {
        Fence::Holder { holder } => (holder, ctl_data_file::default()),
        Fence::HolderFile { holder, file } => {
            (holder, ctl_data_file { file: file.0, ..ctl_data_file::default() })
        }
        Fence::Generation { file, slot, generation } => {
            (0, ctl_data_file { file: file.0, slot: slot.into(), generation: generation.into() })
        }
    };
    ctl_audit_finding {
        kind: ctl_audit_kind::AUDIT_FENCE,
        data_server: store.id.0.into(),
        file,
        holder,
        ..ctl_audit_finding::default()
    }
}
