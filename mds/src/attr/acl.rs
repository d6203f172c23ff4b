//! Access control lists on the wire. RFC 8881 §6.2.1.

use bytes::Bytes;
use sluice_namespace::{Ace, Acl, Credential, Inheritance, Inode, Rights, Who};
use sluice_xdr::nfs4::*;

use super::get::numeric;
use super::set::id;
use crate::error::fs_status;

/// What `aclsupport` says: nothing is logged and nobody alarmed.
pub(crate) const SUPPORT: u32 = ACL4_SUPPORT_ALLOW_ACL | ACL4_SUPPORT_DENY_ACL;

const OWNER: &[u8] = b"OWNER@";
const GROUP: &[u8] = b"GROUP@";
const EVERYONE: &[u8] = b"EVERYONE@";

/// Every flag that the RFC defines.
const FLAGS: u32 = 0xff;

/// A list that a client wants.
///
/// # Errors
/// ATTRNOTSUPP for what would not be enforced, INVAL for what means nothing, BADOWNER, NOSPC when there are too many.
pub(crate) fn from_wire(aces: &[nfsace4]) -> Result<Acl, nfsstat4> {
    let aces = aces.iter().map(ace).collect::<Result<Vec<_>, _>>()?;
    Acl::new(aces).map_err(|error| fs_status(&error))
}

fn ace(wire: &nfsace4) -> Result<Ace, nfsstat4> {
    let allow = match wire.type_ {
        ACE4_ACCESS_ALLOWED_ACE_TYPE => true,
        ACE4_ACCESS_DENIED_ACE_TYPE => false,
        // §6.2.1.1: what cannot be stored is refused in this way.
        _ => return Err(nfsstat4::NFS4ERR_ATTRNOTSUPP),
    };
    if wire.flag & !FLAGS != 0 || !Rights::ALL.contains(Rights(wire.access_mask)) {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    // Flags of audits and alarms mean nothing here (§6.2.1.4.1), and that an entry was inherited is not said in this
    // attribute: both sides clear it.
    let inheritance = Inheritance((wire.flag & u32::from(Inheritance::ALL.0)) as u8);
    let by_group = wire.flag & ACE4_IDENTIFIER_GROUP != 0;
    let who = match wire.who.as_ref() {
        OWNER => Who::Owner,
        GROUP => Who::Group,
        EVERYONE => Who::Everyone,
        // §6.2.1.5: other names with an @ at the end are special too, and nobody here.
        other if by_group => Who::Members(id(other)?),
        other => Who::User(id(other)?),
    };
    Ok(Ace { allow, inheritance, rights: Rights(wire.access_mask), who })
}

/// The list of an inode, or what its mode means.
pub(crate) fn to_wire(inode: &Inode) -> Vec<nfsace4> {
    inode.acl().aces().iter().map(wire).collect()
}

fn wire(ace: &Ace) -> nfsace4 {
    let (who, by_group) = match ace.who {
        Who::Owner => (Bytes::from_static(OWNER), false),
        Who::Group => (Bytes::from_static(GROUP), true),
        Who::Everyone => (Bytes::from_static(EVERYONE), false),
        Who::User(id) => (numeric(id), false),
        Who::Members(id) => (numeric(id), true),
    };
    let flag = u32::from(ace.inheritance.0) | if by_group { ACE4_IDENTIFIER_GROUP } else { 0 };
    let type_ = if ace.allow { ACE4_ACCESS_ALLOWED_ACE_TYPE } else { ACE4_ACCESS_DENIED_ACE_TYPE };
    nfsace4 { type_, flag, access_mask: ace.rights.0, who }
}

/// §6.2.1.3.1: READ_ACL. Asking for anything else takes nothing.
pub(crate) fn permit(asked: &bitmap4, inode: &Inode, who: &Credential) -> Result<(), nfsstat4> {
    if asked.contains(FATTR4_ACL) && !inode.record.owned().may_read_acl(who) {
        return Err(nfsstat4::NFS4ERR_ACCESS);
    }
    Ok(())
}
