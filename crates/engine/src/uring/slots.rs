//! Operations in flight: each has a slot that owns what the kernel may touch.
//!
//! Invariants:
//! - A slot is freed only when its completion was taken: keys are never reused while the kernel knows them.
//! - `held` and `descriptor` stay in the slot until then. A dropped future leaves them there ([`Owner::Gone`]).
//! - Memory that entries point to never moves while held: it is behind a `Buf`, `View` or `Box`.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
    sync::Arc,
    task::{Poll, Waker},
};

use slab::Slab;

use super::message::{Address, SendState, SendStates};
use crate::{Buf, View, buf};

/// What an operation holds for the kernel.
pub(super) enum Held {
    Nothing,
    Buf(Buf),
    /// What the kernel reads, and no more than that.
    View(View),
    Send(Box<SendState>),
    Address(#[expect(dead_code, reason = "held for the kernel, which reads it")] Box<Address>),
    /// Nothing, but the result is a descriptor.
    Accept,
}

impl Held {
    /// Bytes of data.
    fn bytes(&self) -> usize {
        match self {
            Held::Buf(buf) => buf.capacity(),
            Held::View(view) => view.len(),
            Held::Nothing | Held::Send(_) | Held::Address(_) | Held::Accept => 0,
        }
    }
}

/// What the reactor must know of an operation beside its entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// May take for ever: never a reason to spin. Cancelled when its future is dropped.
    Accept,
    /// May be answered soon, or never. Cancelled when its future is dropped.
    Socket,
    /// Ends by itself, with the help of a core: a reason not to spin. Goes on when its future is dropped: a write that was
    /// begun is not torn.
    File,
    /// Of a driver, and ended by the driver alone. May be answered soon, or never. Holds no memory of ours, and goes on when its
    /// future is dropped: nobody waits for it, and it ends with the ring at the latest.
    Command,
}

impl Kind {
    /// Whether it is not called back when nobody waits for it any more.
    fn goes_on(self) -> bool {
        matches!(self, Kind::File | Kind::Command)
    }
}

/// Holds what must be held until the kernel is done, and does with the result what its future can not do any more.
pub(super) type Heir = Box<dyn FnOnce(io::Result<()>)>;

struct Slot {
    owner: Owner,
    held: Held,
    /// Keeps the descriptor from being closed, and its number from being reused, under an entry that names it.
    descriptor: Arc<OwnedFd>,
    kind: Kind,
    /// What a dropped future leaves to be told of the result.
    heir: Option<Heir>,
}

enum Owner {
    /// Not polled yet.
    Unpolled,
    Waiting(Waker),
    Done(i32),
    Gone,
}

/// The slots of a reactor.
#[derive(Default)]
pub(super) struct Slots {
    slots: Slab<Slot>,
    /// Operations that the kernel still knows, commands excepted. A slot may stay longer: until its future takes the result.
    in_flight: usize,
    sockets: usize,
    files: usize,
}

impl Slots {
    pub(super) fn with_capacity(count: usize) -> Slots {
        Slots { slots: Slab::with_capacity(count), in_flight: 0, sockets: 0, files: 0 }
    }

    /// Reserves a slot; the entry that is pushed for it carries the key.
    pub(super) fn add(&mut self, held: Held, descriptor: Arc<OwnedFd>, kind: Kind) -> usize {
        debug_assert!(kind != Kind::Command || matches!(held, Held::Nothing), "nobody waits until it is given back");
        self.in_flight += usize::from(kind != Kind::Command);
        self.sockets += usize::from(matches!(kind, Kind::Socket | Kind::Command));
        self.files += usize::from(kind == Kind::File);
        self.slots.insert(Slot { owner: Owner::Unpolled, held, descriptor, kind, heir: None })
    }

    /// Whether what is in flight may end sooner than a sleep is worth, and needs nothing of this core.
    ///
    /// File operations do: the kernel ends many of them on the core that the medium interrupts, writes of ext4 even by a thread
    /// there, which a spinning reactor keeps from running. The price (local file, 4 KiB reads, one at a time, a quick medium): p50
    /// 16 us spinning, 22 asleep, as fio; CPU time 17 us and 11. Behind a target it is 1.5 us, and writes gain 6.
    pub(super) fn reward_spinning(&self) -> bool {
        self.sockets > 0 && self.files == 0
    }

    /// Whether the kernel holds nothing of ours.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight == 0
    }

    /// Notes a completion. The waker is to be woken, and what else comes back dropped, once no borrow is held.
    pub(super) fn complete(&mut self, key: usize, result: i32) -> Completed {
        let slot = &mut self.slots[key];
        self.in_flight -= usize::from(slot.kind != Kind::Command);
        self.sockets -= usize::from(matches!(slot.kind, Kind::Socket | Kind::Command));
        self.files -= usize::from(slot.kind == Kind::File);
        match std::mem::replace(&mut slot.owner, Owner::Done(result)) {
            Owner::Waiting(waker) => Completed::Wake(waker),
            Owner::Gone => {
                let slot = self.slots.remove(key);
                if slot.kind.goes_on() {
                    buf::back_from_kernel(slot.held.bytes());
                }
                Completed::Forgotten(slot.into_parts(), result)
            }
            Owner::Unpolled | Owner::Done(_) => Completed::Kept,
        }
    }

    pub(super) fn poll(&mut self, key: usize, waker: &Waker) -> Poll<(i32, Held)> {
        let slot = &mut self.slots[key];
        match &mut slot.owner {
            Owner::Done(result) => {
                let result = *result;
                Poll::Ready((result, self.slots.remove(key).held))
            }
            Owner::Waiting(old) => {
                old.clone_from(waker);
                Poll::Pending
            }
            owner => {
                *owner = Owner::Waiting(waker.clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn entrust(&mut self, key: usize, heir: Heir) {
        self.slots[key].heir = Some(heir);
    }

    /// What the kernel still knows and would not end by itself.
    pub(super) fn to_cancel(&self) -> Vec<usize> {
        let is_to_end = |slot: &Slot| !slot.kind.goes_on() && !matches!(slot.owner, Owner::Done(_));
        self.slots.iter().filter(|(_, slot)| is_to_end(slot)).map(|(key, _)| key).collect()
    }

    /// The future is gone.
    pub(super) fn abandon(&mut self, key: usize) -> Abandoned {
        let slot = &mut self.slots[key];
        match std::mem::replace(&mut slot.owner, Owner::Gone) {
            Owner::Done(result) => Abandoned::Ended(self.slots.remove(key).into_parts(), result),
            Owner::Unpolled | Owner::Waiting(_) | Owner::Gone if slot.kind.goes_on() => {
                buf::leave_to_kernel(slot.held.bytes());
                Abandoned::GoesOn
            }
            Owner::Unpolled | Owner::Waiting(_) | Owner::Gone => Abandoned::ToCancel,
        }
    }
}

/// See [`Slots::abandon`].
pub(super) enum Abandoned {
    Ended(Forgotten, i32),
    GoesOn,
    ToCancel,
}

impl Slot {
    fn into_parts(self) -> Forgotten {
        Forgotten { held: self.held, _descriptor: self.descriptor, heir: self.heir }
    }
}

/// See [`Slots::complete`].
pub(super) enum Completed {
    Wake(Waker),
    Forgotten(Forgotten, i32),
    Kept,
}

/// What is left of an operation nobody waits for.
pub(super) struct Forgotten {
    held: Held,
    _descriptor: Arc<OwnedFd>,
    heir: Option<Heir>,
}

impl Forgotten {
    /// Gives back what the operation held, closes what it brought, and tells who wanted to know.
    pub(super) fn settle(self, result: i32, send_states: &SendStates) {
        if let Some(heir) = self.heir {
            heir(whole(result, &self.held));
        }
        match self.held {
            Held::Accept if result >= 0 => drop(own(result)),
            Held::Send(state) => send_states.give(state),
            _ => {}
        }
    }
}

/// Takes the descriptor that an accept resulted in.
pub(super) fn own(descriptor: i32) -> OwnedFd {
    // SAFETY: an accept that succeeded results in a new descriptor, which only its one completion names.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

pub(super) fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// How an operation has ended whose future can't go on with it: a write that the kernel cut short has failed. Were it to count
/// as done, its heir would call bytes written that never will be.
fn whole(result: i32, held: &Held) -> io::Result<()> {
    match (outcome(result)?, held) {
        (count, Held::View(data)) if count < data.len() => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A write of a future that was dropped came back with a part of its bytes, as on a full file system, and its heir was told
    /// that it had gone well: a drive then expected content that nobody wrote.
    #[test]
    fn a_forgotten_write_that_was_cut_short_has_failed() {
        let held = Held::View(Buf::zeroed(8192).freeze());
        assert!(whole(8192, &held).is_ok());
        for short in [0, 512, 4096] {
            let told = whole(short, &held).map_err(|error| error.kind());
            assert_eq!(told, Err(io::ErrorKind::WriteZero), "{short} bytes");
        }
        assert_eq!(whole(-libc::EIO, &held).map_err(|error| error.raw_os_error()), Err(Some(libc::EIO)));
        assert!(whole(0, &Held::Nothing).is_ok(), "a flush has no bytes");
    }

    #[test]
    fn nobody_waits_for_a_command_that_its_driver_does_not_end() {
        let descriptor = Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        let mut slots = Slots::default();
        let command = slots.add(Held::Nothing, descriptor.clone(), Kind::Command);
        assert!(slots.reward_spinning(), "a request may come soon");
        assert!(slots.is_quiet() && slots.to_cancel().is_empty());
        assert!(matches!(slots.abandon(command), Abandoned::GoesOn));
        assert_eq!(Arc::strong_count(&descriptor), 2, "its number is not another file's while the kernel knows it");
        assert!(matches!(slots.complete(command, -libc::ENODEV), Completed::Forgotten(..)));
        assert_eq!(Arc::strong_count(&descriptor), 1);
        assert!(!slots.reward_spinning());
    }

    /// A medium that hangs holds the data of whoever has given it up.
    #[test]
    fn what_is_left_to_the_kernel_is_counted_until_it_comes_back() {
        let descriptor = Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        let mut slots = Slots::default();
        // What other tests leave does not come near this much.
        let held = |number| match number % 2 {
            0 => Held::Buf(Buf::with_capacity(1 << 20)),
            _ => Held::View(Buf::zeroed(1 << 20).freeze()),
        };
        let kind = |number| if number < 64 { Kind::File } else { Kind::Socket };
        let mut added = |number| slots.add(held(number), descriptor.clone(), kind(number));
        let keys: Vec<usize> = (0..128).map(&mut added).collect();
        let mib = || buf::left_to_kernel() >> 20;
        assert!(mib() < 32, "somebody waits for it");
        keys.iter().for_each(|key| drop(slots.abandon(*key)));
        assert!((64..96).contains(&mib()), "sockets are called back");
        keys.iter().for_each(|key| drop(slots.complete(*key, 0)));
        assert!(mib() < 32);
    }

    #[test]
    fn a_file_operation_in_flight_is_a_reason_to_sleep() {
        let descriptor = Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()));
        let mut slots = Slots::default();
        slots.add(Held::Accept, descriptor.clone(), Kind::Accept);
        assert!(!slots.reward_spinning());
        slots.add(Held::Nothing, descriptor.clone(), Kind::Socket);
        assert!(slots.reward_spinning());
        let file = slots.add(Held::Nothing, descriptor, Kind::File);
        assert!(!slots.reward_spinning());
        slots.complete(file, 0);
        assert!(slots.reward_spinning());
    }
}
