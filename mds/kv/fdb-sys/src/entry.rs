//! The entry points, each forwarded to the loaded library.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;

use libloading::Library;

use crate::library::api;
use crate::types::*;

/// `api_version_unset`: what the C API itself answers before it was set up.
const NOT_LOADED: fdb_error_t = 2200;

const NO_MESSAGE: *const c_char = c"the FoundationDB client library is not loaded".as_ptr();

/// One row per entry point: its documented signature, and its answer while no library is loaded.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty, else $absent:expr;)+) => {
        /// The addresses, all resolved when the library is loaded.
        #[derive(Debug)]
        pub(crate) struct Api {
            $($name: unsafe extern "C" fn($($type),*) -> $result,)+
            /// Never unloaded: its network thread runs until the process exits, and the addresses above are in it.
            _library: ManuallyDrop<Library>,
        }

        impl Api {
            /// Finds every entry point, or says which one is missing.
            pub(crate) fn resolve(library: Library) -> Result<Self, String> {
                let library = ManuallyDrop::new(library);
                $(
                    // SAFETY: the symbol is the function of that name in the documented C API, which keeps its
                    // signatures; FDB_API_VERSION says for which version they were written, and the library
                    // refuses a version it does not know (fdb_select_api_version_impl).
                    let $name = *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|e| e.to_string())?;
                )+
                Ok(Self { $($name,)+ _library: library })
            }
        }

        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As the C API documents for the function of this name: pointers are to live objects of the library or to
            /// as many bytes as the length beside them says, and an object is not used after it was destroyed.
            pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                match api() {
                    // SAFETY: the address is the library's function, with its documented signature and never
                    // unloaded; the caller keeps the documented conditions.
                    Some(api) => unsafe { (api.$name)($($arg),*) },
                    None => $absent,
                }
            }
        )+
    };
}

entry_points! {
    /// What an error code means, as text that lives for ever.
    fn fdb_get_error(code: fdb_error_t) -> *const c_char, else NO_MESSAGE;
    /// Whether the code belongs to a class of errors.
    fn fdb_error_predicate(predicate: FDBErrorPredicate, code: fdb_error_t) -> fdb_bool_t, else 0;

    /// The newest version of the C API that the library knows.
    fn fdb_get_max_api_version() -> c_int, else 0;
    /// Chooses the version of the C API, before anything else and once.
    fn fdb_select_api_version_impl(runtime_version: c_int, header_version: c_int) -> fdb_error_t, else NOT_LOADED;
    fn fdb_network_set_option(option: FDBNetworkOption, value: *const u8, value_length: c_int) -> fdb_error_t, else NOT_LOADED;
    /// After the network's options.
    fn fdb_setup_network() -> fdb_error_t, else NOT_LOADED;
    /// Does not return until the network is stopped.
    fn fdb_run_network() -> fdb_error_t, else NOT_LOADED;
    fn fdb_stop_network() -> fdb_error_t, else NOT_LOADED;

    /// Forgets the callback too, after calling it if it was not called.
    fn fdb_future_destroy(future: *mut FDBFuture) -> (), else ();
    fn fdb_future_is_ready(future: *mut FDBFuture) -> fdb_bool_t, else 1;
    fn fdb_future_set_callback(future: *mut FDBFuture, callback: FDBCallback, parameter: *mut c_void) -> fdb_error_t, else NOT_LOADED;
    fn fdb_future_get_error(future: *mut FDBFuture) -> fdb_error_t, else NOT_LOADED;
    fn fdb_future_get_int64(future: *mut FDBFuture, out: *mut i64) -> fdb_error_t, else NOT_LOADED;
    fn fdb_future_get_key(future: *mut FDBFuture, out_key: *mut *const u8, out_length: *mut c_int) -> fdb_error_t, else NOT_LOADED;
    fn fdb_future_get_value(
        future: *mut FDBFuture, out_present: *mut fdb_bool_t, out_value: *mut *const u8, out_length: *mut c_int,
    ) -> fdb_error_t, else NOT_LOADED;
    fn fdb_future_get_string_array(
        future: *mut FDBFuture, out_strings: *mut *mut *const c_char, out_count: *mut c_int,
    ) -> fdb_error_t, else NOT_LOADED;
    fn fdb_future_get_key_array(
        future: *mut FDBFuture, out_keys: *mut *const FDBKey, out_count: *mut c_int,
    ) -> fdb_error_t, else NOT_LOADED;
    fn fdb_future_get_keyvalue_array(
        future: *mut FDBFuture, out_pairs: *mut *const FDBKeyValue, out_count: *mut c_int, out_more: *mut fdb_bool_t,
    ) -> fdb_error_t, else NOT_LOADED;
    fn fdb_future_get_mappedkeyvalue_array(
        future: *mut FDBFuture, out_pairs: *mut *const FDBMappedKeyValue, out_count: *mut c_int, out_more: *mut fdb_bool_t,
    ) -> fdb_error_t, else NOT_LOADED;

    /// A null path means the default cluster file.
    fn fdb_create_database(cluster_file: *const c_char, out_database: *mut *mut FDBDatabase) -> fdb_error_t, else NOT_LOADED;
    fn fdb_database_destroy(database: *mut FDBDatabase) -> (), else ();
    fn fdb_database_set_option(
        database: *mut FDBDatabase, option: FDBDatabaseOption, value: *const u8, value_length: c_int,
    ) -> fdb_error_t, else NOT_LOADED;
    fn fdb_database_create_transaction(
        database: *mut FDBDatabase, out_transaction: *mut *mut FDBTransaction,
    ) -> fdb_error_t, else NOT_LOADED;
    fn fdb_database_get_main_thread_busyness(database: *mut FDBDatabase) -> f64, else 0.0;
    fn fdb_database_get_client_status(database: *mut FDBDatabase) -> *mut FDBFuture, else ptr::null_mut();

    fn fdb_transaction_destroy(transaction: *mut FDBTransaction) -> (), else ();
    fn fdb_transaction_cancel(transaction: *mut FDBTransaction) -> (), else ();
    fn fdb_transaction_reset(transaction: *mut FDBTransaction) -> (), else ();
    fn fdb_transaction_set_option(
        transaction: *mut FDBTransaction, option: FDBTransactionOption, value: *const u8, value_length: c_int,
    ) -> fdb_error_t, else NOT_LOADED;
    fn fdb_transaction_set_read_version(transaction: *mut FDBTransaction, version: i64) -> (), else ();
    fn fdb_transaction_get_read_version(transaction: *mut FDBTransaction) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get(
        transaction: *mut FDBTransaction, key: *const u8, key_length: c_int, snapshot: fdb_bool_t,
    ) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get_key(
        transaction: *mut FDBTransaction, key: *const u8, key_length: c_int, or_equal: fdb_bool_t, offset: c_int,
        snapshot: fdb_bool_t,
    ) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get_addresses_for_key(
        transaction: *mut FDBTransaction, key: *const u8, key_length: c_int,
    ) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get_range(
        transaction: *mut FDBTransaction,
        begin_key: *const u8, begin_length: c_int, begin_or_equal: fdb_bool_t, begin_offset: c_int,
        end_key: *const u8, end_length: c_int, end_or_equal: fdb_bool_t, end_offset: c_int,
        limit: c_int, target_bytes: c_int, mode: FDBStreamingMode, iteration: c_int,
        snapshot: fdb_bool_t, reverse: fdb_bool_t,
    ) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get_mapped_range(
        transaction: *mut FDBTransaction,
        begin_key: *const u8, begin_length: c_int, begin_or_equal: fdb_bool_t, begin_offset: c_int,
        end_key: *const u8, end_length: c_int, end_or_equal: fdb_bool_t, end_offset: c_int,
        mapper: *const u8, mapper_length: c_int,
        limit: c_int, target_bytes: c_int, mode: FDBStreamingMode, iteration: c_int,
        snapshot: fdb_bool_t, reverse: fdb_bool_t,
    ) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get_estimated_range_size_bytes(
        transaction: *mut FDBTransaction, begin_key: *const u8, begin_length: c_int, end_key: *const u8, end_length: c_int,
    ) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get_range_split_points(
        transaction: *mut FDBTransaction, begin_key: *const u8, begin_length: c_int, end_key: *const u8, end_length: c_int,
        chunk_size: i64,
    ) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_set(
        transaction: *mut FDBTransaction, key: *const u8, key_length: c_int, value: *const u8, value_length: c_int,
    ) -> (), else ();
    fn fdb_transaction_atomic_op(
        transaction: *mut FDBTransaction, key: *const u8, key_length: c_int, operand: *const u8, operand_length: c_int,
        operation: FDBMutationType,
    ) -> (), else ();
    fn fdb_transaction_clear(transaction: *mut FDBTransaction, key: *const u8, key_length: c_int) -> (), else ();
    fn fdb_transaction_clear_range(
        transaction: *mut FDBTransaction, begin_key: *const u8, begin_length: c_int, end_key: *const u8, end_length: c_int,
    ) -> (), else ();
    fn fdb_transaction_add_conflict_range(
        transaction: *mut FDBTransaction, begin_key: *const u8, begin_length: c_int, end_key: *const u8, end_length: c_int,
        kind: FDBConflictRangeType,
    ) -> fdb_error_t, else NOT_LOADED;
    fn fdb_transaction_watch(transaction: *mut FDBTransaction, key: *const u8, key_length: c_int) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_commit(transaction: *mut FDBTransaction) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get_committed_version(transaction: *mut FDBTransaction, out: *mut i64) -> fdb_error_t, else NOT_LOADED;
    fn fdb_transaction_get_approximate_size(transaction: *mut FDBTransaction) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_get_versionstamp(transaction: *mut FDBTransaction) -> *mut FDBFuture, else ptr::null_mut();
    fn fdb_transaction_on_error(transaction: *mut FDBTransaction, code: fdb_error_t) -> *mut FDBFuture, else ptr::null_mut();
}
