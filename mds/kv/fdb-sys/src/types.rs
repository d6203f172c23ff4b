//! The types of the C API.

use std::ffi::{c_int, c_uint};

/// 0 is success.
pub type fdb_error_t = c_int;
/// 0 is false.
pub type fdb_bool_t = c_int;

/// Option enumerations: C passes them as integers.
pub type FDBNetworkOption = c_uint;
pub type FDBDatabaseOption = c_uint;
pub type FDBTransactionOption = c_uint;
pub type FDBStreamingMode = c_int;
pub type FDBMutationType = c_uint;
pub type FDBConflictRangeType = c_uint;
pub type FDBErrorPredicate = c_int;

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        /// Known to C only, behind pointers.
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name {
            _private: [u8; 0],
        }
    )+};
}

opaque! {
    /// A value or an error that will be there later.
    FDBFuture,
    /// A cluster's database.
    FDB_database,
    /// A transaction.
    FDB_transaction,
    /// A tenant.
    FDB_tenant,
}

pub type FDBDatabase = FDB_database;
pub type FDBTransaction = FDB_transaction;
pub type FDBTenant = FDB_tenant;

/// Called once when a future is ready, from the network thread or from within the call that sets it.
pub type FDBCallback =
    Option<unsafe extern "C" fn(future: *mut FDBFuture, callback_parameter: *mut std::ffi::c_void)>;

// The header packs these to four bytes.

#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBKey {
    pub key: *const u8,
    pub key_length: c_int,
}

#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBKeyValue {
    pub key: *const u8,
    pub key_length: c_int,
    pub value: *const u8,
    pub value_length: c_int,
}

#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBKeySelector {
    pub key: FDBKey,
    pub orEqual: fdb_bool_t,
    pub offset: c_int,
}

#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBGetRangeReqAndResult {
    pub begin: FDBKeySelector,
    pub end: FDBKeySelector,
    pub data: *mut FDBKeyValue,
    pub m_size: c_int,
    pub m_capacity: c_int,
}

#[repr(C, packed(4))]
#[derive(Clone, Copy, Debug)]
pub struct FDBMappedKeyValue {
    pub key: FDBKey,
    pub value: FDBKey,
    pub getRange: FDBGetRangeReqAndResult,
    pub buffer: [u8; 32],
}
