//! Quotas: showing and changing them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bytes::Bytes;
use sluice_namespace::{Charged, FileId, FsError, Limit, Limits, Quota, Subject, TreeState, Usage};
use sluice_xdr::control::*;

use super::Admin;
use crate::quota::change::{Refusal, Whose};
use crate::quota::standing::short;

/// Shown at a time.
const PAGE: usize = 1_000;

impl Admin {
    pub(super) async fn quotas(&self, args: ADMIN_QUOTAS_args) -> ADMIN_QUOTAS_res {
        match self.found(&args).await {
            Ok((subjects, more)) => match self.told(subjects, more).await {
                Ok(told) => ADMIN_QUOTAS_res::CTL_OK(told),
                Err(error) => unavailable(&error),
            },
            Err(error @ FsError::Kv(_)) => unavailable(&error),
            Err(error) => ADMIN_QUOTAS_res::Default(ctl_status::CTL_ERR_INVAL, error.to_string().into()),
        }
    }

    /// Who is asked about; whether there are more.
    async fn found(&self, args: &ADMIN_QUOTAS_args) -> Result<(Vec<Subject>, bool), FsError> {
        let mds = &self.mds;
        match args.kind {
            ctl_quota_kind::QUOTA_OF_PATH => {
                let inode = mds.walk(&args.path).await?;
                Ok((Charged::of(&inode.record).subjects().collect(), false))
            }
            ctl_quota_kind::QUOTA_EXCEEDED => Ok((mds.quotas.tally().exceeded, false)),
            ctl_quota_kind::QUOTA_TREE if args.one && !args.path.is_empty() => {
                Ok((vec![Subject::Tree(mds.walk(&args.path).await?.key.fileid)], false))
            }
            kind => {
                let like = subject(kind, args.id).ok_or(FsError::Invalid)?;
                if args.one || matches!(like, Subject::AnyUser | Subject::AnyGroup) {
                    return Ok((vec![like], false));
                }
                self.subjects(like, (!args.from_start).then_some(args.id)).await
            }
        }
    }

    /// Those who use something or have limits, in the order of their numbers.
    async fn subjects(&self, like: Subject, after: Option<u64>) -> Result<(Vec<Subject>, bool), FsError> {
        let namespace = &self.mds.namespace;
        let (used, next, limited) = self
            .mds
            .read(|txn| {
                Box::pin(async move {
                    let (used, next) = namespace.usages(&txn, like, after, PAGE).await?;
                    Ok((used, next, namespace.quotas(&txn, like, after, PAGE).await?))
                })
            })
            .await?;
        // As far as both go.
        let mut end = next;
        if limited.len() == PAGE {
            let last = limited.last().map(|quota| quota.subject.code().1);
            end = [end, last].into_iter().flatten().min();
        }
        // What is left of a tree that is gone is nobody's.
        let is_tree = matches!(like, Subject::Tree(_));
        let known = used.into_iter().filter(|_| !is_tree).map(|(subject, _)| subject);
        let both = known.chain(limited.into_iter().map(|quota| quota.subject));
        let mut all: BTreeMap<u64, Subject> = both.map(|subject| (subject.code().1, subject)).collect();
        if let Some(end) = end {
            all.retain(|id, _| *id <= end);
        }
        Ok((all.into_values().collect(), end.is_some()))
    }

    async fn told(&self, subjects: Vec<Subject>, more: bool) -> Result<ADMIN_QUOTAS_resok, FsError> {
        let namespace = &self.mds.namespace;
        let counted = self.mds.read(|txn| Box::pin(async move { namespace.all_counted(&txn).await })).await?;
        let mut quotas = Vec::with_capacity(subjects.len());
        for subject in subjects {
            quotas.extend(self.quota_of(subject).await?);
        }
        Ok(ADMIN_QUOTAS_resok { counting: !counted, now: self.mds.seconds(), quotas, more })
    }

    async fn quota_of(&self, subject: Subject) -> Result<Option<ctl_quota>, FsError> {
        let namespace = &self.mds.namespace;
        let (own, used, over, path) = self
            .mds
            .read(|txn| {
                Box::pin(async move {
                    let own: Option<Quota> = namespace.quota(&txn, subject).await?;
                    let root = own.and_then(|quota| quota.tree).map(|(root, _)| root);
                    let path = match root {
                        Some(root) => namespace.path_of(&txn, &root).await?,
                        None => None,
                    };
                    let used: Usage = namespace.usage(&txn, subject).await?;
                    Ok((own, used, namespace.over_since(&txn, subject).await?, path))
                })
            })
            .await?;
        let limits = match own {
            Some(quota) => quota.limits,
            None => self.mds.quotas.limits(subject).unwrap_or_default(),
        };
        let state = own.and_then(|quota| quota.tree).map(|(_, state)| state);
        let (kind, id) = subject.code();
        Ok(Some(ctl_quota {
            kind: ctl_quota_kind(u32::from(kind)),
            id,
            path: path.unwrap_or_default(),
            own: own.is_some(),
            bytes: wire(limits.bytes),
            files: wire(limits.files),
            grace: limits.grace,
            used_bytes: short(used.bytes),
            used_files: used.files,
            bytes_since: over.bytes.unwrap_or_default(),
            files_since: over.files.unwrap_or_default(),
            filling: state == Some(TreeState::Filling),
            emptying: state == Some(TreeState::Emptying),
        }))
    }

    pub(super) async fn quota(&self, args: ADMIN_QUOTA_args, from: SocketAddr) -> ADMIN_QUOTA_res {
        match self.change_quota(&args).await {
            Ok(()) => {
                trace(&args, from);
                ADMIN_QUOTA_res::CTL_OK
            }
            Err(Refusal::Store(error @ FsError::Kv(_))) => ADMIN_QUOTA_res::Default(
                ctl_status::CTL_ERR_AGAIN,
                format!("the metadata store does not answer: {error}").into(),
            ),
            Err(error @ Refusal::Nothing) => {
                ADMIN_QUOTA_res::Default(ctl_status::CTL_ERR_NOENT, error.to_string().into())
            }
            Err(error) => ADMIN_QUOTA_res::Default(ctl_status::CTL_ERR_INVAL, error.to_string().into()),
        }
    }

    async fn change_quota(&self, args: &ADMIN_QUOTA_args) -> Result<(), Refusal> {
        if args.action == ctl_quota_action::QUOTA_RECOUNT {
            return Ok(self.mds.recount().await?);
        }
        let whose = match args.kind {
            // One whose directory has no path any more is named by its number.
            ctl_quota_kind::QUOTA_TREE if args.path.is_empty() => {
                Whose::Subject(Subject::Tree(FileId(args.id)))
            }
            ctl_quota_kind::QUOTA_TREE => Whose::Tree(self.mds.walk(&args.path).await?.key),
            kind => Whose::Subject(subject(kind, args.id).ok_or(FsError::Invalid)?),
        };
        match args.action {
            ctl_quota_action::QUOTA_SET => {
                let limit = |limit: &ctl_limit| Limit { soft: limit.soft, hard: limit.hard };
                let (bytes, files) = (limit(&args.bytes), limit(&args.files));
                self.mds.set_quota(&whose, Limits { bytes, files, grace: args.grace }).await
            }
            ctl_quota_action::QUOTA_REMOVE => self.mds.remove_quota(&whose).await,
            _ => Err(FsError::Invalid.into()),
        }
    }
}

/// What was done, to whom, by which host.
fn trace(args: &ADMIN_QUOTA_args, from: SocketAddr) {
    let path = String::from_utf8_lossy(&args.path);
    let whose = match args.kind {
        ctl_quota_kind::QUOTA_USER => format!("user {}", args.id),
        ctl_quota_kind::QUOTA_GROUP => format!("group {}", args.id),
        ctl_quota_kind::QUOTA_ANY_USER => "every user".to_owned(),
        ctl_quota_kind::QUOTA_ANY_GROUP => "every group".to_owned(),
        _ if path.is_empty() => format!("tree {}", args.id),
        _ => format!("tree {path}"),
    };
    let (bytes, files) = (&args.bytes, &args.files);
    match args.action {
        ctl_quota_action::QUOTA_SET => tracing::info!(
            %from,
            whose,
            bytes = bytes.hard,
            soft_bytes = bytes.soft,
            files = files.hard,
            soft_files = files.soft,
            grace_seconds = args.grace,
            "an administrator set a quota"
        ),
        ctl_quota_action::QUOTA_REMOVE => tracing::info!(%from, whose, "an administrator removed a quota"),
        _ => tracing::info!(%from, "an administrator has everything counted anew"),
    }
}

fn subject(kind: ctl_quota_kind, id: u64) -> Option<Subject> {
    Subject::from_code(u8::try_from(kind.0).ok()?, id)
}

fn wire(limit: Limit) -> ctl_limit {
    ctl_limit { soft: limit.soft, hard: limit.hard }
}

fn unavailable(error: &FsError) -> ADMIN_QUOTAS_res {
    let why = format!("the metadata store does not answer: {error}");
    ADMIN_QUOTAS_res::Default(ctl_status::CTL_ERR_AGAIN, Bytes::from(why))
}
