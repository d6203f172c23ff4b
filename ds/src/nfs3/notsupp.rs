//! What a data server does not do, answered in one place.

use sluice_rpc::Reply;
use sluice_xdr::Writer;
use sluice_xdr::nfs3::nfsstat3;

/// NFS3ERR_NOTSUPP in the shape of the procedure's failure: `words` absent attributes. The arguments
/// are not looked at, so that they cannot matter.
pub(super) fn reply(words: usize) -> Reply {
    let mut w = Writer::default();
    w.u32(nfsstat3::NFS3ERR_NOTSUPP.0);
    for _ in 0..words {
        w.bool(false);
    }
    match w.finish() {
        Ok(frame) => Reply::Success(frame),
        Err(_) => Reply::SystemErr,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use sluice_xdr::nfs3::{
        ACCESS3res, CREATE3res, LINK3res, LOOKUP3res, MKDIR3res, MKNOD3res, PATHCONF3res, READDIR3res,
        READDIRPLUS3res, READLINK3res, REMOVE3res, RENAME3res, RMDIR3res, SETATTR3res, SYMLINK3res,
    };
    use sluice_xdr::{Decode, from_bytes};

    use super::super::table::{Run, TABLE};
    use super::*;

    fn decodes<T: Decode>(bytes: Bytes) {
        assert!(from_bytes::<T>(bytes).is_ok(), "{}", std::any::type_name::<T>());
    }

    #[test]
    fn every_refusal_has_the_shape_of_its_procedure() {
        let mut refused = 0;
        for row in &TABLE {
            let Run::Refuse(words) = row.run else { continue };
            refused += 1;
            let Reply::Success(frame) = reply(words) else { panic!("{}", row.name) };
            let bytes = frame.to_bytes();
            assert_eq!(bytes[..4], nfsstat3::NFS3ERR_NOTSUPP.0.to_be_bytes());
            match row.name {
                "SETATTR" => decodes::<SETATTR3res>(bytes),
                "LOOKUP" => decodes::<LOOKUP3res>(bytes),
                "ACCESS" => decodes::<ACCESS3res>(bytes),
                "READLINK" => decodes::<READLINK3res>(bytes),
                "CREATE" => decodes::<CREATE3res>(bytes),
                "MKDIR" => decodes::<MKDIR3res>(bytes),
                "SYMLINK" => decodes::<SYMLINK3res>(bytes),
                "MKNOD" => decodes::<MKNOD3res>(bytes),
                "REMOVE" => decodes::<REMOVE3res>(bytes),
                "RMDIR" => decodes::<RMDIR3res>(bytes),
                "RENAME" => decodes::<RENAME3res>(bytes),
                "LINK" => decodes::<LINK3res>(bytes),
                "READDIR" => decodes::<READDIR3res>(bytes),
                "READDIRPLUS" => decodes::<READDIRPLUS3res>(bytes),
                "PATHCONF" => decodes::<PATHCONF3res>(bytes),
                other => panic!("{other} is not known to this test"),
            }
        }
        assert_eq!(refused, 15);
    }
}
