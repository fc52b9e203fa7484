//! What a thread's connections did. Each thread adds to its own and nobody waits; whoever asks sums up.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::session::{CasResult, Event};

/// Defines the counters and everything that goes over all of them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters of one thread.
        #[derive(Default, Debug)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)+
        }

        /// The sum of all threads' counters at one moment.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct Totals {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Totals {
            /// Adds a thread's counters.
            pub fn add(&mut self, counters: &Counters) {
                $(self.$name += counters.$name.load(Relaxed);)+
            }

            /// What was counted since `earlier`.
            pub fn since(&self, earlier: &Totals) -> Totals {
                Totals { $($name: self.$name.saturating_sub(earlier.$name),)+ }
            }
        }
    };
}

counters! {
    /// Connections accepted.
    connections_total,
    /// Connections over a limit.
    connections_rejected,
    /// Those of them whose address had its share of the connections that have yet to say who they are.
    rejected_unauthenticated,
    /// Connections ended because they rested too long.
    idle_kicks,
    /// Pauses after a connection could not be accepted.
    accept_pauses,
    /// Connections without a TLS handshake.
    tls_errors,
    /// Bytes received.
    bytes_read,
    /// Bytes sent.
    bytes_written,
    /// Keys looked up that were found.
    get_hits,
    /// Keys looked up that were not.
    get_misses,
    /// Items met that had expired.
    expired,
    /// Values that came to be stored.
    sets,
    /// `flush_all`.
    flushes,
    /// Meta commands.
    metas,
    /// Keys touched that were found.
    touch_hits,
    /// Keys touched that were not.
    touch_misses,
    /// Keys deleted that were found.
    delete_hits,
    /// Keys deleted that were not.
    delete_misses,
    /// Items counted up.
    increment_hits,
    /// Items to be counted up that were not there.
    increment_misses,
    /// Items counted down.
    decrement_hits,
    /// Items to be counted down that were not there.
    decrement_misses,
    /// Values whose cas was right.
    cas_hits,
    /// Values whose item was not there.
    cas_misses,
    /// Values whose cas was another's.
    cas_bad_values,
    /// Values longer than items may be.
    too_large,
    /// Values for which there was no room.
    no_memory,
    /// Passwords given.
    authentications,
    /// Wrong ones.
    authentication_errors,
}

impl Counters {
    /// Adds to a counter. Only its thread does, so a load and a store are enough.
    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    /// Counts what a session tells.
    pub fn count(&self, event: Event) {
        let of = |hit: bool, hits, misses| if hit { hits } else { misses };
        let counter = match event {
            Event::Get(hit) => of(hit, &self.get_hits, &self.get_misses),
            Event::Touch(hit) => of(hit, &self.touch_hits, &self.touch_misses),
            Event::Expired => &self.expired,
            Event::Set => &self.sets,
            Event::Cas(CasResult::Hit) => &self.cas_hits,
            Event::Cas(CasResult::Miss) => &self.cas_misses,
            Event::Cas(CasResult::BadValue) => &self.cas_bad_values,
            Event::Delete(hit) => of(hit, &self.delete_hits, &self.delete_misses),
            Event::Increment(hit) => of(hit, &self.increment_hits, &self.increment_misses),
            Event::Decrement(hit) => of(hit, &self.decrement_hits, &self.decrement_misses),
            Event::Flush => &self.flushes,
            Event::Meta => &self.metas,
            Event::TooLarge => &self.too_large,
            Event::NoMemory => &self.no_memory,
            Event::Authentication(right) => {
                if !right {
                    Counters::add(&self.authentication_errors, 1);
                }
                &self.authentications
            }
        };
        Counters::add(counter, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_summed_up_and_resets_subtracted() {
        let threads = [Counters::default(), Counters::default()];
        threads[0].count(Event::Get(true));
        threads[1].count(Event::Get(true));
        threads[1].count(Event::Get(false));
        threads[1].count(Event::Authentication(false));
        let sum = || {
            let mut totals = Totals::default();
            threads.iter().for_each(|thread| totals.add(thread));
            totals
        };
        let first = sum();
        assert_eq!((first.get_hits, first.get_misses), (2, 1));
        assert_eq!((first.authentications, first.authentication_errors), (1, 1));
        threads[0].count(Event::Get(true));
        assert_eq!(sum().since(&first), Totals { get_hits: 1, ..Totals::default() });
    }
}
