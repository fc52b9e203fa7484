//! A member whose medium is put back to an image of earlier while the load runs: a snapshot restored, a clone started by mistake.
//!
//! It is put back as soon as the pool has promised to know it by (`docs/pool.md`, "A member that has lost what it held"): the mark
//! that the map has of the member is above every generation in the image, and whoever else could say which map is in force
//! carries such a map. From that moment on the member must have no vote, under any host that asks, and the operator begins it anew.

use std::time::Duration;

use engine::sim::{DiskImage, World};
use engine::time::{self, Instant};
use pool::geometry::{MAP_OFFSETS, SUPERBLOCK_OFFSETS};
use pool::{Map, MemberId, Superblock};

use crate::sim::cluster::{Cluster, DISK, Directory};
use crate::sim::scenario::{Rng, Scenario, VICTIM};

/// When the image is taken, at most, in milliseconds of the load.
const TAKEN_MS_MAX: u64 = 4_000;
/// How long it is kept after it is known to be old. More than a write takes: what is seen is no write that a crash may lose.
const KEPT_MS: [u64; 2] = [100, 3_000];
/// Bytes of a superblock, and of a leaf of the map, of which the first 24 are not the map's.
const UNIT: usize = 4096;
const LEAF_HEADER: usize = 24;

enum Stage {
    /// Until the image is taken.
    Before(Instant),
    Taken {
        image: DiskImage,
        /// Its superblocks.
        lives: Vec<Superblock>,
        /// Since when it is known to be old.
        known: Option<Instant>,
        kept: Duration,
    },
    PutBack,
}

/// The victim's medium, and what becomes of it.
pub struct Rollback<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    directory: &'a Directory,
    rng: Rng,
    stage: Stage,
}

impl<'a> Rollback<'a> {
    /// That of a scenario which has any.
    pub fn new(
        world: &'a World,
        cluster: &'a Cluster,
        directory: &'a Directory,
        scenario: &Scenario,
    ) -> Option<Rollback<'a>> {
        let mut rng = Rng::new(scenario.seed, 5);
        let stage = Stage::Before(time::now() + rng.millis(0, TAKEN_MS_MAX));
        scenario.faults.rollbacks.then_some(Rollback { world, cluster, directory, rng, stage })
    }

    /// Takes the image when its time has come. Whether it is to be put back now: [`Rollback::put_back`].
    pub fn is_due(&mut self) -> bool {
        let now = time::now();
        if let Stage::Before(at) = self.stage
            && at <= now
        {
            let lives = self.superblocks(VICTIM).into_iter().flatten().collect();
            let image = self.world.image(self.cluster.nodes[VICTIM], DISK);
            self.stage = Stage::Taken { image, lives, known: None, kept: self.rng.millis(KEPT_MS[0], KEPT_MS[1]) };
        }
        let is_known = match &self.stage {
            Stage::Taken { lives, .. } => self.is_known_to_all(lives),
            Stage::Before(_) | Stage::PutBack => return false,
        };
        let Stage::Taken { known, kept, .. } = &mut self.stage else { return false };
        if !is_known {
            *known = None;
            return false;
        }
        known.get_or_insert(now).elapsed() >= *kept
    }

    /// With the victim's power off.
    pub fn put_back(&mut self) {
        if let Stage::Taken { image, lives, .. } = std::mem::replace(&mut self.stage, Stage::PutBack) {
            self.world.put_back(self.cluster.nodes[VICTIM], DISK, &image);
            self.directory.rolled_back(lives.iter().map(|life| life.incarnation).collect());
        }
    }

    /// Whether every map by which hosts could be answered says of all these lives that they are over.
    fn is_known_to_all(&self, lives: &[Superblock]) -> bool {
        let victim = MemberId(self.directory.nguid(VICTIM));
        let is_over = |map: &Map| {
            let member = map.index_of(victim).map(|index| &map.members[index]);
            member.is_some_and(|member| {
                lives.iter().all(|life| life.incarnation != member.incarnation || life.generation < member.mark)
            })
        };
        // Who knows that he is leaving points hosts to those who stay, and has been sealed with them.
        let has_left = |map: &Map, index: usize| {
            let own = map.index_of(MemberId(self.directory.nguid(index)));
            own.is_none_or(|own| map.members[own].leaving)
        };
        let others = (0..self.cluster.nodes.len()).filter(|&index| index != VICTIM);
        let told: Vec<(usize, Result<Map, String>)> =
            others.filter_map(|index| Some((index, self.map_of(index)?))).collect();
        let newest = told.iter().filter_map(|(_, map)| map.as_ref().ok()).max_by_key(|map| map.version());
        let answers = |(index, map): &(usize, Result<Map, String>)| {
            map.as_ref().is_ok_and(|map| is_over(map) || has_left(map, *index))
        };
        newest.is_some_and(is_over) && told.iter().all(answers)
    }

    fn superblocks(&self, index: usize) -> [Option<Superblock>; 2] {
        SUPERBLOCK_OFFSETS.map(|offset| {
            let bytes = self.world.peek(self.cluster.nodes[index], DISK, offset, UNIT);
            Superblock::decode(&bytes, MemberId(self.directory.nguid(index))).ok()
        })
    }

    /// The map that a storage node carries, if it is or was a member; an error where it is being written.
    fn map_of(&self, index: usize) -> Option<Result<Map, String>> {
        let [first, second] = self.superblocks(index);
        if first.is_none() && second.is_none() {
            return None;
        }
        let (Some(found), true) = (&first, first == second) else { return Some(Err("it is being written".into())) };
        if !MAP_OFFSETS.contains(&found.map_offset) {
            return Some(Err("its map is nowhere".into()));
        }
        let mut body = Vec::new();
        let mut offset = found.map_offset;
        while body.len() < found.map_length as usize {
            let leaf = self.world.peek(self.cluster.nodes[index], DISK, offset, UNIT);
            body.extend_from_slice(&leaf[LEAF_HEADER..]);
            offset += UNIT as u64;
        }
        body.truncate(found.map_length as usize);
        Some(Map::decode(&body, found.map_checksum).map_err(|error| error.to_string()))
    }
}
