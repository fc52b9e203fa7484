//! What a log has done, counted since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the counters, and what is told of them.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// What a log has done since it was opened.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct FlashStats {
            $($(#[$doc])* pub $name: u64,)+
            /// Segments that hold nothing.
            pub free_segments: u64,
            /// Segments there are.
            pub segments: u64,
        }

        /// The counters; none is exact towards another.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)+
        }

        impl Counters {
            pub(crate) fn stats(&self) -> FlashStats {
                FlashStats { $($name: self.$name.load(Ordering::Relaxed),)+ ..FlashStats::default() }
            }
        }
    };
}

counters! {
    /// Items that were admitted.
    admitted_items,
    /// Bytes of their keys and values.
    admitted_bytes,
    /// Items that were written again when their segment was collected.
    kept_items,
    /// Bytes of their keys and values.
    kept_bytes,
    /// Items that were not taken, from memory or of a collected segment, as [`super::Refused`] says.
    refused_items,
    /// Bytes written to the device, summaries included.
    device_written_bytes,
    /// Writes to the device.
    device_writes,
    /// Bytes read from the device.
    device_read_bytes,
    /// Reads from the device.
    device_reads,
    /// Reads answered from what was on its way to the device.
    buffer_reads,
    /// Reads that found another key's item.
    other_key_reads,
    /// Reads that the device has failed.
    read_errors,
    /// Reads that found something else than what was written.
    checksum_errors,
    /// Writes that the device has failed.
    write_errors,
    /// Segments that were given up since a write had failed.
    abandoned_segments,
    /// Segments that were collected.
    collected_segments,
}

/// Adds to a counter.
pub(crate) fn count(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Ordering::Relaxed);
}
