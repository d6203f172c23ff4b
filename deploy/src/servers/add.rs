//! `sluice ds add`: what is looked at before a data server is first started, and its registration.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;
use sluice_xdr::control::{ctl_address, ctl_server};

use super::{ask, class};
use crate::doctor::network::probe;
use crate::out::aside;
use crate::reach::Admin;
use crate::status::{address, size};
use crate::{cli, descriptors, ds, logs, owner};

/// A metadata server that is there answers sooner.
const PATIENCE: Duration = Duration::from_secs(30);
/// So long a class is tried to be given.
const CLASSED: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
const DRAIN: Duration = Duration::from_secs(5);

/// How it is asked for.
pub(super) struct How {
    /// Only if that is the first time.
    pub(super) once: bool,
    pub(super) class: Option<String>,
    pub(super) json: bool,
}

pub(super) async fn run(options: &cli::Serve, how: &How) -> Result<()> {
    logs::start();
    descriptors::raise();
    let dir = &options.data_dir;
    if let Some(owner) = owner::become_owner(dir)? {
        aside(format_args!("{} is {owner}'s: so will be what is made there", dir.display()));
    }
    owner::may_use_store(dir)?;
    if how.once && ds::has_store(dir)? {
        if how.json {
            say!("{}", json!({ "was_there": true }));
        } else {
            say!("{} has a store already: it is left as it is", dir.display());
        }
        if let Some(class) = &how.class {
            aside(format_args!(
                "whether it is of class {class} was not looked at: `sluice ds list` shows it, `sluice ds class` sets it"
            ));
        }
        return Ok(());
    }
    let (addresses, advertised) = ds::addresses(options)?;
    let mds = &options.mds;
    let admin = Admin::connect_to_any(&addresses, ds::keys(options)?)
        .await
        .with_context(|| format!("the metadata server {mds} cannot be reached, or has another key"))?;
    let before = ask(&admin).await?;
    if how.once {
        at_none_of(&advertised, &before.servers, dir)?;
    }
    fit(&options.data_dir)?;
    let server = ds::start(options, true).await?;
    let begin = Instant::now();
    while !server.status().serving {
        if begin.elapsed() > PATIENCE {
            server.shutdown(DRAIN).await;
            bail!(
                "the metadata server {mds} does not take it: see why in the lines above, or in sluice doctor"
            );
        }
        tokio::time::sleep(LOOK).await;
    }
    let id = u32::from(server.status().store_id);
    // At once: until then files go there that name no class.
    let classed = match &how.class {
        Some(class) => give(&admin, id, class).await,
        None => Ok(()),
    };
    let after = ask(&admin).await?;
    for warning in doubts(id, &advertised, &after.servers).await {
        aside(format_args!("warning: {warning}"));
    }
    server.shutdown(DRAIN).await;
    classed.with_context(|| {
        format!("data server {id} is registered, and has no class: give it one with `sluice ds class {id}`")
    })?;
    let known = before.servers.iter().any(|known| known.status.id == id);
    let Some(new) = after.servers.iter().find(|server| server.status.id == id) else {
        bail!("data server {id} is registered and not in the list: was it removed just now?");
    };
    if how.json {
        let told = json!({
            "id": id,
            "was_there": known,
            "address": address(&new.status),
            "free_bytes": new.status.capacity.free_bytes,
            "class": how.class,
        });
        say!("{told}");
        return Ok(());
    }
    say!(
        "data server {id} {}: clients are told {}, {} free{}",
        if known { "was there already" } else { "is added" },
        address(&new.status),
        size(new.status.capacity.free_bytes),
        how.class.as_ref().map_or_else(String::new, |class| format!(", of class {class}"))
    );
    say!("start it now: {}", command(options));
    Ok(())
}

/// Gives it its class, of a metadata server that may be another one by now.
async fn give(admin: &Admin, id: u32, class: &str) -> Result<()> {
    let begin = Instant::now();
    loop {
        match class::set(admin, id, class).await {
            Err(_) if begin.elapsed() < CLASSED => tokio::time::sleep(LOOK).await,
            done => return done.map(drop),
        }
    }
}

/// Refuses a second store in place of one that is not there now. What is at the same address was served from the same directory, as
/// far as anybody knows.
fn at_none_of(advertised: &[SocketAddr], known: &[ctl_server], dir: &Path) -> Result<()> {
    for told in advertised {
        if let Some(there) =
            known.iter().find(|server| server.status.addresses.iter().any(|at| is_at(at, *told)))
        {
            bail!(
                "data server {id} is registered at {told}, and {} has no store: is the device mounted? (if it is lost: sluice ds drain {id}, then sluice ds remove {id} --lost)",
                dir.display(),
                id = there.status.id
            );
        }
    }
    Ok(())
}

fn is_at(at: &ctl_address, told: SocketAddr) -> bool {
    at.host == told.ip().to_string() && at.port == u32::from(told.port())
}

/// What is wrong with the addresses that clients are told, while this one still serves.
async fn doubts(id: u32, advertised: &[SocketAddr], known: &[ctl_server]) -> Vec<String> {
    let mut doubts = Vec::new();
    for told in advertised {
        let is_at = |at: &ctl_address| is_at(at, *told);
        let twin = known
            .iter()
            .map(|server| &server.status)
            .find(|other| other.id != id && other.connected && other.addresses.iter().any(is_at));
        if let Some(twin) = twin {
            doubts.push(format!(
                "clients are told {told}, and of data server {} too: give each an address or a port of its own (--listen, --advertise)",
                twin.id
            ));
        }
        let told = *told;
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || probe(told)).await {
            doubts.push(format!(
                "clients are told {told}, where this host reaches nobody ({error}): is --advertise right, does a firewall block port {}/tcp?",
                told.port()
            ));
        }
    }
    doubts
}

/// Whether a store may be made there. What the store itself refuses it refuses later: what is somebody else's.
fn fit(dir: &Path) -> Result<()> {
    let found = std::fs::metadata(dir).with_context(|| {
        format!("{} is not there: make it, or mount the device there first", dir.display())
    })?;
    if !found.is_dir() {
        bail!("{} is no directory", dir.display());
    }
    let root = std::fs::metadata("/").context("cannot look at /")?;
    if root.dev() == found.dev() {
        aside(format_args!(
            "warning: {} is on the same file system as /: is the device mounted?",
            dir.display()
        ));
    }
    let probe = dir.join("store");
    ds::make_store(&probe).with_context(|| format!("cannot make {}: is it this user's?", probe.display()))
}

/// How it is run from now on.
fn command(options: &cli::Serve) -> String {
    match &options.config {
        Some(file) => format!("sluice ds --config {}, or its unit", file.display()),
        None => "the same command, without `add`".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_another_has_or_nobody_is_reached_at_is_warned_of() {
        let here = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let here = here.local_addr().map(|at| (here, at)).unwrap();
        let server = |id, at: SocketAddr| {
            let mut server = ctl_server::default();
            (server.status.id, server.status.connected) = (id, true);
            server.status.addresses =
                vec![ctl_address { host: at.ip().to_string().into(), port: at.port().into() }];
            server
        };
        let (mine, other) = (server(1, here.1), server(2, here.1));
        assert_eq!(doubts(1, &[here.1], std::slice::from_ref(&mine)).await, Vec::<String>::new());
        let said = doubts(1, &[here.1, gone], &[mine, other]).await;
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("and of data server 2 too"), "{said:?}");
        assert!(
            said[1].contains(&format!("clients are told {gone}, where this host reaches nobody")),
            "{said:?}"
        );
    }

    #[test]
    fn what_is_no_place_for_a_store_is_said_before_one_is_made() {
        let dir = tempfile::tempdir().unwrap();
        fit(dir.path()).unwrap();
        let missing = fit(&dir.path().join("nothing")).unwrap_err().to_string();
        assert!(missing.contains("mount the device"), "{missing}");
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(fit(&file).unwrap_err().to_string().contains("no directory"));
    }
}
