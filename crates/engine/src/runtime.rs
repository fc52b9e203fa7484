//! Which world drives the current thread.
//!
//! Invariant: the context is set exactly while a world polls or drops its tasks. What outlives that (a file or stream dropped
//! later) must not need it.

use std::{cell::RefCell, rc::Rc};

use crate::{sim, uring};

/// The world that polls the running task.
#[derive(Clone)]
pub(crate) enum Context {
    /// The kernel.
    Uring(Rc<uring::Driver>),
    /// The simulation.
    Sim(Rc<sim::Driver>),
}

thread_local! {
    static CURRENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// The current world, if the caller runs inside one.
#[inline]
pub(crate) fn try_current() -> Option<Context> {
    with_current(|current| current.cloned())
}

/// Looks at the current world without taking a handle of it. `look` must not enter or leave a world.
#[inline]
pub(crate) fn with_current<R>(look: impl FnOnce(Option<&Context>) -> R) -> R {
    let mut look = Some(look);
    let seen = CURRENT.try_with(|current| look.take().map(|look| look(current.borrow().as_ref()))).ok().flatten();
    // The thread is ending and its locals are gone: it has no world any more.
    seen.unwrap_or_else(|| look.take().expect("taken only where it was called")(None))
}

/// The current world.
///
/// # Panics
/// Outside `Reactor::run` and `sim::World`: there is nobody who could carry the operation out.
#[track_caller]
#[inline]
pub(crate) fn current() -> Context {
    try_current().expect("engine operations need a world: call this inside Reactor::run or sim::World")
}

/// Makes `context` the current world until the guard is dropped, which restores the one before.
pub(crate) fn enter(context: Context) -> Entered {
    Entered { before: CURRENT.with(|current| current.replace(Some(context))) }
}

/// See [`enter`].
pub(crate) struct Entered {
    before: Option<Context>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.before.take();
        // Not dropped inside the borrow: the last handle of a world may run code that asks for the context.
        let own = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), before));
        drop(own);
    }
}
