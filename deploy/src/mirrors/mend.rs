//! `sluice mirror mend`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::{ArgGroup, Args};
use serde_json::json;
use sluice_xdr::control::{ADMIN_MEND, ADMIN_MEND_args, ADMIN_MEND_res, ADMIN_MEND_resok};

use super::{file, findings};
use crate::cli::Reach;
use crate::reach::Admin;
use crate::servers::named;
use crate::status::text;

const LOOK: Duration = Duration::from_secs(1);
/// Layouts come back first.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["path", "number", "all"]))]
#[command(group = ArgGroup::new("right").required(true).args(["from", "zeros"]))]
pub(crate) struct Options {
    /// File, from the root of the file system
    #[arg(value_parser = crate::cli::path)]
    path: Option<String>,
    /// The same by its number, of those that the last comparison found to differ
    #[arg(long, value_name = "NUMBER")]
    number: Option<u64>,
    /// All that the last comparison found to differ, where zeros tell
    #[arg(long, requires = "zeros", conflicts_with = "from")]
    all: bool,
    /// What this data server has is right; its ID as in `sluice ds list`
    #[arg(long, value_name = "DS", value_parser = clap::value_parser!(u32).range(1..))]
    from: Option<u32>,
    /// Where one copy is zeros and the others are not, these are right: as the last comparison found
    #[arg(long)]
    zeros: bool,
    /// Do not wait until the copies are equal
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    reach: Reach,
    /// For scripts: a line for each file
    #[arg(long)]
    json: bool,
}

/// An error when a file could not be mended: for scripts.
pub(super) async fn run(how: &Options) -> Result<()> {
    let admin = &Admin::reach(&how.reach).await?;
    if !how.all {
        let path = how.path.clone().unwrap_or_default();
        if how.number.is_none() && path.split('/').all(str::is_empty) {
            bail!("that is no file");
        }
        let shown = how.number.map_or(path.clone(), |number| format!("file {number}"));
        let args = ADMIN_MEND_args {
            path: path.into(),
            file: how.number.unwrap_or(0),
            from: how.from.unwrap_or(0),
            look: false,
        };
        return mend(admin, &shown, args, how).await;
    }
    let Some((last, found)) = findings(admin).await? else {
        bail!(
            "no mirrors were compared since the metadata server's start: sluice mirror compare --all does that"
        );
    };
    if found.is_empty() && !how.json {
        say!("the last comparison found nothing that differs");
    }
    let (mut failed, mut left) = (0, 0);
    for one in &found {
        if !one.by_zeros {
            left += 1;
            continue;
        }
        let shown = named(&file(one));
        let args = ADMIN_MEND_args { file: one.file, ..ADMIN_MEND_args::default() };
        if let Err(error) = mend(admin, &shown, args, how).await {
            failed += 1;
            if how.json {
                say!("{}", json!({ "file": one.file, "error": format!("{error:#}") }));
            } else {
                say!("{error:#}");
            }
        }
    }
    let more = last.differ.saturating_sub(u64::try_from(found.len()).unwrap_or(0));
    match (failed, left, more) {
        (0, 0, 0) => Ok(()),
        (0, left, 0) => bail!("zeros do not tell which copies of {left} files are right: --from does"),
        (0, _, _) => bail!("more files differ than are remembered: compare again"),
        _ => bail!("{failed} files could not be mended"),
    }
}

async fn mend(admin: &Admin, shown: &str, args: ADMIN_MEND_args, how: &Options) -> Result<()> {
    let mut done = ask(admin, shown, &args).await?;
    let (copies, look) = (done.copies, ADMIN_MEND_args { look: true, ..args });
    if !how.json {
        let what = if copies == 1 { "1 copy is" } else { &format!("{copies} copies are") };
        say!("{shown}: {what} made equal to what is right");
    }
    while done.healing && !how.no_wait {
        tokio::time::sleep(LOOK).await;
        done = ask(admin, shown, &look).await?;
    }
    if how.json {
        say!("{}", json!({ "file": done.file, "copies": copies, "healing": done.healing }));
    } else if !done.healing {
        say!("{shown}: its copies are equal");
    }
    Ok(())
}

async fn ask(admin: &Admin, shown: &str, args: &ADMIN_MEND_args) -> Result<ADMIN_MEND_resok> {
    match admin.call_within(PATIENCE, ADMIN_MEND, args).await? {
        ADMIN_MEND_res::CTL_OK(done) => Ok(done),
        ADMIN_MEND_res::Default(_, reason) => bail!("{shown}: {}", text(&reason)),
    }
}
