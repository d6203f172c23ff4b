//! `sluice ds class`, and what is shown of classes elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};
use sluice_namespace::{Class, LayoutPolicy};
use sluice_xdr::control::{
    ADMIN_CLASS, ADMIN_CLASS_args, ADMIN_CLASS_res, ADMIN_CLASS_resok, ADMIN_CLASSES, ADMIN_CLASSES_resok,
    ctl_data_server_status, ctl_health,
};

use crate::cli::Reach;
use crate::out::aside;
use crate::reach::Admin;
use crate::status::{size, table, text};

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// As in `sluice ds list`
    id: u32,
    /// Its class from now on: 1 to 32 lower-case letters, digits and hyphens [default: show the one it has]
    #[arg(value_parser = name)]
    class: Option<String>,
    /// It has none from now on
    #[arg(long, conflicts_with = "class")]
    none: bool,
    #[command(flatten)]
    reach: Reach,
    /// For scripts
    #[arg(long)]
    json: bool,
}

/// A class, as it is given on a command line.
pub(crate) fn name(given: &str) -> Result<String, String> {
    let class = Class::parse(given).map(|class| class.to_string());
    class.ok_or_else(|| {
        "1 to 32 lower-case letters, digits and hyphens, the first no hyphen, and neither none nor any"
            .to_owned()
    })
}

/// The same, or that there is none.
pub(crate) fn name_or_none(given: &str) -> Result<String, String> {
    if given == LayoutPolicy::NO_CLASS { Ok(given.to_owned()) } else { name(given) }
}

pub(super) async fn run(how: &Options) -> Result<()> {
    let admin = Admin::reach(&how.reach).await?;
    let id = how.id;
    let given = match &how.class {
        Some(class) => class.clone(),
        None if how.none => String::new(),
        None => {
            let known: ADMIN_CLASSES_resok = admin.call(ADMIN_CLASSES, &()).await?;
            let Some(found) = known.servers.iter().find(|server| server.id == id) else {
                bail!("there is no data server {id}: sluice ds list shows them");
            };
            show(id, &text(&found.class), how.json);
            return Ok(());
        }
    };
    let changed = set(&admin, id, &given).await?;
    show(id, &given, how.json);
    if let Some(warning) = warning(&changed, &given) {
        aside(format_args!("warning: {warning}"));
    }
    Ok(())
}

/// Gives a data server a class, or takes it away with "".
///
/// # Errors
/// Why not.
pub(super) async fn set(admin: &Admin, id: u32, class: &str) -> Result<ADMIN_CLASS_resok> {
    match admin.call(ADMIN_CLASS, &ADMIN_CLASS_args { id, class: class.to_owned().into() }).await? {
        ADMIN_CLASS_res::CTL_OK(changed) => Ok(changed),
        ADMIN_CLASS_res::Default(_, reason) => bail!("{}", text(&reason)),
    }
}

fn show(id: u32, class: &str, json: bool) {
    if json {
        say!("{}", json!({ "id": id, "class": known(class) }));
    } else if class.is_empty() {
        say!("data server {id} has no class");
    } else {
        say!("data server {id} is of class {class}");
    }
}

fn known(class: &str) -> Option<&str> {
    Some(class).filter(|class| !class.is_empty())
}

/// What new files find no place for any more, or another one.
fn warning(changed: &ADMIN_CLASS_resok, now: &str) -> Option<String> {
    let before = text(&changed.before);
    match () {
        () if changed.left > 0 || before == now => None,
        () if before.is_empty() => Some(
            "no data server without a class is in use any more: directories whose policy names no class place their files on all data servers, of whatever class, once none is left".to_owned(),
        ),
        () => Some(format!(
            "no data server of class {before} is in use any more: no file is made in directories whose policy names it, unless small and kept in the metadata"
        )),
    }
}

/// The classes of data servers that have one. A metadata server that is too old to tell knows of none.
pub(crate) async fn all(admin: &Admin) -> BTreeMap<u32, String> {
    let told: ADMIN_CLASSES_resok = admin.call(ADMIN_CLASSES, &()).await.unwrap_or_default();
    let classed = told.servers.into_iter().map(|server| (server.id, text(&server.class)));
    classed.filter(|(_, class)| !class.is_empty()).collect()
}

/// What scripts are told of a data server, with its class.
pub(crate) fn told(mut server: Value, id: u32, classes: &BTreeMap<u32, String>) -> Value {
    server["class"] = classes.get(&id).cloned().into();
    server
}

/// How full the data servers of one class are, or those of none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) class: Option<String>,
    servers: Vec<u32>,
    /// Bytes.
    capacity: u64,
    used: u64,
    free: u64,
    /// So many of them take new files, as far as their devices go.
    healthy: usize,
}

/// By class, those without one first; nothing where there are no classes. A device that several share counts once in a class.
pub(crate) fn totals(servers: &[ctl_data_server_status], classes: &BTreeMap<u32, String>) -> Vec<Total> {
    if classes.is_empty() {
        return Vec::new();
    }
    let mut all: BTreeMap<Option<&String>, (Total, BTreeSet<[u8; 16]>)> = BTreeMap::new();
    for server in servers {
        let class = classes.get(&server.id);
        let (total, devices) = all.entry(class).or_default();
        total.class = class.cloned();
        total.servers.push(server.id);
        total.healthy += usize::from(server.connected && server.health == ctl_health::HEALTH_OK);
        let device = server.capacity.device.0;
        if device == [0; 16] || devices.insert(device) {
            total.capacity = total.capacity.saturating_add(server.capacity.total_bytes);
            total.used = total.used.saturating_add(server.capacity.used_bytes);
            total.free = total.free.saturating_add(server.capacity.free_bytes);
        }
    }
    all.into_values().map(|(total, _)| total).collect()
}

impl Total {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "class": self.class,
            "data_servers": self.servers,
            "capacity_bytes": self.capacity,
            "used_bytes": self.used,
            "free_bytes": self.free,
        })
    }
}

pub(crate) fn show_totals(totals: &[Total]) {
    let mut rows = vec![["CLASS", "DATA SERVERS", "USED", "FREE"].map(str::to_owned)];
    rows.extend(totals.iter().map(|total| {
        let ids: Vec<String> = total.servers.iter().map(u32::to_string).collect();
        let class = total.class.clone().unwrap_or_else(|| "-".to_owned());
        [class, ids.join(","), size(total.used), size(total.free)]
    }));
    table(&rows);
}

/// Of classes whose data servers are all full, away, or fail.
pub(crate) fn warnings(totals: &[Total]) -> impl Iterator<Item = String> {
    totals.iter().filter(|total| total.healthy == 0).map(|total| match &total.class {
        Some(class) => format!(
            "warning: no data server of class {class} takes new files: none is made in directories whose policy names it (add one, or free some space)"
        ),
        None => "warning: no data server without a class takes new files: none is made in directories whose policy names no class (add one, or free some space)".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use sluice_xdr::control::{ctl_capacity, ctl_uuid};

    use super::*;

    fn server(id: u32, device: u8, free_bytes: u64) -> ctl_data_server_status {
        let capacity = ctl_capacity {
            total_bytes: 100,
            free_bytes,
            used_bytes: 100 - free_bytes,
            device: ctl_uuid([device; 16]),
            ..ctl_capacity::default()
        };
        ctl_data_server_status { id, capacity, connected: true, ..ctl_data_server_status::default() }
    }

    #[test]
    fn totals_are_by_class_and_a_shared_device_counts_once() {
        let servers = [server(1, 1, 60), server(2, 2, 70), server(3, 2, 70), server(4, 4, 10)];
        assert_eq!(totals(&servers, &BTreeMap::new()), []);
        let classes = BTreeMap::from([2, 3].map(|id| (id, "archive".to_owned())));
        let all = totals(&servers, &classes);
        let [plain, archive] = &all[..] else { panic!() };
        assert_eq!(
            (plain.class.as_ref(), &plain.servers[..], plain.free, plain.used),
            (None, &[1, 4][..], 70, 130)
        );
        assert_eq!((archive.class.as_deref(), archive.free, archive.capacity), (Some("archive"), 70, 100));
        assert_eq!(archive.to_json()["data_servers"], json!([2, 3]));
    }

    #[test]
    fn a_class_of_which_nobody_takes_new_files_is_warned_of() {
        let mut servers = [server(1, 1, 60), server(2, 2, 0), server(3, 3, 70)];
        servers[1].health = ctl_health::HEALTH_FULL;
        let classes = BTreeMap::from([2, 3].map(|id| (id, "archive".to_owned())));
        assert_eq!(warnings(&totals(&servers, &classes)).count(), 0);
        servers[2].connected = false;
        let said: Vec<_> = warnings(&totals(&servers, &classes)).collect();
        assert!(said.len() == 1 && said[0].contains("of class archive takes new files"), "{said:?}");
    }

    #[test]
    fn who_takes_the_last_one_of_a_class_away_is_warned() {
        let changed = |before: &'static str, left| ADMIN_CLASS_resok { before: before.into(), left };
        assert_eq!(warning(&changed("archive", 1), ""), None);
        assert_eq!(warning(&changed("archive", 0), "archive"), None);
        assert!(
            warning(&changed("archive", 0), "nvme").unwrap().contains("of class archive is in use any more")
        );
        assert!(warning(&changed("", 0), "nvme").unwrap().contains("without a class"));
    }

    #[test]
    fn what_is_no_name_of_a_class_is_refused_where_it_is_given() {
        assert_eq!(name("nvme-2").as_deref(), Ok("nvme-2"));
        assert_eq!(name_or_none("none").as_deref(), Ok("none"));
        for wrong in ["", "none", "any", "NVMe", "-x", "a,b"] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
