//! What a comparison of all mirrors finds when all is quiet: what the devices hold, no more and no less.

use std::collections::BTreeMap;

use sluice_namespace::{Component, DataFile, FileNode, InodeRecord, Layout, Node, PREFIXES};
use sluice_store::device::Device;

use crate::compare::{compare, places, why};
use crate::stage::World;

const PAGE: u64 = 4096;

/// Where the data servers with these numbers are.
type Places = BTreeMap<u16, usize>;

pub(super) async fn as_the_devices_say(world: &World) {
    found(world).await;
    // And when there is something to find.
    let places = places(world).await;
    for (layout, _) in files(world).await.iter().filter(|(layout, _)| !layout.is_degraded()) {
        let twice = layout.components.iter().filter(|component| component.mirrors > 1);
        let Some(path) = twice.flat_map(|component| &component.slots).find_map(|file| {
            let n = *places.get(&file.store.0)?;
            path(world, n, layout, file).map(|path| (n, path))
        }) else {
            continue;
        };
        let file = world.device(path.0).open(&path.1).unwrap();
        file.write_at(b"nobody wrote this", 5 * PAGE - 9).unwrap();
    }
    found(world).await;
}

async fn found(world: &World) {
    let before = differing(world).await;
    let how = compare(world, "").await;
    // What has checksums is found to be damaged when it is read, and healed then, before it is compared or after.
    let after = differing(world).await;
    let found: u64 = how.findings.iter().map(|found| found.bytes).sum();
    // What could not be compared cannot be found.
    let missed = how.not_compared.iter().map(|missed| missed.files).sum::<u64>() > 0;
    let least = if missed { 0 } else { after };
    assert!((least..=before).contains(&found), "{found} of {before}, {after}: {}, {how:?}", why(&how));
}

/// Bytes of all pages that mirrors do not have in common.
async fn differing(world: &World) -> u64 {
    let places = places(world).await;
    let mut differs = 0;
    for (layout, size) in files(world).await.iter().filter(|(layout, _)| !layout.is_degraded()) {
        for component in layout.in_use(*size).filter(|component| component.mirrors > 1) {
            for column in component.slots.chunks(usize::from(component.mirrors)) {
                differs += different(world, &places, (layout, component, column), *size);
            }
        }
    }
    differs
}

async fn files(world: &World) -> Vec<(Layout, u64)> {
    let (_, inode) = *PREFIXES.iter().find(|(name, _)| *name == "INODE").unwrap();
    let rows = world.rows().await;
    let records = rows.into_iter().filter(|(key, _)| key.first() == Some(&inode));
    let file = |(_, value)| match InodeRecord::decode(value).unwrap().node {
        Node::File(FileNode { layout: Some(layout), size, .. }) => Some((layout, size)),
        _ => None,
    };
    records.filter_map(file).collect()
}

/// Bytes of the pages of a column that are not the same everywhere.
fn different(
    world: &World,
    places: &Places,
    (layout, component, column): (&Layout, &Component, &[DataFile]),
    size: u64,
) -> u64 {
    let copies: Vec<Option<Vec<u8>>> =
        column.iter().map(|file| content(world, places, layout, file)).collect();
    // One that is lost is another finding.
    if column.iter().zip(&copies).any(|(file, copy)| file.materialised && copy.is_none()) {
        return 0;
    }
    let end = component.end.min(size);
    let mut bytes = 0;
    for at in (component.start..end).step_by(usize::try_from(PAGE).unwrap()) {
        if component.column(at).is_none_or(|here| here != column) {
            continue;
        }
        let (from, length) = (usize::try_from(at).unwrap(), usize::try_from(PAGE.min(end - at)).unwrap());
        let page = |copy: &Option<Vec<u8>>| {
            let there = copy.as_deref().unwrap_or_default().get(from..).unwrap_or_default();
            let mut page = there[..there.len().min(length)].to_vec();
            page.resize(length, 0);
            page
        };
        let first = page(&copies[0]);
        if copies.iter().any(|copy| page(copy) != first) {
            bytes += PAGE.min(end - at);
        }
    }
    bytes
}

fn content(world: &World, places: &Places, layout: &Layout, file: &DataFile) -> Option<Vec<u8>> {
    let n = *places.get(&file.store.0)?;
    let path = path(world, n, layout, file)?;
    let mut bytes = vec![0; usize::try_from(world.device(n).stat(&path).unwrap().size).unwrap()];
    world.device(n).open(&path).unwrap().read_at(&mut bytes, 0).unwrap();
    Some(bytes)
}

fn path(world: &World, n: usize, layout: &Layout, file: &DataFile) -> Option<String> {
    let name = format!("{:016x}-{:04x}", layout.id.0, file.slot);
    world.data_file_names(n).into_iter().find(|path| path.ends_with(&name))
}
