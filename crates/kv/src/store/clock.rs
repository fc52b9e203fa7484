//! What time it is, for work in the background.
//!
//! Who asks for a key decides by its own calendar whether the key has ended: right or wrong, that is what its user sees. Nobody
//! has asked for what a walk over all keys meets, so no single calendar ends it there: a gateway a day ahead would delete every key
//! that ends within the day.
//!
//! Rules:
//! - The pool's map has a note of the time ([`pool::clock`]). It goes on by time that has passed (a clock that counts suspension
//!   too), and is noted anew before walks: later where all calendars that are there agree on it (one that is alone: by as much
//!   again as has passed), at once where a calendar says it is earlier.
//! - How much has passed tells who has watched since, and the machine's clock to processes that come and go: what they have noted
//!   has a mark of it.
//! - In the background a key has ended when it has by this host's own calendar, by the pool's time, and [`MARGIN`] ago.
//!
//! So one host with a right clock keeps the pool's time right beside any that are ahead. Where all are wrong they are believed, an
//! only one after as long as it is wrong by; where nobody notes the time it is too early, and keys stay for longer.
//! A machine's first walk since it was started notes its mark alone.

use std::rc::Rc;
use std::time::Duration;

use engine::time::{self, Instant};
use pool::Map;
use pool::clock::{CALENDAR_MS_MIN, Moment};

use super::Inner;

/// By how much clocks may differ, drifts and all. Guessed: calendars that are kept right are off by less than a second.
const MARGIN: Duration = Duration::from_secs(600);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Inner {
    /// Notes what a map says of the time, which was asked for at `asked`.
    pub(super) fn learn_clock(&self, map: &Map, asked: Instant) {
        let mut known = self.follow.clock.borrow_mut();
        let learnt = known.take().filter(|(clock, _)| clock.ms == map.clock.ms).map_or(asked, |(_, learnt)| learnt);
        *known = Some((map.clock.clone(), learnt));
    }

    /// What time it certainly is, in Unix milliseconds: what ended before has ended for all. 0: nobody knows.
    pub(super) fn settled_millis(&self) -> u64 {
        let own = self.unix_millis();
        if self.follow.source.borrow().is_none() {
            // It knows of nobody else.
            return own;
        }
        match &*self.follow.clock.borrow() {
            Some((clock, learnt)) if clock.ms > 0 => {
                own.min(clock.ms.saturating_add(millis(learnt.elapsed()))).saturating_sub(millis(MARGIN))
            }
            _ => 0,
        }
    }

    /// What this machine's own clock shows; `None`: nobody knows which machine it is.
    fn moment(&self) -> Option<Moment> {
        let machine = time::machine();
        #[cfg(test)]
        let machine = self.machine.get().or(machine);
        Some(Moment { machine: machine?, ms: time::now().as_nanos() / 1_000_000, calendar_ms: self.unix_millis() })
    }

    /// Has the pool's time noted, where this host's calendar and the time that has passed say another, or this machine has no mark.
    /// Where that fails the note stays as it is.
    pub(super) async fn note_clock(self: &Rc<Self>) {
        let Some(source) = self.follow.source.borrow().clone() else { return };
        // A process that has just begun has not asked yet.
        let learnt = self.refresh(|inner| inner.follow.clock.borrow().is_some()).await;
        let known = self.follow.clock.borrow().clone();
        let (Ok(()), Some((clock, learnt))) = (learnt, known) else { return };
        let (noted, own, by) = (clock.ms, self.unix_millis(), self.moment());
        if own < CALENDAR_MS_MIN {
            tracing::warn!(
                unix_seconds = own / 1000,
                "this host's calendar says a time before this program was written: it does not note the pool's time"
            );
            return;
        }
        let by_mark = by.and_then(|now| clock.latest(now));
        let watched = noted.saturating_add(millis(learnt.elapsed()));
        let latest = by_mark.map_or(watched, |latest| latest.max(watched));
        let mut now = if noted == 0 { own } else { own.min(latest) };
        if own > now + millis(MARGIN) {
            let ahead = Duration::from_millis(own - now);
            match by_mark {
                // This machine has noted it before, and its own clock tells what has passed since.
                Some(_) => tracing::warn!(
                    ?ahead,
                    "this host's calendar is ahead of the pool's time: keys end for who asks here, and stay for others"
                ),
                None => tracing::info!(
                    ?ahead,
                    "the pool's time was not noted for so long, or this host's calendar is ahead by so much"
                ),
            }
        }
        if noted > 0 && now.abs_diff(noted) < millis(MARGIN) {
            if by.is_none() || by_mark.is_some() {
                return;
            }
            now = noted;
        }
        let asked = time::now();
        match time::timeout(super::OPERATION_TIME_MAX, source.note_clock(noted, now, by)).await {
            Ok(Ok(map)) => self.learn_clock(&map, asked),
            Ok(Err(reason)) => tracing::debug!(reason, "the pool's time could not be noted"),
            Err(_elapsed) => tracing::debug!("the pool's time could not be noted in time"),
        }
    }
}
