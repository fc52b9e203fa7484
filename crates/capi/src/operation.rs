//! Operations that block.

use std::ffi::c_char;
use std::ptr;

use client::{CasOutcome, Increment, Version, Versioned};

use crate::fault::{Fault, Status, guard, remember};
use crate::foreign::{Bytes, RawPutOptions, bytes, object, place, put_options, room, row, text};
use crate::handle::RawClient;
use crate::value::{Value, into_raw};

/// `YAGURA_VERSION_MAX`: room for a version as text. Derived: three numbers of 20 digits, two hosts of 16, the marks between.
const VERSION_MAX: usize = 256;

/// `yes`, or what it means that the condition did not hold.
pub(crate) fn held(yes: bool, no: Status) -> Status {
    if yes { Status::Ok } else { no }
}

/// Puts what was found into the caller's place, and says whether it was.
fn hand_over(found: Option<Versioned>, place: &mut *mut Value) -> Status {
    let status = held(found.is_some(), Status::Absent);
    *place = into_raw(found);
    status
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, a place for the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_get(client: *mut RawClient, key: Bytes, value: *mut *mut Value) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, value) = unsafe { (object(client, "client")?, bytes(key, "key")?, place(value, "value")?) };
        Ok(hand_over(client.0.get_versioned(key).wait()?, value))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, options or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_put(
    client: *mut RawClient,
    key: Bytes,
    value: Bytes,
    options: *const RawPutOptions,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, value) = unsafe { (object(client, "client")?, bytes(key, "key")?, bytes(value, "value")?) };
        // SAFETY: as above.
        client.0.put_with(key, value, unsafe { put_options(options) }).wait()?;
        Ok(Status::Ok)
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_delete(client: *mut RawClient, key: Bytes) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key) = unsafe { (object(client, "client")?, bytes(key, "key")?) };
        Ok(held(client.0.delete(key).wait()?, Status::Absent))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, options or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_add(
    client: *mut RawClient,
    key: Bytes,
    value: Bytes,
    options: *const RawPutOptions,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, value) = unsafe { (object(client, "client")?, bytes(key, "key")?, bytes(value, "value")?) };
        // SAFETY: as above.
        let added = client.0.add(key, value, unsafe { put_options(options) }).wait()?;
        Ok(held(added, Status::Changed))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, options or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_replace(
    client: *mut RawClient,
    key: Bytes,
    value: Bytes,
    options: *const RawPutOptions,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, value) = unsafe { (object(client, "client")?, bytes(key, "key")?, bytes(value, "value")?) };
        // SAFETY: as above.
        let replaced = client.0.replace(key, value, unsafe { put_options(options) }).wait()?;
        Ok(held(replaced, Status::Absent))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes and text of the caller's, options or null, room for a version or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_compare_and_set(
    client: *mut RawClient,
    key: Bytes,
    version: *const c_char,
    value: Bytes,
    options: *const RawPutOptions,
    stored: *mut c_char,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, value) = unsafe { (object(client, "client")?, bytes(key, "key")?, bytes(value, "value")?) };
        // SAFETY: as above.
        let (version, options) = unsafe { (parse(version)?, put_options(options)) };
        match client.0.compare_and_set(key, version, value, options).wait()? {
            CasOutcome::Stored(version) => {
                let mut text = version.to_string().into_bytes();
                text.truncate(VERSION_MAX - 1);
                text.push(0);
                if !stored.is_null() {
                    // SAFETY: the header asks for `YAGURA_VERSION_MAX` bytes, and no more were kept.
                    unsafe { ptr::copy_nonoverlapping(text.as_ptr().cast(), stored, text.len()) };
                }
                Ok(Status::Ok)
            }
            CasOutcome::Changed(Some(_)) => Ok(Status::Changed),
            CasOutcome::Changed(None) => Ok(Status::Absent),
        }
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes and text of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_compare_and_delete(
    client: *mut RawClient,
    key: Bytes,
    version: *const c_char,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, version) = unsafe { (object(client, "client")?, bytes(key, "key")?, parse(version)?) };
        Ok(held(client.0.compare_and_delete(key, version).wait()?, Status::Changed))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, a number or null, a place for the sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_increment(
    client: *mut RawClient,
    key: Bytes,
    delta: i64,
    initial: *const i64,
    sum: *mut i64,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, sum) = unsafe { (object(client, "client")?, bytes(key, "key")?, place(sum, "sum")?) };
        // SAFETY: as above.
        let initial = unsafe { initial.as_ref() }.copied();
        let refused = |sentence: &str| Err(Fault { status: Status::NotANumber, sentence: sentence.to_owned() });
        match client.0.increment(key, delta, initial).wait()? {
            Increment::Value(value) => {
                *sum = value;
                Ok(Status::Ok)
            }
            Increment::Missing => Ok(Status::Absent),
            Increment::NotANumber => refused("the value is not a decimal number of 64 bits: it can't be counted with"),
            Increment::Overflow => refused("the sum would be out of the range of 64 bits: nothing was changed"),
        }
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, a place for the length or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_append(client: *mut RawClient, key: Bytes, more: Bytes, length: *mut usize) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, more) = unsafe { (object(client, "client")?, bytes(key, "key")?, bytes(more, "bytes")?) };
        let whole = client.0.append(key, more).wait()?;
        // SAFETY: as above.
        if let Some(length) = unsafe { length.as_mut() } {
            *length = whole;
        }
        Ok(Status::Ok)
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, a place for the value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_take(client: *mut RawClient, key: Bytes, value: *mut *mut Value) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, value) = unsafe { (object(client, "client")?, bytes(key, "key")?, place(value, "value")?) };
        Ok(hand_over(client.0.take(key).wait()?, value))
    })
}

/// # Safety
/// The pointer is null, or to text with a zero byte at its end that nobody changes before the caller's function returns.
unsafe fn parse(version: *const c_char) -> Result<Version, Fault> {
    // SAFETY: by this function's own condition.
    let version = unsafe { text(version, "version")? };
    version.parse().map_err(|error| Fault::usage(format!("`{version}`: {error}")))
}

/// The first that is neither well nor merely absent.
fn worst(status: Status, next: Status) -> Status {
    if matches!(status, Status::Ok) && next != Status::Absent { next } else { status }
}

/// # Safety
/// As the header says: a client that was not closed, `count` keys, and places for as many values and statuses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_get_many(
    client: *mut RawClient,
    count: usize,
    keys: *const Bytes,
    values: *mut *mut Value,
    statuses: *mut Status,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, keys) = unsafe { (object(client, "client")?, row(keys, count, "keys")?) };
        room(values, count, "values")?;
        room(statuses, count, "statuses")?;
        // SAFETY: as above.
        let keys: Vec<&[u8]> = keys.iter().map(|&key| unsafe { bytes(key, "a key") }).collect::<Result<_, _>>()?;
        let results = client.0.get_many(keys).wait();
        let results = results.unwrap_or_else(|error| (0..count).map(|_| Err(error.clone())).collect());
        let mut status = Status::Ok;
        for (index, result) in results.into_iter().enumerate().take(count) {
            let (found, own) = match result {
                Ok(found) => (into_raw(found), Status::Ok),
                Err(error) => (ptr::null_mut(), remember(error.into())),
            };
            let own = if own == Status::Ok && found.is_null() { Status::Absent } else { own };
            // SAFETY: within the rows of `count` places that were checked above.
            unsafe { (values.add(index).write(found), statuses.add(index).write(own)) };
            status = worst(status, own);
        }
        Ok(status)
    })
}

/// # Safety
/// As the header says: a client that was not closed, `count` keys and values, and places for as many statuses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_put_many(
    client: *mut RawClient,
    count: usize,
    keys: *const Bytes,
    values: *const Bytes,
    statuses: *mut Status,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let client = unsafe { object(client, "client")? };
        // SAFETY: as above.
        let (keys, values) = unsafe { (row(keys, count, "keys")?, row(values, count, "values")?) };
        room(statuses, count, "statuses")?;
        let pair = |(&key, &value): (&Bytes, &Bytes)| {
            // SAFETY: as above.
            unsafe { Ok((bytes(key, "a key")?, bytes(value, "a value")?)) }
        };
        let entries: Vec<(&[u8], &[u8])> = keys.iter().zip(values).map(pair).collect::<Result<_, Fault>>()?;
        let results = client.0.put_many(entries).wait();
        let results = results.unwrap_or_else(|error| (0..count).map(|_| Err(error.clone())).collect());
        let mut status = Status::Ok;
        for (index, result) in results.into_iter().enumerate().take(count) {
            let own = result.map_or_else(|error| remember(error.into()), |()| Status::Ok);
            // SAFETY: within the row of `count` places that was checked above.
            unsafe { statuses.add(index).write(own) };
            status = worst(status, own);
        }
        Ok(status)
    })
}
