//! The locks against the plainest model: a list of requests in order of arrival.

use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use proptest::prelude::*;

use super::*;

/// A waker that counts.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One request as the model sees it, beside the real one.
struct Request {
    range: Range,
    mode: Mode,
    wakes: Arc<Wakes>,
    lock: Option<Lock>,
    guard: Option<RangeGuard>,
}

impl Request {
    fn poll(&mut self) {
        let Some(lock) = &mut self.lock else { return };
        let waker = Waker::from(Arc::clone(&self.wakes));
        if let Poll::Ready(guard) = Pin::new(lock).poll(&mut Context::from_waker(&waker)) {
            (self.guard, self.lock) = (Some(guard), None);
        }
    }
}

/// The model: a request is granted when no earlier request conflicts with it.
fn granted_in_model(requests: &[Request], index: usize) -> bool {
    let this = &requests[index];
    requests[..index].iter().all(|earlier| {
        let both_shared = earlier.mode == Mode::Shared && this.mode == Mode::Shared;
        both_shared || earlier.range.first >= this.range.end || this.range.first >= earlier.range.end
    })
}

#[derive(Clone, Debug)]
enum Step {
    Enter(u64, u64, Mode),
    /// Drops the request at this place of the queue, be it granted (a release) or not (a cancelled wait).
    Leave(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let mode = prop_oneof![Just(Mode::Shared), Just(Mode::Exclusive)];
    // Regions of 4 blocks: lengths up to 300 blocks cross one region, several, and all 64 shards.
    let blocks = prop_oneof![4 => 1u64..6, 2 => 6u64..40, 1 => 200u64..300];
    let step = prop_oneof![
        3 => (0u64..320, blocks, mode).prop_map(|(first, blocks, mode)| Step::Enter(first, blocks, mode)),
        2 => any::<prop::sample::Index>().prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #[test]
    fn grants_are_those_of_the_model(steps in steps()) {
        let locks = Arc::new(RangeLocks::new(2));
        let mut requests: Vec<Request> = Vec::new();
        for step in steps {
            match step {
                Step::Enter(first, blocks, mode) => {
                    let lock = Some(locks.lock(first, blocks, mode));
                    let range = Range { first, end: first + blocks };
                    let mut request = Request { range, mode, wakes: Arc::default(), lock, guard: None };
                    request.poll();
                    requests.push(request);
                }
                Step::Leave(index) if !requests.is_empty() => {
                    let index = index.index(requests.len());
                    drop(requests.remove(index));
                    // As a task would: polled only when woken. A lost wake-up shows as a grant that is missing below.
                    for request in &mut requests {
                        if request.wakes.0.swap(0, Ordering::Relaxed) > 0 {
                            request.poll();
                        }
                    }
                }
                Step::Leave(_) => {}
            }
            for index in 0..requests.len() {
                prop_assert_eq!(requests[index].guard.is_some(), granted_in_model(&requests, index));
            }
        }
        drop(requests);
        prop_assert!(locks.shards.iter().all(|shard| shard.lock().unwrap().entries.is_empty()), "no entry is left behind");
    }

    #[test]
    fn shards_of_a_range_are_those_of_its_blocks(first in 0u64..2000, blocks in 1u64..600, shift in 0u32..5) {
        let locks = RangeLocks::new(shift);
        let expected = (first..first + blocks).fold(0u64, |mask, block| mask | 1 << ((block >> shift) % SHARDS as u64));
        prop_assert_eq!(locks.shards_of(Range { first, end: first + blocks }), expected);
    }
}

#[test]
fn the_last_block_of_all_can_be_locked() {
    let locks = Arc::new(RangeLocks::new(5));
    let mut request = Request {
        range: Range { first: u64::MAX - 1, end: u64::MAX },
        mode: Mode::Exclusive,
        wakes: Arc::default(),
        lock: Some(locks.lock(u64::MAX - 1, 9, Mode::Exclusive)),
        guard: None,
    };
    request.poll();
    assert!(request.guard.is_some());
}

/// A waker that drops a guard when woken, as the last reference to a cancelled task does.
struct DropsGuard(Mutex<Option<RangeGuard>>);

impl Wake for DropsGuard {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn a_wake_may_release_another_lock_of_the_same_shard() {
    let locks = Arc::new(RangeLocks::new(2));
    let take = |first, waker: &Waker| {
        let mut lock = locks.lock(first, 1, Mode::Exclusive);
        let polled = Pin::new(&mut lock).poll(&mut Context::from_waker(waker));
        (lock, polled)
    };
    let Poll::Ready(held) = take(0, Waker::noop()).1 else { panic!("a free range is granted at once") };
    let Poll::Ready(other) = take(1, Waker::noop()).1 else { panic!("a free range is granted at once") };
    let waker = Waker::from(Arc::new(DropsGuard(Mutex::new(Some(other)))));
    let (waiting, polled) = take(0, &waker);
    assert!(polled.is_pending());
    drop(held); // would deadlock here if the waker ran under the mutex
    drop(waiting);
    assert!(take(1, Waker::noop()).1.is_ready());
}

/// Runs a future on the calling thread, parking while it waits.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park_timeout(std::time::Duration::from_secs(5));
    }
}

#[test]
fn threads_never_meet_inside_an_exclusive_range() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 2_000;
    let locks = Arc::new(RangeLocks::new(1));
    let counters: Arc<Vec<AtomicU64>> = Arc::new((0..8).map(|_| AtomicU64::new(0)).collect());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (locks, counters) = (Arc::clone(&locks), Arc::clone(&counters));
            std::thread::spawn(move || {
                for round in 0..ROUNDS {
                    let (first, blocks) = ((round * 3 + thread) % 6, 1 + (round + thread) % 3);
                    let guard = block_on(locks.lock(first, blocks, Mode::Exclusive));
                    for counter in &counters[first as usize..(first + blocks) as usize] {
                        // Deliberately two steps: an increment is lost if anybody else is inside.
                        let value = counter.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        counter.store(value + 1, Ordering::Relaxed);
                    }
                    drop(guard);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let expected: u64 = (0..THREADS).flat_map(|t| (0..ROUNDS).map(move |r| 1 + (r + t) % 3)).sum();
    assert_eq!(counters.iter().map(|counter| counter.load(Ordering::Relaxed)).sum::<u64>(), expected);
}
