//! `sluice ds remove`.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result, bail};
use serde_json::json;
use sluice_xdr::control::{
    ADMIN_REMOVE, ADMIN_REMOVE_args, ADMIN_REMOVE_res, ADMIN_REMOVE_resok, ctl_status,
};

use super::shown::Asking;
use super::{named, named_json};
use crate::out::aside;
use crate::reach::Admin;
use crate::status::text;

/// How it is asked for.
pub(super) struct How {
    /// What it holds is lost.
    pub(super) lost: bool,
    /// Nobody needs to be asked.
    pub(super) agreed: bool,
    pub(super) json: bool,
}

pub(super) async fn run(admin: &Admin, id: u32, how: &How) -> Result<()> {
    let mut done = ask(admin, id, how, None).await?;
    if !done.removed {
        tell(id, &done);
        if !how.agreed && !confirmed(id, done.files)? {
            bail!("data server {id} was not removed");
        }
        let files = done.files;
        done = ask(admin, id, how, Some(files)).await?;
        if !done.removed {
            bail!(
                "data server {id} was not removed: other files would be lost than a moment ago, run it again"
            );
        }
    }
    if how.json {
        let lost: Vec<_> = done.examples.iter().map(named_json).collect();
        say!("{}", json!({ "id": id, "removed": true, "lost_files": done.files, "examples": lost }));
    } else {
        say!("data server {id} is removed: stop it, and do not start it again on this store");
        say!("make a dump (`sluice meta dump`): those of before look for files where they were");
    }
    Ok(())
}

async fn ask(admin: &Admin, id: u32, how: &How, agreed: Option<u64>) -> Result<ADMIN_REMOVE_resok> {
    let mut asking = Asking::new(format!("removing data server {id}"), how.json);
    loop {
        let args = ADMIN_REMOVE_args { id, lost: how.lost, agreed: agreed.into_iter().collect() };
        match admin.call(ADMIN_REMOVE, &args).await? {
            ADMIN_REMOVE_res::CTL_OK(done) => return Ok(done),
            ADMIN_REMOVE_res::Default(ctl_status::CTL_ERR_AGAIN, reason) => asking.not_yet(&reason).await?,
            ADMIN_REMOVE_res::Default(_, reason) => {
                bail!("data server {id} cannot be removed: {}", text(&reason));
            }
        }
    }
}

/// On standard error: it is no result.
fn tell(id: u32, loss: &ADMIN_REMOVE_resok) {
    if loss.files == 0 {
        aside(format_args!("nothing is lost with data server {id}"));
        return;
    }
    let files = if loss.files == 1 { "file has" } else { "files have" };
    aside(format_args!(
        "{} {files} data on data server {id} and nowhere else; it is lost with it:",
        loss.files
    ));
    loss.examples.iter().for_each(|file| aside(format_args!("  {}", named(file))));
    let more = loss.files.saturating_sub(u64::try_from(loss.examples.len()).unwrap_or(0));
    if more > 0 {
        aside(format_args!("  and {more} more"));
    }
}

fn confirmed(id: u32, files: u64) -> Result<bool> {
    if files == 0 {
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        bail!("data server {id} was not removed: nobody to ask; --accept-data-loss agrees");
    }
    let mut asked = std::io::stderr();
    asked.write_all(b"type the number of files to lose them: ").context("cannot write to standard error")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(answer.trim() == files.to_string())
}
