//! Why items leave, each with the name by which statistics tell how many did.
//!
//! Invariant: every item that leaves memory for want of room is counted once: as lowered, or as dropped for one reason.

use crate::flash::Refused;

/// Defines reasons, and their order.
macro_rules! reasons {
    ($(#[$of_kind:meta])* $kind:ident { $($(#[$doc:meta])* $reason:ident = $name:literal,)+ }) => {
        $(#[$of_kind])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $kind {
            $($(#[$doc])* $reason,)+
        }

        impl $kind {
            /// The names of all there are; how many left for each is counted in the same order.
            pub const NAMES: [&'static str; [$($name),+].len()] = [$($name),+];
        }
    };
}

reasons! {
    /// Why an item that left memory for want of room did not go to flash: it is gone.
    Dropped {
        /// There is no flash.
        NoFlash = "no_flash",
        /// It was asked for less often than what it would displace ([`crate::flash::admission`]).
        NotAdmitted = "not_admitted",
        /// Flash does not keep up: all memory for writing is under way, or no segment is free.
        FlashBusy = "flash_busy",
        /// It is longer than a segment of flash holds.
        TooLong = "too_long_for_flash",
        /// Flash has failed, or was closed.
        FlashEnded = "flash_ended",
        /// The index has so much of the memory that one more entry of an item on flash would leave none for others.
        IndexFull = "index_full",
    }
}

reasons! {
    /// Why an item left flash although nobody had stored or deleted anything under its key: it is gone.
    FlashExit {
        /// Its segment was collected, and nobody had asked for it since it came there, or was kept.
        Unpopular = "collected_unpopular",
        /// Its segment was collected, and it was over.
        CollectedExpired = "collected_expired",
        /// Its segment was collected, and to write it again would have been more than the device should bear.
        Worn = "collected_worn",
        /// Its segment was collected, and flash had no room for it elsewhere.
        NoRoom = "collected_no_room",
        /// Its segment was collected, and it could not be read.
        Unreadable = "collected_unreadable",
        /// A get found that it was over.
        Expired = "expired",
        /// A get did not find there what had been written.
        Lost = "lost",
        /// It was to be changed, and memory had no room for it.
        NoMemory = "no_memory",
        /// Another item came to flash that the index may not tell from it.
        SameHash = "same_hash",
        /// It was flushed before it came there.
        Flushed = "flushed",
        /// The memory limit was lowered below what the index took, which led there.
        IndexGivenUp = "index_given_up",
        /// Flash has failed.
        FlashEnded = "flash_ended",
    }
}

impl From<Refused> for Dropped {
    fn from(refused: Refused) -> Dropped {
        match refused {
            // Worn is nothing that leaves memory: that is written whatever the device has borne.
            Refused::Full | Refused::Worn => Dropped::FlashBusy,
            Refused::TooLong(_) => Dropped::TooLong,
            Refused::Ended => Dropped::FlashEnded,
        }
    }
}

impl From<Refused> for FlashExit {
    fn from(refused: Refused) -> FlashExit {
        match refused {
            Refused::Worn => FlashExit::Worn,
            Refused::Full | Refused::TooLong(_) => FlashExit::NoRoom,
            Refused::Ended => FlashExit::FlashEnded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_at_their_reasons_and_are_all_different() {
        assert_eq!(Dropped::NAMES[Dropped::NotAdmitted as usize], "not_admitted");
        assert_eq!(Dropped::NAMES[Dropped::IndexFull as usize], "index_full");
        assert_eq!(FlashExit::NAMES[FlashExit::FlashEnded as usize], "flash_ended");
        for names in [&Dropped::NAMES[..], &FlashExit::NAMES] {
            let different: std::collections::BTreeSet<_> = names.iter().collect();
            assert_eq!(different.len(), names.len());
        }
    }
}
