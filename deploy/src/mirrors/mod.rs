//! `sluice mirror compare|mend|set`.

mod compare;
mod mend;
mod set;

use anyhow::{Result, bail};
use clap::Subcommand;
use serde_json::{Value, json};
use sluice_xdr::control::{
    ADMIN_COMPARE, ADMIN_COMPARE_args, ADMIN_COMPARE_res, ctl_compare, ctl_compare_state, ctl_compare_what,
    ctl_differing, ctl_missed, ctl_named,
};

use crate::clients::printable;
use crate::reach::Admin;
use crate::servers::{named, named_json};
use crate::status::text;

#[derive(Debug, Subcommand)]
pub(crate) enum Mirror {
    /// Compare the copies of mirrored files while clients use them, and say which is the odd one. Data servers read what
    /// they have; no data crosses the network
    Compare(compare::Options),
    /// Make the copies of a file equal to the one that is right, while clients use it
    Mend(mend::Options),
    /// Give files that exist more copies, or fewer, while clients use them
    Set(set::Options),
}

pub(crate) async fn run(command: Mirror) -> Result<()> {
    match command {
        Mirror::Compare(options) => compare::run(&options).await,
        Mirror::Mend(options) => mend::run(&options).await,
        Mirror::Set(options) => set::run(&options).await,
    }
}

/// What the metadata server knows of a comparison, with findings behind the first `after`.
async fn ask(admin: &Admin, args: &ADMIN_COMPARE_args) -> Result<Option<ctl_compare>> {
    match admin.call(ADMIN_COMPARE, args).await? {
        ADMIN_COMPARE_res::CTL_OK(told) => Ok(told.last.into_iter().next()),
        ADMIN_COMPARE_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

async fn look(admin: &Admin, after: usize) -> Result<Option<ctl_compare>> {
    let after = u32::try_from(after).unwrap_or(u32::MAX);
    let what = ctl_compare_what::COMPARE_LOOK;
    ask(admin, &ADMIN_COMPARE_args { what, after, ..ADMIN_COMPARE_args::default() }).await
}

/// All that is remembered of what differs; the numbers are those of the last look.
async fn findings(admin: &Admin) -> Result<Option<(ctl_compare, Vec<ctl_differing>)>> {
    let mut all = Vec::new();
    loop {
        let Some(mut now) = look(admin, all.len()).await? else { return Ok(None) };
        let more = std::mem::take(&mut now.findings);
        let over = more.is_empty();
        all.extend(more);
        if over || all.len() >= usize::try_from(now.kept).unwrap_or(0) {
            return Ok(Some((now, all)));
        }
    }
}

fn file(found: &ctl_differing) -> ctl_named {
    ctl_named { file: found.file, name: found.name.clone(), reason: Default::default() }
}

/// Files that something was not done with; `what` is the word for it.
fn missed(what: &str, one: &ctl_missed) -> Vec<String> {
    let files = if one.files == 1 { "1 file" } else { &format!("{} files", one.files) };
    let mut lines = vec![format!("{what}: {files}, {}", printable(&one.reason))];
    lines.extend(one.examples.iter().map(|file| format!("  {}", named(file))));
    let more = one.files.saturating_sub(u64::try_from(one.examples.len()).unwrap_or(0));
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines
}

fn missed_json(one: &ctl_missed) -> Value {
    json!({
        "reason": text(&one.reason),
        "files": one.files,
        "examples": one.examples.iter().map(named_json).collect::<Vec<_>>(),
    })
}

fn state(state: ctl_compare_state) -> &'static str {
    match state {
        ctl_compare_state::COMPARE_RUNNING => "running",
        ctl_compare_state::COMPARE_DONE => "done",
        _ => "stopped",
    }
}
