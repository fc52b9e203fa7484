//! [`RootRecord`]: what a file system is.
//!
//! ```text
//!   stamps          33 B   `stamps.rs`
//!   id              16 B
//!   code            u8, u8   columns of data, and of parity
//!   region bytes    u64
//!   seed            u64    of checksums and of names' places
//!   members         u16, and of each: bytes (u64), state (u8), domain (8 bits of length), place (16)
//! ```

use super::stamps::Stamps;
use super::{Record, stamped};
use crate::bytes::{Reader, Writer};
use crate::error::Error;

/// Members of a file system, with those that were taken out. Chosen: a page of the store holds so many with short domains, a few
/// pages with long ones.
pub const MEMBERS_MAX: usize = 1024;
/// Bytes of a failure domain's name. Derived: its length is a byte.
pub const DOMAIN_BYTES_MAX: usize = 255;
/// Bytes of a file system's name. Chosen: its key stays short.
pub const NAME_BYTES_MAX: usize = 64;

/// What is done with a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum MemberState {
    /// It is read and gets new stripes.
    Active = 1,
    /// It is read, and what it has is moved away.
    Leaving = 2,
    /// Nobody tries to reach it any more; what it had is made again elsewhere.
    Lost = 3,
    /// Nothing lies on it, and nothing will. Its number is given to no other: what it still holds is nobody's.
    Removed = 4,
}

impl MemberState {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            MemberState::Active => "active",
            MemberState::Leaving => "leaving",
            MemberState::Lost => "lost",
            MemberState::Removed => "removed",
        }
    }
}

/// A namespace that holds columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberRecord {
    /// Where it is reached, in words of whoever connects.
    pub place: String,
    /// Its size in bytes, as its label says.
    pub bytes: u64,
    /// What is done with it.
    pub state: MemberState,
    /// What it fails together with.
    pub domain: String,
}

/// What a file system is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootRecord {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// Part of all its keys.
    pub id: [u8; 16],
    /// Columns of data.
    pub data: u8,
    /// Columns of parity.
    pub parity: u8,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Of checksums and of names' places.
    pub seed: u64,
    /// Where columns are.
    pub members: Vec<MemberRecord>,
}

/// Whether a file system may be called so: letters, digits, `-`, `_` and `.`.
pub fn check_fs_name(name: &str) -> Result<(), Error> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_fine) {
        return Ok(());
    }
    Err(Error::Invalid("the name of a file system has 1 to 64 letters, digits, '-', '_' and '.'"))
}

impl RootRecord {
    /// A member that is at a place, other than that one. At the place of one that is lost another one may be by now.
    pub fn member_at(&self, place: &str, other_than: Option<u16>) -> Option<u16> {
        let is_there = |state: MemberState| matches!(state, MemberState::Active | MemberState::Leaving);
        let mut others = (0..).zip(&self.members).filter(|(other, _)| Some(*other) != other_than);
        others.find(|(_, other)| other.place == place && is_there(other.state)).map(|(member, _)| member)
    }
}

impl Record for RootRecord {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        to.raw(&self.id).u8(self.data).u8(self.parity).u64(self.region_bytes).u64(self.seed);
        to.u16(self.members.len() as u16);
        for member in &self.members {
            to.u64(member.bytes)
                .u8(member.state as u8)
                .short(member.domain.as_bytes())
                .counted(member.place.as_bytes());
        }
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<RootRecord, Error> {
        let mut from = Reader::new("a file system's root record", bytes);
        let stamps = Stamps::read(&mut from)?;
        let (id, data, parity) = (from.array16()?, from.u8()?, from.u8()?);
        from.check(data > 0, "a code without columns of data")?;
        let (region_bytes, seed, count) = (from.u64()?, from.u64()?, from.u16()?);
        from.check(usize::from(count) <= MEMBERS_MAX, "too many members")?;
        let mut members = Vec::new();
        for _ in 0..count {
            let bytes = from.u64()?;
            let state = match from.u8()? {
                1 => MemberState::Active,
                2 => MemberState::Leaving,
                3 => MemberState::Lost,
                4 => MemberState::Removed,
                _ => return Err(from.damaged("a member's state that is none")),
            };
            let domain = from.short()?.to_vec();
            let domain = String::from_utf8(domain).map_err(|_| from.damaged("a domain's name is no text"))?;
            let place = from.counted()?.to_vec();
            let place = String::from_utf8(place).map_err(|_| from.damaged("a member's place is no text"))?;
            members.push(MemberRecord { place, bytes, state, domain });
        }
        from.end()?;
        Ok(RootRecord { stamps, id, data, parity, region_bytes, seed, members })
    }

    stamped!(RootRecord);
}
