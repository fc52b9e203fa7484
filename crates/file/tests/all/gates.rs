//! Gates that hold every call of a client, or of a task, until it is let through: by them two run in every order of their calls
//! with few switches.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::sync::Notify;
use engine::task::{LocalFuture, Task};
use engine::time;
use file::Error;
use file::meta::{KeyPage, MemoryClient, MemoryMeta, Meta, Seen, Swapped, Version};

/// Switches from one that could go on.
const SWITCHES_MAX: u32 = 2;
/// How long one that pauses is waited for: longer than any intent is left alone.
const INSISTS_MAX: Duration = Duration::from_secs(5);

/// Holds every call of a client until it is let through.
pub struct Gated {
    inner: Rc<MemoryClient>,
    pub is_open: Cell<bool>,
    waiting: Cell<usize>,
    go: Notify,
}

impl Gated {
    pub fn new(meta: &MemoryMeta) -> Rc<Gated> {
        Rc::new(Gated { inner: meta.client(), is_open: Cell::new(true), waiting: Cell::new(0), go: Notify::new() })
    }

    async fn pass(&self) {
        if !self.is_open.get() {
            self.waiting.set(self.waiting.get() + 1);
            self.go.notified().await;
        }
    }

    fn waits(&self) -> bool {
        self.waiting.get() > 0
    }

    fn step(&self) {
        self.waiting.set(self.waiting.get() - 1);
        self.go.notify_one();
    }
}

impl Meta for Gated {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        Box::pin(async move {
            self.pass().await;
            self.inner.get(key).await
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        Box::pin(async move {
            self.pass().await;
            self.inner.swap(key, expected, new).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.inner.list(prefix, cursor, limit)
    }
}

/// Two tasks of one client, each with its gate.
pub struct Both {
    gates: [Rc<Gated>; 2],
    /// The one that runs.
    which: Rc<Cell<usize>>,
}

impl Both {
    pub fn new(gates: &[Rc<Gated>; 2]) -> Rc<Both> {
        Rc::new(Both { gates: gates.clone(), which: Rc::default() })
    }

    /// What a task does whose calls come to this gate.
    pub fn task(&self, which: usize, act: impl Future<Output = ()> + 'static) -> impl Future<Output = ()> + 'static {
        Tagged { which, at: Rc::clone(&self.which), act: Box::pin(act) }
    }

    fn gate(&self) -> &Gated {
        &self.gates[self.which.get()]
    }
}

struct Tagged {
    which: usize,
    at: Rc<Cell<usize>>,
    act: LocalFuture<'static, ()>,
}

impl Future for Tagged {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.at.set(self.which);
        self.act.as_mut().poll(context)
    }
}

impl Meta for Both {
    fn get<'a>(&'a self, key: &'a [u8]) -> LocalFuture<'a, Result<Option<Seen>, Error>> {
        self.gate().get(key)
    }

    fn swap<'a>(
        &'a self,
        key: &'a [u8],
        expected: Option<Version>,
        new: Option<Vec<u8>>,
    ) -> LocalFuture<'a, Result<Swapped, Error>> {
        self.gate().swap(key, expected, new)
    }

    fn list<'a>(&'a self, prefix: &'a [u8], cursor: u64, limit: usize) -> LocalFuture<'a, Result<KeyPage, Error>> {
        self.gate().list(prefix, cursor, limit)
    }
}

/// What is decided at one place: of so many, this one.
#[derive(Default)]
pub struct Plan {
    pub taken: Vec<(usize, usize)>,
    at: usize,
}

impl Plan {
    pub fn choose(&mut self, count: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, count));
        }
        let (taken, of) = self.taken[self.at];
        assert_eq!(of, count, "the same choices lead to the same place");
        self.at += 1;
        taken
    }

    /// The next one; `false`: that was all.
    pub fn next(&mut self) -> bool {
        self.at = 0;
        while let Some((taken, count)) = self.taken.pop() {
            if taken + 1 < count {
                self.taken.push((taken + 1, count));
                return true;
            }
        }
        false
    }
}

/// Lets one's calls through after another, and switches as planned. One that pauses leaves its turn to the other for
/// nothing; that it pauses on until the other's intent is too old costs a switch.
pub async fn drive(gated: &[Rc<Gated>; 2], tasks: &[Task<()>], plan: &mut Plan) {
    let mut left = SWITCHES_MAX;
    let mut turn = plan.choose(2);
    let (mut insists, mut waited) = (false, Duration::ZERO);
    loop {
        time::sleep(Duration::from_nanos(1)).await; // all that can run has run then
        let other = 1 - turn;
        let (is_done, is_other_done) = (tasks[turn].is_finished(), tasks[other].is_finished());
        if is_done {
            if is_other_done {
                return;
            }
            (turn, insists) = (other, false);
            continue;
        }
        if gated[turn].waits() {
            let may_switch = left > 0 && !is_other_done && gated[other].waits();
            if may_switch && plan.choose(2) == 1 {
                left -= 1;
                (turn, insists) = (other, false);
                continue;
            }
            gated[turn].step();
        } else if !insists && !is_other_done && gated[other].waits() {
            if left > 0 && plan.choose(2) == 1 {
                left -= 1;
                (insists, waited) = (true, Duration::ZERO);
            } else {
                turn = other;
            }
        } else {
            time::sleep(Duration::from_millis(1)).await;
            waited += Duration::from_millis(1);
            // It waits for the other itself, and would for ever.
            if waited > INSISTS_MAX {
                (turn, insists, waited) = (other, false, Duration::ZERO);
            }
        }
    }
}
