//! Options, and the client's beginning and end.

use std::ffi::c_char;
use std::time::Duration;

use client::{Client, Options};

use crate::fault::{Fault, Status, guard};
use crate::foreign::{object, place, text};

/// `yagura_options`.
pub struct RawOptions(pub Options);

/// `yagura_client`.
pub struct RawClient(pub Client);

#[unsafe(no_mangle)]
pub extern "C" fn yagura_options_new() -> *mut RawOptions {
    Box::into_raw(Box::new(RawOptions(Options::default())))
}

/// # Safety
/// As the header says: freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_options_free(options: *mut RawOptions) {
    if !options.is_null() {
        // SAFETY: from `yagura_options_new`, and nobody else's any more.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// # Safety
/// As the header says: options of one thread, texts with zero bytes at their ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_options_set(
    options: *mut RawOptions,
    name: *const c_char,
    value: *const c_char,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (options, name, value) =
            unsafe { (place(options, "options")?, text(name, "name")?, text(value, "value")?) };
        set(&mut options.0, name, value)?;
        Ok(Status::Ok)
    })
}

fn set(options: &mut Options, name: &str, value: &str) -> Result<(), Fault> {
    let number = || value.parse::<u64>().map_err(|_| Fault::usage(format!("option {name}: `{value}` is no number")));
    let count = || Ok::<_, Fault>(usize::try_from(number()?).unwrap_or(usize::MAX));
    let switch = || match value {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(Fault::usage(format!("option {name}: `{value}` is neither `yes` nor `no`"))),
    };
    let security = &mut options.security;
    match name {
        "reactors" => options.reactors = count()?,
        "queue" => options.queue = count()?,
        "timeout-ms" => options.timeout = Some(number()?).filter(|&limit| limit > 0).map(Duration::from_millis),
        "repair" => options.repair = switch()?,
        "pool-id" => {
            let none = |_| Fault::usage(format!("option {name}: `{value}` is no UUID"));
            options.pool = Some(value.parse().map_err(none)?);
        }
        "host-nqn" => security.host_nqn = Some(value.to_owned()),
        "dhchap-key-file" => security.dhchap_key_file = Some(value.into()),
        "dhchap-ctrl-key-file" => security.dhchap_ctrl_key_file = Some(value.into()),
        "concat" => security.concatenation = switch()?,
        "tls-key-file" => security.tls_key_file = Some(value.into()),
        "tls-identity" if ["0", "1"].contains(&value) => security.tls_identity_zero = value == "0",
        "tls-identity" => return Err(Fault::usage(format!("option {name}: `{value}` is neither `0` nor `1`"))),
        "tls-legacy" => security.tls_legacy = switch()?,
        _ => return Err(Fault::usage(format!("there is no option `{name}`: yagura.h has the list"))),
    }
    Ok(())
}

/// # Safety
/// As the header says: text with a zero byte at its end, options that were not freed or null, a place for the client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_open(
    addresses: *const c_char,
    options: *const RawOptions,
    client: *mut *mut RawClient,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (addresses, options, client) =
            unsafe { (text(addresses, "addresses")?, options.as_ref(), place(client, "client")?) };
        let options = options.map_or_else(Options::default, |options| options.0.clone());
        let addresses = addresses.split(',').map(str::trim).filter(|address| !address.is_empty());
        let opened = Client::connect(addresses, options).wait()?;
        *client = Box::into_raw(Box::new(RawClient(opened)));
        Ok(Status::Ok)
    })
}

/// # Safety
/// As the header says: null, or a client that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_close(client: *mut RawClient) -> Status {
    guard(|| {
        if client.is_null() {
            return Ok(Status::Ok);
        }
        // SAFETY: by this function's own condition.
        unsafe { object(client, "client")? }.0.close_and_join()?;
        // SAFETY: from `yagura_open`, and nobody else's any more.
        drop(unsafe { Box::from_raw(client) });
        Ok(Status::Ok)
    })
}
