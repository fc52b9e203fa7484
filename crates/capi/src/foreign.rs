//! What comes from C, looked at once: pointers become references and slices that live as long as the call.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use client::PutOptions;

use crate::fault::Fault;

/// `yagura_bytes`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Bytes {
    pub data: *const c_void,
    pub length: usize,
}

/// `yagura_put_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawPutOptions {
    pub expiry: u64,
    pub tag: u32,
}

/// The object behind a pointer.
///
/// # Safety
/// The pointer is null, or to a `T` that nobody changes or frees before the caller's function returns.
pub unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Fault> {
    // SAFETY: by this function's own condition.
    unsafe { pointer.as_ref() }.ok_or_else(|| Fault::usage(format!("{what} is a null pointer")))
}

/// A place to fill in.
///
/// # Safety
/// The pointer is null, or to a `T` that is the caller's function's alone until it returns.
pub unsafe fn place<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Fault> {
    // SAFETY: by this function's own condition.
    unsafe { pointer.as_mut() }.ok_or_else(|| Fault::usage(format!("{what} is a null pointer")))
}

/// `count` things in a row; none may be a null pointer.
///
/// # Safety
/// The pointer is to `count` things that nobody changes before the caller's function returns, unless `count` is 0.
pub unsafe fn row<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Fault> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Fault::usage(format!("{what} is a null pointer, though {count} are to be there")));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Fault::usage(format!("{what}: {count} is a wrong length: memory has not so much")));
    }
    // SAFETY: not null, of a length that can be, and the rest by this function's own condition.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// That there is room for `count` things to be filled in. They are not looked at: nothing may be there yet.
pub fn room<T>(pointer: *mut T, count: usize, what: &str) -> Result<(), Fault> {
    let wrong = || Err(Fault::usage(format!("{what} is a null pointer, though {count} are to be filled in")));
    if pointer.is_null() && count > 0 { wrong() } else { Ok(()) }
}

/// # Safety
/// As [`row`], for the bytes that `bytes` tells of.
pub unsafe fn bytes<'a>(bytes: Bytes, what: &str) -> Result<&'a [u8], Fault> {
    // SAFETY: by this function's own condition.
    unsafe { row(bytes.data.cast(), bytes.length, what) }
}

/// # Safety
/// The pointer is null, or to text with a zero byte at its end that nobody changes before the caller's function returns.
pub unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Fault> {
    if pointer.is_null() {
        return Err(Fault::usage(format!("{what} is a null pointer")));
    }
    // SAFETY: not null, and the rest by this function's own condition.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Fault::usage(format!("{what} is no UTF-8: {text:?}")))
}

/// # Safety
/// The pointer is null, or to options that nobody changes before the caller's function returns.
pub unsafe fn put_options(pointer: *const RawPutOptions) -> PutOptions {
    // SAFETY: by this function's own condition.
    let raw = unsafe { pointer.as_ref() };
    raw.map_or_else(PutOptions::default, |raw| PutOptions {
        expiry: (raw.expiry != 0).then_some(raw.expiry),
        tag: raw.tag,
    })
}
