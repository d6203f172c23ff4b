//! Groups that a caller's AUTH_SYS has no room for. RFC 5531, appendix A.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_mds::{Accounts, Config, Network, Rule, Squash};
use sluice_xdr::nfs4::*;

use crate::exports;
use crate::harness::*;

const USER: u32 = 500;
const STRANGER: u32 = 501;
/// The project's, the last of many that [`USER`] is in.
const PROJECT: u32 = 3000;

#[derive(Debug, Default)]
struct Directory {
    away: AtomicBool,
}

impl Accounts for Directory {
    fn groups(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        if self.away.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok((uid == USER).then(|| (2961..=PROJECT).collect()))
    }

    fn user(&self, _: &str) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn group(&self, _: &str) -> io::Result<Option<u32>> {
        Ok(None)
    }

    fn name_of_user(&self, _: u32) -> io::Result<Option<String>> {
        Ok(None)
    }

    fn name_of_group(&self, _: u32) -> io::Result<Option<String>> {
        Ok(None)
    }
}

/// Status of making a file in the project's directory, by a user in groups of which the client tells those.
async fn makes(world: &World, uid: u32, gids: &[u32], name: &str) -> nfsstat4 {
    makes_as(world, (uid, 600), gids, name).await
}

/// The same with a primary group.
async fn makes_as(world: &World, (uid, gid): (u32, u32), gids: &[u32], name: &str) -> nfsstat4 {
    let mut client = world.client(&format!("of {name}")).await;
    client.raw = client.raw.clone().with_user(uid, gid, gids);
    let made = openflag4::OPEN4_CREATE(createhow4::UNCHECKED4(fattr(&mode(0o644))));
    let claim = open_claim4::CLAIM_NULL(name.to_owned().into());
    let mut ops = walk("project");
    ops.push(open_with(b"owner", BOTH, 0, made, claim));
    client.status(ops).await
}

async fn project(world: &World) {
    let client = world.client("root").await;
    client.mkdir("/", "project").await;
    let group = bytes::Bytes::from(PROJECT.to_string());
    let attributes = Attributes { owner_group: Some(group), ..mode(0o2770) };
    let mut ops = walk("project");
    ops.push(setattr(ANONYMOUS, &attributes));
    client.ok(ops).await;
}

#[test]
fn what_a_client_leaves_out_the_host_knows() {
    let accounts: Arc<dyn Accounts> = Arc::new(Directory::default());
    let config = Config { accounts: Some(accounts), ..at_data_servers() };
    simulate_with(1, config, async |world: World| {
        project(&world).await;
        assert_eq!(makes(&world, USER, &[601], "f").await, nfsstat4::NFS4_OK);
        assert_eq!(makes(&world, STRANGER, &[601], "g").await, nfsstat4::NFS4ERR_ACCESS);
        // The host does not know this one: the client is believed, as it is about everybody where nobody is asked.
        assert_eq!(makes(&world, STRANGER, &[PROJECT], "h").await, nfsstat4::NFS4_OK);
    });
}

#[test]
fn unless_it_is_asked_the_client_is_believed() {
    simulate_with(2, at_data_servers(), async |world: World| {
        project(&world).await;
        assert_eq!(makes(&world, USER, &[601], "f").await, nfsstat4::NFS4ERR_ACCESS);
        assert_eq!(makes(&world, USER, &[PROJECT], "g").await, nfsstat4::NFS4_OK);
    });
}

#[test]
fn who_was_taken_out_of_a_group_is_not_in_it_because_his_client_says_so() {
    let accounts: Arc<dyn Accounts> = Arc::new(Directory::default());
    let config = Config { accounts: Some(accounts), ..at_data_servers() };
    simulate_with(3, config, async |world: World| {
        let client = world.client("root").await;
        client.mkdir("/", "project").await;
        let group = Some(bytes::Bytes::from_static(b"42"));
        let mut ops = walk("project");
        ops.push(setattr(ANONYMOUS, &Attributes { owner_group: group, ..mode(0o770) }));
        client.ok(ops).await;
        assert_eq!(makes(&world, USER, &[42], "f").await, nfsstat4::NFS4ERR_ACCESS);
        // Nor because his shell began when he was.
        assert_eq!(makes_as(&world, (USER, 42), &[], "g").await, nfsstat4::NFS4ERR_ACCESS);
    });
}

/// Whoever reaches the port could have a directory service asked for every number there is.
#[test]
fn for_whom_no_export_lets_in_nobody_is_asked() {
    let directory = Arc::new(Directory::default());
    let accounts: Arc<dyn Accounts> = Arc::clone(&directory) as _;
    let config = Config { accounts: Some(accounts), root_export: Vec::new(), ..at_data_servers() };
    simulate_with(5, config, async |world: World| {
        let raw = world.connect("stranger").await.with_user(USER, 600, &[]);
        directory.away.store(true, Ordering::Relaxed);
        let answer = raw.compound(vec![exchange_id(b"stranger", [1; 8], 0)]).await;
        assert_eq!(answer.status, nfsstat4::NFS4_OK, "not told to wait for the directory");
    });
}

/// Nor for those who are nobody to every export.
#[test]
fn where_all_are_squashed_nobody_is_asked() {
    let directory = Arc::new(Directory::default());
    let accounts: Arc<dyn Accounts> = Arc::clone(&directory) as _;
    let squashed = Rule { squash: Squash::All, ..Rule::new(Network::ANY) };
    let config = Config { accounts: Some(accounts), root_export: vec![squashed], ..at_data_servers() };
    simulate_with(6, config, async |world: World| {
        directory.away.store(true, Ordering::Relaxed);
        let mut client = world.client("u").await;
        client.raw = client.raw.clone().with_user(USER, 600, &[]);
        assert_eq!(client.status(walk("/")).await, nfsstat4::NFS4_OK);
        exports::set(&world, "/", &[exports::rule("any")]).await;
        assert_eq!(client.status(walk("/")).await, nfsstat4::NFS4ERR_DELAY);
    });
}

#[test]
fn while_the_host_cannot_tell_a_user_is_to_come_again_and_root_is_served() {
    let directory = Arc::new(Directory::default());
    let accounts: Arc<dyn Accounts> = Arc::clone(&directory) as _;
    let config = Config { accounts: Some(accounts), ..at_data_servers() };
    simulate_with(4, config, async |world: World| {
        project(&world).await;
        directory.away.store(true, Ordering::Relaxed);
        let mut client = world.client("u").await;
        let user = client.raw.clone().with_user(USER, 600, &[PROJECT]);
        let refused = user.compound(vec![exchange_id(b"u", [1; 8], 0)]).await;
        assert_eq!(refused.status, nfsstat4::NFS4ERR_DELAY);
        assert_eq!(client.status(walk("project")).await, nfsstat4::NFS4_OK, "root");
        directory.away.store(false, Ordering::Relaxed);
        world.sleep(std::time::Duration::from_secs(6)).await;
        client.raw = user;
        assert_eq!(client.status(walk("project")).await, nfsstat4::NFS4_OK);
    });
}
