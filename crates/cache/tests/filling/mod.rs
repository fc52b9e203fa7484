//! A store being filled, as sessions do it.

#![allow(dead_code, reason = "each of the tests that share this uses a part of it")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use cache::item::{Key, Meta, NewValue, Seconds};
use cache::slot::{Look, Slot, Slots, frozen};
use cache::store::Store;

/// When all that happens here happens.
pub const NOW: Seconds = Seconds(100);

/// Polls until it is done: nothing here waits for anything else.
pub fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

/// Stores, and makes room as a session does.
pub fn put(store: &Store, number: u64, length: usize) {
    let bytes = number.to_le_bytes();
    let key = Key::new(&bytes, store.hasher().hash(&bytes)).unwrap();
    let value = vec![number as u8; length];
    loop {
        let Ok(stored) =
            store.visit(&key, NOW, Look::Unseen, |slot| slot.put(Meta::default(), NewValue::Pieces(&[&value])));
        match stored {
            Ok(_) => return,
            Err(no_room) => wait(store.make_room(no_room)).unwrap(),
        }
    }
}

/// As [`put`], a long value.
pub fn put_long(store: &Store, number: u64, length: usize) {
    let bytes = number.to_le_bytes();
    let key = Key::new(&bytes, store.hasher().hash(&bytes)).unwrap();
    let mut chunks = loop {
        match store.chunks(length) {
            Ok(chunks) => break chunks,
            Err(no_room) => wait(store.make_room(no_room)).unwrap(),
        }
    };
    for chunk in &mut chunks {
        chunk.set_len(chunk.capacity());
        chunk.fill(number as u8);
    }
    let views = frozen(chunks);
    loop {
        let new = NewValue::Chunks(views.clone());
        let Ok(stored) = store.visit(&key, NOW, Look::Unseen, |slot| slot.put(Meta::default(), new));
        match stored {
            Ok(_) => return,
            Err(no_room) => wait(store.make_room(no_room)).unwrap(),
        }
    }
}
