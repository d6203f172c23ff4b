//! What clients set, read from fattr4. RFC 8881 §5, §18.30; mode_umask is RFC 8275.

use sluice_env::Wall;
use sluice_namespace::{MAX_FILE_SIZE, NewAttributes, NewMode, SetAttr, SetTime};
use sluice_xdr::nfs4::*;

use super::acl;
use super::get::{self, SETTABLE};
use crate::compound::Context;
use crate::server::Mds;

/// Attributes of a SETATTR, CREATE or OPEN, judged.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Everything asked for: what the reply's attrset names when all was done.
    pub(crate) mask: bitmap4,
    pub(crate) size: Option<u64>,
    pub(crate) set: SetAttr,
    /// With the mode, for something new: it counts where no list is inherited (RFC 8275).
    umask: Option<u16>,
}

impl Wanted {
    /// Reads and judges `from`, in which owners may be named: who they are this host is asked.
    ///
    /// # Errors
    /// As [`Wanted::decode`]; DELAY while the host cannot tell.
    pub(crate) async fn read(cx: &Context, from: &fattr4) -> Result<Self, nfsstat4> {
        let (mds, minor) = (&cx.server, cx.minor);
        match Self::decode(mds, minor, from) {
            // Nobody is asked for what is refused anyhow, nor where all are numbers.
            Err(nfsstat4::NFS4ERR_BADOWNER) => {
                let numbered = Box::pin(mds.names.numbered(&mds.env, cx.from.address, from)).await?;
                Self::decode(mds, minor, &numbered)
            }
            judged => judged,
        }
    }

    /// Reads and judges `from`, with owners in numbers.
    ///
    /// # Errors
    /// ATTRNOTSUPP, INVAL (read-only, or a value out of range), BADXDR, BADOWNER, FBIG.
    fn decode(mds: &Mds, minor: u32, from: &fattr4) -> Result<Self, nfsstat4> {
        let supported = get::supported(mds, minor);
        // §18.30.3: what is not supported comes before what may not be set.
        if !from.attrmask.without(supported).is_empty() {
            return Err(nfsstat4::NFS4ERR_ATTRNOTSUPP);
        }
        if !from.attrmask.without(SETTABLE).is_empty() {
            return Err(nfsstat4::NFS4ERR_INVAL);
        }
        let mut values = Attributes::default();
        values.read(from).map_err(|error| match error {
            AttributesError::Unknown(_) => nfsstat4::NFS4ERR_ATTRNOTSUPP,
            AttributesError::Xdr(_) => nfsstat4::NFS4ERR_BADXDR,
        })?;
        if values.size.is_some_and(|size| size > MAX_FILE_SIZE) {
            return Err(nfsstat4::NFS4ERR_FBIG);
        }
        let acl = match (&values.acl, &values.dacl) {
            // Two names of one list.
            (Some(_), Some(_)) => return Err(nfsstat4::NFS4ERR_INVAL),
            (Some(aces), None) => Some(acl::from_wire(aces)?),
            (None, dacl) => dacl.as_ref().map(acl::from_dacl).transpose()?,
        };
        let mut set = SetAttr {
            acl,
            uid: values.owner.as_deref().map(id).transpose()?,
            gid: values.owner_group.as_deref().map(id).transpose()?,
            atime: values.time_access_set.map(time).transpose()?,
            mtime: values.time_modify_set.map(time).transpose()?,
            btime: values.time_create.map(wall).transpose()?,
            ..SetAttr::default()
        };
        set.mode = match (values.mode, values.mode_umask) {
            // RFC 8275 §4.1: not both.
            (Some(_), Some(_)) => return Err(nfsstat4::NFS4ERR_INVAL),
            (Some(bits), None) => Some(mode(bits)?),
            (None, Some(both)) => Some(mode(both.mu_mode)?),
            (None, None) => None,
        };
        let umask = values.mode_umask.map(|both| mode(both.mu_umask)).transpose()?;
        if let Some(masked) = values.mode_set_masked {
            set.mode_masked = Some((mode(masked.mm_value_to_set)?, mode(masked.mm_mask_bits)?));
        }
        Ok(Self { mask: from.attrmask, size: values.size, set, umask })
    }

    /// As attributes of something new, whose mode is `default` unless the client says.
    pub(crate) fn new_attributes(&self, default: NewMode, now: Wall) -> NewAttributes {
        let at = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(wall) => wall,
        };
        NewAttributes {
            mode: self.new_mode(default),
            acl: self.set.acl.clone(),
            uid: self.set.uid,
            gid: self.set.gid,
            atime: self.set.atime.map(at),
            mtime: self.set.mtime.map(at),
            btime: self.set.btime,
        }
    }

    fn new_mode(&self, default: NewMode) -> NewMode {
        match (self.set.mode, self.umask, self.set.mode_masked) {
            (None, _, None) => default,
            (Some(mode), None, None) => NewMode::Given(mode),
            (Some(mode), Some(umask), None) => NewMode::Umasked { mode, umask },
            // RFC 8881 §6.2.5: some bits in place of those that it would have.
            (mode, umask, Some((value, mask))) => {
                let mode = mode.unwrap_or(default.alone()) & !umask.unwrap_or_default();
                NewMode::Given((mode & !mask) | (value & mask))
            }
        }
    }

    /// RFC 8275 §4.1: a umask is for what is made.
    pub(crate) fn is_for_new(&self) -> bool {
        self.umask.is_some()
    }

    /// Anything besides the size.
    pub(crate) fn beyond_size(&self) -> bool {
        !self.mask.without(bitmap4::of(&[FATTR4_SIZE])).is_empty()
    }
}

fn mode(bits: u32) -> Result<u16, nfsstat4> {
    u16::try_from(bits).ok().filter(|mode| *mode <= 0o7777).ok_or(nfsstat4::NFS4ERR_INVAL)
}

/// A number in text: what clients with AUTH_SYS send (RFC 8881 §5.9). BADOWNER: it may be a name (crate::owners).
pub(crate) fn id(owner: &[u8]) -> Result<u32, nfsstat4> {
    let text = std::str::from_utf8(owner).map_err(|_| nfsstat4::NFS4ERR_INVAL)?;
    if text.is_empty() {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    // "+1" and " 1" parse too in some libraries; only digits are an id.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(nfsstat4::NFS4ERR_BADOWNER);
    }
    text.parse().map_err(|_| nfsstat4::NFS4ERR_BADOWNER)
}

fn time(wire: settime4) -> Result<SetTime, nfsstat4> {
    match wire {
        settime4::SET_TO_CLIENT_TIME4(at) => wall(at).map(SetTime::To),
        settime4::Default(time_how4::SET_TO_SERVER_TIME4) => Ok(SetTime::Now),
        _ => Err(nfsstat4::NFS4ERR_INVAL),
    }
}

fn wall(at: nfstime4) -> Result<Wall, nfsstat4> {
    let fits = at.nseconds < 1_000_000_000;
    fits.then_some(Wall { seconds: at.seconds, nanos: at.nseconds }).ok_or(nfsstat4::NFS4ERR_INVAL)
}
