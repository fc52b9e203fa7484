//! Block devices and their queues.
//!
//! Invariant: the caller's memory is touched inside a call alone. A write's bytes are copied when it begins, a read's when its
//! event is taken: no thread of the library ever has a pointer of the caller's, whatever the caller does meanwhile.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

use client::SecurityOptions;
use client::block::{Completed, Device, Operation, Place, Queue};
use engine::Buf;
use engine::buf::BUF_BYTES_MAX;

use crate::fault::{Fault, Status, guard, remember};
use crate::foreign::{object, place, room, row, text};
use crate::handle::RawOptions;

/// `yagura_device`.
pub struct RawDevice(Device);

/// `yagura_queue`.
pub struct RawQueue {
    queue: Queue,
    slots: Vec<Slot>,
    free: Vec<usize>,
    taken: Vec<Completed>,
}

/// What the caller has given with a request.
struct Slot {
    context: *mut c_void,
    /// Where what is read goes; else null.
    into: *mut u8,
    /// The buffer of the request before, for the next of the same length.
    buf: Option<Buf>,
}

/// `yagura_event`.
#[repr(C)]
pub struct Event {
    pub context: *mut c_void,
    pub status: Status,
}

/// # Safety
/// As the header says: text with a zero byte at its end, options that were not freed or null, a place for the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_device_open(
    name: *const c_char,
    options: *const RawOptions,
    device: *mut *mut RawDevice,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (name, options, device) = unsafe { (text(name, "name")?, options.as_ref(), place(device, "device")?) };
        let security = options.map_or_else(SecurityOptions::default, |options| options.0.security.clone());
        let opened = Device::open(name.parse::<Place>()?, &security)?;
        *device = Box::into_raw(Box::new(RawDevice(opened)));
        Ok(Status::Ok)
    })
}

/// # Safety
/// As the header says: null, or a device that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_device_close(device: *mut RawDevice) -> Status {
    guard(|| {
        if !device.is_null() {
            // SAFETY: from `yagura_device_open`, and nobody else's any more.
            unsafe { Box::from_raw(device) }.0.close()?;
        }
        Ok(Status::Ok)
    })
}

/// # Safety
/// As the header says: a device that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_device_size(device: *const RawDevice) -> u64 {
    // SAFETY: by this function's own condition.
    unsafe { device.as_ref() }.map_or(0, |device| device.0.geometry().bytes)
}

/// # Safety
/// As the header says: a device that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_device_block_size(device: *const RawDevice) -> u32 {
    // SAFETY: by this function's own condition.
    unsafe { device.as_ref() }.map_or(0, |device| device.0.geometry().block_size)
}

/// # Safety
/// As the header says: a device that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_device_transfer_max(device: *const RawDevice) -> u32 {
    // SAFETY: by this function's own condition.
    unsafe { device.as_ref() }.map_or(0, |device| device.0.geometry().transfer_bytes_max)
}

/// # Safety
/// As the header says: a device that was not closed, a place for the queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_queue_new(device: *const RawDevice, depth: usize, queue: *mut *mut RawQueue) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (device, place) = unsafe { (object(device, "device")?, place(queue, "queue")?) };
        let queue = device.0.queue(depth)?;
        let slot = |_| Slot { context: ptr::null_mut(), into: ptr::null_mut(), buf: None };
        let slots = (0..depth).map(slot).collect();
        let queue = RawQueue { queue, slots, free: (0..depth).collect(), taken: Vec::with_capacity(depth) };
        *place = Box::into_raw(Box::new(queue));
        Ok(Status::Ok)
    })
}

/// # Safety
/// As the header says: null, or a queue that nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_queue_free(queue: *mut RawQueue) {
    if !queue.is_null() {
        // SAFETY: from `yagura_queue_new`, and nobody else's any more.
        drop(unsafe { Box::from_raw(queue) });
    }
}

impl RawQueue {
    /// A buffer of exactly `length` bytes for the next request, whatever is in it. Longer than any device takes it is not made.
    fn buffer(&mut self, length: usize) -> Result<Buf, Fault> {
        let used = self.free.last().and_then(|&index| self.slots[index].buf.take());
        match used {
            Some(buf) if buf.len() == length => Ok(buf),
            _ if length <= BUF_BYTES_MAX => Ok(Buf::with_len(length)),
            _ => Err(Fault::usage(format!("{length} bytes are more than a request of any device has"))),
        }
    }

    fn submit(
        &mut self,
        offset: u64,
        context: *mut c_void,
        into: *mut u8,
        operation: Operation,
    ) -> Result<Status, Fault> {
        let full = || Fault::usage(format!("the queue is full: {} events are not taken yet", self.slots.len()));
        let index = *self.free.last().ok_or_else(full)?;
        // A `usize` is no longer than 64 bits.
        self.queue.submit(index as u64, offset, operation)?;
        let slot = &mut self.slots[index];
        (slot.context, slot.into) = (context, into);
        self.free.pop();
        Ok(Status::Ok)
    }

    /// The event of what has ended.
    ///
    /// # Safety
    /// What the caller gave with it to be read into is there.
    unsafe fn event(&mut self, completed: Completed) -> Event {
        let Completed { tag, result, outcome_unknown, buf } = completed;
        let index = tag as usize; // as `submit` made it
        let slot = &mut self.slots[index];
        let status = match result {
            Ok(()) => Status::Ok,
            Err(error) if outcome_unknown => remember(Fault { status: Status::Unknown, sentence: error.to_string() }),
            Err(error) => remember(error.into()),
        };
        if let Some(buf) = buf.as_ref().filter(|_| status == Status::Ok && !slot.into.is_null()) {
            // SAFETY: by this function's own condition, and as long as the buffer that `submit` was given the length of.
            unsafe { ptr::copy_nonoverlapping(buf.as_ptr(), slot.into, buf.len()) }
        }
        slot.buf = buf;
        self.free.push(index);
        Event { context: slot.context, status }
    }
}

/// # Safety
/// As the header says: a queue of one thread, room for so many bytes until the event is taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_queue_read(
    queue: *mut RawQueue,
    offset: u64,
    data: *mut c_void,
    length: usize,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let queue = unsafe { place(queue, "queue")? };
        room(data, length, "data")?;
        let buf = queue.buffer(length)?;
        queue.submit(offset, context, data.cast(), Operation::Read(buf))
    })
}

/// # Safety
/// As the header says: a queue of one thread, so many bytes of the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_queue_write(
    queue: *mut RawQueue,
    offset: u64,
    data: *const c_void,
    length: usize,
    stable: c_int,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (queue, bytes) = unsafe { (place(queue, "queue")?, row::<u8>(data.cast(), length, "data")?) };
        let mut data = queue.buffer(length)?;
        data.copy_from_slice(bytes);
        queue.submit(offset, context, ptr::null_mut(), Operation::Write { data, stable: stable != 0 })
    })
}

/// # Safety
/// As the header says: a queue of one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_queue_flush(queue: *mut RawQueue, context: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        unsafe { place(queue, "queue")? }.submit(0, context, ptr::null_mut(), Operation::Flush)
    })
}

/// # Safety
/// As the header says: a queue of one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_queue_discard(
    queue: *mut RawQueue,
    offset: u64,
    length: u64,
    context: *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        unsafe { place(queue, "queue")? }.submit(offset, context, ptr::null_mut(), Operation::Discard(length))
    })
}

/// # Safety
/// As the header says: a queue of one thread, places for `most` events and for their count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn yagura_queue_wait(
    queue: *mut RawQueue,
    least: usize,
    most: usize,
    limit_ms: i64,
    events: *mut Event,
    count: *mut usize,
) -> Status {
    guard(|| {
        // SAFETY: by this function's own condition.
        let (queue, count) = unsafe { (place(queue, "queue")?, place(count, "count")?) };
        room(events, most, "events")?;
        let limit = u64::try_from(limit_ms).ok().map(Duration::from_millis);
        let mut taken = std::mem::take(&mut queue.taken);
        let waited = queue.queue.wait(least, limit, most, &mut taken);
        *count = taken.len();
        for (index, completed) in taken.drain(..).enumerate() {
            // SAFETY: what was to be read into is there until the event is taken, and there are places for `most`.
            unsafe { events.add(index).write(queue.event(completed)) }
        }
        queue.taken = taken;
        waited?;
        Ok(Status::Ok)
    })
}
