//! `sluice ds add|list|class|ready|drain|undrain|balance|scrub|audit|remove|accept-older`.

mod accept;
mod add;
mod audit;
pub(crate) mod balance;
pub(crate) mod class;
mod drain;
mod list;
mod ready;
mod remove;
mod scrub;
pub(crate) mod shown;

use anyhow::{Result, bail};
use serde_json::json;
use sluice_xdr::control::{ADMIN_SERVERS, ADMIN_SERVERS_res, ADMIN_SERVERS_resok, ctl_intent, ctl_named};

use crate::cli::DsCommand;
use crate::clients::printable;
use crate::reach::Admin;
use crate::status::text;

pub(crate) async fn run(command: DsCommand) -> Result<()> {
    match command {
        DsCommand::Add { serve, once, class, json } => {
            add::run(&serve, &add::How { once, class, json }).await
        }
        DsCommand::List { reach, json } => list::run(&Admin::reach(&reach).await?, json).await,
        DsCommand::Class(options) => class::run(&options).await,
        DsCommand::Ready { address, key } => ready::run(address, key.as_deref()).await,
        DsCommand::Drain { id, limit, no_wait, reach, json } => {
            let how = drain::How { limit: limit.saturating_mul(1 << 20), wait: !no_wait, json };
            drain::run(&Admin::reach(&reach).await?, id, &how).await
        }
        DsCommand::Undrain { id, reach, json } => drain::cancel(&Admin::reach(&reach).await?, id, json).await,
        DsCommand::Balance(options) => balance::run(&options).await,
        DsCommand::Scrub { id, look, stop, no_wait, reach, json } => {
            let how = scrub::How { look, stop, wait: !no_wait, json };
            scrub::run(&Admin::reach(&reach).await?, id, &how).await
        }
        DsCommand::Audit { id, reach, json } => audit::run(&Admin::reach(&reach).await?, id, json).await,
        DsCommand::Remove { id, lost, accept_data_loss, reach, json } => {
            let how = remove::How { lost, agreed: accept_data_loss, json };
            remove::run(&Admin::reach(&reach).await?, id, &how).await
        }
        DsCommand::AcceptOlder { id, reach, json } => {
            accept::run(&Admin::reach(&reach).await?, id, json).await
        }
    }
}

async fn ask(admin: &Admin) -> Result<ADMIN_SERVERS_resok> {
    match admin.call(ADMIN_SERVERS, &()).await? {
        ADMIN_SERVERS_res::CTL_OK(all) => Ok(all),
        ADMIN_SERVERS_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

fn intent(intent: ctl_intent) -> &'static str {
    match intent {
        ctl_intent::INTENT_ACTIVE => "active",
        ctl_intent::INTENT_DRAINING => "draining",
        _ => "drained",
    }
}

/// A file by its first name, and by what finds it.
pub(crate) fn named(file: &ctl_named) -> String {
    let name = if file.name.is_empty() { "?".to_owned() } else { printable(&file.name) };
    let why = if file.reason.is_empty() { String::new() } else { format!(": {}", text(&file.reason)) };
    format!("{name} (find -inum {}){why}", file.file)
}

pub(crate) fn named_json(file: &ctl_named) -> serde_json::Value {
    json!({ "file": file.file, "name": text(&file.name), "reason": text(&file.reason) })
}
