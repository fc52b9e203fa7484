//! The pool map: members, where they are reached, how they are divided, and what placement depends on.
//!
//! The body is TOML, so that `dump` needs no tool; its length and checksum stand in the superblock. It is small (about
//! 350 bytes a member) and changes only by epoch. A decoded [`Map`] has been validated: what it says is possible.

use std::collections::BTreeSet;
use std::fmt;

use device::NamespaceInfo;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::geometry::{Geometry, MAP_BYTES_MAX, PAGE_SIZE_MAX, PAGE_SIZE_MIN, TABLE_PAGES_MIN};
use crate::superblock::{Hex, crc64};

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

/// A member's globally unique id: its namespace's NGUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub [u8; 16]);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.0), f)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Hex(&self.0), f)
    }
}

impl Serialize for MemberId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MemberId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom(format!("`{text}` is not 32 hexadecimal digits"));
        if text.len() != 32 {
            return Err(wrong());
        }
        u128::from_str_radix(&text, 16).map(|id| MemberId(id.to_be_bytes())).map_err(|_| wrong())
    }
}

/// 64 bits that TOML, whose integers are signed, holds in hexadecimal.
mod hex64 {
    use super::*;

    pub fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{value:016x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16)
            .map_err(|_| serde::de::Error::custom(format!("`{text}` is not a hexadecimal number of 64 bits")))
    }
}

/// What fails together, narrowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// One drive.
    Drive,
    /// One machine.
    Machine,
    /// One rack.
    Rack,
    /// One zone.
    Zone,
}

impl Level {
    /// All levels, widest first.
    pub const WIDEST_FIRST: [Level; 4] = [Level::Zone, Level::Rack, Level::Machine, Level::Drive];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Drive => "drive",
            Level::Machine => "machine",
            Level::Rack => "rack",
            Level::Zone => "zone",
        })
    }
}

/// Where a member stands: labels from the widest to the narrowest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Zone; may be empty if there is but one.
    #[serde(default)]
    pub zone: String,
    /// Rack within the zone; may be empty if there is but one.
    #[serde(default)]
    pub rack: String,
    /// Machine within the rack; at creation an empty one becomes the member's own id.
    #[serde(default)]
    pub machine: String,
    /// Drive within the machine; at creation an empty one becomes the member's own id.
    #[serde(default)]
    pub drive: String,
}

impl Domain {
    /// The labels that name this domain at `level`: equal labels, same domain.
    pub fn at(&self, level: Level) -> [&str; 4] {
        let visible = |at: Level, text| if at >= level { text } else { "" };
        [
            visible(Level::Zone, self.zone.as_str()),
            visible(Level::Rack, self.rack.as_str()),
            visible(Level::Machine, self.machine.as_str()),
            visible(Level::Drive, self.drive.as_str()),
        ]
    }
}

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
    /// Its share of the keys relative to the others; 100 is usual.
    pub weight: u32,
    /// Whether it votes on the map.
    pub voter: bool,
    /// This life of the member; must match its superblock.
    #[serde(with = "hex64")]
    pub incarnation: u64,
    /// Pages of its table.
    pub table_pages: u32,
    /// Groups of its heap.
    pub heap_groups: u32,
    /// What it fails together with.
    pub domain: Domain,
}

/// The pool map of one epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    /// The pool.
    pub pool: uuid::Uuid,
    /// Counts the changes of the map.
    pub epoch: u64,
    /// Members that hold each key.
    pub replicas: u8,
    /// No two replicas of a key share a domain of this level.
    pub spread: Level,
    /// Bytes of a table page, on every member.
    pub page_size: u32,
    /// Seed of every hash of a key.
    #[serde(with = "hex64")]
    pub hash_seed: u64,
    /// The members; their order is the index used everywhere else.
    pub members: Vec<Member>,
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
    /// It parses but cannot be true.
    #[error("the map is not valid: {0}")]
    Invalid(String),
    /// Too many members, or too long labels.
    #[error("the map takes {0} bytes, at most {MAP_BYTES_MAX} fit: use fewer members or shorter labels")]
    TooLong(usize),
}

impl Map {
    /// The body's bytes.
    pub fn encode(&self) -> Result<Vec<u8>, MapError> {
        self.validate()?;
        let text = toml::to_string(self).map_err(|error| MapError::Invalid(error.to_string()))?;
        if text.len() > MAP_BYTES_MAX {
            return Err(MapError::TooLong(text.len()));
        }
        Ok(text.into_bytes())
    }

    /// Reads a body whose checksum stands in a superblock.
    pub fn decode(bytes: &[u8], checksum: u64) -> Result<Map, MapError> {
        let found = crc64(bytes);
        if found != checksum {
            return Err(MapError::Checksum { length: bytes.len(), found, expected: checksum });
        }
        let text = std::str::from_utf8(bytes).map_err(|error| MapError::Syntax(error.to_string()))?;
        let map: Map = toml::from_str(text).map_err(|error| MapError::Syntax(error.to_string()))?;
        map.validate()?;
        Ok(map)
    }

    /// The division of member `index`.
    pub fn geometry(&self, index: usize) -> Geometry {
        let member = &self.members[index];
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

    /// Different domains of `level` among the members.
    pub fn domains(&self, level: Level) -> usize {
        self.members.iter().map(|member| member.domain.at(level)).collect::<BTreeSet<_>>().len()
    }

    /// Members that vote on the map.
    pub fn voters(&self) -> usize {
        self.members.iter().filter(|member| member.voter).count()
    }

    fn validate(&self) -> Result<(), MapError> {
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
        if self.voters() == 0 || self.voters() > VOTERS_MAX {
            return invalid(format!("{} voters (1 to {VOTERS_MAX})", self.voters()));
        }
        let domains = self.domains(self.spread);
        if domains < usize::from(self.replicas) {
            return invalid(format!("{} replicas in {domains} different {}s", self.replicas, self.spread));
        }
        self.members.iter().enumerate().try_for_each(|(index, member)| self.validate_member(index, member))
    }

    fn validate_member(&self, index: usize, member: &Member) -> Result<(), MapError> {
        let invalid = |text: String| Err(MapError::Invalid(format!("member {}: {text}", member.id)));
        if member.weight == 0 || member.weight > WEIGHT_MAX {
            return invalid(format!("weight {} (1 to {WEIGHT_MAX})", member.weight));
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
pub(crate) mod tests {
    use super::*;

    /// A map of `members` equal members, each a machine of its own.
    pub(crate) fn sample(members: usize, replicas: u8) -> Map {
        let member = |index: usize| Member {
            id: MemberId((index as u128 + 1).to_be_bytes()),
            nqn: format!("nqn.2026-01.example:node{index}"),
            nsid: 1,
            addresses: vec!["127.0.0.1:4420".into()],
            size: 1 << 30,
            block_size: 4096,
            weight: 100,
            voter: index < VOTERS_MAX,
            incarnation: u64::MAX - index as u64,
            table_pages: 1000,
            heap_groups: 10,
            domain: Domain { machine: format!("m{index}"), drive: format!("d{index}"), ..Domain::default() },
        };
        Map {
            pool: uuid::Uuid::from_u128(1),
            epoch: 1,
            replicas,
            spread: Level::Machine,
            page_size: 4096,
            hash_seed: u64::MAX,
            members: (0..members).map(member).collect(),
        }
    }

    #[test]
    fn round_trip_also_of_the_largest() {
        for members in [1, 3, MEMBERS_MAX] {
            let map = sample(members, 1);
            let bytes = map.encode().unwrap();
            assert_eq!(Map::decode(&bytes, crc64(&bytes)), Ok(map));
        }
    }

    #[test]
    fn damage_is_noticed_before_it_is_parsed() {
        let mut bytes = sample(3, 3).encode().unwrap();
        let checksum = crc64(&bytes);
        bytes[10] ^= 1;
        assert!(matches!(Map::decode(&bytes, checksum), Err(MapError::Checksum { .. })));
    }

    #[test]
    fn impossible_maps_are_refused() {
        let refused = |change: fn(&mut Map)| {
            let mut map = sample(3, 3);
            change(&mut map);
            let text = toml::to_string(&map).unwrap();
            assert!(matches!(map.encode(), Err(MapError::Invalid(_))));
            assert!(matches!(Map::decode(text.as_bytes(), crc64(text.as_bytes())), Err(MapError::Invalid(_))));
        };
        refused(|map| map.replicas = 0);
        refused(|map| map.replicas = 4);
        refused(|map| map.page_size = 5000);
        refused(|map| map.members[1].id = map.members[0].id);
        refused(|map| map.members[1].weight = 0);
        refused(|map| map.members[1].table_pages = 3);
        refused(|map| map.members[1].size = 4096);
        refused(|map| map.members[1].block_size = 1000);
        refused(|map| map.members[1].block_size = 8192);
        refused(|map| map.members[1].domain = map.members[0].domain.clone());
        refused(|map| map.members.clear());
        refused(|map| map.members.iter_mut().for_each(|member| member.voter = false));
    }

    #[test]
    fn domains_are_told_apart_with_what_contains_them() {
        let mut map = sample(2, 1);
        map.members[0].domain = Domain { zone: "a".into(), rack: "1".into(), ..Domain::default() };
        map.members[1].domain = Domain { zone: "b".into(), rack: "1".into(), ..Domain::default() };
        assert_eq!(map.domains(Level::Rack), 2);
        map.members[1].domain.zone = "a".into();
        assert_eq!(map.domains(Level::Rack), 1);
    }
}
