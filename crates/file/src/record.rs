//! Records: what the store's values mean. Pure bytes, no I/O; what does not parse to the last byte is damaged.

pub mod inode;
pub mod intent;
pub(crate) mod key;
pub mod lock;
pub mod node;
mod path;
pub mod quota;
pub mod root;
pub mod small;
mod stamps;

use crate::bytes::{Reader, Writer};
pub(crate) use key::Keys;
pub use path::{CHILDREN, DEPTH_MAX, Path, hash};
pub(crate) use stamps::Mine;
pub use stamps::Stamps;

use crate::error::Error;

/// A value of the store that is changed by compare-and-set.
pub trait Record: Sized {
    /// Its bytes.
    fn encode(&self) -> Vec<u8>;
    /// What bytes of the store mean.
    fn decode(bytes: &[u8]) -> Result<Self, Error>;
    /// Which changes it has had.
    fn stamps(&self) -> &Stamps;
    /// The same, to be changed.
    fn stamps_mut(&mut self) -> &mut Stamps;
    /// Whether nothing changes it any more: it is only removed, by whoever made it so.
    fn is_going(&self) -> bool {
        false
    }
}

/// What all records have alike.
macro_rules! stamped {
    ($record:ty) => {
        fn stamps(&self) -> &Stamps {
            &self.stamps
        }

        fn stamps_mut(&mut self) -> &mut Stamps {
            &mut self.stamps
        }
    };
}
pub(crate) use stamped;

/// A moment, as files have it: by the calendar of whoever made a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time {
    /// Since 1970; before it where negative.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanos: u32,
}

impl Time {
    /// By the calendar of this world.
    pub fn now() -> Time {
        let since = engine::time::unix_time();
        Time { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
    }

    fn write(self, to: &mut Writer) {
        to.u64(self.seconds as u64).u32(self.nanos);
    }

    fn read(from: &mut Reader<'_>) -> Result<Time, Error> {
        let time = Time { seconds: from.u64()? as i64, nanos: from.u32()? };
        from.check(time.nanos < 1_000_000_000, "a time that is none")?;
        Ok(time)
    }
}

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Bytes.
    File = 1,
    /// Names.
    Directory = 2,
    /// A path to elsewhere.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket's name.
    Socket = 5,
    /// A character device's name.
    Character = 6,
    /// A block device's name.
    Block = 7,
}

impl Kind {
    const ALL: [Kind; 7] =
        [Kind::File, Kind::Directory, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Character, Kind::Block];

    fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}
