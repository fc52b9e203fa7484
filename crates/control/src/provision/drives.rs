//! What provisioning asks of drives. Whoever implements it speaks NVMe; nothing else here does.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::asked::{Done, Work};
use super::moment::Moment;
use super::name::{Address, Nqn};
use super::records::{HolderKind, Namespace};

/// What an answer comes to.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, DriveError>> + Send + 'a>>;

/// Namespaces of a drive, at most; a drive that shows more is refused. Derived: their identifiers are in an operation's record, and
/// take less than a tenth of a value.
pub const NAMESPACES_MAX: usize = 1024;

/// How a drive is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Where its target listens.
    pub address: Address,
    /// The subsystem.
    pub nqn: Nqn,
}

/// What a drive says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// Its bytes (TNVMCAP).
    pub total: u64,
    /// Those that are not taken (UNVMCAP).
    pub free: u64,
    /// Whether a namespace takes room only for what is written.
    pub thin: bool,
    /// How many namespaces it can have (MNAN, or NN).
    pub namespaces_max: u32,
    /// All namespaces, attached to a controller or not; each with an identifier that no other has.
    pub namespaces: Vec<Namespace>,
}

/// A holder that is to be formatted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Blank {
    /// What it will hold.
    pub kind: HolderKind,
    /// Its drive.
    pub place: Place,
    /// The namespace.
    pub namespace: Namespace,
}

/// A replica with a copy of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica {
    /// Its drive.
    pub place: Place,
    /// The namespace.
    pub namespace: Namespace,
    /// The volume.
    pub volume: Uuid,
    /// The snapshot.
    pub moment: Moment,
}

/// Whether hosts use a volume, by what stands on its holders and by what hosts do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// No host has ever attached it: nothing was written to it.
    Never,
    /// A host had it attached, and no host has now.
    Before,
    /// A host has it attached.
    Now,
    /// A namespace is a holder of another volume by now, which may be in use: nobody knows of that one here.
    Another,
}

/// Why a drive did not do it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DriveError {
    /// It can't be reached, and nothing was changed.
    #[error("it can't be reached ({0})")]
    Unreachable(String),
    /// It says no, and nothing was changed. Of `format`: something may have been changed, and it can't be ended.
    #[error("it refuses ({0})")]
    Refused(String),
    /// Another program has reserved it, and nothing was changed.
    #[error("another program has it ({0})")]
    Foreign(String),
    /// Whether it was changed is not known.
    #[error("whether it did what was asked is not known ({0})")]
    Unknown(String),
}

/// The moment after which nothing is begun any more, where it moves: it is put off for as long as whoever asks keeps the right to.
#[derive(Clone, Debug)]
pub struct Until(Arc<Mutex<Instant>>);

impl Until {
    /// That moment, for now.
    pub fn new(at: Instant) -> Until {
        Until(Arc::new(Mutex::new(at)))
    }

    /// The moment as it is now.
    pub fn get(&self) -> Instant {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts it off.
    pub fn put_off(&self, at: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }
}

/// The drives of a pool. Every call ends in bounded time. A call whose future is dropped has an unknown outcome.
///
/// A change carries a moment, `until`, after which no command of it is sent: the clock is looked at behind the last answer that
/// came on the connection, and right before the command is sent on that connection. What was sent takes effect within
/// [`Drives::late`] of the end of the call (its answer, the drop of its future, the death of the process) or not at all, and so
/// within that of `until`: by then the target has ended a connection on which nothing came any more (Keep Alive), whatever the
/// network holds back.
pub trait Drives: Send + Sync {
    /// What the drive has. Changes nothing. A drive that shows more than [`NAMESPACES_MAX`] namespaces, or one without an
    /// identifier, is [`DriveError::Refused`].
    fn look(&self, place: &Place) -> Reply<'_, Look>;

    /// Makes a namespace of exactly `bytes` (a multiple of 4 KiB) that this catalogue's hosts can reach; thin where the drive can.
    /// Which one it is shows the next look.
    fn create(&self, place: &Place, bytes: u64, until: Instant) -> Reply<'_, ()>;

    /// Deletes the namespace of this number if it has this identifier, which is looked at on the connection that deletes. That
    /// there is none is no error.
    fn delete(&self, place: &Place, namespace: Namespace, until: Instant) -> Reply<'_, ()>;

    /// Whether [`Drives::format`] would take the namespace: its beginning shows that nothing was written to it, and no host has it
    /// reserved. A holder of a volume is not blank. Changes nothing.
    fn is_blank(&self, place: &Place, namespace: Namespace) -> Reply<'_, bool>;

    /// Makes a volume of `bytes` of blank namespaces, by slot. That some or all of them are formatted as this volume's slots
    /// already is no error, and those are left as they are. A namespace that holds something else is [`DriveError::Refused`]. That
    /// takes longer the larger the volume is, so that the moment is looked at anew before each command.
    fn format(&self, volume: Uuid, bytes: u64, holders: &[Blank], until: &Until) -> Reply<'_, ()>;

    /// Makes the namespace, which is blank or was made so before, the one that is to replace the holder of a slot, and says what
    /// its label says of it and of no other (the life). `beside`: holders of the volume, of which one at least can be asked what
    /// the volume was made as; that takes this one for a moment from a host that has it.
    fn replace(&self, volume: Uuid, slot: usize, beside: &[Blank], with: &Blank, until: &Until) -> Reply<'_, Uuid>;

    /// Whether a host has the volume attached, or had. `holders`: those of its holders that can be asked; `of`: the volume that
    /// these may be clones of still, which says nothing of this one. What a host has reserved is taken from that host to be read; a
    /// host that lives takes the holder back, by which it is told from one that is gone. What another program has reserved is
    /// [`DriveError::Foreign`].
    fn usage(&self, volume: Uuid, of: Option<Uuid>, holders: &[Blank], until: Instant) -> Reply<'_, Usage>;

    /// Makes the namespace of this identifier `bytes` large (a multiple of 4 KiB); that it is as large, or larger, is no error.
    fn grow(&self, place: &Place, namespace: Namespace, bytes: u64, until: Instant) -> Reply<'_, ()>;

    /// Attaches the volume, does the work, and detaches it. `holders`: those of its holders that are to be reached, by slot; none
    /// where the drive is gone for good. Whoever has the volume attached loses it: nobody is to have it.
    fn work(&self, volume: Uuid, holders: &[Option<Blank>], work: &Work, until: &Until) -> Reply<'_, Done>;

    /// Makes a writable copy of the snapshot that the replica has, and says which namespace it is. `tag` is the copy's: where the
    /// replica has a copy of that tag, that one is the answer.
    fn copy(&self, replica: &Replica, tag: Uuid, until: Instant) -> Reply<'_, Namespace>;

    /// The copy of that tag, if the drive has one. Changes nothing.
    fn copied(&self, place: &Place, tag: Uuid) -> Reply<'_, Option<Namespace>>;

    /// Makes a volume of clones of one snapshot of the volume `of`, `is_copy` by slot, and of blank namespaces for the other
    /// holders, and says how many bytes the snapshot has. That all of it is done already is no error; what was broken off in the
    /// middle is [`DriveError::Refused`].
    fn adopt(&self, volume: Uuid, of: Uuid, holders: &[Blank], is_copy: &[bool], until: &Until) -> Reply<'_, u64>;

    /// How large a volume can become at most that is made with so many bytes.
    fn grows_to(&self, bytes: u64) -> u64;

    /// Bytes of a namespace that can be such a holder of a volume of `bytes`: a multiple of 4 KiB.
    fn holder_bytes(&self, kind: HolderKind, bytes: u64) -> u64;

    /// How long after `until` a change may still take effect.
    fn late(&self) -> Duration;
}
