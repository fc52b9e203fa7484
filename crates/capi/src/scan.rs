//! Walking over keys.

use client::{Client, Scan};

use crate::fault::{Status, guard};
use crate::foreign::{Bytes, bytes, object, place};
use crate::handle::RawClient;

/// `yagura_scan`: the walk, and the key that was given last.
pub struct RawScan {
    scan: Scan,
    key: Vec<u8>,
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, a place for the walk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_scan_open(client: *mut RawClient, prefix: Bytes, scan: *mut *mut RawScan) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, prefix, scan) =
            unsafe { (object(client, "client")?, bytes(prefix, "prefix")?, place(scan, "scan")?) };
        let client: &Client = &client.0;
        *scan = Box::into_raw(Box::new(RawScan { scan: client.scan(prefix), key: Vec::new() }));
        Ok(Status::Ok)
    })
}

/// # Safety
/// As the header says: a walk of one thread, places for what is found (the length's may be null).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_scan_next(scan: *mut RawScan, key: *mut Bytes, value_length: *mut usize) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (scan, key, length) = unsafe { (place(scan, "scan")?, place(key, "key")?, value_length.as_mut()) };
        let Some(entry) = scan.scan.next().transpose()? else { return Ok(Status::Absent) };
        scan.key = entry.key;
        *key = Bytes { data: scan.key.as_ptr().cast(), length: scan.key.len() };
        if let Some(length) = length {
            *length = entry.value_len;
        }
        Ok(Status::Ok)
    })
}

/// # Safety
/// As the header says: freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_scan_free(scan: *mut RawScan) {
    if !scan.is_null() {
        // SAFETY: from `yagura_scan_open`, and nobody else's any more.
        drop(unsafe { Box::from_raw(scan) });
    }
}
