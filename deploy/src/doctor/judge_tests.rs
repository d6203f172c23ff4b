use std::time::Duration;

use sluice_xdr::control::{
    ctl_address, ctl_avoided, ctl_capacity, ctl_client_status, ctl_dump, ctl_health, ctl_limit,
    ctl_machine_of, ctl_quota, ctl_quota_kind, ctl_reason, ctl_refused, ctl_uuid,
};

use super::super::Level;
use super::*;

fn server(id: u32) -> ctl_data_server_status {
    ctl_data_server_status {
        id,
        addresses: vec![ctl_address { host: format!("10.0.1.{id}").into(), port: 2050 }],
        connected: true,
        version: "1".into(),
        capacity: ctl_capacity { total_bytes: 1 << 40, free_bytes: 1 << 39, ..ctl_capacity::default() },
        ..ctl_data_server_status::default()
    }
}

fn status(data_servers: Vec<ctl_data_server_status>) -> ADMIN_STATUS_resok {
    let client = ctl_client_status {
        client: 7,
        address: "10.0.0.7".into(),
        name: "node7".into(),
        kernel: "6.18.3".into(),
        minor_version: 2,
        ..ctl_client_status::default()
    };
    ADMIN_STATUS_resok {
        version: "1".into(),
        clients: vec![client],
        data_servers,
        ..ADMIN_STATUS_resok::default()
    }
}

fn machine() -> ctl_machine {
    ctl_machine { seconds: 1_800_000_000, nanos: 0, descriptors: 30, descriptors_most: 1 << 20 }
}

fn told() -> ADMIN_DOCTOR_resok {
    ADMIN_DOCTOR_resok { machine: machine(), ..ADMIN_DOCTOR_resok::default() }
}

fn of(data_server: u32, ahead_nanos: i64, machine: ctl_machine) -> ctl_machine_of {
    ctl_machine_of { data_server, ahead_nanos, round_trip_nanos: 2_000_000, machine }
}

/// The one line about what is wrong.
fn problem(status: &ADMIN_STATUS_resok, told: &ADMIN_DOCTOR_resok) -> String {
    let found = judge(status, told, &[]);
    let mut problems = found.into_iter().filter(|finding| finding.level == Level::Problem);
    let first = problems.next().unwrap().what;
    assert_eq!(problems.next(), None);
    first
}

fn notes(status: &ADMIN_STATUS_resok) -> Vec<String> {
    let found = judge(status, &told(), &[]);
    found.into_iter().filter(|finding| finding.level == Level::Note).map(|finding| finding.what).collect()
}

#[test]
fn a_healthy_installation_has_no_problems() {
    let told = ADMIN_DOCTOR_resok { machines: vec![of(1, 3_000_000_000, machine())], ..told() };
    let found = judge(&status(vec![server(1), server(2)]), &told, &[]);
    assert_eq!(
        found,
        [Finding::good("data server 1 (10.0.1.1:2050)"), Finding::good("data server 2 (10.0.1.2:2050)")]
    );
}

#[test]
fn a_data_server_that_is_full_away_or_failing_is_named() {
    let full = ctl_data_server_status { health: ctl_health::HEALTH_FULL, ..server(3) };
    assert!(problem(&status(vec![full]), &told()).starts_with("data server 3 (10.0.1.3:2050) is full"));
    let words =
        "no space left above the reserve; 1 range is damaged and in quarantine: see `sluice ds scrub --look`";
    let both = ctl_data_server_status { health: ctl_health::HEALTH_FULL, state: words.into(), ..server(3) };
    let found = judge(&status(vec![both]), &told(), &[]);
    let problems: Vec<_> = found.iter().filter(|finding| finding.level == Level::Problem).collect();
    let [full, damaged] = &problems[..] else { panic!("{found:?}") };
    assert!(full.what.contains("is full") && damaged.what.contains("1 range is damaged"), "{found:?}");
    let away = ctl_data_server_status { connected: false, state: "unreachable for 12 s".into(), ..server(3) };
    assert_eq!(problem(&status(vec![away]), &told()), "data server 3 (10.0.1.3:2050): unreachable for 12 s");
    assert!(problem(&status(Vec::new()), &told()).contains("no data server"));
}

#[test]
fn a_clock_that_is_an_hour_off_is_named() {
    let status = status(vec![server(1)]);
    for (ahead, words) in [(3_600_000_000_000, "60 min ahead of"), (-3_600_000_000_000, "60 min behind")] {
        let told = ADMIN_DOCTOR_resok { machines: vec![of(1, ahead, machine())], ..told() };
        let line = problem(&status, &told);
        assert!(
            line.starts_with(&format!("the clock of data server 1 (10.0.1.1:2050) is {words}")),
            "{line}"
        );
    }
    let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    assert_eq!(clock_here(&told(), at(1_799_999_999), at(1_800_000_001)), []);
    // A slow answer is no clock that is off.
    assert_eq!(clock_here(&told(), at(1_800_000_000), at(1_800_000_020)), []);
    let [found] = &clock_here(&told(), at(1_800_003_600), at(1_800_003_600))[..] else { panic!() };
    assert!(found.what.starts_with("this host's clock is 60 min ahead of"), "{}", found.what);
}

#[test]
fn too_few_descriptors_are_named() {
    let status = status(vec![server(1)]);
    let few = ctl_machine { descriptors_most: 1024, ..machine() };
    let line = problem(&status, &ADMIN_DOCTOR_resok { machines: vec![of(1, 0, few)], ..told() });
    assert!(line.starts_with("data server 1 (10.0.1.1:2050) may have 1024 file descriptors only"), "{line}");
    let used = ctl_machine { descriptors: 900_000, ..machine() };
    let line = problem(&status, &ADMIN_DOCTOR_resok { machine: used, ..told() });
    assert!(line.starts_with("the metadata server has 900000 of 1048576 file descriptors open"), "{line}");
}

#[test]
fn two_data_servers_on_one_directory_are_named_while_it_lasts() {
    let refused = |last_seconds| ADMIN_DOCTOR_resok {
        refused: vec![ctl_refused {
            address: "10.0.1.9".into(),
            reason: "its store is registered from another live data server".into(),
            last_seconds,
        }],
        ..told()
    };
    let status = status(vec![server(1)]);
    let line = problem(&status, &refused(4));
    assert_eq!(
        line,
        "a data server at 10.0.1.9 was refused 4 s ago: its store is registered from another live data server"
    );
    assert_eq!(judge(&status, &refused(601), &[]).len(), 1);
}

#[test]
fn what_one_client_cannot_reach_is_named_with_both_ends() {
    let avoided = |full| ADMIN_DOCTOR_resok {
        avoided: vec![
            ctl_avoided { client: 7, data_server: 1, full },
            ctl_avoided { client: 8, ..Default::default() },
        ],
        ..told()
    };
    let status = status(vec![server(1)]);
    let line = problem(&status, &avoided(false));
    let (client, server) = ("10.0.0.7 (node7, kernel 6.18.3, NFS 4.2)", "data server 1 (10.0.1.1:2050)");
    assert!(line.starts_with(&format!("{client} fails at {server}")), "{line}");
    assert_eq!(problem(&status, &avoided(true)), format!("{client} found {server} full"));
    let proxied = ctl_proxied {
        client: 7,
        reason: ctl_reason { code: "x".into(), words: "because".into() },
        calls: 2,
        bytes: 100,
        last_seconds: 3,
        file: 1,
    };
    let found = judge(&status, &told(), &[proxied, ctl_proxied { last_seconds: 300, ..proxied_old() }]);
    let problems: Vec<_> = found.iter().filter(|finding| finding.level == Level::Problem).collect();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].what.starts_with(&format!("{client} moves data through")), "{}", problems[0].what);
}

fn proxied_old() -> ctl_proxied {
    ctl_proxied { client: 7, ..ctl_proxied::default() }
}

#[test]
fn a_metadata_device_that_fills_is_named_before_it_is_full() {
    const GIB: u64 = 1 << 30;
    let of = |total, free| room(&ADMIN_ROOM_resok { total_bytes: total * GIB, free_bytes: free * GIB });
    for (total, free) in [(100, 10), (100, 99), (10_000, 64)] {
        assert_eq!(of(total, free), None, "{free} of {total}");
    }
    for (total, free) in [(100, 9), (100, 5), (10_000, 63), (10_000, 16)] {
        let note = of(total, free).unwrap();
        assert_eq!(note.level, Level::Note);
        assert!(note.what.ends_with("what small files take more goes to data servers"), "{}", note.what);
    }
    for (total, free) in [(100, 4), (100, 0), (10_000, 15)] {
        assert_eq!(of(total, free).unwrap().level, Level::Problem, "{free} of {total}");
    }
    let words = of(100, 4).unwrap().what;
    assert!(words.starts_with("4096 MiB of 100 GiB are left on the metadata's device: "), "{words}");
}

#[test]
fn a_backup_that_is_old_is_a_note() {
    const DAY: u64 = 86_400;
    let of = |newest: Option<u64>, file_system: u64, days| {
        let newest = newest.map(|age| ctl_dump { age_seconds: age * DAY, ..ctl_dump::default() });
        let newest = newest.into_iter().collect();
        let told = ADMIN_LAST_DUMP_resok { newest, file_system_seconds: file_system * DAY };
        dumps(&told, days).map(|finding| {
            assert_eq!(finding.level, Level::Note);
            finding.what.split(':').next().unwrap().to_owned()
        })
    };
    assert_eq!(of(Some(7), 100, 7), None);
    assert_eq!(of(Some(9), 100, 7).unwrap(), "the newest dump of the metadata is 9 days old");
    assert_eq!(of(Some(9), 100, 10), None);
    assert_eq!(of(None, 7, 7), None, "it is new itself");
    assert_eq!(of(None, 8, 7).unwrap(), "no dump of the metadata is known of");
    assert_eq!((of(None, 800, 0), of(Some(800), 900, 0)), (None, None));
    // A clock was ahead when it was made: how old it is, nobody knows.
    let to_come = vec![ctl_dump { age_seconds: u64::MAX, ..ctl_dump::default() }];
    let told = ADMIN_LAST_DUMP_resok { newest: to_come, file_system_seconds: DAY };
    let words = dumps(&told, 7).unwrap().what;
    assert!(words.starts_with("the newest dump of the metadata is of a moment to come, "), "{words}");
    assert_eq!(dumps(&told, 0), None);
}

#[test]
fn a_loopback_address_is_a_problem_once_there_is_another_host() {
    let at = |host: &'static str, id| ctl_data_server_status {
        addresses: vec![ctl_address { host: host.into(), port: 2050 }],
        ..server(id)
    };
    let line = problem(&status(vec![at("127.0.1.1", 1)]), &told());
    assert!(
        line.starts_with("data server 1 (127.0.1.1:2050) tells other hosts a loopback address, by which"),
        "{line}"
    );
    // All on one host, or nobody there yet.
    for address in ["127.0.0.1", "::1", ""] {
        let mut alone = status(vec![at("::1", 1), at("127.0.0.1", 2)]);
        alone.clients[0].address = address.into();
        assert!(judge(&alone, &told(), &[]).iter().all(|finding| finding.level == Level::Good), "{address}");
    }
    let mut two = status(vec![at("::1", 1), server(2)]);
    two.clients.clear();
    assert!(problem(&two, &told()).starts_with("data server 1 ([::1]:2050) tells"));
}

#[test]
fn quotas_that_are_used_up_are_a_note() {
    let files = ctl_limit { soft: 0, hard: 3 };
    let user = |used_files| ctl_quota { path: "/t".into(), files, used_files, ..tree() };
    let exceeded = |quota| ADMIN_QUOTAS_resok { quotas: vec![quota], ..ADMIN_QUOTAS_resok::default() };
    let found = quotas(&exceeded(user(3))).unwrap();
    assert_eq!(found.level, Level::Note);
    assert!(
        found.what.starts_with("quotas are used up, and what adds to them gets EDQUOT: /t"),
        "{}",
        found.what
    );
    assert_eq!(quotas(&exceeded(user(2))), None);
}

fn tree() -> ctl_quota {
    ctl_quota { kind: ctl_quota_kind::QUOTA_TREE, ..ctl_quota::default() }
}

#[test]
fn what_could_be_better_is_a_note() {
    let device = |id| ctl_data_server_status {
        capacity: ctl_capacity { device: ctl_uuid([5; 16]), ..server(id).capacity },
        ..server(id)
    };
    assert!(
        notes(&status(vec![device(1), server(2), device(3)]))[0]
            .starts_with("data servers 1, 3 are on one device")
    );
    let other = ctl_data_server_status { version: "2".into(), ..server(1) };
    assert!(notes(&status(vec![other]))[0].contains("runs version 2, the metadata server 1"));
    let scarce = ctl_capacity { free_bytes: 1 << 36, ..server(1).capacity };
    let scarce = ctl_data_server_status { capacity: scarce, ..server(1) };
    assert_eq!(notes(&status(vec![scarce])), ["data server 1 (10.0.1.1:2050) has 64 GiB of 1024 GiB left"]);
    let mut old = status(vec![server(1)]);
    for (kernel, minor_version, told) in
        [("6.1.0", 2, true), ("6.18.3", 1, true), ("7.2.7", 2, false), ("10.0", 2, false)]
    {
        (old.clients[0].kernel, old.clients[0].minor_version) = (kernel.into(), minor_version);
        assert_eq!(notes(&old).len(), usize::from(told), "{kernel}");
    }
}

/// It is what a client sends, whoever that is.
#[test]
fn a_kernel_moves_no_cursor() {
    let mut status = status(vec![server(1)]);
    status.clients[0].kernel = "4.1\x1b[2J\nall is well".into();
    let notes = notes(&status);
    assert!(notes.iter().any(|note| note.contains("4.1?[2J?all is well")), "{notes:?}");
}
