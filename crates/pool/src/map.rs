//! The pool map: members, where they are reached, how they are divided, and what placement depends on.
//!
//! The body is TOML, so that `dump` needs no tool; its length and checksum stand in the superblock. It is small (about
//! 350 bytes a member) and changes only by epoch. A decoded [`Map`] has been validated: what it says is possible.

use std::collections::BTreeSet;

use device::NamespaceInfo;
use serde::{Deserialize, Serialize};

use crate::change::{Change, Epoch, Seat, Side, State};
use crate::clock::{Clock, Moment};
use crate::domain::{Domain, Level};
use crate::geometry::{Geometry, PAGE_SIZE_MAX, PAGE_SIZE_MIN, TABLE_PAGES_MIN};
pub use crate::id::MemberId;
use crate::id::hex64;
use crate::slot::MAP_BYTES_MAX;
use crate::superblock::Ballot;

/// The format of the body that this code writes, and the newest it reads.
pub const MAP_FORMAT: u32 = 4;
/// Most replicas of a key. Seven survive three failures; more only costs.
pub const REPLICAS_MAX: usize = 7;
/// Most members of a pool. Bounded by the body ([`MAP_BYTES_MAX`]) and by 16-bit indices in the ring.
pub const MEMBERS_MAX: usize = 1024;
/// Most voters: each change of the map asks all of them (DESIGN §5).
pub const VOTERS_MAX: usize = 7;
/// Largest weight of a member; 100 is the usual one.
pub const WEIGHT_MAX: u32 = 10_000;
/// Most addresses of a member.
pub const ADDRESSES_MAX: usize = 8;

/// A member of the pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its namespace's NGUID.
    pub id: MemberId,
    /// The subsystem that serves it.
    pub nqn: String,
    /// Its namespace id there.
    pub nsid: u32,
    /// Where the subsystem is reached, `host:port`, in order of preference.
    pub addresses: Vec<String>,
    /// Bytes of the namespace when it was formatted.
    pub size: u64,
    /// Bytes of its blocks.
    pub block_size: u32,
    /// Its share of the keys relative to the others; 100 is usual, 0: it holds none (it was drained, or is leaving).
    pub weight: u32,
    /// Whether it votes on the map.
    pub voter: bool,
    /// The id whose points on the ring it owns, if not its own: it took the place of that member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<MemberId>,
    /// It goes with this change: in a joint map it belongs to the old placement alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
    /// This life of the member; must match its superblock.
    #[serde(with = "hex64")]
    pub incarnation: u64,
    /// A superblock of a smaller generation than this was rolled back: what the medium has lost is not known.
    pub mark: u64,
    /// Pages of its table.
    pub table_pages: u32,
    /// Groups of its heap.
    pub heap_groups: u32,
    /// What it fails together with.
    pub domain: Domain,
    /// In a joint map: its place before the change; none: it is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Seat>,
    /// It was given up for good: it has no vote on anything, and the next change takes it out or begins a new life of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// Given up, and the pool was swept, or a change of it ended, without it since: it may hold what the others have forgotten. Or
    /// it was lost while it began anew, and holds nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_behind: bool,
    /// Where half of a key's homes may be all that know of an operation, and this is one of the half that is gone, the other
    /// half will do ([`crate::HalfLeft::WillDo`]): until the homes have been made equal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub written_off: bool,
    /// In a joint map: it begins a new, empty life with this change. In its old place it counts as failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renewed: bool,
}

impl Member {
    /// What it is in the placement of `side`; `None`: no member there.
    pub fn seat(&self, side: Side) -> Option<Seat> {
        match side {
            Side::Old => self.old,
            Side::New if self.leaving => None,
            Side::New => Some(Seat { weight: self.weight, voter: self.voter, points: self.points }),
        }
    }

    /// Whether what it says counts in the placement of `side`. Where it does not, it is a member that has failed.
    pub fn counts(&self, side: Side) -> bool {
        match side {
            Side::Old => !self.lost && !self.renewed,
            Side::New => !self.lost,
        }
    }
}

/// The pool map of one epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    /// Format of this body, [`MAP_FORMAT`].
    pub format: u32,
    /// The pool.
    pub pool: uuid::Uuid,
    /// Grows with every change of who holds what.
    pub epoch: Epoch,
    /// Grows with every map of one epoch: a change notes its progress here. Maps are ordered by epoch, then by this.
    pub revision: u64,
    /// Whether one placement is in force, or two.
    pub state: State,
    /// Members that hold each key.
    pub replicas: u8,
    /// No two replicas of a key share a domain of this level.
    pub spread: Level,
    /// Bytes of a table page, on every member.
    pub page_size: u32,
    /// Seed of every hash of a key.
    #[serde(with = "hex64")]
    pub hash_seed: u64,
    /// Deleted keys of epochs before this one may be forgotten: when it was set, in the first map of its epoch, every home of
    /// every key held the newest there was, and took nothing more from hosts of those epochs.
    #[serde(default)]
    pub floor: Epoch,
    /// The last epoch that has been swept: all pages sealed for it, and then all replicas made equal. 0: none since the last
    /// change.
    #[serde(default)]
    pub swept: Epoch,
    /// How often members have gone on without a majority of the voters ([`crate::Proposer::seize`]). A map of more of that counts
    /// over one of less, whatever ballots those that were left behind have come to since.
    #[serde(default)]
    pub seized: u32,
    /// A change of an even number of replicas was taken back, and not every key's homes could be made equal: half of them may be
    /// all that know of an operation. Until a sweep has made them equal a change asks a majority of the old homes, where one fewer
    /// would do otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unequal: bool,
    /// What time it is. No calendar moves it on beside another that does not ([`crate::clock`]).
    #[serde(default)]
    pub clock: Clock,
    /// The change under way; there is one exactly while the state is not stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Change>,
    /// The members; their order is the index used everywhere else. From stable to joint the order stays and new ones follow.
    pub members: Vec<Member>,
}

/// The one field of a map's body that every version can read.
#[derive(Deserialize)]
pub(crate) struct Head {
    pub(crate) format: Option<u32>,
}

/// Why a map's body is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// The bytes are not those the superblock names.
    #[error("the map is damaged: its {length} bytes have checksum {found:016x}, the superblock names {expected:016x}")]
    Checksum {
        /// Length named.
        length: usize,
        /// Computed.
        found: u64,
        /// Named by the superblock.
        expected: u64,
    },
    /// The superblock names a place or length that no map has.
    #[error("the superblock names a map of {length} bytes at byte {offset}, which is none of its slots")]
    Place {
        /// Named offset.
        offset: u64,
        /// Named length.
        length: u32,
    },
    /// The text does not parse.
    #[error("the map does not parse: {0}")]
    Syntax(String),
    /// Written by a later version.
    #[error("the map has format {found}, this version reads format {MAP_FORMAT}: use a newer version")]
    Newer {
        /// The format found.
        found: u32,
    },
    /// Written by an earlier version, for tables whose pages began as zeroes: there nothing tells what was lost from what was
    /// never written.
    #[error(
        "the map has format {found} of a development version, this version reads format {MAP_FORMAT}: read what the pool holds with \
         that version, and make the pool anew (`yagura pool create --force`)"
    )]
    Older {
        /// The format found.
        found: u32,
    },
    /// It parses but cannot be true.
    #[error("the map is not valid: {0}")]
    Invalid(String),
    /// Too many members, or too long labels.
    #[error("the map takes {0} bytes, at most {MAP_BYTES_MAX} fit: use fewer members or shorter labels")]
    TooLong(usize),
}

impl Map {
    /// Which of two maps counts, by the ballots that they were accepted by: the one of the greater order. Ballots tell that only
    /// among those who have gone on without the voters as often.
    pub fn order(&self, accepted: Ballot) -> (u32, Ballot) {
        (self.seized, accepted)
    }

    /// The division of member `index`.
    pub fn geometry(&self, index: usize) -> Geometry {
        self.geometry_of(&self.members[index])
    }

    /// The division of a member that may not stand in the map yet.
    pub(crate) fn geometry_of(&self, member: &Member) -> Geometry {
        Geometry { page_size: self.page_size, table_pages: member.table_pages, heap_groups: member.heap_groups }
    }

    /// What member `index` is known to be while it cannot be asked; its own limits may be wider.
    pub fn expected_info(&self, index: usize) -> NamespaceInfo {
        let member = &self.members[index];
        let page_blocks = self.page_size / member.block_size;
        NamespaceInfo {
            block_size: member.block_size,
            blocks: member.size / u64::from(member.block_size),
            atomic_blocks: page_blocks,
            compare_and_write_blocks_max: page_blocks,
            transfer_blocks_max: page_blocks,
            volatile_cache: true,
            volatile_medium: false,
            deallocated_reads_zero: false,
            thin: false,
            preferred_write_blocks: page_blocks,
            preferred_deallocate_blocks: 1,
            write_uncorrectable: false,
            persists_attributes: false,
            nguid: member.id.0,
        }
    }

    /// Its place in the order of all maps of the pool: epoch, then revision.
    pub fn version(&self) -> (Epoch, u64) {
        (self.epoch, self.revision)
    }

    /// Members of one side with their seats, by index.
    pub fn seats(&self, side: Side) -> impl Iterator<Item = (usize, Seat)> {
        self.members.iter().enumerate().filter_map(move |(index, member)| Some((index, member.seat(side)?)))
    }

    /// Different domains of `level` among the members that hold keys.
    pub fn domains(&self, level: Level) -> usize {
        self.domains_of(Side::New, level)
    }

    fn domains_of(&self, side: Side, level: Level) -> usize {
        let holding = self.seats(side).filter(|(_, seat)| seat.weight > 0);
        holding.map(|(index, _)| self.members[index].domain.at(level)).collect::<BTreeSet<_>>().len()
    }

    /// Members that vote on the map.
    pub fn voters(&self) -> usize {
        self.seats(Side::New).filter(|(_, seat)| seat.voter).count()
    }

    /// Members that vote on the next map, on any side.
    pub fn voter_indices(&self) -> impl Iterator<Item = usize> {
        let votes = |member: &Member| self.sides().iter().any(|&side| member.seat(side).is_some_and(|seat| seat.voter));
        (0..self.members.len()).filter(move |&index| votes(&self.members[index]))
    }

    /// The sides whose majorities must both agree on the next map.
    pub fn sides(&self) -> &'static [Side] {
        if self.state == State::Joint { &[Side::Old, Side::New] } else { &[Side::New] }
    }

    /// The map with a note of what time it is, made at this moment, if nobody has noted another time since `before`.
    pub fn note_clock(&self, before: u64, now_ms: u64, by: Option<Moment>) -> Map {
        if self.clock.ms != before {
            return self.clone();
        }
        Map { clock: self.clock.noted(now_ms, by), revision: self.revision + 1, ..self.clone() }
    }

    /// Whether those for whom `agrees` holds, and that count, are a majority of the voters, on every side of the map.
    pub(crate) fn has_quorum(&self, agrees: impl Fn(&Member) -> bool) -> bool {
        self.sides().iter().all(|&side| {
            let votes = |member: &&Member| member.seat(side).is_some_and(|seat| seat.voter);
            let voters: Vec<&Member> = self.members.iter().filter(votes).collect();
            let agreeing = voters.iter().filter(|member| member.counts(side) && agrees(member)).count();
            agreeing > voters.len() / 2
        })
    }

    /// The index of a member.
    pub fn index_of(&self, id: MemberId) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    pub(crate) fn validate(&self) -> Result<(), MapError> {
        let invalid = |text: String| Err(MapError::Invalid(text));
        if self.replicas == 0 || usize::from(self.replicas) > REPLICAS_MAX {
            return invalid(format!("{} replicas (1 to {REPLICAS_MAX})", self.replicas));
        }
        if !self.page_size.is_power_of_two() || !(PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&self.page_size) {
            return invalid(format!("page size {}", self.page_size));
        }
        if self.members.is_empty() || self.members.len() > MEMBERS_MAX {
            return invalid(format!("{} members (1 to {MEMBERS_MAX})", self.members.len()));
        }
        let ids: BTreeSet<_> = self.members.iter().map(|member| member.id).collect();
        if ids.len() != self.members.len() {
            return invalid("a member stands in it twice".into());
        }
        if self.floor >= self.epoch.max(1) || self.swept > self.epoch {
            return invalid(format!("floor {} and swept epoch {} in epoch {}", self.floor, self.swept, self.epoch));
        }
        if (self.state == State::Stable) != self.change.is_none() {
            return invalid("its state and the change it names contradict each other".into());
        }
        self.sides().iter().try_for_each(|&side| self.validate_side(side))?;
        self.members.iter().enumerate().try_for_each(|(index, member)| self.validate_member(index, member))
    }

    fn validate_side(&self, side: Side) -> Result<(), MapError> {
        let invalid = |text: String| Err(MapError::Invalid(text));
        let voters = self.seats(side).filter(|(_, seat)| seat.voter).count();
        if voters == 0 || voters > VOTERS_MAX {
            return invalid(format!("{voters} voters (1 to {VOTERS_MAX})"));
        }
        let domains = self.domains_of(side, self.spread);
        if domains < usize::from(self.replicas) {
            return invalid(format!("{} replicas in {domains} different {}s", self.replicas, self.spread));
        }
        let points: BTreeSet<_> =
            self.seats(side).map(|(at, seat)| seat.points.unwrap_or(self.members[at].id)).collect();
        if points.len() != self.seats(side).count() {
            return invalid("two members own the same points of the ring".into());
        }
        Ok(())
    }

    fn validate_member(&self, index: usize, member: &Member) -> Result<(), MapError> {
        let invalid = |text: String| Err(MapError::Invalid(format!("member {}: {text}", member.id)));
        let weight = member.weight.max(member.old.map_or(0, |seat| seat.weight));
        if weight > WEIGHT_MAX {
            return invalid(format!("weight {weight} (at most {WEIGHT_MAX})"));
        }
        if self.state != State::Joint && (member.leaving || member.old.is_some()) {
            return invalid("it has an old place, but there is one placement".into());
        }
        if member.leaving && (member.old.is_none() || member.weight > 0 || member.voter) {
            return invalid("it leaves, but has a place in the new placement or none in the old".into());
        }
        if member.renewed && (member.old.is_none() || member.leaving || member.lost) {
            return invalid("it begins a new life, but has no place before or after".into());
        }
        if member.written_off && !member.lost && !member.renewed {
            return invalid("what it alone knew is written off, but it has its vote".into());
        }
        if member.addresses.len() > ADDRESSES_MAX {
            return invalid(format!("{} addresses (at most {ADDRESSES_MAX})", member.addresses.len()));
        }
        if member.table_pages < TABLE_PAGES_MIN {
            return invalid(format!("{} table pages (at least {TABLE_PAGES_MIN})", member.table_pages));
        }
        if !member.block_size.is_power_of_two() || member.block_size < 512 || member.block_size > self.page_size {
            return invalid(format!("block size {}", member.block_size));
        }
        if self.geometry(index).bytes() > member.size {
            return invalid(format!("table and heap need {} of {} bytes", self.geometry(index).bytes(), member.size));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "map_tests.rs"]
pub(crate) mod tests;
