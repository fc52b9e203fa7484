//! Operations whose results come to a completion.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use client::{Client, Error, Pending, Versioned};

use crate::fault::{Fault, Status, guard, remember};
use crate::foreign::{Bytes, RawPutOptions, bytes, object, put_options};
use crate::handle::RawClient;
use crate::operation::held;
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

type Outcome = Result<(Status, Option<Versioned>), Fault>;

/// An outcome and whom to tell. One that is dropped tells it: a completion is called once, whatever ends meanwhile.
struct Told(Option<(Call, Outcome)>);

impl Drop for Told {
    fn drop(&mut self) {
        let Some((call, outcome)) = self.0.take() else { return };
        let (status, value) = match outcome {
            Ok((status, found)) => (status, into_raw(found)),
            Err(fault) => (remember(fault), std::ptr::null_mut()),
        };
        // SAFETY: the caller's own function, with the caller's own context, once.
        unsafe { (call.done)(call.context, status, value) }
    }
}

impl Call {
    fn new(done: Completion, context: *mut c_void) -> Result<Call, Fault> {
        let done = done.ok_or_else(|| Fault::usage("done is a null pointer: nobody would hear of the end"))?;
        Ok(Call { done, context })
    }

    /// Calls when the request is done, with what `outcome` makes of its result: always on a reactor thread, and never inside
    /// the function that made the request, also where the result is there too early. A request that has failed already is that
    /// function's own error.
    fn when_done<T, F>(self, client: &Client, mut pending: Pending<T>, outcome: F) -> Result<Status, Fault>
    where
        T: Send + 'static,
        F: FnOnce(T) -> (Status, Option<Versioned>) + Send + 'static,
    {
        pending.wait_for_room();
        let early: Arc<Mutex<Early>> = Arc::default();
        let shared = early.clone();
        pending.on_done(move |result: Result<T, Error>| {
            let told = Told(Some((self, result.map(outcome).map_err(Fault::from))));
            let mut early = lock(&shared);
            if let Early::Making = *early {
                *early = Early::Done(told);
            } else {
                drop(early);
                drop(told);
            }
        });
        let early = std::mem::replace(&mut *lock(&early), Early::Made);
        let Early::Done(mut told) = early else { return Ok(Status::Ok) };
        if let Some((_, Err(_))) = &told.0
            && let Some((_, Err(fault))) = told.0.take()
        {
            return Err(fault);
        }
        let mut call = client.call_on_reactor(move || drop(told));
        call.wait_for_room();
        // What is to be told has gone to the reactor, or was told because that has ended.
        call.on_done(|_| ());
        Ok(Status::Ok)
    }
}

/// What has become of a request when the function that made it is about to return.
#[derive(Default)]
enum Early {
    #[default]
    Making,
    Done(Told),
    Made,
}

fn lock(early: &Mutex<Early>) -> MutexGuard<'_, Early> {
    // Nothing panics while it is held.
    early.lock().unwrap_or_else(PoisonError::into_inner)
}

fn found(found: Option<Versioned>) -> (Status, Option<Versioned>) {
    (held(found.is_some(), Status::Absent), found)
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
        Call::new(done, context)?.when_done(&client.0, client.0.get_versioned(key), found)
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
        call.when_done(&client.0, pending, |()| (Status::Ok, None))
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
        let outcome = |there| (held(there, Status::Absent), None);
        Call::new(done, context)?.when_done(&client.0, client.0.delete(key), outcome)
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
        call.when_done(&client.0, pending, |added| (held(added, Status::Changed), None))
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
        Call::new(done, context)?.when_done(&client.0, client.0.take(key), found)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use client::testing::MemoryPool;
    use client::{Client, Options};

    use super::*;

    unsafe extern "C" fn tell(context: *mut c_void, status: Status, _value: *mut Value) {
        // SAFETY: the test's own sender, which lives until this was called.
        let told = unsafe { &*context.cast::<Sender<(Status, ThreadId)>>() };
        told.send((status, thread::current().id())).expect("the test waits");
    }

    #[test]
    fn a_result_that_is_there_too_early_comes_on_a_reactor_all_the_same() {
        let pool = MemoryPool::start(1).expect("a pool in memory");
        let client = Client::connect(pool.addresses(), Options::default()).wait().expect("it answers");
        let (told, tellings) = channel();
        let context: *const Sender<(Status, ThreadId)> = &raw const told;
        for number in 0..20 {
            let pending = client.put("key", "value");
            // Long enough, mostly, that the result is there.
            thread::sleep(Duration::from_millis(number));
            let call = Call::new(Some(tell), context.cast_mut().cast()).expect("a completion");
            let made = call.when_done(&client, pending, |()| (Status::Ok, None));
            assert!(matches!(made, Ok(Status::Ok)));
            let (status, thread) = tellings.recv().expect("it is called");
            assert_eq!(status, Status::Ok);
            assert_ne!(thread, thread::current().id(), "after {number} ms");
        }
        // Only now does nobody use the sender any more.
        client.close_and_join().expect("close");
        assert!(tellings.try_recv().is_err(), "each once");
    }
}
