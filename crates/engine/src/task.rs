//! Tasks of the current world.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    rc::Rc,
    task::{Context as TaskContext, Poll},
};

use crate::{
    runtime::{self, Context},
    sync::oneshot,
};

mod set;

pub use set::TaskSet;

/// A boxed future of this thread.
///
/// The bodies of an `async fn` are compiled by the crate that awaits them, however far above it stands. A function that is not
/// generic and returns its future in a box ends that: the crate of the function compiles all of it, once, and whoever calls it
/// links. Meant for what begins a service, a connection or a namespace, and for what goes over
/// the network anyway, as an operation of the store or of a file; never for a command of a namespace.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A spawned task: a future of its output. Dropping it cancels the task; [`Task::detach`] lets it run on.
///
/// A panic in a task unwinds out of the world that runs it.
#[must_use = "dropping a task cancels it: await it, keep it or detach it"]
pub struct Task<T> {
    task: async_task::Task<T>,
    /// The output may be bound to this thread.
    local: PhantomData<Rc<()>>,
}

impl<T> Task<T> {
    pub(crate) fn new(task: async_task::Task<T>) -> Task<T> {
        Task { task, local: PhantomData }
    }

    /// Lets the task run on by itself.
    pub fn detach(self) {
        self.task.detach();
    }

    /// Whether it has ended (its output may be waiting here).
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for the output; `None` if the task was dropped before its end, as a crash of its simulated node does. (Waiting
    /// for the task itself then panics.)
    pub async fn outcome(self) -> Option<T> {
        self.task.fallible().await
    }

    /// Cancels the task and waits until its future is dropped. The output, if it had ended before.
    pub async fn cancel(self) -> Option<T> {
        self.task.cancel().await
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<T> {
        Pin::new(&mut self.task).poll(cx)
    }
}

/// Starts `future` as a task of the current world, on this thread.
///
/// # Panics
/// Outside a world.
#[track_caller]
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    spawn_boxed(Box::pin(future))
}

/// [`spawn`] for a future that has its box already.
///
/// The machinery of a task is compiled once for each kind of output and world, not once for each future: that was a seventh of all
/// code. The price is a second allocation for a task.
///
/// # Panics
/// Outside a world.
#[track_caller]
pub fn spawn_boxed<T: 'static>(future: LocalFuture<'static, T>) -> Task<T> {
    match runtime::current() {
        Context::Uring(driver) => Task::new(driver.spawn(future)),
        Context::Sim(driver) => Task::new(driver.spawn(future)),
    }
}

/// Runs `future` to its end in a task of its own, also when the caller goes away meanwhile. `None` only where its world ends
/// before it.
///
/// # Panics
/// Outside a world.
pub async fn to_its_end<T: 'static>(future: impl Future<Output = T> + 'static) -> Option<T> {
    let (done, outcome) = oneshot();
    spawn(async move {
        let _ = done.send(future.await); // nobody may be left to be told
    })
    .detach();
    outcome.await.ok()
}

/// Lets every other runnable task run once.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// Whether a world runs the caller. Outside of one (a value dropped after its world's end) operations panic.
pub fn in_world() -> bool {
    runtime::with_current(|current| current.is_some())
}

/// A random number: in a simulation from the world's seed, else from a generator for secrets that the system has seeded: who is
/// told some of them, in the versions of values, does not know the others.
pub fn random_u64() -> u64 {
    match runtime::try_current() {
        Some(Context::Sim(sim)) => sim.random_u64(),
        // Ids must be unique over processes and restarts: it panics where the system has no random numbers to give.
        Some(Context::Uring(_)) | None => rand::random(),
    }
}
