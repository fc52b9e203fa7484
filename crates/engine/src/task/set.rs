//! [`TaskSet`]: many futures of one type in one task, in slots that are made once.
//!
//! Invariants:
//! - A future stays in its slot, at one address, from `push` until it has ended: it is pinned there.
//! - Bit `i` of the ready words is set from a wake of slot `i` until the slot is polled. A wake that finds the bit clear also
//!   wakes the set's owner; one that finds it set need not, since the owner has been woken and not yet looked.
//! - Wakers of a slot outlive its futures: a late wake polls the slot's next future once too often, which futures must bear.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context as TaskContext, Poll, Wake, Waker},
};

/// A fixed number of slots for futures of one type. Nothing is allocated after [`TaskSet::new`].
pub struct TaskSet<F> {
    /// `None`: free. Boxed, so that the futures keep their addresses when the set is moved.
    slots: Pin<Box<[Option<F>]>>,
    wakers: Box<[Waker]>,
    free: Vec<usize>,
    shared: Arc<Shared>,
    /// The slot after the one that was served last, so that none starves.
    cursor: usize,
}

struct Shared {
    ready: Box<[AtomicU64]>,
    owner: Mutex<Option<Waker>>,
}

struct SlotWaker {
    shared: Arc<Shared>,
    index: usize,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.mark(self.index);
    }
}

impl Shared {
    fn mark(&self, index: usize) {
        let bit = 1 << (index % 64);
        // AcqRel: what was done before the wake is seen by the poll that takes the bit.
        if self.ready[index / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(waker) = &*owner {
                waker.wake_by_ref();
            }
        }
    }

    /// Takes the first set bit at or after `cursor`, going round.
    fn take(&self, cursor: usize) -> Option<usize> {
        let words = self.ready.len();
        for step in 0..=words {
            let word = (cursor / 64 + step) % words;
            let mut bits = self.ready[word].load(Ordering::Acquire);
            if step == 0 {
                bits &= u64::MAX << (cursor % 64);
            }
            if bits != 0 {
                let bit = bits.trailing_zeros() as usize;
                self.ready[word].fetch_and(!(1 << bit), Ordering::AcqRel);
                return Some(word * 64 + bit);
            }
        }
        None
    }
}

impl<F: Future> TaskSet<F> {
    /// A set of `capacity` slots, at least one.
    pub fn new(capacity: usize) -> TaskSet<F> {
        let capacity = capacity.max(1);
        let ready = (0..capacity.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { ready, owner: Mutex::new(None) });
        let wakers =
            (0..capacity).map(|index| Waker::from(Arc::new(SlotWaker { shared: shared.clone(), index }))).collect();
        let slots = Box::into_pin((0..capacity).map(|_| None).collect::<Box<[_]>>());
        TaskSet { slots, wakers, free: (0..capacity).rev().collect(), shared, cursor: 0 }
    }

    /// Puts `future` into a free slot and returns the slot's index. It is polled from the next [`TaskSet::poll_next`] on.
    ///
    /// # Errors
    /// The future back, if every slot is taken.
    pub fn push(&mut self, future: F) -> Result<usize, F> {
        let Some(index) = self.free.pop() else { return Err(future) };
        self.slot(index).set(Some(future));
        self.shared.mark(index);
        Ok(index)
    }

    /// Futures in the set.
    pub fn len(&self) -> usize {
        self.wakers.len() - self.free.len()
    }

    /// Whether it holds no future.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every slot is taken.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Polls what was woken until a future ends: its slot and output. `None` when the set is empty.
    pub fn poll_next(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<(usize, F::Output)>> {
        if self.is_empty() {
            return Poll::Ready(None);
        }
        {
            // Set before the bits are looked at: a wake between the look and the return must reach the owner.
            let mut owner = self.shared.owner.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *owner {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *owner = Some(cx.waker().clone()),
            }
        }
        // One look at every slot and no more: a future that wakes itself must not keep the owner from its other work.
        for _ in 0..self.wakers.len() {
            let Some(index) = self.shared.take(self.cursor) else { return Poll::Pending };
            self.cursor = (index + 1) % self.wakers.len();
            let waker = self.wakers[index].clone();
            let Some(future) = self.slot(index).as_pin_mut() else { continue };
            if let Poll::Ready(output) = future.poll(&mut TaskContext::from_waker(&waker)) {
                self.slot(index).set(None);
                self.free.push(index);
                return Poll::Ready(Some((index, output)));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Waits until a future ends; see [`TaskSet::poll_next`].
    pub async fn next(&mut self) -> Option<(usize, F::Output)> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn slot(&mut self, index: usize) -> Pin<&mut Option<F>> {
        // SAFETY: a slot is structurally pinned: it is part of the pinned slice, its future is never moved out (only
        // replaced, which drops it in place), and `TaskSet` gives no other access to it.
        unsafe { self.slots.as_mut().map_unchecked_mut(|slots| &mut slots[index]) }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    /// Ends once its flag is set; keeps the waker it was polled with.
    struct Flag(Rc<(Cell<bool>, Cell<Option<Waker>>)>);

    impl Future for Flag {
        type Output = ();
        fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
            self.0.1.set(Some(cx.waker().clone()));
            if self.0.0.get() { Poll::Ready(()) } else { Poll::Pending }
        }
    }

    struct Count(AtomicU64);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn ends_in_the_order_of_wakes_and_refuses_over_capacity() {
        let count = Arc::new(Count(AtomicU64::new(0)));
        let waker = Waker::from(count.clone());
        let mut cx = TaskContext::from_waker(&waker);
        let mut set = TaskSet::new(70);
        let flags: Vec<_> = (0..70).map(|_| Rc::new((Cell::new(false), Cell::new(None::<Waker>)))).collect();
        for (index, flag) in flags.iter().enumerate() {
            assert_eq!(set.push(Flag(flag.clone())).ok(), Some(index));
        }
        assert!(set.push(Flag(flags[0].clone())).is_err() && set.is_full());
        assert!(set.poll_next(&mut cx).is_pending());
        assert!(set.poll_next(&mut cx).is_pending());

        let before = count.0.load(Ordering::Relaxed);
        for index in [69, 3] {
            flags[index].0.set(true);
            let waker = flags[index].1.take().expect("polled");
            waker.wake_by_ref();
            waker.wake();
        }
        assert_eq!(
            count.0.load(Ordering::Relaxed) - before,
            2,
            "a second wake of a slot must not wake the owner again"
        );
        let mut ended = vec![];
        while let Poll::Ready(Some((index, ()))) = set.poll_next(&mut cx) {
            ended.push(index);
        }
        ended.sort_unstable();
        assert_eq!(ended, [3, 69]);
        assert_eq!(set.len(), 68);
        assert!(set.push(Flag(flags[0].clone())).is_ok_and(|index| index == 3 || index == 69));
    }

    #[test]
    fn an_empty_set_has_no_next() {
        let mut set = TaskSet::<std::future::Ready<u8>>::new(2);
        let mut cx = TaskContext::from_waker(Waker::noop());
        assert!(matches!(set.poll_next(&mut cx), Poll::Ready(None)));
        set.push(std::future::ready(7)).expect("room");
        assert!(matches!(set.poll_next(&mut cx), Poll::Ready(Some((0, 7)))));
        assert!(matches!(set.poll_next(&mut cx), Poll::Ready(None)));
    }
}
