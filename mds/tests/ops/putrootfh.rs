//! PUTROOTFH.

use sluice_xdr::nfs4::*;

use crate::harness::*;

#[test]
fn the_root_is_a_directory() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let got = client.attributes("/", &[FATTR4_TYPE, FATTR4_FILEID]).await;
        assert_eq!(got.type_, Some(nfs_ftype4::NF4DIR));
        let (fh, _) = client.open("file", BOTH, 0).await;
        assert!(fh.0.len() <= 32);
    });
}
