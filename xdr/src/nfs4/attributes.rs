//! The values of a `fattr4` (RFC 8881 §5; RFC 7862 §12; RFC 8275; RFC 8276; RFC 9754): one row per
//! attribute, from which the struct, the decoder and the encoder are made.

use thiserror::Error;

use super::*;
use crate::{Decode, DecodeError, Encode, EncodeError, Reader, Writer};

/// Why a `fattr4` could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AttributesError {
    /// An attribute that no document we know defines: its value's length is unknown, so nothing behind it
    /// can be read either. NFS4ERR_ATTRNOTSUPP.
    #[error("attribute {0} is unknown")]
    Unknown(u32),
    /// The values are not what the mask announces. NFS4ERR_BADXDR.
    #[error(transparent)]
    Xdr(#[from] DecodeError),
}

macro_rules! attributes {
    ($($number:ident $field:ident: $type:ty,)*) => {
        /// Attribute values, each absent or present. Field names are the RFC's.
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        pub struct Attributes {
            $(
                #[doc = concat!("`", stringify!($number), "`")]
                pub $field: Option<$type>,
            )*
        }

        impl Attributes {
            /// Every attribute that has a field here, in ascending order.
            const NUMBERS: &[u32] = &[$($number),*];

            /// The attributes that are present.
            pub fn present(&self) -> bitmap4 {
                let mut set = bitmap4::EMPTY;
                $(
                    if self.$field.is_some() {
                        set.insert($number);
                    }
                )*
                set
            }

            fn decode_values(&mut self, mask: bitmap4, r: &mut Reader) -> Result<(), DecodeError> {
                for number in mask.iter() {
                    match number {
                        $($number => self.$field = Some(<$type>::decode(r)?),)*
                        _ => {}
                    }
                }
                Ok(())
            }

            fn encode_values(&self, mask: bitmap4, w: &mut Writer) {
                for number in mask.iter() {
                    match number {
                        $($number => self.$field.iter().for_each(|value| value.encode(w)),)*
                        _ => {}
                    }
                }
            }
        }

        /// Name of an attribute, as the RFC spells its constant.
        pub fn attribute_name(number: u32) -> Option<&'static str> {
            #[allow(clippy::match_same_arms)]
            match number {
                $($number => Some(stringify!($number)),)*
                _ => None,
            }
        }
    };
}

attributes! {
    FATTR4_SUPPORTED_ATTRS supported_attrs: fattr4_supported_attrs,
    FATTR4_TYPE type_: fattr4_type,
    FATTR4_FH_EXPIRE_TYPE fh_expire_type: fattr4_fh_expire_type,
    FATTR4_CHANGE change: fattr4_change,
    FATTR4_SIZE size: fattr4_size,
    FATTR4_LINK_SUPPORT link_support: fattr4_link_support,
    FATTR4_SYMLINK_SUPPORT symlink_support: fattr4_symlink_support,
    FATTR4_NAMED_ATTR named_attr: fattr4_named_attr,
    FATTR4_FSID fsid: fattr4_fsid,
    FATTR4_UNIQUE_HANDLES unique_handles: fattr4_unique_handles,
    FATTR4_LEASE_TIME lease_time: fattr4_lease_time,
    FATTR4_RDATTR_ERROR rdattr_error: fattr4_rdattr_error,
    FATTR4_ACL acl: fattr4_acl,
    FATTR4_ACLSUPPORT aclsupport: fattr4_aclsupport,
    FATTR4_ARCHIVE archive: fattr4_archive,
    FATTR4_CANSETTIME cansettime: fattr4_cansettime,
    FATTR4_CASE_INSENSITIVE case_insensitive: fattr4_case_insensitive,
    FATTR4_CASE_PRESERVING case_preserving: fattr4_case_preserving,
    FATTR4_CHOWN_RESTRICTED chown_restricted: fattr4_chown_restricted,
    FATTR4_FILEHANDLE filehandle: fattr4_filehandle,
    FATTR4_FILEID fileid: fattr4_fileid,
    FATTR4_FILES_AVAIL files_avail: fattr4_files_avail,
    FATTR4_FILES_FREE files_free: fattr4_files_free,
    FATTR4_FILES_TOTAL files_total: fattr4_files_total,
    FATTR4_FS_LOCATIONS fs_locations: fattr4_fs_locations,
    FATTR4_HIDDEN hidden: fattr4_hidden,
    FATTR4_HOMOGENEOUS homogeneous: fattr4_homogeneous,
    FATTR4_MAXFILESIZE maxfilesize: fattr4_maxfilesize,
    FATTR4_MAXLINK maxlink: fattr4_maxlink,
    FATTR4_MAXNAME maxname: fattr4_maxname,
    FATTR4_MAXREAD maxread: fattr4_maxread,
    FATTR4_MAXWRITE maxwrite: fattr4_maxwrite,
    FATTR4_MIMETYPE mimetype: fattr4_mimetype,
    FATTR4_MODE mode: fattr4_mode,
    FATTR4_NO_TRUNC no_trunc: fattr4_no_trunc,
    FATTR4_NUMLINKS numlinks: fattr4_numlinks,
    FATTR4_OWNER owner: fattr4_owner,
    FATTR4_OWNER_GROUP owner_group: fattr4_owner_group,
    FATTR4_QUOTA_AVAIL_HARD quota_avail_hard: fattr4_quota_avail_hard,
    FATTR4_QUOTA_AVAIL_SOFT quota_avail_soft: fattr4_quota_avail_soft,
    FATTR4_QUOTA_USED quota_used: fattr4_quota_used,
    FATTR4_RAWDEV rawdev: fattr4_rawdev,
    FATTR4_SPACE_AVAIL space_avail: fattr4_space_avail,
    FATTR4_SPACE_FREE space_free: fattr4_space_free,
    FATTR4_SPACE_TOTAL space_total: fattr4_space_total,
    FATTR4_SPACE_USED space_used: fattr4_space_used,
    FATTR4_SYSTEM system: fattr4_system,
    FATTR4_TIME_ACCESS time_access: fattr4_time_access,
    FATTR4_TIME_ACCESS_SET time_access_set: fattr4_time_access_set,
    FATTR4_TIME_BACKUP time_backup: fattr4_time_backup,
    FATTR4_TIME_CREATE time_create: fattr4_time_create,
    FATTR4_TIME_DELTA time_delta: fattr4_time_delta,
    FATTR4_TIME_METADATA time_metadata: fattr4_time_metadata,
    FATTR4_TIME_MODIFY time_modify: fattr4_time_modify,
    FATTR4_TIME_MODIFY_SET time_modify_set: fattr4_time_modify_set,
    FATTR4_MOUNTED_ON_FILEID mounted_on_fileid: fattr4_mounted_on_fileid,
    FATTR4_DIR_NOTIF_DELAY dir_notif_delay: fattr4_dir_notif_delay,
    FATTR4_DIRENT_NOTIF_DELAY dirent_notif_delay: fattr4_dirent_notif_delay,
    FATTR4_DACL dacl: fattr4_dacl,
    FATTR4_SACL sacl: fattr4_sacl,
    FATTR4_CHANGE_POLICY change_policy: fattr4_change_policy,
    FATTR4_FS_STATUS fs_status: Box<fattr4_fs_status>,
    FATTR4_FS_LAYOUT_TYPES fs_layout_types: fattr4_fs_layout_types,
    FATTR4_LAYOUT_HINT layout_hint: fattr4_layout_hint,
    FATTR4_LAYOUT_TYPES layout_types: fattr4_layout_types,
    FATTR4_LAYOUT_BLKSIZE layout_blksize: fattr4_layout_blksize,
    FATTR4_LAYOUT_ALIGNMENT layout_alignment: fattr4_layout_alignment,
    FATTR4_FS_LOCATIONS_INFO fs_locations_info: Box<fattr4_fs_locations_info>,
    FATTR4_MDSTHRESHOLD mdsthreshold: fattr4_mdsthreshold,
    FATTR4_RETENTION_GET retention_get: fattr4_retention_get,
    FATTR4_RETENTION_SET retention_set: fattr4_retention_set,
    FATTR4_RETENTEVT_GET retentevt_get: fattr4_retentevt_get,
    FATTR4_RETENTEVT_SET retentevt_set: fattr4_retentevt_set,
    FATTR4_RETENTION_HOLD retention_hold: fattr4_retention_hold,
    FATTR4_MODE_SET_MASKED mode_set_masked: fattr4_mode_set_masked,
    FATTR4_SUPPATTR_EXCLCREAT suppattr_exclcreat: fattr4_suppattr_exclcreat,
    FATTR4_FS_CHARSET_CAP fs_charset_cap: fattr4_fs_charset_cap,
    FATTR4_CLONE_BLKSIZE clone_blksize: fattr4_clone_blksize,
    FATTR4_SPACE_FREED space_freed: fattr4_space_freed,
    FATTR4_CHANGE_ATTR_TYPE change_attr_type: fattr4_change_attr_type,
    FATTR4_SEC_LABEL sec_label: fattr4_sec_label,
    FATTR4_MODE_UMASK mode_umask: fattr4_mode_umask,
    FATTR4_XATTR_SUPPORT xattr_support: fattr4_xattr_support,
    FATTR4_OFFLINE offline: fattr4_offline,
    FATTR4_TIME_DELEG_ACCESS time_deleg_access: fattr4_time_deleg_access,
    FATTR4_TIME_DELEG_MODIFY time_deleg_modify: fattr4_time_deleg_modify,
    FATTR4_OPEN_ARGUMENTS open_arguments: Box<fattr4_open_arguments>,
}

impl Attributes {
    /// Every attribute known here.
    pub const KNOWN: bitmap4 = bitmap4::of(Self::NUMBERS);

    /// Reads all values of `from`.
    pub fn decode(from: &fattr4) -> Result<Self, AttributesError> {
        let mut values = Self::default();
        values.read(from)?;
        Ok(values)
    }

    /// As [`Attributes::decode`], in place: with all that a file can have they are more than a kilobyte. After an error some
    /// of them may be there.
    pub fn read(&mut self, from: &fattr4) -> Result<(), AttributesError> {
        // Checked before anything is read: the client must learn that the attribute is the trouble.
        if let Some(unknown) = from.attrmask.without(Self::KNOWN).iter().next() {
            return Err(AttributesError::Unknown(unknown));
        }
        let mut r = Reader::new(from.attr_vals.clone());
        self.decode_values(from.attrmask, &mut r)?;
        r.finish()?;
        Ok(())
    }

    /// The values that are both asked for and present; the mask of the result names exactly those
    /// (RFC 8881 §18.7.3).
    pub fn encode(&self, asked: &bitmap4) -> Result<fattr4, EncodeError> {
        let attrmask = self.present().and(*asked);
        let mut w = Writer::default();
        self.encode_values(attrmask, &mut w);
        Ok(fattr4 { attrmask, attr_vals: w.finish()?.into_bytes() })
    }

    /// As [`Attributes::encode`], straight into a message: what `encode` returns, encoded, without a
    /// buffer in between. For directory listings.
    pub fn encode_into(&self, asked: &bitmap4, w: &mut Writer) {
        let mask = self.present().and(*asked);
        mask.encode(w);
        let length = w.reserve_u32();
        let start = w.len();
        self.encode_values(mask, w);
        // A value is whole words, so nothing needs padding.
        w.patch(length, u32::try_from(w.len() - start).unwrap_or(u32::MAX));
    }
}
