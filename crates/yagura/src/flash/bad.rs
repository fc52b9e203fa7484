//! `yagura flash bbt`: the table of bad chunks of a device that nobody serves.

use flash::{Chunk, ChunkState, Geometry, Manager, ManagerOptions};
use serde::Serialize;

use super::served::{Access, Use, manager_failure, nand_failure, power_on};
use crate::cli::{FlashBadGetArgs, FlashBadSetArgs, FlashBadVerb, FlashFileArgs};
use crate::exit::Failure;
use crate::output;

/// A chunk of the table.
#[derive(Serialize)]
struct Bad {
    unit: u32,
    chunk: u32,
}

#[derive(Serialize)]
struct Table {
    chunks: u32,
    bad: Vec<Bad>,
}

/// Runs a verb.
pub async fn run(verb: &FlashBadVerb) -> Result<(), Failure> {
    match verb {
        FlashBadVerb::Get(FlashBadGetArgs { flash }) => get(flash).await,
        FlashBadVerb::Set(args) => set(args).await,
    }
}

async fn get(args: &FlashFileArgs) -> Result<(), Failure> {
    // Without the media manager: the table is there also where nothing else can be read any more.
    let device = power_on(&args.path, Access::Look).await?.device;
    let geometry = device.geometry();
    let reports = device.report().await.map_err(|error| nand_failure(&args.path, error.into()))?;
    let chunks = (0..).map(Chunk).zip(&reports).filter(|(_, report)| report.state == ChunkState::Offline);
    let bad = chunks.map(|(chunk, _)| Bad { unit: geometry.unit_of(chunk), chunk: geometry.number_of(chunk) });
    let table = Table { chunks: geometry.chunks_total(), bad: bad.collect() };
    output::report(args.common.json, &table, |table| {
        let lines: String = table.bad.iter().map(|bad| format!("unit {} chunk {}\n", bad.unit, bad.chunk)).collect();
        lines + &format!("{} of {} chunks are bad", table.bad.len(), table.chunks)
    })
}

/// A chunk of the device, by its parallel unit and its number there.
fn named(text: &str, geometry: &Geometry) -> Result<Chunk, Failure> {
    let parts = text.split_once(':').and_then(|(unit, chunk)| Some((unit.parse().ok()?, chunk.parse().ok()?)));
    match parts {
        Some((unit, chunk)) if unit < geometry.units() && chunk < geometry.chunks => Ok(geometry.chunk(unit, chunk)),
        _ => {
            let (units, chunks) = (geometry.units() - 1, geometry.chunks - 1);
            Err(Failure::usage(format!("`{text}`: must be UNIT:CHUNK, from 0:0 to {units}:{chunks}")))
        }
    }
}

async fn set(args: &FlashBadSetArgs) -> Result<(), Failure> {
    let path = &args.flash.path;
    if device::is_zoned(path) {
        let text = "a zoned device knows by itself which of its zones are bad, and keeps no other table";
        return Err(Failure::refused(format!("{}: {text}", path.display())));
    }
    let on = power_on(path, Access::Change).await?;
    on.check_use(Use::Log, path)?;
    let device = on.device;
    let geometry = device.geometry();
    let chunks = args.chunks.iter().map(|text| named(text, &geometry)).collect::<Result<Vec<Chunk>, Failure>>()?;
    let failed = |error| manager_failure(path, error);
    // What a crash has left is decided first: until then more than what is valid may be in use.
    let manager = Manager::open(device.clone(), ManagerOptions::default()).await.map_err(failed)?;
    manager.close().await.map_err(|error| failed(error.into()))?;
    // Only now is what is valid in each chunk what it stays: the close may have written pages of the map.
    let manager = Manager::look(device.clone()).await.map_err(failed)?;
    let (valid, roots) = (manager.valid_by_chunk(), manager.chunks_of_roots());
    drop(manager);
    for (text, chunk) in args.chunks.iter().zip(&chunks) {
        if roots.contains(chunk) {
            return Err(Failure::refused(format!(
                "chunk {text} is set apart for roots: without them nothing is found"
            )));
        }
        let sectors = valid[chunk.0 as usize];
        if sectors > 0 && !args.force {
            let (sectors, mend) = (output::many(sectors.into(), "sector"), "say --force to lose what is there");
            return Err(Failure::refused(format!("chunk {text} has {sectors} in use; {mend}")));
        }
    }
    for chunk in chunks {
        device.set_bad(chunk).await.map_err(|error| nand_failure(path, error.into()))?;
    }
    drop(device);
    get(&args.flash).await
}
