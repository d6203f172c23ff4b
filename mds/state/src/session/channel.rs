//! Channel attributes: negotiation at CREATE_SESSION, RFC 8881 §18.36.3.

use bytes::Bytes;

use crate::client::Error;

/// `channel_attrs4` without header padding and RDMA, which are always granted as 0 and none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelAttrs {
    /// `ca_maxrequestsize`, bytes.
    pub max_request: u32,
    /// `ca_maxresponsesize`, bytes.
    pub max_response: u32,
    /// `ca_maxresponsesize_cached`, bytes.
    pub max_response_cached: u32,
    /// `ca_maxoperations`.
    pub max_ops: u32,
    /// `ca_maxrequests`: slots.
    pub max_requests: u32,
}

/// What the server grants at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Upper bounds of a fore channel. `max_ops` below 8 makes Linux refuse the mount.
    pub fore: ChannelAttrs,
    /// Upper bounds of a back channel.
    pub back: ChannelAttrs,
    /// A fore channel can grow to this many slots.
    pub max_slots: u32,
    /// Bytes of cached replies that the sessions of one client may promise together.
    pub cache_per_client: u64,
}

impl Default for ChannelLimits {
    fn default() -> Self {
        // 1 MiB of data plus room for headers; Linux asks for just that.
        let size = (1 << 20) + 8192;
        Self {
            fore: ChannelAttrs {
                max_request: size,
                max_response: size,
                max_response_cached: 16 << 10,
                max_ops: 64,
                max_requests: 128,
            },
            back: ChannelAttrs {
                max_request: 64 << 10,
                max_response: 64 << 10,
                max_response_cached: 0,
                max_ops: 16,
                max_requests: 16,
            },
            max_slots: 256,
            cache_per_client: 8 << 20,
        }
    }
}

/// RPC and COMPOUND headers with a SEQUENCE: nothing smaller can carry a request.
pub const MIN_REQUEST: u32 = 128;
/// The same for a reply.
pub const MIN_RESPONSE: u32 = 100;
/// The largest callback sent (CB_SEQUENCE and CB_LAYOUTRECALL with a 128-byte filehandle).
pub const MIN_BACK_REQUEST: u32 = 384;
/// CB_SEQUENCE and one more.
pub const MIN_BACK_OPS: u32 = 2;

fn lower(ask: &ChannelAttrs, limit: &ChannelAttrs) -> ChannelAttrs {
    // §18.36.3: the server may lower every value the client asks for, never raise one.
    ChannelAttrs {
        max_request: ask.max_request.min(limit.max_request),
        max_response: ask.max_response.min(limit.max_response),
        max_response_cached: ask.max_response_cached.min(limit.max_response_cached).min(ask.max_response),
        max_ops: ask.max_ops.min(limit.max_ops),
        max_requests: ask.max_requests.min(limit.max_requests),
    }
}

/// Grants a fore channel; `cache_left` is what the client may still promise in cached replies, bytes.
///
/// Errors: Toosmall when no request or no reply could ever fit, Nospc when not one cached reply fits.
pub fn negotiate_fore(
    ask: &ChannelAttrs,
    limits: &ChannelLimits,
    cache_left: u64,
) -> Result<ChannelAttrs, Error> {
    let mut got = lower(ask, &limits.fore);
    if got.max_request < MIN_REQUEST || got.max_response < MIN_RESPONSE {
        return Err(Error::Toosmall);
    }
    // A channel that takes no operation or no request is of no use to anybody.
    if got.max_ops == 0 || got.max_requests == 0 {
        return Err(Error::Toosmall);
    }
    // sa_cachethis is a promise: the memory is set aside now, with fewer slots if need be.
    if got.max_response_cached > 0 {
        let fits = cache_left / u64::from(got.max_response_cached);
        got.max_requests = got.max_requests.min(u32::try_from(fits).unwrap_or(u32::MAX));
        if got.max_requests == 0 {
            return Err(Error::Nospc);
        }
    }
    Ok(got)
}

/// Grants a back channel. `wanted`: the client binds its connection to it now.
///
/// Errors: Toosmall for attributes that no callback could work with. All zeros say that the client wants
/// no callbacks; anything else is refused at once, since a connection may be bound later.
pub fn negotiate_back(
    ask: &ChannelAttrs,
    limits: &ChannelLimits,
    wanted: bool,
) -> Result<ChannelAttrs, Error> {
    let got = lower(ask, &limits.back);
    let small = got.max_request < MIN_BACK_REQUEST
        || got.max_response < MIN_RESPONSE
        || got.max_ops < MIN_BACK_OPS
        || got.max_requests == 0;
    if small && (wanted || *ask != ChannelAttrs::default()) {
        return Err(Error::Toosmall);
    }
    Ok(got)
}

/// Bytes of cached replies that a fore channel promises.
#[must_use]
pub fn promised_cache(fore: &ChannelAttrs) -> u64 {
    u64::from(fore.max_response_cached) * u64::from(fore.max_requests)
}

/// `callback_sec_parms4`: how the client wants callbacks authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CbSecurity {
    /// AUTH_NONE
    None,
    /// AUTH_SYS with these credentials (Linux sends uid 0, gid 0).
    Sys {
        /// `stamp`
        stamp: u32,
        /// `machinename`
        machine: Bytes,
        /// `uid`
        uid: u32,
        /// `gid`
        gid: u32,
        /// `gids`
        gids: Vec<u32>,
    },
    /// RPCSEC_GSS, which is not supported for callbacks.
    Gss,
}

/// Callback program and the security chosen from the client's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackChannelParams {
    /// `csa_cb_program`
    pub program: u32,
    /// The first acceptable offer; `None`: there was none and no callback can be made.
    pub security: Option<CbSecurity>,
}

impl BackChannelParams {
    /// Chooses the first offer that is not RPCSEC_GSS.
    #[must_use]
    pub fn choose(program: u32, offers: &[CbSecurity]) -> Self {
        let security = offers.iter().find(|s| **s != CbSecurity::Gss).cloned();
        Self { program, security }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: ChannelAttrs = ChannelAttrs {
        max_request: 1_049_620,
        max_response: 1_049_480,
        max_response_cached: 7584,
        max_ops: 8,
        max_requests: 64,
    };

    #[test]
    fn a_linux_request_is_granted_whole() {
        let got = negotiate_fore(&LINUX, &ChannelLimits::default(), u64::MAX).unwrap();
        assert_eq!(got, LINUX);
    }

    /// pynfs CSESS22.
    #[test]
    fn too_many_slots_are_lowered() {
        let ask = ChannelAttrs { max_requests: 500, ..LINUX };
        assert_eq!(negotiate_fore(&ask, &ChannelLimits::default(), u64::MAX).unwrap().max_requests, 128);
    }

    /// pynfs CSESS25, CSESS28.
    #[test]
    fn impossible_sizes_are_too_small() {
        let limits = ChannelLimits::default();
        for ask in [
            ChannelAttrs { max_request: 20, ..LINUX },
            ChannelAttrs { max_response: 0, ..LINUX },
            ChannelAttrs { max_ops: 0, ..LINUX },
            ChannelAttrs { max_requests: 0, ..LINUX },
        ] {
            assert_eq!(negotiate_fore(&ask, &limits, u64::MAX), Err(Error::Toosmall));
        }
    }

    /// pynfs CSESS26 uses 400 bytes, CSESS27 a cached maximum of a few bytes: both legal.
    #[test]
    fn small_but_possible_sizes_are_granted() {
        let ask = ChannelAttrs { max_request: 400, max_response: 400, max_response_cached: 10, ..LINUX };
        assert_eq!(negotiate_fore(&ask, &ChannelLimits::default(), u64::MAX).unwrap(), ask);
    }

    #[test]
    fn the_promise_is_bounded() {
        let limits = ChannelLimits::default();
        let got = negotiate_fore(&LINUX, &limits, 3 * 7584).unwrap();
        assert_eq!((got.max_requests, promised_cache(&got)), (3, 3 * 7584));
        assert_eq!(negotiate_fore(&LINUX, &limits, 7583), Err(Error::Nospc));
    }

    #[test]
    fn back_channel_of_linux() {
        let ask = ChannelAttrs {
            max_request: 4096,
            max_response: 4096,
            max_response_cached: 0,
            max_ops: 2,
            max_requests: 16,
        };
        assert_eq!(negotiate_back(&ask, &ChannelLimits::default(), true).unwrap(), ask);
        let one_op = ChannelAttrs { max_ops: 1, ..ask };
        assert_eq!(negotiate_back(&one_op, &ChannelLimits::default(), true), Err(Error::Toosmall));
        // pynfs CSESS29.
        assert_eq!(negotiate_back(&one_op, &ChannelLimits::default(), false), Err(Error::Toosmall));
        let none = ChannelAttrs::default();
        assert_eq!(negotiate_back(&none, &ChannelLimits::default(), false).unwrap(), none);
        assert_eq!(negotiate_back(&none, &ChannelLimits::default(), true), Err(Error::Toosmall));
    }

    /// pynfs CSESS16a.
    #[test]
    fn security_skips_gss() {
        let sys =
            CbSecurity::Sys { stamp: 5, machine: Bytes::from_static(b"m"), uid: 7, gid: 11, gids: vec![] };
        let got = BackChannelParams::choose(1, &[CbSecurity::Gss, sys.clone()]);
        assert_eq!(got.security, Some(sys));
        assert_eq!(BackChannelParams::choose(1, &[CbSecurity::Gss]).security, None);
    }
}
