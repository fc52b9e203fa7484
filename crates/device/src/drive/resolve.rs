//! What became of the units that were being written over when the power failed.
//!
//! A unit that was written over since the checkpoint has *candidates*: the checksum it had, and that of each intent since, as
//! long as no flush has proved one of them stable. Where there are several the unit is read and is the newest one that it
//! matches. One that matches none is torn or damaged: it keeps the newest checksum, so that reading it is an error. It is never
//! given the checksum of what happens to be there.
//!
//! Where a block has several units they are looked at together: it is what it was at one moment in all its units, or it is
//! uncorrectable. Were each unit taken by itself, a block of which some sectors had been written would be half old and half
//! new, and each half would match.

use std::collections::BTreeMap;

use engine::Buf;
use engine::task::TaskSet;

use super::DriveError;
use super::core::{Inner, places, seed_of};
use super::pages::{CHECKSUM_MIN, UNCORRECTABLE, UNWRITTEN, unit_hash, unit_value};
use super::window::{self, IN_FLIGHT_MAX};

/// What a unit may hold, oldest first, each with the sequence that said so. Sequence 0: what its page says.
pub(super) type Candidates = Vec<(u64, u64)>;

/// Units of one block, ascending, each with what it may hold.
type Block = Vec<(u64, Candidates)>;

/// Gives every unit that the journal speaks of the one checksum that it has.
pub(super) async fn resolve(
    inner: &Inner,
    units: BTreeMap<u64, Candidates>,
    stable: u64,
    read_only: bool,
) -> Result<(), DriveError> {
    let extent_units = u64::from(inner.layout.extent_units());
    let block_units = block_units(inner);
    let settle = |found: Vec<(u64, u64)>| {
        for (unit, found) in found {
            for (page, slots) in places(unit, 1) {
                inner.with(|core| core.pages.change(page)[slots.start] = found);
            }
        }
    };
    let mut reads = TaskSet::new(IN_FLIGHT_MAX);
    let mut units = units.into_iter().peekable();
    while let Some((unit, candidates)) = units.next() {
        let extent = (unit / extent_units) as usize;
        if inner.with(|core| core.state.references[extent]) == 0 {
            continue; // freed since
        }
        let end = (unit / block_units[extent] + 1) * block_units[extent];
        let mut block = vec![(unit, candidates)];
        block.extend(std::iter::from_fn(|| units.next_if(|(unit, _)| *unit < end)));
        for (unit, candidates) in &mut block {
            prepare(inner, *unit, candidates, stable).await?;
        }
        if block.iter().all(|(_, candidates)| candidates.len() < 2) {
            settle(block.iter().map(|(unit, candidates)| (*unit, newest(candidates))).collect());
        } else if let Some(ended) = window::push(&mut reads, pick(inner, block, block_units[extent], read_only)).await {
            settle(ended?);
        }
    }
    while let Some((_, ended)) = reads.next().await {
        settle(ended?);
    }
    Ok(())
}

/// For each extent the units of a block there. Whoever shares an extent has blocks of the same size.
fn block_units(inner: &Inner) -> Vec<u64> {
    inner.with(|core| {
        let mut units = vec![1; core.state.references.len()];
        for space in core.state.namespaces.values().filter(|space| space.block_size > inner.layout.unit) {
            let each = u64::from(space.block_size / inner.layout.unit);
            space.map.iter().for_each(|(_, extent)| units[extent as usize] = each);
        }
        units
    })
}

/// Looks up what the unit's page says, and leaves out what it can't hold any more.
async fn prepare(inner: &Inner, unit: u64, candidates: &mut Candidates, stable: u64) -> Result<(), DriveError> {
    for (page, _) in places(unit, 1) {
        while !inner.with(|core| core.pages.is_present(page)) {
            inner.load_page(page).await?;
        }
        inner.with(|core| {
            core.pages.keep(page); // until it is changed, whatever is loaded in between
            if let Some(first @ (0, _)) = candidates.first_mut() {
                first.1 = core.value_at(unit).unwrap_or(UNWRITTEN);
            }
        });
    }
    // What was proved stable is older than nothing that the unit may hold.
    let proved = candidates.iter().rposition(|(sequence, _)| *sequence > 0 && *sequence <= stable);
    candidates.drain(..proved.unwrap_or(0));
    Ok(())
}

fn newest(candidates: &[(u64, u64)]) -> u64 {
    candidates.last().map_or(UNWRITTEN, |(_, value)| *value)
}

/// What the unit was when the journal stood at `sequence`.
fn at_sequence(candidates: &[(u64, u64)], sequence: u64) -> Option<u64> {
    candidates.iter().rev().find(|(said, _)| *said <= sequence).map(|(_, value)| *value)
}

/// Reads the units: they, and which of their candidates they are.
async fn pick(inner: &Inner, block: Block, block_units: u64, read_only: bool) -> Result<Vec<(u64, u64)>, DriveError> {
    let (first, count) = match block.as_slice() {
        [(first, _), .., (last, _)] => (*first, last - first + 1),
        [(first, _)] => (*first, 1),
        [] => return Ok(Vec::new()),
    };
    let (bytes, at) = (inner.layout.unit as usize, inner.layout.unit_at(first));
    let (result, content) = inner.file.read_at(at, Buf::with_len(count as usize * bytes)).await;
    match result {
        Ok(()) => {}
        // The checkpoint that follows would make the newest checksum definite, over the old content perhaps, for an error that
        // may pass: what was acknowledged and stable would be lost.
        Err(source) if !read_only => {
            return Err(DriveError::Undecided { path: inner.path.clone(), at, bytes: count * bytes as u64, source });
        }
        Err(error) => {
            tracing::error!(%error, unit = first, "a unit that was being written can't be read");
            return Ok(block.iter().map(|(unit, candidates)| (*unit, newest(candidates))).collect());
        }
    }
    let seed = seed_of(&inner.layout);
    let value_of = |unit: u64| unit_value(seed, unit, unit_hash(&content[(unit - first) as usize * bytes..][..bytes]));
    let found: Vec<u64> = block.iter().map(|(unit, _)| value_of(*unit)).collect();
    let mut moments: Vec<u64> = block.iter().flat_map(|(_, all)| all.iter().map(|(sequence, _)| *sequence)).collect();
    moments.sort_unstable();
    moments.dedup();
    // An intent is only made over data, so each candidate is the checksum of some. A unit that is not in doubt is what it is.
    let is_from = |moment: u64| {
        block.iter().zip(&found).all(|((_, candidates), found)| match at_sequence(candidates, moment) {
            Some(value) => candidates.len() == 1 || (value >= CHECKSUM_MIN && value == *found),
            None => false,
        })
    };
    let matched = moments.into_iter().rev().find(|moment| is_from(*moment));
    if matched.is_none() {
        tracing::warn!(
            unit = first,
            "a block is neither what it was nor what was being written: it can't be read until rewritten"
        );
    }
    let outcome = |candidates: &Candidates| match matched {
        Some(moment) => at_sequence(candidates, moment).unwrap_or(UNCORRECTABLE),
        None if block_units > 1 => UNCORRECTABLE,
        None => newest(candidates),
    };
    Ok(block.iter().map(|(unit, candidates)| (*unit, outcome(candidates))).collect())
}
