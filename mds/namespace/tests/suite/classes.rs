//! Policies that name a class of data servers.

use crate::common::*;
use sluice_namespace::*;

const ROOT: InodeKey = InodeKey::ROOT;

async fn set(w: &World, directory: InodeKey, policy: &str) {
    let policy = LayoutPolicy::parse(policy);
    assert!(policy.is_some());
    w.setattr(directory, SetAttr { policy, ..SetAttr::default() }, &Credential::ROOT).await.unwrap();
}

async fn policy(w: &World, directory: InodeKey) -> String {
    w.read(async |t| w.ns.policy(t, &directory).await).await.unwrap().to_string()
}

#[tokio::test(start_paused = true)]
async fn the_first_policy_with_a_class_closes_the_store_to_releases_that_know_none() {
    let w = World::new().await;
    let closed = async || Namespace::load(&w.db.begin()).await.unwrap().unwrap().superblock().classes;
    set(&w, ROOT, "wide,mirrors=2").await;
    assert!(!closed().await, "nobody has asked for one");
    set(&w, ROOT, "default,class=archive").await;
    assert!(closed().await);
    set(&w, ROOT, "default").await;
    assert!(closed().await, "for good: there may be others");
    w.clean().await;
}

#[tokio::test(start_paused = true)]
async fn directories_inherit_the_class_and_files_that_begin_inline_remember_it() {
    let w = World::new().await;
    set(&w, ROOT, "small,mirrors=2,inline=16KiB,class=archive").await;
    let below = w.mkdir(ROOT, "d").await;
    assert_eq!(policy(&w, below).await, "small,mirrors=2,inline=16KiB,class=archive");
    let inline = LayoutPolicy::parse(&policy(&w, below).await).unwrap().inline_file().unwrap();
    let file = w.node(below, "f", NewNode::InlineFile { inline, size: 0 }).await.unwrap().inode.key;
    set(&w, below, "small").await;
    assert_eq!(
        (policy(&w, below).await, policy(&w, ROOT).await.contains("archive")),
        ("small".to_owned(), true)
    );
    let now = w.read(async |t| w.ns.getattr(t, &file).await).await.unwrap();
    assert_eq!(now.inline().unwrap().policy().class, Class::parse("archive"), "what there is stays as it is");
    w.clean().await;
}
