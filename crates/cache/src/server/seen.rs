//! A connection, as others than its own task see it.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32};

use super::connection::Origin;
use crate::item::Seconds;
use crate::session::Ending;

/// What a connection does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Activity {
    /// It runs commands, or sends what they answered.
    Runs,
    /// It waits for the next command, with nothing begun.
    Rests,
    /// It waits for the rest of a command.
    ReadsCommand,
    /// It waits for the rest of a value.
    ReadsValue,
    /// It waits for the rest of what is passed over.
    Swallows,
    /// It is told of what others do, to its end, and asks for nothing more.
    Watches,
}

impl Activity {
    const ALL: [(Activity, &str); 6] = [
        (Activity::Runs, "conn_parse_cmd"),
        (Activity::Rests, "conn_read"),
        (Activity::ReadsCommand, "conn_waiting"),
        (Activity::ReadsValue, "conn_nread"),
        (Activity::Swallows, "conn_swallow"),
        (Activity::Watches, "conn_watch"),
    ];

    /// memcached's name for it.
    pub(super) fn name(self) -> &'static str {
        Activity::ALL[self as usize].1
    }
}

/// An open connection, as statistics see it.
#[derive(Debug)]
pub(super) struct Seen {
    /// Where it comes from.
    pub(super) origin: Origin,
    activity: AtomicU8,
    /// Since which second it waits for its peer in the midst of something; 0: it does not.
    waits_since: AtomicU32,
    /// Since which second it is not known who speaks; 0: it is, or nobody asks.
    unknown_since: AtomicU32,
    /// Why it was ended from our side.
    ended: OnceLock<Ending>,
    active: AtomicU32,
}

impl Seen {
    pub(super) fn new(origin: Origin, now: Seconds) -> Seen {
        let (activity, ended, waits_since, unknown_since) = Default::default();
        Seen { origin, activity, waits_since, unknown_since, ended, active: AtomicU32::new(now.0) }
    }

    pub(super) fn activity(&self) -> Activity {
        Activity::ALL[usize::from(self.activity.load(Relaxed))].0
    }

    pub(super) fn set_activity(&self, activity: Activity) {
        self.activity.store(activity as u8, Relaxed);
    }

    /// Since when it waits for its peer to read what was sent, or to send the rest of a command.
    pub(super) fn waits_since(&self) -> Option<Seconds> {
        let since = self.waits_since.load(Relaxed);
        (since > 0).then_some(Seconds(since))
    }

    pub(super) fn set_waits(&self, since: Option<Seconds>) {
        self.waits_since.store(since.map_or(0, |since| since.0), Relaxed);
    }

    /// Since when it is not known who speaks.
    pub(super) fn unknown_since(&self) -> Option<Seconds> {
        let since = self.unknown_since.load(Relaxed);
        (since > 0).then_some(Seconds(since))
    }

    pub(super) fn set_unknown(&self, since: Option<Seconds>) {
        self.unknown_since.store(since.map_or(0, |since| since.0), Relaxed);
    }

    pub(super) fn set_ended(&self, why: Ending) {
        // The first reason is the one that ends it.
        let _ = self.ended.set(why);
    }

    /// Why it was ended from our side, if it was; it goes as soon as it notices.
    pub(super) fn ended(&self) -> Option<Ending> {
        self.ended.get().copied()
    }

    /// When it last received something.
    pub(super) fn active(&self) -> Seconds {
        Seconds(self.active.load(Relaxed))
    }

    pub(super) fn set_active(&self, now: Seconds) {
        self.active.store(now.0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activities_stand_at_their_numbers() {
        for (number, (activity, _)) in Activity::ALL.into_iter().enumerate() {
            assert_eq!(activity as usize, number);
        }
    }
}
