//! Which drives a new volume gets, or what each drive lacks. Pure: what is known comes in, and the same always comes to the same.

use std::collections::BTreeMap;
use std::fmt;

use super::drives::{Look, NAMESPACES_MAX};
use super::level::Level;
use super::name::Name;
use super::records::{Drive, DriveState, HolderKind, Node};

/// A drive with all that is known of it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its record.
    pub drive: Drive,
    /// Its machine.
    pub node: Node,
    /// What it says of itself now, or why it says nothing.
    pub look: Result<Look, String>,
}

/// What is to be placed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The holders, replicas first, with the bytes of each.
    pub holders: Vec<(HolderKind, u64)>,
    /// Drives that have other holders of the volume.
    pub beside: Vec<Name>,
    /// Drives that are to have none of it, wherever they stand.
    pub without: Vec<Name>,
    /// How far apart they are to stand.
    pub level: Level,
    /// Whether a narrower level will do.
    pub relax: bool,
    /// How much of a thin drive's room may be promised, in percent of it.
    pub overcommit_percent: u32,
}

/// Where the holders go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The drive of each holder.
    pub drives: Vec<Name>,
    /// How far apart they stand.
    pub level: Level,
}

/// The rule that a drive fails.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rule {
    /// No new holders go there.
    #[error("it is draining")]
    Draining,
    /// What is to be placed is to go elsewhere.
    #[error("the holder that is to be replaced is there, or was")]
    Replaced,
    /// Gone for good.
    #[error("it is out")]
    Out,
    /// It does not answer.
    #[error("it can't be used now: {0}")]
    Unreachable(String),
    /// It has promised what it has.
    #[error("{wanted} bytes are wanted and {left} of {room} are not promised yet")]
    Promised {
        /// Bytes of the holder.
        wanted: u64,
        /// Bytes that may still be promised.
        left: u64,
        /// Bytes that may be promised altogether.
        room: u64,
    },
    /// A drive without thin namespaces has not as much free.
    #[error("{wanted} bytes are wanted, it makes no thin namespaces and has {free} bytes free")]
    Free {
        /// Bytes of the holder.
        wanted: u64,
        /// Bytes that it says are free.
        free: u64,
    },
    /// What is written comes to more than what was promised ever should.
    #[error("{free} of its {total} bytes are free, which is less than a twentieth")]
    Low {
        /// Bytes that it says are free.
        free: u64,
        /// Its bytes.
        total: u64,
    },
    /// It can't have more namespaces.
    #[error("it has {holders} holders and {foreign} namespaces of others, and can have {max} altogether")]
    Namespaces {
        /// Holders that are there or promised.
        holders: u32,
        /// Namespaces that are left alone.
        foreign: usize,
        /// How many it can have.
        max: u32,
    },
    /// Its place is not known as far as it would have to be.
    #[error("its node {node} names no {level}")]
    Nowhere {
        /// Its machine.
        node: Name,
        /// What is not named.
        level: Level,
    },
    /// Another holder stands there.
    #[error("it is in the same {level} as drive {taken}, which has another holder")]
    Together {
        /// What they have in common.
        level: Level,
        /// The other one.
        taken: Name,
    },
}

impl Rule {
    /// The rule's name for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Rule::Draining => "draining",
            Rule::Replaced => "replaced",
            Rule::Out => "out",
            Rule::Unreachable(_) => "unreachable",
            Rule::Promised { .. } => "promised",
            Rule::Free { .. } => "free",
            Rule::Low { .. } => "low",
            Rule::Namespaces { .. } => "namespaces",
            Rule::Nowhere { .. } => "nowhere",
            Rule::Together { .. } => "together",
        }
    }
}

/// No placement: what each drive lacks.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Refusal {
    /// Holders that were wanted.
    pub wanted: usize,
    /// Holders for which there was a drive.
    pub placed: usize,
    /// How far apart.
    pub level: Level,
    /// Each drive that was not taken, with the rule that it failed.
    pub drives: Vec<(Name, Rule)>,
}

/// A thin drive of which less than one in so many bytes is free gets no new holders. Chosen: time for an operator to make room.
const FREE_PARTS_MIN: u64 = 20;
/// Drives that a refusal names in its sentence. Chosen: what one reads; programs get all of them.
const NAMED_MAX: usize = 8;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { wanted, placed, level, drives } = self;
        write!(f, "{wanted} holders are wanted, each in a {level} of its own, and there is room for {placed} of them")?;
        if drives.is_empty() {
            f.write_str(": no other drive is registered")?;
        }
        for (index, (name, rule)) in drives.iter().take(NAMED_MAX).enumerate() {
            write!(f, "{} drive {name}: {rule}", if index == 0 { ":" } else { ";" })?;
        }
        match drives.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// Places the holders, at the level that is wanted or, where that may be relaxed, the widest that can be had.
pub fn place(candidates: &[Candidate], wanted: &Wanted) -> Result<Placement, Refusal> {
    let narrower = [Level::Zone, Level::Rack, Level::Node, Level::Drive].into_iter();
    let levels = narrower.filter(|level| *level == wanted.level || wanted.relax && *level < wanted.level);
    let mut first_refusal = None;
    for level in levels {
        match place_at(candidates, wanted, level) {
            Ok(drives) => return Ok(Placement { drives, level }),
            Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
        }
    }
    // A level is one of the four, so there was a first one.
    Err(first_refusal.expect("the level that is wanted was tried"))
}

/// Chooses the best again and again. A choice takes one domain from the later ones and leaves the others as they are, and who has
/// room for a replica has room for a witness: where there is a placement this finds one.
fn place_at(candidates: &[Candidate], wanted: &Wanted, level: Level) -> Result<Vec<Name>, Refusal> {
    let mut taken: BTreeMap<Domain, Name> = BTreeMap::new();
    let mut drives: Vec<Name> = Vec::new();
    for candidate in candidates.iter().filter(|candidate| wanted.beside.contains(&candidate.drive.name)) {
        // Where it stands is settled, though nobody may know where that is.
        taken.extend(domain(candidate, level).ok().map(|domain| (domain, candidate.drive.name.clone())));
    }
    for (_, bytes) in &wanted.holders {
        let mut passed = Vec::new();
        let mut failed = Vec::new();
        let is_free = |name: &Name| !drives.contains(name) && !wanted.beside.contains(name);
        for candidate in candidates.iter().filter(|candidate| is_free(&candidate.drive.name)) {
            match check(candidate, *bytes, level, wanted, &taken) {
                Ok(domain) => passed.push((candidate, domain)),
                Err(rule) => failed.push((candidate.drive.name.clone(), rule)),
            }
        }
        let best = passed.into_iter().max_by(|(a, _), (b, _)| {
            let rank = |candidate: &Candidate| free_share(candidate, *bytes, wanted.overcommit_percent);
            let load = b.drive.holders.cmp(&a.drive.holders);
            rank(a).cmp(&rank(b)).then(load).then(b.drive.name.cmp(&a.drive.name))
        });
        let Some((best, domain)) = best else {
            return Err(Refusal { wanted: wanted.holders.len(), placed: drives.len(), level, drives: failed });
        };
        taken.insert(domain, best.drive.name.clone());
        drives.push(best.drive.name.clone());
    }
    Ok(drives)
}

/// What two holders must not have in common: the names that say where, from the outside in.
type Domain = Vec<Name>;

fn domain(candidate: &Candidate, level: Level) -> Result<Domain, Rule> {
    let nowhere = |level| Rule::Nowhere { node: candidate.node.name.clone(), level };
    let zone = || candidate.node.zone.clone();
    Ok(match level {
        Level::Drive => vec![candidate.drive.name.clone()],
        Level::Node => vec![candidate.node.name.clone()],
        // Racks of different zones may have the same name.
        Level::Rack => {
            let rack = candidate.node.rack.clone().ok_or_else(|| nowhere(level))?;
            zone().into_iter().chain([rack]).collect()
        }
        Level::Zone => vec![zone().ok_or_else(|| nowhere(level))?],
    })
}

/// Bytes that a drive may promise.
pub fn room(drive: &Drive, overcommit_percent: u32) -> u64 {
    let foreign: u64 = drive.foreign.iter().map(|namespace| namespace.bytes).sum();
    let own = drive.total.saturating_sub(foreign);
    // What is not thin takes its room at once.
    let percent = if drive.thin { overcommit_percent } else { 100 };
    u64::try_from(u128::from(own) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// Whether so many bytes more may be promised of a drive, for a holder that it has.
pub fn check_growth(candidate: &Candidate, bytes: u64, overcommit_percent: u32) -> Result<(), Rule> {
    let drive = &candidate.drive;
    if drive.state == DriveState::Out {
        return Err(Rule::Out);
    }
    let look = candidate.look.as_ref().map_err(|why| Rule::Unreachable(why.clone()))?;
    let room = room(drive, overcommit_percent);
    let left = room.saturating_sub(drive.promised);
    if bytes > left {
        return Err(Rule::Promised { wanted: bytes, left, room });
    }
    if !drive.thin && bytes > look.free {
        return Err(Rule::Free { wanted: bytes, free: look.free });
    }
    if drive.thin && look.free < look.total / FREE_PARTS_MIN {
        return Err(Rule::Low { free: look.free, total: look.total });
    }
    Ok(())
}

/// Whether a drive may get a holder of so many bytes, wherever the drive stands.
pub fn check_holder(candidate: &Candidate, bytes: u64, overcommit_percent: u32) -> Result<(), Rule> {
    let drive = &candidate.drive;
    if drive.state == DriveState::Draining {
        return Err(Rule::Draining);
    }
    check_growth(candidate, bytes, overcommit_percent)?;
    let (holders, foreign) = (drive.holders, drive.foreign.len());
    let shown = candidate.look.as_ref().map_or(0, |look| look.namespaces_max);
    let max = shown.min(NAMESPACES_MAX as u32);
    if holders as usize + foreign >= max as usize {
        return Err(Rule::Namespaces { holders, foreign, max });
    }
    Ok(())
}

fn check(
    candidate: &Candidate,
    bytes: u64,
    level: Level,
    wanted: &Wanted,
    taken: &BTreeMap<Domain, Name>,
) -> Result<Domain, Rule> {
    check_holder(candidate, bytes, wanted.overcommit_percent)?;
    if wanted.without.contains(&candidate.drive.name) {
        return Err(Rule::Replaced);
    }
    let domain = domain(candidate, level)?;
    match taken.get(&domain) {
        Some(other) => Err(Rule::Together { level, taken: other.clone() }),
        None => Ok(domain),
    }
}

/// What of the drive is left when it has the holder, in millionths.
fn free_share(candidate: &Candidate, bytes: u64, overcommit_percent: u32) -> u128 {
    let room = u128::from(room(&candidate.drive, overcommit_percent));
    let left = room.saturating_sub(u128::from(candidate.drive.promised) + u128::from(bytes));
    left * 1_000_000 / room.max(1)
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
