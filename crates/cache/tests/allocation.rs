//! A hit in memory is answered without an allocation: an allocator that counts, and 10,000 gets after the warm-up.
//!
//! Each thread counts its own: the test harness allocates when it likes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use cache::hash::Hasher;
use cache::item::{Cas, Item, Key, Meta, NewValue, Seconds, Value};
use cache::protocol::Now;
use cache::session::{Rules, Session, Step};
use cache::slot::{Look, NoRoom, Slot, Slots};
use cache::testing::PlainServer;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const VALUE: &[u8] = &[b'v'; 300];

/// One slot, whose item is always the same; it takes what is stored and keeps nothing.
struct Same;

impl Slot for Same {
    fn item(&self) -> Option<Item<'_>> {
        Some(Item { meta: Meta { cas: Cas(7), ..Meta::default() }, value: Value::Whole(VALUE) })
    }

    fn had_expired(&self) -> bool {
        false
    }

    fn note_access(&mut self) {}

    fn set_meta(&mut self, _: impl FnOnce(&mut Meta)) {}

    fn renew_cas(&mut self) -> Cas {
        Cas(8)
    }

    fn remove(&mut self) {}

    fn put(&mut self, _: Meta, _: NewValue<'_>) -> Result<Cas, NoRoom> {
        Ok(Cas(8))
    }
}

impl Slots for Same {
    type Place = ();
    type Fetched = ();
    type Slot<'a> = Same;

    fn visit<R>(&self, _: &Key<'_>, _: Seconds, _: Look<()>, visit: impl FnOnce(&mut Same) -> R) -> Result<R, ()> {
        Ok(visit(&mut Same))
    }

    async fn fetch(&self, (): ()) {}

    async fn make_room(&self, no_room: NoRoom) -> Result<(), NoRoom> {
        Err(no_room)
    }

    fn chunks(&self, bytes: usize) -> Result<Vec<engine::Buf>, NoRoom> {
        Err(NoRoom { bytes })
    }

    fn chunk(&self, bytes: usize, _: usize) -> Result<engine::Buf, NoRoom> {
        Err(NoRoom { bytes })
    }

    fn may_hold(&self, _: usize) -> bool {
        true
    }

    fn flush(&self, _: Seconds, _: Seconds) {}
}

#[test]
fn a_hit_allocates_nothing() {
    let now = Now { at: Seconds(1000), began: 1_700_000_000 };
    let server = PlainServer::default();
    let mut noop = vec![0x80, 0x0c, 0, 1];
    noop.extend([0, 0, 0, 0, 0, 0, 0, 1]);
    noop.extend([0; 12]);
    noop.push(b'k');
    let set = [&b"set key 5 100 300 noreply\r\n"[..], VALUE, b"\r\n"].concat();
    let requests: [&[u8]; 7] = [
        b"get key\r\n",
        b"gets key another third\r\n",
        b"gat 100 key\r\n",
        b"mg key v k c t f O123\r\n",
        b"delete key\r\ntouch key 5\r\n",
        &set,
        &noop,
    ];
    for request in requests {
        let mut session = Session::new(Arc::new(Rules::default()), Hasher::new([1, 2]), 1);
        let mut answered = 0;
        for round in 0..10_100 {
            if round == 100 {
                ALLOCATIONS.set(0);
            }
            let mut buf = session.lend(true);
            buf.extend_from_slice(request);
            session.receive(buf);
            let step = session.step(&Same, &server, now);
            assert!(matches!(step, Step::Receive), "{step:?}");
            let mut batch = session.output().take();
            answered += batch.len();
            batch.clear();
            session.output().give_back(batch);
        }
        let allocations = ALLOCATIONS.get();
        assert_eq!(allocations, 0, "allocations in 10,000 times {:?}", request.escape_ascii().to_string());
        assert!(answered > 0 || request == set, "nothing was answered");
    }
}
