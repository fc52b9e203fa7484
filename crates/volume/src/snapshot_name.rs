//! What a snapshot is called. Pure, no I/O.

use std::fmt;
use std::str::FromStr;

use fabric::host::CopyTag;

use crate::ballot::Ballot;

/// The name of a snapshot of a volume: never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SnapshotName {
    /// Of the attachment that took it.
    pub ballot: Ballot,
    /// Counts what that attachment has tried.
    pub attempt: u32,
}

impl SnapshotName {
    /// What a replica is asked for the snapshot by, and finds it by: the volume (16 bytes, as the label has it), then of the name
    /// the host (u64), the round and the attempt (u32 each), all little endian.
    ///
    /// `None`: the round has 64 bits, of which 32 fit. A volume that was attached 2^32 times takes no snapshots any more.
    pub fn tag(&self, volume: u128) -> Option<CopyTag> {
        let round = u32::try_from(self.ballot.round).ok()?;
        let mut tag = [0; 32];
        tag[..16].copy_from_slice(&volume.to_le_bytes());
        tag[16..24].copy_from_slice(&self.ballot.host.to_le_bytes());
        tag[24..28].copy_from_slice(&round.to_le_bytes());
        tag[28..].copy_from_slice(&self.attempt.to_le_bytes());
        Some(CopyTag(tag))
    }

    /// The name in a tag; `None`: it is of something else than a snapshot of the volume.
    pub fn of_tag(tag: &CopyTag, volume: u128) -> Option<SnapshotName> {
        let (of, rest) = tag.0.split_first_chunk::<16>()?;
        let (host, rest) = rest.split_first_chunk::<8>()?;
        let (round, rest) = rest.split_first_chunk::<4>()?;
        let round = u32::from_le_bytes(*round).into();
        let ballot = Ballot { round, host: u64::from_le_bytes(*host) };
        let attempt = u32::from_le_bytes(*rest.first_chunk::<4>()?);
        (u128::from_le_bytes(*of) == volume && round > 0).then_some(SnapshotName { ballot, attempt })
    }
}

/// As people and catalogues write it: `ROUND-HOST-ATTEMPT`, the host as 16 hexadecimal digits.
impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}-{}", self.ballot.round, self.ballot.host, self.attempt)
    }
}

/// A snapshot among those of all volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotId {
    /// The volume that it is of.
    pub volume: u128,
    /// Its name there.
    pub name: SnapshotName,
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot {} of volume {:032x}", self.name, self.volume)
    }
}

/// Bytes of a name where it is written down.
pub(crate) const NAME_BYTES: usize = 24;

impl SnapshotName {
    /// Round and host (u64 each), attempt (u32), zero (4 B), all little endian.
    pub(crate) fn to_bytes(self) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        bytes[..8].copy_from_slice(&self.ballot.round.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.ballot.host.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.attempt.to_le_bytes());
        bytes
    }

    /// The name, or that there is none: all zeroes. `None`: nobody writes such bytes.
    pub(crate) fn from_bytes(bytes: &[u8; NAME_BYTES]) -> Option<Option<SnapshotName>> {
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let ballot = Ballot { round: number(0), host: number(8) };
        let name = SnapshotName { ballot, attempt: u32::try_from(number(16)).ok()? };
        match name {
            _ if *bytes == [0; NAME_BYTES] => Some(None),
            name if ballot.round > 0 => Some(Some(name)),
            _ => None,
        }
    }
}

/// The text is no name of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the name of a snapshot is ROUND-HOST-ATTEMPT, the host as 16 hexadecimal digits")]
pub struct NotAName;

impl FromStr for SnapshotName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<SnapshotName, NotAName> {
        let mut parts = text.split('-');
        let mut next = || parts.next().ok_or(NotAName);
        let (round, host, attempt) = (next()?, next()?, next()?);
        let host = u64::from_str_radix(host, 16).map_err(|_| NotAName)?;
        let ballot = Ballot { round: round.parse().map_err(|_| NotAName)?, host };
        let name = SnapshotName { ballot, attempt: attempt.parse().map_err(|_| NotAName)? };
        // One way to write each.
        if name.to_string() == text { Ok(name) } else { Err(NotAName) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: SnapshotName = SnapshotName { ballot: Ballot { round: 3, host: 0x99 }, attempt: 7 };

    #[test]
    fn a_name_is_a_tag_and_a_text() {
        let tag = NAME.tag(5).expect("the round fits");
        assert_eq!((tag.0[0], tag.0[16], tag.0[24], tag.0[28]), (5, 0x99, 3, 7), "the picture at the top");
        assert_eq!((SnapshotName::of_tag(&tag, 5), SnapshotName::of_tag(&tag, 6)), (Some(NAME), None));
        assert_eq!(SnapshotName::of_tag(&CopyTag([0; 32]), 0), None);
        let late = Ballot { round: 1 << 32, host: 1 };
        assert_eq!(SnapshotName { ballot: late, attempt: 1 }.tag(5), None);
        assert_eq!(SnapshotName::from_bytes(&NAME.to_bytes()), Some(Some(NAME)));
        assert_eq!(SnapshotName::from_bytes(&[0; NAME_BYTES]), Some(None));
        let [mut no_round, mut padded] = [NAME.to_bytes(); 2];
        (no_round[0], padded[23]) = (0, 1);
        assert_eq!((SnapshotName::from_bytes(&no_round), SnapshotName::from_bytes(&padded)), (None, None));
        assert_eq!(NAME.to_string(), "3-0000000000000099-7");
        assert_eq!(NAME.to_string().parse(), Ok(NAME));
        for text in ["", "3-99-7", "3-0000000000000099", "3-0000000000000099-7-", "+3-0000000000000099-7"] {
            assert_eq!(text.parse::<SnapshotName>(), Err(NotAName), "{text}");
        }
    }
}
