//! Storing a value, under the conditions of memcached's six commands.

use engine::View;

use crate::WHOLE_BYTES_MAX;
use crate::item::{Cas, Item, Meta, NewValue, Seconds, Value};
use crate::protocol::item_bytes;
use crate::slot::{NoRoom, Slot};

/// Which condition, and what is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The value, in any case.
    Set,
    /// The value, where there is no item.
    Add,
    /// The value, where there is an item.
    Replace,
    /// The item's value, where there is one, and the value behind it.
    Append,
    /// The item's value, where there is one, and the value in front of it.
    Prepend,
    /// The value, where the item has the cas that is given.
    Cas,
}

impl Mode {
    /// memcached's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Set => "set",
            Mode::Add => "add",
            Mode::Replace => "replace",
            Mode::Append => "append",
            Mode::Prepend => "prepend",
            Mode::Cas => "cas",
        }
    }

    /// The value is put behind the item's, or in front of it.
    pub fn joins(self) -> bool {
        matches!(self, Mode::Append | Mode::Prepend)
    }
}

/// A value to be stored.
#[derive(Clone, Copy, Debug)]
pub struct StoreCommand {
    /// Under which condition.
    pub mode: Mode,
    /// The cas that the item has to have; 0: any.
    pub cas: Cas,
    /// A cas that is older than the item's is taken all the same, and the item then stale (`ms I` with `C`).
    pub takes_stale: bool,
    /// The client's flags.
    pub flags: u32,
    /// When the item expires.
    pub expires: Seconds,
    /// Its key came in base64.
    pub binary_key: bool,
    /// The longest item, in memcached's counting; what is joined may not be longer.
    pub item_bytes_max: usize,
    /// Bytes of the key.
    pub key_bytes: usize,
}

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// It is stored, with this cas.
    Stored(Cas),
    /// The condition is not met.
    NotStored,
    /// The item's cas is another.
    Exists,
    /// There is no item whose cas could be right.
    NotFound,
}

impl Stored {
    /// memcached's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Stored::Stored(_) => "stored",
            Stored::NotStored => "not_stored",
            Stored::Exists => "exists",
            Stored::NotFound => "not_found",
        }
    }
}

/// The value that came.
#[derive(Clone, Copy, Debug)]
pub enum Incoming<'a> {
    /// Up to [`WHOLE_BYTES_MAX`].
    Whole(&'a [u8]),
    /// A longer one, in chunks.
    Long(&'a [View]),
}

impl Incoming<'_> {
    /// Its bytes.
    pub fn len(&self) -> usize {
        match self {
            Incoming::Whole(bytes) => bytes.len(),
            Incoming::Long(chunks) => chunks.iter().map(|chunk| chunk.len()).sum(),
        }
    }

    /// It has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (whole, chunks): (&[u8], &[View]) = match self {
            Incoming::Whole(bytes) => (bytes, &[]),
            Incoming::Long(chunks) => (&[], chunks),
        };
        std::iter::once(whole).chain(chunks.iter().map(|chunk| &chunk[..]))
    }
}

/// What is to be joined with the value that came, outside of the slot: it is too long to be copied in there.
#[derive(Debug)]
pub enum Old {
    /// A copy of a short one.
    Whole(Vec<u8>),
    /// The chunks of a long one.
    Long(Vec<View>),
}

impl Old {
    fn of(item: &Item<'_>) -> Old {
        match item.value {
            Value::Whole(bytes) => Old::Whole(bytes.to_vec()),
            Value::Chunks(chunks) => Old::Long(chunks.to_vec()),
        }
    }

    /// As a value that came.
    pub fn as_incoming(&self) -> Incoming<'_> {
        match self {
            Old::Whole(bytes) => Incoming::Whole(bytes),
            Old::Long(chunks) => Incoming::Long(chunks),
        }
    }
}

/// Two values, joined outside of the slot.
#[derive(Debug)]
pub struct Joined {
    /// The item's cas when its value was taken. Had it changed since, the joined value would undo that change.
    pub of: Cas,
    /// Both, in chunks.
    pub chunks: Vec<View>,
}

/// What a visit came to.
#[derive(Debug)]
pub enum Outcome {
    /// It is over.
    Over(Stored),
    /// The item's value is to be joined with the one that came, and the slot to be visited again.
    Join {
        /// The item's cas.
        of: Cas,
        /// Its value.
        old: Old,
    },
}

/// Stores a value. `joined` is what an earlier visit asked for.
///
/// # Errors
/// There is no room.
pub fn store(
    slot: &mut impl Slot,
    store: &StoreCommand,
    value: Incoming<'_>,
    joined: Option<Joined>,
) -> Result<Outcome, NoRoom> {
    let over = |stored| Ok(Outcome::Over(stored));
    let Some(item) = slot.item() else {
        return match store.mode {
            Mode::Add | Mode::Set => put(slot, store.meta(), value),
            Mode::Cas => over(Stored::NotFound),
            Mode::Replace | Mode::Append | Mode::Prepend => over(Stored::NotStored),
        };
    };
    let (is_any, is_same) = (store.cas == Cas(0), store.cas == item.meta.cas);
    match store.mode {
        Mode::Add => over(Stored::NotStored),
        Mode::Cas if is_same && !is_any => put(slot, store.meta(), value),
        Mode::Cas if store.takes_stale && !is_any && store.cas < item.meta.cas => {
            let Meta { expires, won, .. } = item.meta;
            put(slot, Meta { expires, won, stale: true, ..store.meta() }, value)
        }
        Mode::Cas => over(Stored::Exists),
        Mode::Append | Mode::Prepend if !is_any && !is_same => over(Stored::Exists),
        Mode::Append | Mode::Prepend => join(slot, store, value, joined),
        Mode::Set | Mode::Replace => put(slot, store.meta(), value),
    }
}

/// Appends or prepends to the item that is there.
fn join(
    slot: &mut impl Slot,
    store: &StoreCommand,
    value: Incoming<'_>,
    joined: Option<Joined>,
) -> Result<Outcome, NoRoom> {
    let Some(item) = slot.item() else { return Ok(Outcome::Over(Stored::NotStored)) };
    // A new item: what memcached keeps in flags of its own is not taken over, not even that the key came in base64.
    let meta = Meta { flags: item.meta.flags, expires: item.meta.expires, ..Meta::default() };
    let total = item.value.len() + value.len();
    if item_bytes(store.key_bytes, meta.flags, total) > store.item_bytes_max {
        return Ok(Outcome::Over(Stored::NotStored));
    }
    if let Some(joined) = joined.filter(|joined| joined.of == item.meta.cas) {
        return Ok(Outcome::Over(Stored::Stored(slot.put(meta, NewValue::Chunks(joined.chunks))?)));
    }
    let (Value::Whole(old), Incoming::Whole(new)) = (item.value, value) else {
        return Ok(Outcome::Join { of: item.meta.cas, old: Old::of(&item) });
    };
    if total > WHOLE_BYTES_MAX {
        return Ok(Outcome::Join { of: item.meta.cas, old: Old::of(&item) });
    }
    // The store is free to move what it has while it puts: the old value is copied.
    let old = old.to_vec();
    let pieces: [&[u8]; 2] = if store.mode == Mode::Append { [&old, new] } else { [new, &old] };
    Ok(Outcome::Over(Stored::Stored(slot.put(meta, NewValue::Pieces(&pieces))?)))
}

fn put(slot: &mut impl Slot, meta: Meta, value: Incoming<'_>) -> Result<Outcome, NoRoom> {
    let cas = match value {
        Incoming::Whole(bytes) => slot.put(meta, NewValue::Pieces(&[bytes]))?,
        Incoming::Long(chunks) => slot.put(meta, NewValue::Chunks(chunks.to_vec()))?,
    };
    Ok(Outcome::Over(Stored::Stored(cas)))
}

impl StoreCommand {
    /// A fresh item's.
    fn meta(&self) -> Meta {
        Meta { flags: self.flags, expires: self.expires, binary_key: self.binary_key, ..Meta::default() }
    }

    /// The command looks at what is there.
    pub fn looks(&self) -> bool {
        self.mode != Mode::Set
    }
}
