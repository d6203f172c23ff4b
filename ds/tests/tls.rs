//! Where TLS is demanded of clients, servers are not in clear among themselves either.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use sluice_ds::DataServer;
use sluice_rpc::tls::{Files, TlsClient};
use sluice_rpc::{CallError, Client, Connection, Credential, Demand, Tls, auth_stat};
use sluice_store::device::MemDevice;
use sluice_xdr::capability::{Capability, Rights};
use sluice_xdr::control::*;
use sluice_xdr::nfs3::*;
use sluice_xdr::to_frame;

/// With a certificate for that address, in files below `dir`.
fn tls(dir: &Path, address: std::net::IpAddr) -> Tls {
    offering(Demand::Require, dir, address, false)
}

/// Believes clients that show the same certificate, if any.
fn offering(demand: Demand, dir: &Path, address: std::net::IpAddr, believes: bool) -> Tls {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.subject_alt_names = vec![rcgen::SanType::IpAddress(address)];
    let [certificate, own] = ["tls.pem", "tls.key"].map(|name| dir.join(name));
    std::fs::write(&certificate, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&own, key.serialize_pem()).unwrap();
    let clients = believes.then(|| certificate.clone());
    Tls::new(demand, &Files { certificate, key: own, clients }.read().unwrap()).unwrap()
}

async fn start(w: &World, host: &str, tls: Option<Tls>) -> DataServer {
    let config = sluice_ds::Config { tls, ..w.config(host) };
    let (env, transport) = (w.env.clone(), w.net.host(host));
    let ds = DataServer::start_on(env, transport, Arc::new(MemDevice::new()), config).await.unwrap();
    w.until(|| ds.status().serving).await;
    ds
}

async fn attributes(c: &Connection) -> Result<(), CallError> {
    let args = to_frame(&GETATTR3args { object: nfs_fh3 { data: handle(1, RW) } }, 1 << 10).unwrap();
    c.call(NFS3_PROGRAM, 3, NFSPROC3_GETATTR, &Credential::None, args, LONG).await.map(drop)
}

#[test]
fn what_is_demanded_of_clients_holds_between_data_servers() {
    simulate(async |w| {
        let dir = tempfile::tempdir().unwrap();
        let demanded = tls(dir.path(), w.net.ip("peer"));
        let source = start(&w, "peer", Some(demanded.clone())).await;
        let at = source.local_addr();

        let client = || Client::new(w.env.clone(), w.net.host("client"));
        let plain = client().dial(at).await.unwrap();
        assert_eq!(attributes(&plain).await, Err(CallError::Auth(auth_stat::AUTH_TOOWEAK)));
        let believer = TlsClient::trusting(&dir.path().join("tls.pem"), None).unwrap();
        let encrypted = client().with_tls(believer, (NFS3_PROGRAM, NFS_V3)).dial(at).await.unwrap();
        attributes(&encrypted).await.unwrap();
        let nfs = Nfs { connection: encrypted };
        nfs.write(&handle(1, RW), 0, &[3; 200_000], stable_how::UNSTABLE).await.unwrap();
        // As the metadata server does it.
        let under_key = client().with_key(w.key.clone()).dial(at).await.unwrap();
        let read = Nfs { connection: under_key }.read(&handle(1, RW), 0, 300_000).await.unwrap();
        assert_eq!(read, (vec![3; 200_000].into(), true));

        let reader = Capability { holder: 77, ..capability(1, Rights::READ) };
        let args = |w: &World| DS_COPY_args {
            caller: w.mds.caller(),
            target: target(1),
            source: ctl_address { host: at.ip().to_string().into(), port: at.port().into() },
            source_fh: sealed(&reader),
            offset: 0,
            length: u64::MAX,
        };
        let copies = start(&w, "ds", Some(demanded)).await;
        let copied: DS_COPY_res = w.mds.order(DS_COPY, &args(&w)).await;
        assert_eq!(copied, DS_COPY_res::CTL_OK(200_000));
        drop(copies);
        w.net.crash("ds");
        w.sleep(Duration::from_secs(1)).await;
        // Of one without a certificate nothing is asked: it asks in clear, and is refused.
        let _in_clear = start(&w, "ds", None).await;
        let refused: DS_COPY_res = w.mds.order(DS_COPY, &args(&w)).await;
        assert!(matches!(refused, DS_COPY_res::Default(_)), "{refused:?}");
    });
}

/// Small and large, in memory and beyond: each has a way of its own.
#[test]
fn a_handle_is_good_on_connections_as_it_wants_them_and_on_no_other() {
    simulate(async |w| {
        let dir = tempfile::tempdir().unwrap();
        let offered = offering(Demand::Offer, dir.path(), w.net.ip("ds"), true);
        let ds = start(&w, "ds", Some(offered)).await;
        let told: ctl_protection = w.mds.order(DS_PROTECTION, &()).await;
        assert_eq!(told, ctl_protection::PROTECTION_MUTUAL);
        let [pem, key] = ["tls.pem", "tls.key"].map(|name| dir.path().join(name));
        let client = || Client::new(w.env.clone(), w.net.host("client"));
        let under = async |own| {
            let tls = TlsClient::trusting(&pem, own).unwrap();
            client().with_tls(tls, (NFS3_PROGRAM, NFS_V3)).dial(ds.local_addr()).await.unwrap()
        };
        let clear = client().dial(ds.local_addr()).await.unwrap();
        let (tls, certified) = (under(None).await, under(Some((&*pem, &*key))).await);
        let cluster = client().with_key(w.key.clone()).dial(ds.local_addr()).await.unwrap();
        let all = [clear, tls, certified, cluster].map(|connection| Nfs { connection });
        let certified = RW | Rights::UNDER_TLS | Rights::CERTIFIED;
        for (rights, good) in [
            (RW, [true; 4]),
            (RW | Rights::UNDER_TLS, [false, true, true, true]),
            (certified, [false, false, true, true]),
        ] {
            let fh = handle(7, rights);
            for (nfs, good) in all.iter().zip(good) {
                for (size, stable) in [
                    (100, stable_how::UNSTABLE),
                    (300_000, stable_how::UNSTABLE),
                    (100, stable_how::DATA_SYNC),
                ] {
                    let data = vec![9; size];
                    let written = nfs.write(&fh, 0, &data, stable).await;
                    assert_eq!(
                        written.map(|_| ()),
                        if good { Ok(()) } else { Err(nfsstat3::NFS3ERR_ACCES) },
                        "{rights:?}"
                    );
                    let count = u32::try_from(size).unwrap();
                    let read = nfs.read(&fh, 0, count).await.map(|(data, _)| data.len());
                    assert_eq!(
                        read,
                        if good { Ok(size) } else { Err(nfsstat3::NFS3ERR_ACCES) },
                        "{rights:?}"
                    );
                }
                let committed = nfs.commit(&fh).await;
                assert_eq!(committed.map(|_| ()), if good { Ok(()) } else { Err(nfsstat3::NFS3ERR_ACCES) });
            }
        }
    });
}
