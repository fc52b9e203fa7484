//! `yagura_update`: on the caller's own thread, so that a call that is over never decides again.
//!
//! An operation whose time is up goes on by itself; a function of C's, and what it points to, would be gone by then. So this is a
//! read and a change on condition that nothing came between, until one holds.

use std::ffi::c_void;
use std::time::Duration;

use client::{CasOutcome, Client, Version};
use engine::backoff::Backoff;
use engine::time::within;

use crate::fault::{Fault, Status, guard};
use crate::foreign::{Bytes, RawPutOptions, bytes, object, put_options};
use crate::handle::RawClient;
use crate::value::{Value, into_raw, yagura_value_free};

/// Attempts of one update. Chosen: of any number of others one gets on in each; a key so busy for so long is no key to count in.
const ATTEMPTS_MAX: u32 = 1000;
/// First pause of one that was overtaken; doubles, up to the second. Guessed: a round trip, and some tens of them.
const PAUSE_FIRST: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// `yagura_decision`, as C gives it: any number.
type Decision = i32;
const KEEP: Decision = 0;
const PUT: Decision = 1;
const DELETE: Decision = 2;

/// `yagura_decide`.
type Decide = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        found: *const Value,
        value: *mut Bytes,
        options: *mut RawPutOptions,
    ) -> Decision,
>;

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, a function that keeps to the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_update(
    client: *mut RawClient,
    key: Bytes,
    decide: Decide,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key) = unsafe { (object(client, "client")?, bytes(key, "key")?) };
        let decide = decide.ok_or_else(|| Fault::usage("decide is a null pointer"))?;
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        for _ in 0..ATTEMPTS_MAX {
            // SAFETY: as above.
            if attempt_once(&client.0, key, |found, value, options| unsafe { decide(context, found, value, options) })?
            {
                return Ok(Status::Ok);
            }
            // Two that were overtaken do not overtake each other for ever.
            std::thread::sleep(within(backoff.pause()));
        }
        let sentence = format!("{ATTEMPTS_MAX} attempts were overtaken by other changes of the key: try again later");
        Err(Fault { status: Status::Unavailable, sentence })
    })
}

/// Whether the change that was decided on took effect.
fn attempt_once(
    client: &Client,
    key: &[u8],
    decide: impl FnOnce(*const Value, *mut Bytes, *mut RawPutOptions) -> Decision,
) -> Result<bool, Fault> {
    let found = client.get_versioned(key).wait()?;
    let version = found.as_ref().map(|found| found.version);
    let mut value = Bytes { data: std::ptr::null(), length: 0 };
    let mut options = RawPutOptions { expiry: 0, tag: 0 };
    let shown = into_raw(found);
    let decision = decide(shown, &mut value, &mut options);
    let outcome = change(client, key, version, decision, value, &options);
    // SAFETY: made above; the header says that it is not the caller's. Only now: the caller's value may lie in it.
    unsafe { yagura_value_free(shown) };
    outcome
}

fn change(
    client: &Client,
    key: &[u8],
    version: Option<Version>,
    decision: Decision,
    value: Bytes,
    options: &RawPutOptions,
) -> Result<bool, Fault> {
    match (decision, version) {
        (KEEP, _) | (DELETE, None) => Ok(true),
        (DELETE, Some(version)) => Ok(client.compare_and_delete(key, version).wait()?),
        (PUT, version) => {
            // SAFETY: the header asks that the value stays good meanwhile; the options are ours.
            let (value, options) = unsafe { (bytes(value, "the value decided on")?, put_options(options)) };
            match version {
                None => Ok(client.add(key, value, options).wait()?),
                Some(version) => {
                    let outcome = client.compare_and_set(key, version, value, options).wait()?;
                    Ok(matches!(outcome, CasOutcome::Stored(_)))
                }
            }
        }
        (other, _) => Err(Fault::usage(format!("decide returned {other}, which is no yagura_decision"))),
    }
}
