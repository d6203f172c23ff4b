//! `sluice ds accept-older`.

use anyhow::{Result, bail};
use serde_json::json;
use sluice_xdr::control::{ADMIN_ACCEPT_OLDER, ADMIN_ACCEPT_OLDER_args, ADMIN_ACCEPT_OLDER_res, ctl_status};

use super::shown::Asking;
use crate::reach::Admin;
use crate::status::text;

pub(super) async fn run(admin: &Admin, id: u32, json: bool) -> Result<()> {
    let mut asking = Asking::new(format!("accepting the older copy at data server {id}"), json);
    let done = loop {
        match admin.call(ADMIN_ACCEPT_OLDER, &ADMIN_ACCEPT_OLDER_args { id }).await? {
            ADMIN_ACCEPT_OLDER_res::CTL_OK(done) => break done,
            ADMIN_ACCEPT_OLDER_res::Default(ctl_status::CTL_ERR_AGAIN, reason) => {
                asking.not_yet(&reason).await?
            }
            ADMIN_ACCEPT_OLDER_res::Default(_, reason) => {
                bail!("the older copy at data server {id} is not accepted: {}", text(&reason));
            }
        }
    };
    drop(asking);
    if json {
        say!("{}", json!({ "id": id, "mark": done.mark, "healed_files": done.files }));
    } else {
        say!(
            "data server {id} goes on with the older copy of its store (mark {}), in a few seconds",
            done.mark
        );
        say!(
            "{} files have another mirror and are healed from that; what is there only is as it was then: `sluice ds audit {id}` shows what is missing",
            done.files
        );
    }
    Ok(())
}
