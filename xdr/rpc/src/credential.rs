//! Who a call says it comes from (RFC 5531 §8.2).

use bytes::Bytes;
use sluice_xdr::rpc::auth_stat;
use sluice_xdr::{DecodeError, Reader, Writer};

use crate::gss::GssCaller;

/// Flavours this crate knows, RFC 5531 §8.2.
pub(crate) const AUTH_NONE: u32 = 0;
pub(crate) const AUTH_SYS: u32 = 1;
pub(crate) const AUTH_SHORT: u32 = 2;
pub(crate) const RPCSEC_GSS: u32 = 6;

/// Largest body of a credential or verifier, RFC 5531 §8.2.
pub(crate) const MAX_AUTH_BYTES: u32 = 400;

/// RFC 5531, appendix A.
const MAX_MACHINE_NAME: u32 = 255;
const MAX_GIDS: u32 = 16;

/// The credential of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Credential {
    /// AUTH_NONE: nobody in particular.
    #[default]
    None,
    /// AUTH_SYS: a claim nobody has checked.
    Sys(AuthSys),
    /// RPCSEC_GSS: a claim that was proved. Only of calls that came: none is made so.
    Gss(Box<GssCaller>),
}

/// An AUTH_SYS credential (RFC 5531, appendix A).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthSys {
    /// Arbitrary.
    pub stamp: u32,
    /// The caller's host name, at most 255 bytes, any bytes.
    pub machine_name: Bytes,
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, at most 16.
    pub gids: Vec<u32>,
}

impl AuthSys {
    /// Root on `machine_name` without supplementary groups: what a 4.1 back channel wants.
    pub fn root(machine_name: &str) -> Self {
        Self { machine_name: Bytes::copy_from_slice(machine_name.as_bytes()), ..Self::default() }
    }

    fn decode(body: Bytes) -> Result<Self, DecodeError> {
        let mut r = Reader::new(body);
        let cred = Self {
            stamp: r.u32()?,
            machine_name: r.opaque(MAX_MACHINE_NAME)?,
            uid: r.u32()?,
            gid: r.u32()?,
            gids: r.array(MAX_GIDS, 4, |r| r.u32())?,
        };
        r.finish()?;
        Ok(cred)
    }

    fn encode(&self, w: &mut Writer) {
        w.u32(self.stamp);
        w.opaque(&self.machine_name, MAX_MACHINE_NAME);
        w.u32(self.uid);
        w.u32(self.gid);
        w.array(&self.gids, MAX_GIDS, |w, gid| w.u32(*gid));
    }

    fn encoded_len(&self) -> usize {
        20 + self.machine_name.len().next_multiple_of(4) + 4 * self.gids.len()
    }
}

impl Credential {
    /// The credential of `flavour` with `body`, or why it is refused.
    pub(crate) fn parse(flavour: u32, body: Bytes) -> Result<Self, auth_stat> {
        match flavour {
            // The body of AUTH_NONE should be empty; its bytes mean nothing (RFC 5531 §8.1).
            AUTH_NONE => Ok(Self::None),
            AUTH_SYS => AuthSys::decode(body).map(Self::Sys).map_err(|_| auth_stat::AUTH_BADCRED),
            // We never hand out a short-hand, so this one is stale: the client must send the full one
            // (RFC 5531 §8.3.1).
            AUTH_SHORT => Err(auth_stat::AUTH_REJECTEDCRED),
            // AUTH_TLS, whose probe falls back on any refusal (RFC 9289 §4.1).
            _ => Err(auth_stat::AUTH_REJECTEDCRED),
        }
    }

    /// Whether [`Self::parse`] accepts the credential, told without taking it apart.
    pub(crate) fn is_plain(flavour: u32, body: &[u8]) -> bool {
        let word = |at: usize| {
            let bytes = body.get(at..at.checked_add(4)?)?;
            bytes.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
        };
        let is_sys = || {
            let name = word(4).filter(|name| *name <= MAX_MACHINE_NAME)? as usize;
            let padded = name.next_multiple_of(4);
            let padding = body.get(8 + name..8 + padded)?;
            let gids = word(16 + padded).filter(|gids| *gids <= MAX_GIDS)? as usize;
            Some(padding.iter().all(|byte| *byte == 0) && body.len() == 20 + padded + 4 * gids)
        };
        match flavour {
            AUTH_NONE => body.is_empty(),
            AUTH_SYS => is_sys() == Some(true),
            _ => false,
        }
    }

    /// Writes flavour and body.
    pub(crate) fn encode(&self, w: &mut Writer) {
        match self {
            Self::None | Self::Gss(_) => {
                w.u32(AUTH_NONE);
                w.u32(0);
            }
            Self::Sys(sys) => {
                w.u32(AUTH_SYS);
                w.u32(u32::try_from(sys.encoded_len()).unwrap_or(u32::MAX));
                sys.encode(w);
            }
        }
    }

    /// The user that the caller is, or says to be, if any.
    pub fn sys(&self) -> Option<&AuthSys> {
        match self {
            Self::None => None,
            Self::Sys(sys) => Some(sys),
            Self::Gss(caller) => caller.user.as_ref(),
        }
    }

    /// His uid.
    pub fn uid(&self) -> Option<u32> {
        self.sys().map(|sys| sys.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(cred: &Credential) -> (u32, Bytes) {
        let mut w = Writer::default();
        cred.encode(&mut w);
        let mut r = Reader::new(w.finish().unwrap().into_bytes());
        let flavour = r.u32().unwrap();
        let body = r.opaque(MAX_AUTH_BYTES).unwrap();
        r.finish().unwrap();
        (flavour, body)
    }

    #[test]
    fn auth_sys_round_trips_at_its_bounds() {
        for (name, gids) in [(0, 0), (1, 1), (3, 5), (255, 16)] {
            let cred = Credential::Sys(AuthSys {
                stamp: 7,
                machine_name: vec![b'm'; name].into(),
                uid: 1000,
                gid: 1001,
                gids: (0..gids).collect(),
            });
            let (flavour, body) = encoded(&cred);
            assert_eq!(Credential::parse(flavour, body), Ok(cred));
        }
    }

    #[test]
    fn a_hostile_group_count_is_a_bad_credential() {
        let mut w = Writer::default();
        for word in [0, 0, 0, 0, u32::MAX] {
            w.u32(word);
        }
        let body = w.finish().unwrap().into_bytes();
        assert_eq!(Credential::parse(AUTH_SYS, body), Err(auth_stat::AUTH_BADCRED));
    }

    #[test]
    fn what_we_cannot_check_is_refused() {
        for flavour in [AUTH_SHORT, 3, 6, 7, 390_003, u32::MAX] {
            assert_eq!(Credential::parse(flavour, Bytes::new()), Err(auth_stat::AUTH_REJECTEDCRED));
        }
    }
}
