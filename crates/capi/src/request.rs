//! Operations whose results come to a completion.

use std::ffi::c_void;

use client::{Error, Pending, Versioned};

use crate::fault::{Fault, Status, guard, remember};
use crate::foreign::{Bytes, RawPutOptions, bytes, object, put_options};
use crate::handle::RawClient;
use crate::value::{Value, into_raw};

/// `yagura_completion`.
type Completion = Option<unsafe extern "C" fn(context: *mut c_void, status: Status, value: *mut Value)>;

/// What is C's: a function, and what it is to be called with.
struct Call {
    done: unsafe extern "C" fn(*mut c_void, Status, *mut Value),
    context: *mut c_void,
}

// SAFETY: the context is only handed on, and the header says that the completion runs on another thread.
unsafe impl Send for Call {}

impl Call {
    fn new(done: Completion, context: *mut c_void) -> Result<Call, Fault> {
        let done = done.ok_or_else(|| Fault::usage("done is a null pointer: nobody would hear of the end"))?;
        Ok(Call { done, context })
    }

    fn finish(self, status: Status, value: *mut Value) {
        // SAFETY: the caller's own function, with the caller's own context, once.
        unsafe { (self.done)(self.context, status, value) }
    }

    /// Calls when the request is done, with what `outcome` makes of its result.
    fn when_done<T, F>(self, mut pending: Pending<T>, outcome: F) -> Status
    where
        T: Send + 'static,
        F: FnOnce(T) -> (Status, Option<Versioned>) + Send + 'static,
    {
        pending.wait_for_room();
        pending.on_done(move |result: Result<T, Error>| match result.map(outcome) {
            Ok((status, found)) => self.finish(status, into_raw(found)),
            Err(error) => {
                let status = remember(error.into());
                self.finish(status, std::ptr::null_mut());
            }
        });
        Status::Ok
    }
}

fn found(found: Option<Versioned>) -> (Status, Option<Versioned>) {
    (if found.is_some() { Status::Ok } else { Status::Absent }, found)
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_get_async(
    client: *mut RawClient,
    key: Bytes,
    done: Completion,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key) = unsafe { (object(client, "client")?, bytes(key, "key")?) };
        Ok(Call::new(done, context)?.when_done(client.0.get_versioned(key), found))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, options or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_put_async(
    client: *mut RawClient,
    key: Bytes,
    value: Bytes,
    options: *const RawPutOptions,
    done: Completion,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, value) = unsafe { (object(client, "client")?, bytes(key, "key")?, bytes(value, "value")?) };
        let call = Call::new(done, context)?;
        // SAFETY: as above.
        let pending = client.0.put_with(key, value, unsafe { put_options(options) });
        Ok(call.when_done(pending, |()| (Status::Ok, None)))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_delete_async(
    client: *mut RawClient,
    key: Bytes,
    done: Completion,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key) = unsafe { (object(client, "client")?, bytes(key, "key")?) };
        let outcome = |there| (if there { Status::Ok } else { Status::Absent }, None);
        Ok(Call::new(done, context)?.when_done(client.0.delete(key), outcome))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's, options or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_add_async(
    client: *mut RawClient,
    key: Bytes,
    value: Bytes,
    options: *const RawPutOptions,
    done: Completion,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key, value) = unsafe { (object(client, "client")?, bytes(key, "key")?, bytes(value, "value")?) };
        let call = Call::new(done, context)?;
        // SAFETY: as above.
        let pending = client.0.add(key, value, unsafe { put_options(options) });
        Ok(call.when_done(pending, |added| (if added { Status::Ok } else { Status::Changed }, None)))
    })
}

/// # Safety
/// As the header says: a client that was not closed, bytes of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_take_async(
    client: *mut RawClient,
    key: Bytes,
    done: Completion,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (client, key) = unsafe { (object(client, "client")?, bytes(key, "key")?) };
        Ok(Call::new(done, context)?.when_done(client.0.take(key), found))
    })
}
