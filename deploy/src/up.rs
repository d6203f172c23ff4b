//! `sluice up`: a metadata server and its data servers as children, restarted when they die.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use sluice_xdr::control::ctl_tls_export;
use tokio::process::{Child, ChildStdin, Command};

use crate::installation::{self, Installation};
use crate::reach::Admin;
use crate::store::Place;
use crate::{certificates, cli, ds, exports, kerberos, keys, logs, ports, status, stop};

/// A data server that may register has done so by then.
const REMOVED: Duration = Duration::from_secs(5);
/// How long a start may take before `up` says so and goes on waiting.
const START: Duration = Duration::from_secs(30);
/// How long children have to stop.
const STOP: Duration = Duration::from_secs(10);
/// How long the end of one that was killed may take: others wait for `up`, a service manager first of all.
const KILLED: Duration = Duration::from_secs(5);
/// Pause before a child that died is started again; grows while it keeps dying.
const RESTART: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// A child that ran for so long was well: its next start does not wait for what went before.
const STEADY: Duration = Duration::from_secs(3);
/// Pause before a data server that did not start is tried again: its device may be mounted meanwhile.
const WITHOUT: Duration = Duration::from_secs(60);

/// What chooses the ports that clients reach.
const PORT: &str = "--port (and mount with port=)";

/// One child and how it is started.
struct Role {
    name: String,
    arguments: Vec<String>,
    /// The others can do without it.
    dispensable: bool,
}

pub(crate) async fn run(options: cli::Up) -> Result<()> {
    logs::start();
    let dir = options.data_dir.clone().map_or_else(installation::default_dir, Ok)?;
    let mds = SocketAddr::new(options.listen, options.port);
    certificates::check(&options.tls)?;
    kerberos::check(&options.kerberos)?;
    // Whatever is in the way is found before anything is written: it may be another `up` at work here.
    let mut held = installation::hold(&dir)?;
    let installation = Installation::plan(&dir, options.data_servers, mds, &options.store)?;
    if installation.started > 0 {
        Place::new(&dir.join("mds"), &installation.store).check_found(true, &[])?;
    }
    installation.store.check()?;
    let (mirrors, servers) = (options.tuning.mirrors, installation.data_servers);
    ensure!(
        u16::from(mirrors) <= servers,
        "--mirrors {mirrors} needs {mirrors} data servers, and there are {servers}: no file would find a place; see --data-servers"
    );
    let roles = roles(&dir, &options, &installation)?;
    ensure!(
        roles.len() > 1,
        "{}: none of its {servers} data servers has a directory any more: is the device mounted? (a new one, if they were taken out: --data-servers {})",
        dir.display(),
        servers.saturating_add(1)
    );
    ports::free(PORT, mds)?;
    for (option, option_of_up) in [("--listen", PORT), ("--metrics", "--metrics")] {
        for address in roles.iter().filter_map(|role| role.address(option)).filter(|address| *address != mds)
        {
            ports::free(option_of_up, address)?;
        }
    }
    installation.begin(&dir)?;
    if held.is_none() {
        held = installation::hold(&dir)?;
    }
    let key = installation::key_file(&dir);
    keys::read(&key)?;
    let (stopping, _) = tokio::sync::watch::channel(false);
    let mut keepers = tokio::task::JoinSet::new();
    // All but the metadata server.
    let hopes = Arc::new(AtomicUsize::new(roles.len().saturating_sub(1)));
    for role in roles {
        keepers.spawn(keep(role, Arc::clone(&hopes), stopping.subscribe()));
    }
    let ready = async {
        let connected = ready(mds, &key, &dir, &installation).await;
        if let Err(error) = installation.all_started(&dir) {
            tracing::error!("{error:#}");
        }
        let exports = match Admin::connect_with(mds, &key).await {
            Ok(admin) => exports::ask(&admin).await.map(|known| known.exports).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        announce(&dir, &options, connected, &exports);
        std::future::pending::<()>().await;
    };
    let why = tokio::select! {
        why = stop::requested(false) => why?,
        () = ready => "",
        Some(ended) = keepers.join_next() => {
            stopping.send_replace(true);
            while keepers.join_next().await.is_some() {}
            return ended.context("a keeper failed")?;
        }
    };
    say!("stopping ({why})");
    stopping.send_replace(true);
    while keepers.join_next().await.is_some() {}
    drop(held);
    say!("stopped; `sluice up` resumes here");
    Ok(())
}

fn roles(dir: &Path, options: &cli::Up, installation: &Installation) -> Result<Vec<Role>> {
    let key = text(&installation::key_file(dir))?;
    let tuning = &options.tuning;
    let tls = options.tls.arguments()?;
    let mut arguments: Vec<String> =
        ["mds", "--data-dir", &text(&dir.join("mds"))?, "--key", &key, "--listen"]
            .map(str::to_owned)
            .to_vec();
    arguments.push(installation.mds.to_string());
    arguments.extend(["--lease".to_owned(), tuning.lease.to_string()]);
    arguments.extend(["--rebuild-after".to_owned(), tuning.rebuild_after.to_string()]);
    arguments.extend(["--delegations".to_owned(), tuning.delegations.to_string()]);
    arguments.extend(["--delegation-quiet".to_owned(), tuning.delegation_quiet.to_string()]);
    arguments.extend(["--names".to_owned(), tuning.names.to_string()]);
    arguments.extend(["--groups".to_owned(), tuning.groups.to_string()]);
    arguments.extend(["--mirrors".to_owned(), tuning.mirrors.to_string()]);
    arguments.extend(["--inline".to_owned(), tuning.inline.to_string()]);
    let allow = allowed(options);
    if !allow.is_empty() {
        arguments.extend(["--allow".to_owned(), allow.join(",")]);
    }
    arguments.extend(tuning.owner_domain.iter().map(|domain| format!("--owner-domain={domain}")));
    arguments.extend(["--tell-names".to_owned(), tuning.tell_names.to_string()]);
    arguments.extend(tuning.metadata_cache.map(|mib| format!("--metadata-cache={mib}")));
    arguments.extend(tuning.root_squash.then(|| "--root-squash".to_owned()));
    arguments.extend(tuning.no_layouts.then(|| "--no-layouts".to_owned()));
    // As for data servers below.
    arguments.extend((installation.started > 0).then(|| "--existing".to_owned()));
    arguments.extend(installation.store.arguments()?);
    arguments.extend(metrics(options, 0)?);
    arguments.extend(tls.clone());
    arguments.extend(options.kerberos.arguments()?);
    let mut roles = vec![Role { name: "mds".to_owned(), arguments, dispensable: false }];
    for number in 1..=installation.data_servers {
        let listen = SocketAddr::new(data_address(options, number), port(options.port, number)?);
        let arguments = [
            "ds",
            "--mds",
            &installation.mds.to_string(),
            "--data-dir",
            &text(&dir.join(format!("ds{number}")))?,
            "--key",
            &key,
            "--listen",
            &listen.to_string(),
            "--advertise",
            &listen.to_string(),
        ];
        let mut arguments = arguments.map(str::to_owned).to_vec();
        // Whose directory is gone was taken out by somebody: where a device is not mounted there is one.
        if number <= installation.started && is_gone(&dir.join(format!("ds{number}"))) {
            tracing::warn!("ds{number} has no directory any more: it is not started");
            continue;
        }
        // Only a data server that never ran may make a store: an empty directory in place of an old one is a
        // device that is not mounted.
        arguments.extend((number > installation.started).then(|| "--new".to_owned()));
        arguments.extend(checksums(&options.sums));
        arguments.extend(metrics(options, number)?);
        arguments.extend(tls.clone());
        let dispensable = number <= installation.started;
        roles.push(Role { name: format!("ds{number}"), arguments, dispensable });
    }
    Ok(roles)
}

fn is_gone(dir: &Path) -> bool {
    dir.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn checksums(given: &cli::Sums) -> Vec<String> {
    let on = given.checksums.map(|on| format!("--checksums={on}"));
    let rate = given.scrub_rate.map(|mib| format!("--scrub-rate={mib}"));
    let days = given.scrub_days.map(|days| format!("--scrub-days={days}"));
    [on, rate, days].into_iter().flatten().collect()
}

/// Whose clients may use the export `/` besides loopback: those that were named, and this host by the address that it
/// is told to listen on.
fn allowed(options: &cli::Up) -> Vec<String> {
    let own = (!options.listen.is_loopback() && !options.listen.is_unspecified())
        .then(|| options.listen.to_string());
    options.tuning.allow.iter().map(ToString::to_string).chain(own).collect()
}

/// Where child `number` shows its metrics; the metadata server is 0.
fn metrics(options: &cli::Up, number: u16) -> Result<Vec<String>> {
    let Some(base) = options.metrics else { return Ok(Vec::new()) };
    let address = SocketAddr::new(base.ip(), port(base.port(), number)?);
    Ok(vec!["--metrics".to_owned(), address.to_string()])
}

fn data_address(options: &cli::Up, number: u16) -> IpAddr {
    let all = &options.data_listen;
    all.get(usize::from(number - 1) % all.len().max(1)).copied().unwrap_or(options.listen)
}

fn port(base: u16, number: u16) -> Result<u16> {
    base.checked_add(number).with_context(|| format!("no port is left after {base} for data server {number}"))
}

fn text(path: &Path) -> Result<String> {
    path.to_str().map(str::to_owned).with_context(|| format!("{} is not UTF-8", path.display()))
}

impl Role {
    fn address(&self, option: &str) -> Option<SocketAddr> {
        let at = self.arguments.iter().position(|argument| argument == option)?;
        self.arguments.get(at + 1)?.parse().ok()
    }

    fn start(&self) -> Result<Child> {
        let program: PathBuf = std::env::current_exe().context("cannot find this program's own file")?;
        Command::new(program)
            .args(&self.arguments)
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))
    }
}

/// Keeps one child running until told to stop. A child that fails at its first start ends `up`: it has
/// said why, and trying again would not help. Not so one whose data the others have served without before: a data server that was
/// removed and its directory emptied, or one whose device is not mounted.
///
/// `hopes`: data servers that have not failed so yet. Without any there is nothing to go on with.
async fn keep(
    role: Role,
    hopes: Arc<AtomicUsize>,
    mut stopping: tokio::sync::watch::Receiver<bool>,
) -> Result<()> {
    let mut pause = RESTART.0;
    let (mut first, mut hoped) = (true, true);
    loop {
        let started = Instant::now();
        let mut child = role.start()?;
        // Waiting for a child closes its standard input, which would tell it to stop: hold it here.
        let stdin = child.stdin.take();
        let status = tokio::select! {
            status = child.wait() => status.context("cannot wait for a child")?,
            () = told(&mut stopping) => return stop_child(&role, child, stdin).await,
        };
        let lasted = started.elapsed();
        let failed = first && lasted < STEADY && status.code() == Some(1);
        if failed && !role.dispensable {
            return Err(anyhow!("{} did not start (its own line above says why)", role.name));
        }
        if failed && std::mem::replace(&mut hoped, false) && hopes.fetch_sub(1, Ordering::Relaxed) <= 1 {
            return Err(anyhow!("no data server started (their own lines above say why)"));
        }
        if failed {
            pause = WITHOUT;
            tracing::warn!(
                "{} did not start (its own line above says why); the others go on without it, and it is tried again every {} s",
                role.name,
                WITHOUT.as_secs()
            );
        } else {
            first = false;
            pause = if lasted > STEADY { RESTART.0 } else { (pause * 2).min(RESTART.1) };
            tracing::warn!("{} ended ({}); starting it again", role.name, how(status));
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = told(&mut stopping) => return Ok(()),
        }
    }
}

/// Completes when children are to stop.
async fn told(stopping: &mut tokio::sync::watch::Receiver<bool>) {
    // An error means that `up` itself is gone, which also means stop.
    drop(stopping.wait_for(|stopping| *stopping).await);
}

fn how(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown reason".to_owned(),
    }
}

async fn stop_child(role: &Role, mut child: Child, stdin: Option<ChildStdin>) -> Result<()> {
    // The end of its standard input tells it to drain and go.
    drop(stdin);
    if tokio::time::timeout(STOP, child.wait()).await.is_err() {
        tracing::warn!("{} did not stop within {} s; killing it", role.name, STOP.as_secs());
        child.start_kill().context("cannot kill a child")?;
        // It ends when the last of its threads does, and one that waits for a device that hangs does so when that answers.
        if tokio::time::timeout(KILLED, child.wait()).await.is_err() {
            tracing::warn!(
                "{} was killed, and is there until its device answers: it is not waited for, and nothing else is started on its store before",
                role.name
            );
        }
    }
    Ok(())
}

/// Completes when the metadata server answers and every data server has registered that may: how many have. After a while it goes
/// on without those that have run before and are not there; those that are new have made their stores then.
async fn ready(mds: SocketAddr, key: &Path, dir: &Path, installation: &Installation) -> usize {
    let data_servers = installation.data_servers;
    let started = Instant::now();
    let mut told = false;
    loop {
        let (connected, known) = match Admin::connect_with(mds, key).await {
            Ok(admin) => status::ask(&admin).await.map_or((0, 0), |status| {
                let connected = status.data_servers.iter().filter(|server| server.connected).count();
                (connected, status.data_servers.len())
            }),
            Err(_) => (0, 0),
        };
        // One that was removed from the installation is refused for ever, and not waited for.
        let rest_is_removed = connected > 0 && connected == known && started.elapsed() > REMOVED;
        if connected >= usize::from(data_servers) || rest_is_removed {
            return connected;
        }
        if started.elapsed() > START {
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(
                    "{connected} of {data_servers} data servers have registered after {} s",
                    START.as_secs()
                );
            }
            if connected > 0 && installation.started > 0 && have_stores(dir, installation) {
                return connected;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether all that are new have run: the next start makes no stores for them, whatever is mounted then.
fn have_stores(dir: &Path, installation: &Installation) -> bool {
    let mut new = installation.started + 1..=installation.data_servers;
    new.all(|number| ds::has_store(&dir.join(format!("ds{number}"))).unwrap_or(false))
}

fn announce(dir: &Path, options: &cli::Up, data_servers: usize, exports: &[ctl_tls_export]) {
    let port = if options.port == 2049 { String::new() } else { format!(",port={}", options.port) };
    say!("Sluice is ready: {data_servers} data servers, data in {}", dir.display());
    say!("  mount:   mount -t nfs -o vers=4.2{port} {}:/ /mnt", host(options.listen));
    for line in exports::lines(exports) {
        say!("  export:  {line}");
    }
    if options.tuning.allow.is_empty() && exports.iter().all(|export| !export.stored) {
        say!("           other hosts may not: --allow NETWORK lets them, or sluice export");
    }
    say!("  status:  sluice status --data-dir {}", dir.display());
    if let Some(metrics) = options.metrics {
        say!("  metrics: http://{metrics}/metrics, data servers at the ports after it");
    }
    say!("  stop:    Ctrl-C");
}

fn host(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, Tuning};

    fn parse(line: &[&str]) -> Command {
        Cli::try_parse_from([&["sluice"], line].concat()).unwrap().command
    }

    fn up(line: &[&str]) -> cli::Up {
        match parse(&[&["up"], line].concat()) {
            Command::Up(options) => options,
            other => panic!("{other:?}"),
        }
    }

    /// One entry for each setting.
    fn settings(tuning: &Tuning) -> Vec<String> {
        let text = format!("{tuning:#?}");
        let begins =
            |line: &str| line.strip_prefix("    ").is_some_and(|rest| rest.starts_with(char::is_alphabetic));
        let mut entries: Vec<String> = Vec::new();
        for line in text.lines() {
            match entries.last_mut() {
                Some(last) if line.starts_with("    ") && !begins(line) => last.push_str(line.trim()),
                _ => entries.push(line.to_owned()),
            }
        }
        entries.retain(|entry| entry.starts_with("    "));
        entries
    }

    #[test]
    fn every_setting_reaches_the_metadata_server() {
        let given = up(&[
            "--lease=20",
            "--rebuild-after=7",
            "--allow=10.0.0.0/8",
            "--root-squash",
            "--inline=4KiB",
            "--delegations=read",
            "--delegation-quiet=3",
            "--names=utf8",
            "--groups=host",
            "--owner-domain=example.com",
            "--tell-names=tickets",
            "--mirrors=2",
            "--metadata-cache=500",
            "--no-layouts",
        ]);
        let installation = r#"{"format": 1, "data_servers": 1, "started": 0, "mds": "127.0.0.1:2049"}"#;
        let installation = serde_json::from_str(installation).unwrap();
        let roles = roles(Path::new("/srv"), &given, &installation).unwrap();
        let line: Vec<&str> = roles[0].arguments.iter().map(String::as_str).collect();
        let Command::Mds(mds) = parse(&line) else { panic!("{line:?}") };
        let (sent, usual) = (settings(&given.tuning), settings(&up(&[]).tuning));
        assert_eq!(settings(&mds.tuning), sent);
        // A setting that is new must be added above.
        assert!(
            sent.len() == usual.len() && sent.iter().zip(&usual).all(|(a, b)| a != b),
            "{sent:?} {usual:?}"
        );
    }
}
