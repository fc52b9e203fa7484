//! Data in command capsules: counted, and where there is no room for more, nothing more is read from the connection.
//!
//! Such data comes with its command, unasked: what can be put off is only to read it. Invariants:
//! - A connection has [`CONNECTION_CAPSULE_BYTES`] whatever the others do. What goes beyond comes out of what all share.
//! - A connection pauses only while a command of its own that holds such data comes to its end without another byte from the
//!   host. So a pause ends by itself, and no connection waits for another one. Were it to wait for others, or for data that
//!   follows in the stream that it does not read, it could wait for ever.
//! - Where all such data is held by commands that wait for the host (halves of pairs, copies behind transfers) the command is
//!   refused for the moment.

use engine::Buf;
use nvme::{Fuse, Status};

use super::connection::Connection;
use super::limits::{CONNECTION_CAPSULE_BYTES, IN_CAPSULE_BYTES_MAX};
use super::slots::{Slot, Stage};

// Both halves of a pair have room, or the first would hold what the second waits for.
const _: () = assert!(CONNECTION_CAPSULE_BYTES >= 2 * IN_CAPSULE_BYTES_MAX);

impl Connection {
    /// A command's data follows in its capsule.
    pub(super) fn expect_capsule(&mut self, slot: u16, bytes: u32) {
        let entry = self.slots.at(slot);
        entry.stage = Stage::Capsule;
        entry.wanted = bytes;
        self.paused = Some(slot);
        self.resume();
    }

    /// Goes on with a capsule that waits for room, if there is some now.
    pub(super) fn resume(&mut self) {
        let Some(slot) = self.paused else { return };
        let entry = self.slots.at(slot);
        let bytes = entry.wanted;
        if entry.doomed.is_some() {
            self.paused = None;
            self.current = Some(slot); // its data is counted and thrown away
        } else if self.capsules.take(bytes) {
            self.paused = None;
            self.current = Some(slot);
            let entry = self.slots.at(slot);
            entry.in_capsule = bytes;
            entry.data = Buf::with_capacity(bytes as usize);
        } else if !self.slots.iter().any(|(_, entry)| self.gives_back(entry)) {
            self.paused = None;
            self.run_doomed(slot, Status::INTERRUPTED); // its data is skipped
        }
    }

    /// Whether the command holds data of a capsule, and ends whatever the host does.
    fn gives_back(&self, entry: &Slot) -> bool {
        let complete = || {
            let partner = entry.partner.and_then(|partner| self.slots.get(partner));
            entry.command.fuse() == Fuse::None || partner.is_some_and(|partner| partner.stage == Stage::Ready)
        };
        entry.in_capsule > 0
            && match entry.stage {
                Stage::Executing | Stage::Answered => true,
                Stage::Ready => complete(),
                Stage::Capsule | Stage::Waiting | Stage::Transfer | Stage::Parked => false,
            }
    }

    /// Nothing is read until an answer is on its way.
    pub fn is_paused(&self) -> bool {
        self.paused.is_some() && self.end.is_none()
    }
}
