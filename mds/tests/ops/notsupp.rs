//! What is declined, as a client asks for it (docs/SEMANTICS.md, Declined operations).

use bytes::Bytes;
use sluice_xdr::nfs4::*;

use crate::harness::*;

#[test]
fn what_is_declined_is_notsupp() {
    simulate(1, async |world: World| {
        let client = world.client("a").await;
        let (fh, _) = client.open("file", BOTH, 0).await;
        let declined = [
            nfs_argop4::OP_DELEGPURGE(DELEGPURGE4args::default()),
            nfs_argop4::OP_OPENATTR(OPENATTR4args::default()),
            nfs_argop4::OP_GET_DIR_DELEGATION(GET_DIR_DELEGATION4args::default()),
            nfs_argop4::OP_GETDEVICELIST(GETDEVICELIST4args::default()),
            nfs_argop4::OP_SET_SSV(SET_SSV4args::default()),
            nfs_argop4::OP_WANT_DELEGATION(WANT_DELEGATION4args {
                wda_want: 0,
                wda_claim: deleg_claim4::CLAIM_FH,
            }),
            nfs_argop4::OP_COPY_NOTIFY(COPY_NOTIFY4args {
                cna_src_stateid: stateid4::default(),
                cna_destination_server: netloc4::NL4_NAME(Bytes::from_static(b"elsewhere")),
            }),
            nfs_argop4::OP_WRITE_SAME(WRITE_SAME4args::default()),
            open_with(b"o", READ, 0, NOCREATE, open_claim4::CLAIM_DELEG_PREV_FH),
        ];
        for operation in declined {
            let name = format!("{:?}", operation.discriminant());
            let before = if matches!(operation, nfs_argop4::OP_GET_DIR_DELEGATION(_)) {
                putrootfh()
            } else {
                putfh(&fh)
            };
            assert_eq!(client.status(vec![before, operation]).await, nfsstat4::NFS4ERR_NOTSUPP, "{name}");
        }
    });
}
