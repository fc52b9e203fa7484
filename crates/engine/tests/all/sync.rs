//! The primitives between tasks, polled by hand: no world is needed to wait for one another.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use engine::sync::{Closed, Notify, Queue, Semaphore, TrySendError, mailbox, oneshot};

/// A future polled by hand, with a count of its wakes.
struct Waiter<F> {
    future: Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<F: Future> Waiter<F> {
    fn new(future: F) -> Waiter<F> {
        Waiter { future: Box::pin(future), wakes: Arc::new(Wakes(AtomicU32::new(0))) }
    }

    /// A waiter that waits already.
    fn waiting(future: F) -> Waiter<F> {
        let mut waiter = Waiter::new(future);
        assert!(waiter.poll().is_pending());
        waiter
    }

    fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(self.wakes.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn wakes(&self) -> u32 {
        self.wakes.0.load(Ordering::Relaxed)
    }

    fn ready(&mut self) -> F::Output {
        match self.poll() {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("still waiting"),
        }
    }
}

#[test]
fn one_notification_is_kept_and_only_one() {
    let notify = Notify::new();
    notify.notify_one();
    notify.notify_one();
    Waiter::new(notify.notified()).ready();
    assert!(Waiter::new(notify.notified()).poll().is_pending());
}

#[test]
fn waiters_are_notified_in_order_and_all_of_them_by_all() {
    let notify = Notify::new();
    let mut waiters: Vec<_> = (0..4).map(|_| Waiter::waiting(notify.notified())).collect();
    notify.notify_one();
    assert_eq!(waiters.iter().map(Waiter::wakes).collect::<Vec<_>>(), [1, 0, 0, 0]);
    waiters[0].ready();
    notify.notify_all();
    for waiter in &mut waiters[1..] {
        waiter.ready();
    }
    assert!(Waiter::new(notify.notified()).poll().is_pending(), "nothing is kept");
}

#[test]
fn a_notification_of_a_dropped_waiter_goes_to_the_next() {
    let notify = Notify::new();
    let first = Waiter::waiting(notify.notified());
    let mut second = Waiter::waiting(notify.notified());
    let unserved = Waiter::waiting(notify.notified());
    notify.notify_one();
    drop(first);
    second.ready();
    drop(unserved); // gives nothing away
    assert!(Waiter::new(notify.notified()).poll().is_pending());
}

#[test]
fn permits_are_given_in_line_so_that_the_large_are_not_starved() {
    let semaphore = Semaphore::new(3);
    let held = Waiter::new(semaphore.acquire(2)).ready();
    let mut large = Waiter::waiting(semaphore.acquire(3));
    let mut small = Waiter::waiting(semaphore.acquire(1));
    assert!(semaphore.try_acquire(1).is_none(), "one is free, but others wait");
    drop(held);
    assert!(small.poll().is_pending());
    let held = large.ready();
    assert!(small.poll().is_pending());
    drop(held);
    assert_eq!(small.ready().count(), 1);
    assert_eq!(semaphore.available(), 3);
}

#[test]
fn a_dropped_request_lets_the_next_through() {
    let semaphore = Semaphore::new(2);
    let _one = semaphore.try_acquire(1).expect("free");
    let large = Waiter::waiting(semaphore.acquire(2));
    let mut small = Waiter::waiting(semaphore.acquire(1));
    drop(large);
    assert_eq!(small.wakes(), 1);
    small.ready();
}

#[test]
fn a_release_hands_permits_to_all_whom_it_serves_at_once() {
    let semaphore = Semaphore::new(3);
    let held = semaphore.try_acquire(3).expect("free");
    let mut waiters: Vec<_> = (0..4).map(|_| Waiter::waiting(semaphore.acquire(1))).collect();
    drop(held);
    let wakes: Vec<_> = waiters.iter().map(Waiter::wakes).collect();
    assert_eq!(wakes, [1, 1, 1, 0], "each is told before any of them runs");
    let permits: Vec<_> = waiters[..3].iter_mut().map(Waiter::ready).collect();
    assert_eq!((permits.len(), semaphore.available()), (3, 0));
}

#[test]
fn permits_of_one_who_went_before_hearing_of_them_go_to_the_next() {
    let semaphore = Semaphore::new(2);
    let held = semaphore.try_acquire(2).expect("free");
    let served = Waiter::waiting(semaphore.acquire(2));
    let mut next = Waiter::waiting(semaphore.acquire(1));
    drop(held);
    assert_eq!((served.wakes(), next.wakes()), (1, 0));
    drop(served);
    assert_eq!(next.wakes(), 1);
    let _permit = next.ready();
    assert_eq!(semaphore.available(), 1);
}

#[test]
fn a_value_or_the_news_that_there_will_be_none() {
    let (sender, receiver) = oneshot();
    let mut receiver = Waiter::waiting(receiver);
    assert!(!sender.is_closed());
    sender.send(7).expect("somebody waits");
    assert_eq!((receiver.wakes(), receiver.ready()), (1, Ok(7)));

    let (sender, receiver) = oneshot::<u8>();
    let mut receiver = Waiter::waiting(receiver);
    drop(sender);
    assert_eq!((receiver.wakes(), receiver.ready()), (1, Err(Closed)));

    let (sender, receiver) = oneshot();
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!(sender.send(7), Err(7));
}

#[test]
fn closing_a_queue_ends_producers_and_consumers_but_loses_nothing() {
    let queue = Queue::new(1);
    queue.try_push(1).expect("room");
    assert_eq!(queue.try_push(2), Err(2));
    let mut producers: Vec<_> = (0..2)
        .map(|_| {
            let queue = queue.clone();
            Waiter::waiting(async move { queue.push(9).await })
        })
        .collect();
    queue.close();
    for producer in &mut producers {
        assert_eq!(producer.ready(), Err(Closed));
    }
    assert_eq!(queue.try_push(3), Err(3));
    assert_eq!(Waiter::new(queue.pop()).ready(), Some(1));
    assert_eq!(Waiter::new(queue.pop()).ready(), None);

    let queue = Queue::<u8>::new(1);
    let mut consumers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            Waiter::waiting(async move { queue.pop().await })
        })
        .collect();
    queue.close();
    for consumer in &mut consumers {
        assert_eq!(consumer.ready(), None);
    }
}

#[test]
fn items_are_not_stranded_when_a_woken_consumer_is_dropped() {
    let queue = Queue::new(4);
    let consumer = |queue: &Queue<u8>| {
        let queue = queue.clone();
        Waiter::waiting(async move { queue.pop().await })
    };
    let (first, mut second) = (consumer(&queue), consumer(&queue));
    queue.try_push(1).expect("room");
    drop(first);
    assert_eq!(second.ready(), Some(1));
}

#[test]
fn a_mailbox_is_bounded_and_says_when_a_side_is_gone() {
    let (sender, receiver) = mailbox(1);
    sender.try_send(1).expect("room");
    assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
    let (other, third) = (sender.clone(), sender.clone());
    let served = Waiter::waiting(async move { other.send(3).await });
    let mut next = Waiter::waiting(async move { third.send(4).await });
    assert_eq!(Waiter::new(receiver.recv()).ready(), Some(1));
    assert_eq!((served.wakes(), next.wakes()), (1, 0));
    drop(served); // woken, but never looked: the room is the next one's
    assert_eq!(next.wakes(), 1);
    next.ready().expect("the receiver lives");
    drop(next);
    assert_eq!(receiver.try_recv(), Some(4));
    let mut last = Waiter::waiting(receiver.recv());
    drop(sender);
    assert_eq!(last.ready(), None);

    let (sender, receiver) = mailbox(1);
    sender.try_send(1).expect("room");
    let other = sender.clone();
    let mut stuck = Waiter::waiting(async move { other.send(2).await });
    drop(receiver);
    assert_eq!(stuck.ready(), Err(Closed));
    assert_eq!(sender.try_send(3), Err(TrySendError::Closed(3)));
}
