//! Of what a volume is a copy, as its record says: of which snapshot of another volume it has the bytes, or is being given them.
//! Pure bytes, no I/O.
//!
//! ```text
//!   0  state                u8    1 whole, 2 in part
//!   1  zero                 7 B
//!   8  source             40 B    the snapshot whose bytes the volume has, or is being given
//!  48  base               40 B    in part: the snapshot whose bytes the volume had before; zero: none, it was blank
//!  88  own                24 B    the volume's own snapshot of the bytes of the source (whole) or base (in part); zero: none
//! ```
//! A snapshot of any volume is the volume (16 B) and the name; a name is round and host (u64 each), attempt (u32), zero (4 B).
//!
//! Invariant: `Whole` stands only in a record that was proposed when every byte of the source was there, and nothing else. What the
//! volume was given since differs from its own snapshot: whether the volume has the source's bytes still is looked at, not noted.

use crate::block::{Reader, Writer};
use crate::snapshot_name::{SnapshotId, SnapshotName};

/// Bytes of it.
pub(crate) const ORIGIN_BYTES: usize = 112;

const WHOLE: u8 = 1;
const IN_PART: u8 = 2;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The volume had the bytes of the source when its own snapshot was taken, or, where there is none, at that record.
    Whole {
        /// Whose bytes.
        source: SnapshotId,
        /// Its own snapshot of them.
        own: Option<SnapshotName>,
    },
    /// The volume is being given the bytes of the source: some are there, and some are not.
    InPart {
        /// Whose bytes.
        source: SnapshotId,
        /// What it had before, and its own snapshot of that; none: it was blank, or what it had is given up.
        base: Option<(SnapshotId, SnapshotName)>,
    },
}

impl Origin {
    /// The volume's own snapshot: of what it is a copy, or was.
    pub fn own(&self) -> Option<SnapshotName> {
        match self {
            Origin::Whole { own, .. } => *own,
            Origin::InPart { base, .. } => base.map(|(_, own)| own),
        }
    }

    /// What a volume is that begins with the bytes of such a one, and has none of its snapshots: a part stays a part. Of what was
    /// whole nothing is said, since that is said with an own snapshot alone.
    pub(crate) fn inherited(self) -> Option<Origin> {
        match self {
            Origin::InPart { source, .. } => Some(Origin::InPart { source, base: None }),
            Origin::Whole { .. } => None,
        }
    }

    pub(crate) fn encode(&self, writer: &mut Writer<'_>) {
        let (state, source, base) = match *self {
            Origin::Whole { source, .. } => (WHOLE, source, None),
            Origin::InPart { source, base } => (IN_PART, source, base.map(|(base, _)| base)),
        };
        writer.bytes(&[state, 0, 0, 0, 0, 0, 0, 0]);
        for id in [Some(source), base] {
            let (volume, name) = id.map_or((0, [0; 24]), |id| (id.volume, id.name.to_bytes()));
            writer.bytes(&volume.to_le_bytes()).bytes(&name);
        }
        writer.bytes(&self.own().map_or([0; 24], SnapshotName::to_bytes));
    }

    /// `None`: no version writes such bytes.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Origin> {
        let [state, zeroes @ ..] = reader.bytes::<8>()?;
        let mut id = || {
            let (volume, name) = (reader.u128()?, SnapshotName::from_bytes(&reader.bytes()?)?);
            match name {
                Some(name) => Some(Some(SnapshotId { volume, name })),
                None => (volume == 0).then_some(None),
            }
        };
        let (source, base) = (id()??, id()?);
        let own = SnapshotName::from_bytes(&reader.bytes()?)?;
        match (state, base, own) {
            _ if zeroes != [0; 7] => None,
            (WHOLE, None, own) => Some(Origin::Whole { source, own }),
            (IN_PART, None, None) => Some(Origin::InPart { source, base: None }),
            (IN_PART, Some(base), Some(own)) => Some(Origin::InPart { source, base: Some((base, own)) }),
            _ => None,
        }
    }
}

/// For people.
impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::Whole { source, .. } => write!(f, "imported from {source}, and perhaps written since"),
            Origin::InPart { source, base: None } => write!(f, "in part imported from {source}"),
            Origin::InPart { source, base: Some((base, _)) } => {
                write!(f, "in part brought from {base} to {source}")
            }
        }
    }
}
