use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::{Color, Modifier};
use sluice_xdr::control::*;

use super::*;

fn server(id: u32, connected: bool, read: u64) -> ctl_data_server_status {
    ctl_data_server_status {
        id,
        store: ctl_uuid([0; 16]),
        addresses: vec![ctl_address { host: format!("10.0.0.{id}").into(), port: 2050 }],
        connected,
        health: ctl_health::HEALTH_OK,
        state: bytes::Bytes::new(),
        capacity: ctl_capacity {
            total_bytes: 1000,
            free_bytes: 250,
            used_bytes: 750,
            files: 1,
            free_inodes: 1,
            device: ctl_uuid([0; 16]),
        },
        counters: ctl_counters {
            bytes_read: read,
            bytes_written: 0,
            reads: read >> 20,
            writes: 0,
            commits: 0,
            refused: 0,
            errors: 0,
            flushes: 0,
        },
        version: "0.1".into(),
    }
}

/// A look at so many seconds, when so much had happened.
fn looked(seconds: u64, read: u64, opens: u64, proxied: u64) -> Sample {
    let client = |client, proxied_bytes| ctl_client_status {
        client,
        address: format!("10.1.0.{client}:700").into(),
        name: "Linux NFSv4.2 node".into(),
        kernel: "6.12.101".into(),
        minor_version: 2,
        state: "active".into(),
        opens: 3,
        locks: 0,
        layouts: 2,
        proxied_bytes,
    };
    let mut buckets = vec![0; 28];
    buckets[8] = opens - opens / 50;
    buckets[14] = opens / 50;
    let operation = |name: &'static str, count| ctl_operation {
        name: name.into(),
        count,
        errors: count / 10,
        nanos: count * 200_000,
        buckets: if name == "OPEN" { buckets.clone() } else { vec![count] },
    };
    Sample {
        status: ADMIN_STATUS_resok {
            cluster: ctl_uuid([1; 16]),
            version: "0.1".into(),
            listen: "10.0.0.9:2049".into(),
            mds_epoch: 1,
            uptime_seconds: seconds,
            grace_seconds_left: 0,
            files: 1_234_567,
            used_bytes: 5 << 30,
            proxied_bytes_read: proxied,
            proxied_bytes_written: 0,
            inline_bytes_read: 0,
            inline_bytes_written: 0,
            layouts_granted: 0,
            recalls_sent: 0,
            transactions: opens,
            transaction_groups: 0,
            conflicts: 0,
            views: 0,
            reads: 0,
            orders: 0,
            reports: 0,
            degraded_files: 0,
            healed_files: 0,
            healed_bytes: 0,
            healing: bytes::Bytes::new(),
            clients: vec![client(1, 0), client(2, proxied)],
            data_servers: vec![server(1, true, read), server(2, false, 0)],
        },
        activity: ADMIN_ACTIVITY_resok {
            nanos: seconds * 1_000_000_000,
            operations: vec![operation("GETATTR", opens / 2), operation("OPEN", opens)],
            clients: vec![
                ctl_client_activity { client: 1, calls: opens },
                ctl_client_activity { client: 2, calls: opens * 2 },
            ],
        },
    }
}

fn rates() -> Rates {
    Rates::between(Some(&looked(100, 0, 0, 0)), &looked(110, 10 << 30, 10_000, 5 << 20))
}

#[test]
fn rates_are_of_what_happened_in_between() {
    let rates = rates();
    assert_eq!(rates.direct_read, 1024.0 * 1024.0 * 1024.0);
    assert_eq!((rates.commits, rates.operations_rate), (1000.0, 1500.0));
    let open = &rates.operations[0];
    assert_eq!((open.name.as_str(), open.rate, open.errors), ("OPEN", 1000.0, 100.0));
    assert!((open.mean - 0.0002).abs() < 1e-9);
    assert_eq!(open.p99, 0.016384, "2 of 100 are in bucket 14");
    // Busiest first.
    assert_eq!((rates.clients[0].calls, rates.clients[1].calls), (2000.0, 1000.0));
    assert_eq!(rates.data_servers[1].health, "unreachable");
}

#[test]
fn without_a_look_before_or_after_a_restart_nothing_is_told() {
    for before in [None, Some(looked(500, 1 << 40, 1 << 30, 0))] {
        let rates = Rates::between(before.as_ref(), &looked(10, 10 << 30, 10_000, 0));
        assert_eq!((rates.direct_read, rates.commits, rates.operations_rate), (0.0, 0.0, 0.0));
        assert!(rates.operations.iter().all(|operation| operation.mean == 0.0 && operation.p99 == 0.0));
    }
    // One data server began anew.
    let rates = Rates::between(Some(&looked(1, 10 << 30, 0, 0)), &looked(2, 1 << 30, 0, 0));
    assert_eq!(rates.direct_read, 0.0);
}

fn drawn(width: u16, height: u16, colour: bool) -> (Vec<String>, Terminal<TestBackend>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let looks = Looks { colour, paused: false };
    terminal.draw(|frame| view::draw(frame, &rates(), looks)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = (0..height)
        .map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned())
        .collect();
    (lines, terminal)
}

#[test]
fn the_screen_shows_all_parts_narrow_and_wide() {
    for (width, height) in [(80, 24), (200, 50)] {
        let (lines, _) = drawn(width, height, true);
        let all = lines.join("\n");
        for part in [
            "10.0.0.9:2049",
            "1.2M files",
            "10.0.0.1:2050",
            "unreachable",
            "75%",
            "1.0 GiB",
            "OPEN",
            "16.4 ms",
            "10.1.0.2:700",
            "512 KiB",
            "q quits",
        ] {
            assert!(all.contains(part), "{part} at {width}x{height}:\n{all}");
        }
    }
    // Nothing panics where nothing fits.
    for (width, height) in [(1, 1), (10, 3), (80, 4)] {
        drawn(width, height, true);
    }
}

#[test]
fn what_has_no_room_is_counted_and_idle_operations_take_none() {
    let mut many = rates();
    let (server, client) = (many.data_servers[0].clone(), many.clients[0].clone());
    many.data_servers = vec![server; 9];
    many.clients = vec![client; 100];
    many.operations[1].rate = 0.0;
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    let looks = Looks { colour: true, paused: false };
    terminal.draw(|frame| view::draw(frame, &many, looks)).unwrap();
    let all = terminal.backend().to_string();
    let lines: Vec<&str> = all.lines().map(|line| line.trim_matches('"').trim_end()).collect();
    // 19 lines: what the one operation leaves of its third, the first of the others gets.
    let cut: Vec<_> = lines.iter().filter(|line| line.starts_with("and ")).collect();
    assert_eq!(cut, [&"and 2 more", &"and 97 more"], "{all}");
    for (line, next) in lines.iter().zip(&lines[1..]) {
        assert!(!next.starts_with("CLIENT ") && !next.starts_with("OPERATION ") || line.is_empty(), "{all}");
    }
    assert!(all.contains("OPEN ") && !all.contains("GETATTR"), "{all}");
}

#[test]
fn clients_have_their_names_where_there_is_room() {
    assert!(!drawn(80, 24, true).0.join("\n").contains("node"));
    assert!(drawn(200, 50, true).0.join("\n").contains("  node  "));
}

#[test]
fn what_is_wrong_stands_out_with_and_without_colours() {
    for colour in [true, false] {
        let (lines, terminal) = drawn(80, 24, colour);
        let y = lines.iter().position(|line| line.contains("unreachable")).unwrap();
        let cell = &terminal.backend().buffer()[(0, u16::try_from(y).unwrap())];
        assert_eq!(cell.fg == Color::Red, colour);
        assert_eq!(cell.modifier.contains(Modifier::REVERSED), !colour);
    }
}
