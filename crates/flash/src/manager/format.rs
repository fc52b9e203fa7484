//! Format: what a device is to be is planned by its geometry and its table of bad chunks, before anything on it is touched.

use std::rc::Rc;

use engine::task::LocalFuture;

use super::buffer::STREAMS;
use super::core::{Core, ManagerOptions, Parts, RootArea, SEQUENCES_PER_ROOT};
use super::error::ManagerError;
use super::join::join_all;
use super::lines::Lines;
use super::map::{Map, pages_of};
use super::reserve::Reserve;
use super::root;
use super::tag::Codec;
use crate::address::Chunk;
use crate::device::{ChunkReport, ChunkState, FlashDevice, FlashError};
use crate::geometry::Geometry;

/// What a device is formatted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FormatOptions {
    /// Of the room for the namespace, what is kept for collection and for chunks that go bad, in percent.
    pub spare_percent: u32,
    /// Sectors of the namespace; `None`: as many as there is room for.
    pub capacity: Option<u32>,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions { spare_percent: 12, capacity: None }
    }
}

/// Of the room for the namespace, what can be spare at most, in percent. Derived: something has to be left.
const SPARE_PERCENT_MAX: u32 = 99;

pub(super) fn check_device(device: &dyn FlashDevice) -> Result<(), ManagerError> {
    let geometry = device.geometry();
    geometry.checked().map_err(|error| FlashError::Medium(error.to_string()))?;
    // A line for each stream, and both slots of roots with two copies each.
    let needed = STREAMS as u32 * geometry.units() + 4;
    if geometry.open_max > 0 && geometry.open_max < needed {
        return Err(ManagerError::OpenLimit { open_max: geometry.open_max, needed });
    }
    let codec = Codec::new(geometry, [0; 16]);
    if codec.payload() == 0 { Err(ManagerError::NoTags) } else { Ok(()) }
}

/// Two chunks of each of two parallel units, where there are such that are good.
fn chunks_for_roots(geometry: Geometry, reports: &[ChunkReport]) -> [Vec<Chunk>; 2] {
    let is_bad = |state| matches!(state, ChunkState::Offline | ChunkState::ReadOnly);
    let is_good = |chunk: Chunk| !is_bad(reports[chunk.0 as usize].state);
    let both = |unit: u32| [geometry.chunk(unit, 0), geometry.chunk(unit, 1)];
    let units = (0..geometry.units())
        .map(both)
        .filter(|chunks| geometry.chunks > 2 && chunks.iter().all(|&chunk| is_good(chunk)));
    let chosen: Vec<[Chunk; 2]> = units.take(2).collect();
    [0, 1].map(|slot| chosen.iter().map(|chunks| chunks[slot]).collect())
}

/// Makes every chunk free, or bad: those first that a root may be in.
async fn reset_all(device: &dyn FlashDevice) -> Result<Vec<ChunkReport>, FlashError> {
    let geometry = device.geometry();
    let reports = device.report().await?;
    for number in 0..geometry.chunks {
        let chunks = (0..geometry.units()).map(|unit| geometry.chunk(unit, number));
        let resets = chunks.map(|chunk| -> LocalFuture<'_, Result<(), FlashError>> {
            let state = reports[chunk.0 as usize].state;
            Box::pin(async move {
                match state {
                    ChunkState::Free | ChunkState::Offline => Ok(()),
                    ChunkState::ReadOnly => device.set_bad(chunk).await,
                    ChunkState::Open | ChunkState::Closed => match device.reset(chunk).await {
                        Err(error) if error.is_of_a_chunk() => Ok(()),
                        other => other,
                    },
                }
            })
        });
        join_all(resets.collect()).await.into_iter().collect::<Result<(), _>>()?;
    }
    device.report().await
}

/// What a device becomes.
struct Plan {
    codec: Codec,
    lines: Lines,
    apart: [Vec<Chunk>; 2],
    capacity: u32,
}

impl Plan {
    fn of(
        geometry: Geometry,
        reports: &[ChunkReport],
        identity: [u8; 16],
        options: &FormatOptions,
    ) -> Result<Plan, ManagerError> {
        // First, since it is known by the geometry alone: what is too large for a root is too large to be planned.
        let (bytes, most) = (root::bytes_max(&geometry), root::bytes_in_chunk(geometry));
        if bytes > most {
            return Err(ManagerError::RootTooLarge { bytes, most });
        }
        let codec = Codec::new(geometry, identity);
        let apart = chunks_for_roots(geometry, reports);
        let mut lines = Lines::new(codec, reports, &apart.concat());
        for line in 0..lines.all.len() as u32 {
            lines.set_free(line);
        }
        let payload = lines.payload();
        // The pages of the map depend on the capacity, and the capacity on what is left beside them.
        let pages = pages_of(u32::try_from(payload).unwrap_or(u32::MAX));
        let reserve = Reserve::of(pages, &codec);
        let room = payload.saturating_sub(reserve.payload_planned(0));
        let share = |spare: u32| room * u64::from(100 - spare) / 100;
        let spare = options.spare_percent.min(SPARE_PERCENT_MAX);
        let capacity = options.capacity.map_or(share(spare), u64::from);
        // Above that there may be no line that is worth emptying, and hosts wait for ever.
        let most = payload.saturating_sub(reserve.payload_needed(0));
        let least = (0..=SPARE_PERCENT_MAX).find(|&least| share(least) <= most);
        let least = least.filter(|&least| share(least) > 0 && !apart[0].is_empty());
        match least {
            Some(least) if capacity > most && capacity <= share(spare) => {
                return Err(ManagerError::SpareTooSmall { spare, least, capacity, most });
            }
            Some(_) if capacity > 0 && capacity <= share(spare) => {}
            _ => {
                let needed = reserve.payload_planned(capacity.max(1) * 100 / u64::from(100 - spare));
                return Err(ManagerError::TooSmall { lines: lines.free_lines(), payload, needed, capacity });
            }
        }
        Ok(Plan { codec, lines, apart, capacity: u32::try_from(capacity).unwrap_or(u32::MAX) })
    }
}

/// Sectors of the namespace that a format would make.
pub(super) async fn plan(device: &dyn FlashDevice, options: &FormatOptions) -> Result<u32, ManagerError> {
    check_device(device)?;
    let plan = Plan::of(device.geometry(), &device.report().await?, [0; 16], options)?;
    Ok(plan.capacity)
}

/// Formats a device: what is on it is lost.
pub(super) async fn format(device: Rc<dyn FlashDevice>, options: &FormatOptions) -> Result<(), ManagerError> {
    plan(&*device, options).await?;
    device.claim()?;
    let result = lay_out(device.clone(), options).await;
    device.release(); // as the log's state does where it came so far
    result
}

async fn lay_out(device: Rc<dyn FlashDevice>, options: &FormatOptions) -> Result<(), ManagerError> {
    let reports = reset_all(&*device).await?;
    let identity = device::random_nguid();
    // Once more: a chunk may have gone bad in its reset.
    let Plan { codec, lines, apart, capacity } = Plan::of(device.geometry(), &reports, identity, options)?;
    let root = RootArea {
        chunks: apart.clone(),
        apart,
        slot: 0,
        in_force: 0,
        offset: 0,
        number: 0,
        up_to: 0,
        limit: SEQUENCES_PER_ROOT,
        is_ours: false,
    };
    let parts = Parts { codec, identity, map: Map::new(capacity), lines, root, sequence: 0 };
    let core = Core::new(device, parts, ManagerOptions::default());
    core.checkpoint(true).await.map_err(ManagerError::Stopped)
}
