//! A value that was read.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use client::Versioned;

/// `yagura_value`.
pub struct Value {
    found: Versioned,
    version: CString,
}

/// A value for C to free; null for none.
pub fn into_raw(found: Option<Versioned>) -> *mut Value {
    found.map_or(ptr::null_mut(), |found| {
        // A version in words has no zero byte.
        let version = CString::new(found.version.to_string()).unwrap_or_default();
        Box::into_raw(Box::new(Value { found, version }))
    })
}

/// # Safety
/// As the header says: a value that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_value_data(value: *const Value) -> *const c_void {
    // SAFETY: null, or a value of ours that was not freed, which nobody changes.
    unsafe { value.as_ref() }.map_or(ptr::null(), |value| value.found.value.as_ptr().cast())
}

/// # Safety
/// As the header says: a value that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_value_length(value: *const Value) -> usize {
    // SAFETY: as above.
    unsafe { value.as_ref() }.map_or(0, |value| value.found.value.len())
}

/// # Safety
/// As the header says: a value that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_value_expiry(value: *const Value) -> u64 {
    // SAFETY: as above.
    unsafe { value.as_ref() }.and_then(|value| value.found.expiry).unwrap_or(0)
}

/// # Safety
/// As the header says: a value that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_value_tag(value: *const Value) -> u32 {
    // SAFETY: as above.
    unsafe { value.as_ref() }.map_or(0, |value| value.found.tag)
}

/// # Safety
/// As the header says: a value that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_value_version(value: *const Value) -> *const c_char {
    // SAFETY: as above.
    unsafe { value.as_ref() }.map_or(c"".as_ptr(), |value| value.version.as_ptr())
}

/// # Safety
/// As the header says: freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_value_free(value: *mut Value) {
    if !value.is_null() {
        // SAFETY: from `into_raw` above, and nobody else's any more.
        drop(unsafe { Box::from_raw(value) });
    }
}
