//! Both servers, started as the commands start them, scraped as Prometheus scrapes them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use sluice_ds::DataServer;
use sluice_env::Env;
use sluice_kv::{Database, Faults};
use sluice_mds::Mds;
use sluice_rpc::{Client, ClusterKey, Credential, Limits, Server, Tcp};
use sluice_xdr::Writer;
use sluice_xdr::control::{ADMIN_DUMPED, ADMIN_DUMPED_args, ADMIN_DUMPED_res};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::ds::DsSource;
use super::mds::{MdsSource, Waiting};
use super::*;
use crate::reach::Admin;
use crate::{cli, servers};

const ANY: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

/// A metadata server, a data server, and where their metrics are.
struct World {
    mds: SocketAddr,
    ds: SocketAddr,
    metrics: [SocketAddr; 2],
    key: ClusterKey,
    _dir: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let (env, dir) = (Env::system(), tempfile::tempdir().unwrap());
        let key = ClusterKey::generate(&env);
        let db = Database::memory(env.clone(), Faults::NONE);
        let config = sluice_mds::Config::default();
        let mds = Mds::start(env.clone(), Arc::new(Tcp), db, config).await.unwrap();
        let server = Server::new(env.clone(), Arc::new(Tcp), Limits::default(), mds.plain_programs());
        let server = Arc::new(server.with_secure(key.clone(), mds.secure_programs()));
        let listener = server.listen(ANY.into()).await.unwrap();
        let at = listener.local_addr();
        env.spawn.spawn(Box::pin(Arc::clone(&server).serve(listener)));
        let mut config = sluice_ds::Config::new(ANY.into(), dir.path().to_path_buf(), at, key.clone());
        config.store.create = true;
        // What has no series while it is off is asked for by alerts, too.
        config.store.checksums = Some(true);
        let data = Arc::new(DataServer::start(env, Arc::new(Tcp), config).await.unwrap());
        let ds = data.local_addr();
        let any = || bind(Some(ANY.into())).unwrap().unwrap();
        let waiting = Arc::new(Waiting::default());
        let metrics = [
            serve(any(), Arc::clone(&waiting) as Arc<dyn Source>).unwrap(),
            serve(any(), Arc::new(DsSource(data))).unwrap(),
        ];
        let meanwhile = scraped(metrics[0]).await.samples;
        assert_eq!((meanwhile["sluice_mds_serving"], meanwhile.len()), (0.0, 2));
        waiting.serves(MdsSource { mds, server });
        assert_eq!(scraped(metrics[0]).await.samples["sluice_mds_serving"], 1.0);
        Self { mds: at, ds, metrics, key, _dir: dir }
    }

    async fn call(&self, to: SocketAddr, version: u32, procedure: u32, words: &[u32]) {
        let client = Client::new(Env::system(), Arc::new(Tcp));
        let connection = client.dial(to).await.unwrap();
        let mut arguments = Writer::default();
        words.iter().for_each(|word| arguments.u32(*word));
        let arguments = arguments.finish().unwrap();
        let patience = Duration::from_secs(20);
        connection.call(100_003, version, procedure, &Credential::None, arguments, patience).await.unwrap();
    }
}

async fn get(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// What a scrape says: the names that samples may have, and the samples.
#[derive(Debug, Default)]
struct Scraped {
    names: BTreeSet<String>,
    samples: BTreeMap<String, f64>,
}

async fn scraped(address: SocketAddr) -> Scraped {
    let answer = get(address, "GET /metrics").await;
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    assert!(page.ends_with("# EOF\n"), "{page}");
    let mut all = Scraped::default();
    let mut helped = BTreeSet::new();
    for line in page.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["#", "EOF"] => {}
            ["#", "HELP", name, ..] => drop(helped.insert(name)),
            ["#", "UNIT", name, unit] => assert!(name.ends_with(&format!("_{unit}")), "{line}"),
            ["#", "TYPE", name, kind] => {
                assert!(helped.contains(name), "{name} is not explained");
                let suffixes: &[&str] = match kind {
                    "counter" => &["_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    "gauge" => &[""],
                    other => panic!("a {other}"),
                };
                all.names.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
            }
            _ => {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                let name = sample.split('{').next().unwrap();
                assert!(all.names.contains(name), "{line}");
                let value = value.parse().unwrap();
                assert!(all.samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_servers_did_is_in_the_scrape() {
    let world = World::start().await;
    // DESTROY_CLIENTID of nobody: an operation that may stand alone, and fails.
    world.call(world.mds, 4, 1, &[0, 1, 1, 57, 0, 0]).await;
    world.call(world.ds, 3, 0, &[]).await;
    // Each hears of the other in its own time.
    let (mds, ds) = loop {
        let (mds, ds) = (scraped(world.metrics[0]).await, scraped(world.metrics[1]).await);
        let up = mds.samples.get("sluice_mds_data_server_up{data_server=\"1\"}") == Some(&1.0);
        if up && ds.samples["sluice_ds_connected"] == 1.0 {
            break (mds, ds);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    for (sample, value) in [
        (
            "sluice_mds_operations_total{operation=\"DESTROY_CLIENTID\",status=\"NFS4ERR_STALE_CLIENTID\"}",
            1.0,
        ),
        ("sluice_mds_operation_duration_seconds_count{operation=\"DESTROY_CLIENTID\"}", 1.0),
        ("sluice_mds_operation_duration_seconds_bucket{le=\"+Inf\",operation=\"DESTROY_CLIENTID\"}", 1.0),
        ("sluice_mds_calls_total{procedure=\"COMPOUND\"}", 1.0),
        ("sluice_mds_proxied_bytes_total{direction=\"read\"}", 0.0),
        ("sluice_mds_clients{state=\"active\"}", 0.0),
        ("sluice_mds_data_server_health{data_server=\"1\",health=\"ok\"}", 1.0),
        ("sluice_mds_data_server_health{data_server=\"1\",health=\"failing\"}", 0.0),
        ("sluice_mds_degraded_files", 0.0),
        ("sluice_mds_store_capacity_bytes", f64::from(100 << 10) * 1048576.0),
        ("sluice_mds_store_free_bytes", f64::from(99 << 10) * 1048576.0),
        ("sluice_mds_quotas", 0.0),
        ("sluice_mds_quota_subjects{state=\"above-soft\"}", 0.0),
        ("sluice_mds_quota_subjects{state=\"full\"}", 0.0),
        ("sluice_mds_quota_refused_total{kind=\"tree\"}", 0.0),
    ] {
        assert_eq!(mds.samples.get(sample), Some(&value), "{sample} of {:#?}", mds.samples);
    }
    assert!(mds.names.contains("sluice_mds_last_dump_seconds"));
    assert_eq!(mds.samples.get("sluice_mds_last_dump_seconds"), None, "none is known of");
    let told = ADMIN_DUMPED_args { age_seconds: 100, rows: 1, bytes: 2, verified: true };
    let admin = Admin::connect(world.mds, world.key.clone()).await.unwrap();
    assert_eq!(
        admin.call::<_, ADMIN_DUMPED_res>(ADMIN_DUMPED, &told).await.unwrap(),
        ADMIN_DUMPED_res::CTL_OK
    );
    let dumped = scraped(world.metrics[0]).await.samples["sluice_mds_last_dump_seconds"];
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((99.0..160.0).contains(&(now - dumped)), "{dumped} of {now}");
    assert!(mds.samples["sluice_mds_transactions_total"] > 0.0);
    assert_eq!(ds.samples["sluice_ds_calls_total{procedure=\"NULL\"}"], 1.0);
    assert_eq!(ds.samples["sluice_ds_errors_total"], 0.0);
    servers::run(cli::DsCommand::Ready { address: world.ds, key: None }).await.unwrap();
    let probed = scraped(world.metrics[1]).await.samples;
    assert_eq!(
        (probed["sluice_ds_calls_total{procedure=\"GETATTR\"}"], probed["sluice_ds_refused_total"]),
        (1.0, 0.0)
    );
    assert_eq!(ds.samples["sluice_ds_quarantined"], 0.0);
    for (samples, refused) in [
        (&mds.samples, "sluice_mds_connections_refused_total"),
        (&ds.samples, "sluice_ds_connections_refused_total"),
    ] {
        assert_eq!(samples[refused], 0.0);
    }
    // At least the data server's.
    assert!(mds.samples["sluice_mds_connections"] >= 1.0);
    assert!(ds.samples["sluice_ds_capacity_bytes"] > 0.0);
    assert!(get(world.metrics[1], "GET /").await.starts_with("HTTP/1.1 404"));
    assert!(get(world.metrics[1], "POST /metrics").await.starts_with("HTTP/1.1 405"));
    monitoring_names_only_what_there_is(&mds.names.union(&ds.names).map(String::as_str).collect());
}

/// deploy/monitoring: each name of ours that an alert or a panel asks for is in a scrape.
fn monitoring_names_only_what_there_is(names: &BTreeSet<&str>) {
    for file in ["alerts.yml", "dashboard.json"] {
        let text = std::fs::read_to_string(monitoring(file)).unwrap();
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let asked: BTreeSet<&str> = text
            .split(word)
            .filter(|word| word.starts_with("sluice_mds_") || word.starts_with("sluice_ds_"))
            .collect();
        assert!(asked.len() > 8, "{file} asks for {asked:?}");
        let missing: Vec<_> = asked.difference(names).collect();
        assert!(missing.is_empty(), "{file}: no such metrics: {missing:?}");
    }
    let dashboard = std::fs::read_to_string(monitoring("dashboard.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
}

fn monitoring(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring").join(file)
}

/// `promtool` is in Debian's package prometheus; SLUICE_PROMTOOL names another place.
#[test]
fn promtool_takes_the_alerts() {
    let tool = std::env::var("SLUICE_PROMTOOL").unwrap_or_else(|_| "promtool".to_owned());
    let arguments: [(&str, &[&str]); 2] = [
        ("check", &["rules", "alerts.yml"]),
        ("test", &["rules", "alerts_test.yml", "alerts_scrub_test.yml"]),
    ];
    for (verb, rest) in arguments {
        let ran = Command::new(&tool).arg(verb).args(rest).current_dir(monitoring("")).output();
        let Ok(ran) = ran else {
            say!("NOT RUN: no {tool}: apt-get install prometheus, or set SLUICE_PROMTOOL");
            return;
        };
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{tool} {verb}: {said}");
    }
}
