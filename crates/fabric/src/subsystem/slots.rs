//! The commands of one queue that have arrived and are not answered yet.
//!
//! Invariants:
//! - A slot is taken by a command from its capsule until its answer is encoded; its number is the TTAG of the command's
//!   R2T. Were it freed earlier, late H2CData could land in a stranger's buffer.
//! - There are never more slots than the queue has entries.
//! - A command identifier is marked from arrival to answer, except where it arrived a second time (Command ID Conflict).

use std::sync::Arc;

use device::{AnyNamespace, NamespaceInfo, ZonedInfo};
use engine::time::Instant;
use engine::{Buf, View};
use nvme::opcode::NvmOpcode;
use nvme::{Fuse, Status, Submission};
use slab::Slab;

use super::abort::AbortTicket;
use super::drain::Hold;
use super::limits::COPY_BUFFER_BYTES;
use super::stats::CommandKind;

/// How far a command is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Its in-capsule data is arriving.
    Capsule,
    /// It waits until the connection's other commands have given back data buffers.
    Waiting,
    /// Data was asked for by R2T and is arriving.
    Transfer,
    /// All its data is here; it waits to be executed, or for the other half of its fused pair.
    Ready,
    /// The namespace works on it.
    Executing,
    /// An Asynchronous Event Request that waits for an event.
    Parked,
    /// Its answer is in the outbox.
    Answered,
}

impl Stage {
    /// It may wait for data of the host.
    pub fn is_before_data(self) -> bool {
        matches!(self, Stage::Capsule | Stage::Waiting | Stage::Transfer)
    }

    /// Its command has not begun, and may be kept from it.
    pub fn is_unbegun(self) -> bool {
        self.is_before_data() || self == Stage::Ready
    }
}

/// The namespace that a command is for, as it was when the command arrived.
pub(super) struct Addressed {
    pub namespace: AnyNamespace,
    pub info: NamespaceInfo,
    pub zoned: Option<ZonedInfo>,
    /// Of the namespace in its subsystem: see [`super::shared::Attached::life`].
    pub life: u64,
}

/// A command and what became of it so far.
pub(super) struct Slot {
    pub command: Submission,
    /// Marks an identifier in use; false for the second command with the same one.
    pub owns_id: bool,
    pub arrived: Instant,
    pub stage: Stage,
    /// I/O commands: kind and namespace.
    pub kind: Option<CommandKind>,
    pub addressed: Option<Addressed>,
    /// Data from the host, as far as it arrived; empty while it is lent to a receive.
    pub data: Buf,
    pub lent: bool,
    /// How much of it has arrived.
    pub received: u32,
    /// When the command arrived, and when its data was asked for by R2T, in the host's time: see [`super::transfers::Patience`].
    pub expected: Instant,
    pub asked: Option<Instant>,
    /// Bytes of data from the host, or bytes to read.
    pub wanted: u32,
    /// Bytes charged to the connection's data bound.
    pub charged: u32,
    /// The same of its capsule's data.
    pub in_capsule: u32,
    /// What the command will be answered with once its data has arrived: it is not executed.
    pub doomed: Option<Status>,
    /// The other half of a fused pair.
    pub partner: Option<u16>,
    /// An Abort that is answered when this command's answer is on its way.
    pub abort: Option<AbortTicket>,
    /// Whoever has taken this host's rights waits until the command has ended.
    pub hold: Option<Arc<Hold>>,
    /// The answer.
    pub status: Status,
    pub result: u64,
    pub reply: View,
}

impl Slot {
    pub fn new(command: Submission, arrived: Instant) -> Slot {
        Slot {
            command,
            owns_id: true,
            arrived,
            stage: Stage::Ready,
            kind: None,
            addressed: None,
            data: Buf::default(),
            lent: false,
            received: 0,
            expected: arrived,
            asked: None,
            wanted: 0,
            charged: 0,
            in_capsule: 0,
            doomed: None,
            partner: None,
            abort: None,
            hold: None,
            status: Status::SUCCESS,
            result: 0,
            reply: View::default(),
        }
    }

    /// The room that the command needs, all of it at once: were a copy to hold that of its ranges while it waits for that of the
    /// data, a queue of copies could hold all there is and wait for ever.
    pub fn room_wanted(&self) -> u32 {
        let for_ranges = self.kind == Some(CommandKind::Copy) && self.data.is_empty();
        self.wanted + if for_ranges { COPY_BUFFER_BYTES } else { 0 }
    }

    /// Whether the command's data goes to the host.
    pub fn is_to_host(&self) -> bool {
        matches!(self.kind, Some(CommandKind::Read | CommandKind::ZoneReceive))
            || NvmOpcode(self.command.opcode) == NvmOpcode::RESERVATION_REPORT
    }

    /// Of the namespace that the command is for, as long as it has not begun.
    pub fn life(&self) -> Option<u64> {
        self.addressed.as_ref().map(|addressed| addressed.life)
    }

    pub fn is_fused(&self) -> bool {
        self.command.fuse() != Fuse::None
    }

    /// A first half that is ready, and whose second one has not come.
    pub fn is_lone_half(&self) -> bool {
        self.stage == Stage::Ready && self.command.fuse() == Fuse::First && self.partner.is_none()
    }
}

/// Words of the map of identifiers in use.
const ID_WORDS: usize = 1 << 16 >> 6;

/// The slots of a connection. It grows to the depth the host uses and then allocates nothing.
pub(super) struct Slots {
    slots: Slab<Slot>,
    ids: Box<[u64]>,
}

impl Slots {
    pub fn new() -> Slots {
        Slots { slots: Slab::new(), ids: vec![0; ID_WORDS].into_boxed_slice() }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes a slot for a command; its `owns_id` says whether the identifier was free.
    #[inline]
    pub fn insert(&mut self, command: Submission, arrived: Instant) -> u16 {
        let id = command.command_id.get();
        let (word, bit) = (usize::from(id >> 6), 1 << (id & 63));
        let mut slot = Slot::new(command, arrived);
        slot.owns_id = self.ids[word] & bit == 0;
        self.ids[word] |= bit;
        self.slots.insert(slot) as u16
    }

    pub fn remove(&mut self, index: u16) -> Slot {
        let slot = self.slots.remove(usize::from(index));
        if slot.owns_id {
            let id = slot.command.command_id.get();
            self.ids[usize::from(id >> 6)] &= !(1 << (id & 63));
        }
        slot
    }

    pub fn get(&self, index: u16) -> Option<&Slot> {
        self.slots.get(usize::from(index))
    }

    pub fn get_mut(&mut self, index: u16) -> Option<&mut Slot> {
        self.slots.get_mut(usize::from(index))
    }

    /// The slot of a command that is known to be unanswered.
    #[inline]
    pub fn at(&mut self, index: u16) -> &mut Slot {
        self.slots.get_mut(usize::from(index)).expect("invariant: a slot is freed by its answer only, and once")
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, &Slot)> {
        self.slots.iter().map(|(index, slot)| (index as u16, slot))
    }

    /// Gives back the memory of a deep burst when nothing is outstanding.
    pub fn shrink(&mut self) {
        if self.slots.is_empty() {
            self.slots = Slab::new();
        }
    }
}
