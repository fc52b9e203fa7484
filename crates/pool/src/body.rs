//! The map's body: its bytes, and the map that they are.
//!
//! Every voter shows the same body again and again: to each host with every lease, and to every step of an agreement. So a thread
//! keeps the last ones that it has read beside what they say, and parses none of them twice.

use std::cell::RefCell;

use crate::map::{Head, MAP_FORMAT, Map, MapError};
use crate::slot::MAP_BYTES_MAX;
use crate::superblock::crc64;

/// Bodies that a thread keeps, each with its map. Chosen: the one in force, the one before it, and the one that is being agreed on.
const KEPT_MAX: usize = 3;

thread_local! {
    /// The last used first.
    static KEPT: RefCell<Vec<(Vec<u8>, Map)>> = const { RefCell::new(Vec::new()) };
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
        KEPT.with_borrow_mut(|kept| {
            if let Some(at) = kept.iter().position(|(body, _)| body == bytes) {
                kept[..=at].rotate_right(1);
                return Ok(kept[0].1.clone());
            }
            let map = parse(bytes)?;
            kept.truncate(KEPT_MAX - 1);
            kept.insert(0, (bytes.to_vec(), map.clone()));
            Ok(map)
        })
    }
}

fn parse(bytes: &[u8]) -> Result<Map, MapError> {
    let text = std::str::from_utf8(bytes).map_err(|error| MapError::Syntax(error.to_string()))?;
    let syntax = |error: toml::de::Error| MapError::Syntax(error.to_string());
    let head: Head = toml::from_str(text).map_err(syntax)?;
    match head.format {
        Some(MAP_FORMAT) => {}
        Some(found) if found > MAP_FORMAT => return Err(MapError::Newer { found }),
        Some(found) if found > 0 => return Err(MapError::Older { found }),
        found => return Err(MapError::Invalid(format!("format {} was never written", found.unwrap_or(0)))),
    }
    let map: Map = toml::from_str(text).map_err(syntax)?;
    map.validate()?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::tests::sample;

    #[test]
    fn what_was_read_before_is_what_it_was() {
        let maps: Vec<Map> = (1..=5).map(|revision| Map { revision, ..sample(3, 3) }).collect();
        for round in 0..3 {
            for map in maps.iter().chain(maps.iter().rev()) {
                let body = map.encode().unwrap();
                assert_eq!(Map::decode(&body, crc64(&body)).as_ref(), Ok(map), "round {round}");
                assert!(matches!(Map::decode(&body, crc64(&body) + 1), Err(MapError::Checksum { .. })));
            }
            KEPT.with_borrow(|kept| assert_eq!(kept.len(), KEPT_MAX));
        }
    }
}
