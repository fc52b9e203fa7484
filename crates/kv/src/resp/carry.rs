//! What a connection carries between its socket and its session: received bytes, jobs that run, and for how long its peer has
//! stalled.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::Buf;
use engine::net::peers::Peer;
use engine::task::TaskSet;
use engine::time::{self, Instant, Sleep};
use tls::HANDSHAKE_TIME_MAX;

use super::STALL_SECONDS_SCARCE;
use super::session::Session;

/// What one receive takes while commands are short.
const RECEIVE_BYTES: usize = 16 << 10;
/// What one receive takes in the middle of a long value.
pub(super) const RECEIVE_LONG_BYTES: usize = 256 << 10;

/// What a peer may not take for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Limit {
    /// To say who it is.
    Unknown,
    /// To go on, where it holds memory that others could use.
    Stall,
}

/// Bytes of a long command that are progress, at least. Chosen: 13 kB/s where others wait, which any link that is in use has.
const PROGRESS_BYTES: usize = 64 << 10;
/// Which part of the room that is held has to come for progress. Chosen: of the longest value less than 1 MB/s where others wait,
/// and it is there within two minutes; an announced length alone would keep the room of many commands.
const PROGRESS_SHARE: usize = 16;

/// For how long the peer has been waited for.
#[derive(Default)]
pub(super) struct Patience {
    receives: Option<Instant>,
    /// How long earlier receives have waited since the last [`PROGRESS_BYTES`] of the command came, and what has come since.
    waited: Duration,
    came: usize,
    /// When the send that is under way began.
    pub(super) sends: Option<Instant>,
    unknown: Option<Pin<Box<Sleep>>>,
    /// What the connection counts as until its peer has said who it is.
    newcomer: Option<Peer>,
    look: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    pub(super) fn new(newcomer: Peer) -> Patience {
        Patience { newcomer: Some(newcomer), ..Patience::default() }
    }

    /// A receive begins; `holds`: with room for the command that is on its way.
    pub(super) fn receives(&mut self, holds: bool) {
        self.receives = holds.then(time::now);
        if !holds {
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
    }

    /// It has ended with so many bytes, while `held` of room is. Less than a share of that, or than [`PROGRESS_BYTES`], is no
    /// progress: who sent one now and then would hold room for ever.
    pub(super) fn received(&mut self, bytes: usize, held: usize) {
        self.waited += self.receives.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.came += bytes;
        if self.came >= PROGRESS_BYTES.max(held / PROGRESS_SHARE) {
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
    }

    /// Begins a wait.
    pub(super) fn begin(&mut self, is_known: bool) {
        if is_known {
            // Said once it counts no longer, whatever it says then: it had the password.
            (self.unknown, self.newcomer) = (None, None);
        } else if self.unknown.is_none() {
            self.unknown = Some(Box::pin(time::sleep(HANDSHAKE_TIME_MAX)));
        }
        if self.look.is_none() && (self.receives.is_some() || self.sends.is_some()) {
            self.look = Some(Box::pin(time::sleep(Duration::from_secs(STALL_SECONDS_SCARCE))));
        }
    }

    /// Which limit is to be looked at.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Limit> {
        for (timer, limit) in [(&mut self.unknown, Limit::Unknown), (&mut self.look, Limit::Stall)] {
            if timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready()) {
                *timer = None;
                return Poll::Ready(limit);
            }
        }
        Poll::Pending
    }

    /// What the peer has not done for `max`.
    pub(super) fn stalls(&self, max: Duration) -> Option<&'static str> {
        let is_long = |since: Option<Instant>, before| since.is_some_and(|since| before + since.elapsed() >= max);
        match (is_long(self.sends, Duration::ZERO), is_long(self.receives, self.waited)) {
            (true, _) => Some("replies unread"),
            (false, true) => Some("a command unfinished"),
            (false, false) => None,
        }
    }
}

/// Jobs of one connection that run. The slots grow to the depth that the peer uses and stay: a put's future takes a few
/// kilobytes, and most connections send one command at a time.
pub(super) struct Jobs<F> {
    pub(super) sets: Vec<TaskSet<F>>,
    pub(super) slots: usize,
}

impl<F: Future> Jobs<F> {
    pub(super) fn push(&mut self, mut job: F) {
        for set in &mut self.sets {
            match set.push(job) {
                Ok(_) => return,
                Err(back) => job = back,
            }
        }
        // As many again: there are never more than RUNNING_MAX jobs, so slots stay below twice that.
        let mut set = TaskSet::new(self.slots.max(1));
        self.slots += self.slots.max(1);
        let pushed = set.push(job);
        assert!(pushed.is_ok(), "invariant: a new set has a free slot");
        self.sets.push(set);
    }

    /// The next result; `None` if nothing runs.
    pub(super) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let mut any = false;
        for set in &mut self.sets {
            match set.poll_next(context) {
                Poll::Ready(Some((_, output))) => return Poll::Ready(Some(output)),
                Poll::Ready(None) => {}
                Poll::Pending => any = true,
            }
        }
        if any { Poll::Pending } else { Poll::Ready(None) }
    }
}

/// Received bytes of which some are not decoded yet.
#[derive(Default)]
pub(super) struct Input {
    buf: Buf,
    used: usize,
}

impl Input {
    pub(super) fn new(buf: Buf) -> Input {
        Input { buf, used: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == self.buf.len()
    }

    pub(super) fn decode(&mut self, session: &mut Session) {
        let mut rest = &self.buf[self.used..];
        session.receive(&mut rest);
        self.used = self.buf.len() - rest.len();
    }

    /// An empty buffer to receive into; larger while `expected` bytes of one argument are to come, and no larger than these need:
    /// up to [`super::COMMAND_BYTES_FREE`] the peer holds no room, and may stall.
    pub(super) fn buffer(&mut self, expected: u64) -> Buf {
        let expected = usize::try_from(expected).unwrap_or(usize::MAX).min(RECEIVE_LONG_BYTES);
        let wanted = expected.next_power_of_two().max(RECEIVE_BYTES);
        let mut buf = std::mem::take(self).buf;
        if buf.capacity() != wanted {
            return Buf::with_capacity(wanted);
        }
        buf.set_len(0);
        buf
    }
}

/// Polls the future in `slot`, if there is one; empties the slot when it has ended.
pub(super) fn poll_slot<F: Future>(mut slot: Pin<&mut Option<F>>, context: &mut Context<'_>) -> Option<F::Output> {
    match slot.as_mut().as_pin_mut()?.poll(context) {
        Poll::Ready(output) => {
            slot.set(None);
            Some(output)
        }
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 17 KiB were announced, and 256 KiB taken for them without any limit.
    #[test]
    fn a_receive_takes_no_more_than_is_expected() {
        let capacity = |expected| Input::default().buffer(expected).capacity();
        assert_eq!([0, 100, 16 << 10].map(capacity), [RECEIVE_BYTES; 3]);
        assert_eq!([17 << 10, 32 << 10, 200 << 10, 64 << 20].map(capacity), [32 << 10, 32 << 10, 256 << 10, 256 << 10]);
    }

    /// Four connections that had announced 64 MiB each kept all room with 64 KiB now and then.
    #[test]
    fn progress_is_a_share_of_the_room_that_is_held() {
        let mut patience = Patience::default();
        let came = |patience: &mut Patience, bytes, held| {
            patience.waited = Duration::from_secs(4);
            patience.received(bytes, held);
            patience.waited.is_zero()
        };
        assert!(came(&mut patience, 64 << 10, 1 << 20));
        assert!(!came(&mut patience, 64 << 10, 64 << 20));
        assert!(came(&mut patience, 4 << 20, 64 << 20));
    }
}
