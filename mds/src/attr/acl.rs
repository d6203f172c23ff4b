//! Access control lists on the wire: acl and dacl. RFC 8881 §6.2.1, §6.2.2.

use bytes::Bytes;
use sluice_namespace::{Ace, Acl, AclFlags, Credential, Inheritance, Inode, Rights, Who};
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
    // That an entry was inherited is not said in this attribute (§6.4.3.2): both sides clear it.
    list(aces, Inheritance::ALL)
}

/// The same as dacl has it, with flags.
///
/// # Errors
/// As above; INVAL for flags that mean nothing.
pub(crate) fn from_dacl(wire: &nfsacl41) -> Result<Acl, nfsstat4> {
    let flags = u8::try_from(wire.na41_flag).ok().filter(|flags| *flags <= AclFlags::ALL.0);
    let flags = AclFlags(flags.ok_or(nfsstat4::NFS4ERR_INVAL)?);
    let kept = Inheritance(Inheritance::ALL.0 | Inheritance::INHERITED.0);
    Ok(list(&wire.na41_aces, kept)?.flagged(flags))
}

fn list(aces: &[nfsace4], kept: Inheritance) -> Result<Acl, nfsstat4> {
    if aces.len() > Acl::MOST {
        return Err(nfsstat4::NFS4ERR_NOSPC);
    }
    let aces = aces.iter().map(|wire| ace(wire, kept)).collect::<Result<Vec<_>, _>>()?;
    Acl::new(aces).map_err(|error| fs_status(&error))
}

fn ace(wire: &nfsace4, kept: Inheritance) -> Result<Ace, nfsstat4> {
    let allow = match wire.type_ {
        ACE4_ACCESS_ALLOWED_ACE_TYPE => true,
        ACE4_ACCESS_DENIED_ACE_TYPE => false,
        // §6.2.1.1: what cannot be stored is refused in this way.
        _ => return Err(nfsstat4::NFS4ERR_ATTRNOTSUPP),
    };
    if wire.flag & !FLAGS != 0 || !Rights::ALL.contains(Rights(wire.access_mask)) {
        return Err(nfsstat4::NFS4ERR_INVAL);
    }
    // Flags of audits and alarms mean nothing here (§6.2.1.4.1).
    let inheritance = Inheritance((wire.flag & u32::from(kept.0)) as u8);
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
    inode.acl().aces().iter().map(|ace| wire(ace, Inheritance::ALL)).collect()
}

/// The same as dacl shows it.
pub(crate) fn to_dacl(inode: &Inode) -> nfsacl41 {
    let acl = inode.acl();
    let all = Inheritance(u8::MAX);
    nfsacl41 {
        na41_flag: acl.flags().0.into(),
        na41_aces: acl.aces().iter().map(|ace| wire(ace, all)).collect(),
    }
}

fn wire(ace: &Ace, shown: Inheritance) -> nfsace4 {
    let (who, by_group) = match ace.who {
        Who::Owner => (Bytes::from_static(OWNER), false),
        Who::Group => (Bytes::from_static(GROUP), true),
        Who::Everyone => (Bytes::from_static(EVERYONE), false),
        Who::User(id) => (numeric(id), false),
        Who::Members(id) => (numeric(id), true),
    };
    let flag = u32::from(ace.inheritance.0 & shown.0) | if by_group { ACE4_IDENTIFIER_GROUP } else { 0 };
    let type_ = if ace.allow { ACE4_ACCESS_ALLOWED_ACE_TYPE } else { ACE4_ACCESS_DENIED_ACE_TYPE };
    nfsace4 { type_, flag, access_mask: ace.rights.0, who }
}

/// §6.2.1.3.1: READ_ACL. Asking for anything else takes nothing.
pub(crate) fn permit(asked: &bitmap4, inode: &Inode, who: &Credential) -> Result<(), nfsstat4> {
    if (asked.contains(FATTR4_ACL) || asked.contains(FATTR4_DACL)) && !inode.record.owned().may_read_acl(who)
    {
        return Err(nfsstat4::NFS4ERR_ACCESS);
    }
    Ok(())
}
