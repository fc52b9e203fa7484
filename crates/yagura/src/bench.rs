//! `yagura bench`: rows of measurements, printed for people or as JSON, and kept as JSON and pictures.

use std::time::Duration;

use ::bench::figures::Row;
use ::bench::progress::{Progress, Stop};
use ::bench::{
    busy_flash_row, cache_row, ceph_row, connections_row, device_row, device_wire_row, erasure_row, fill_row,
    flash_cost_row, flash_row, hot_node_row, idle_row, kv_row, kv_scale_row, neighbour_row, remote_row, restart_row,
    scale_row, stream_row, volume_beside_row, volume_row, wire_row,
};

use crate::cli::{
    BenchCacheArgs, BenchCacheStartArgs, BenchCephArgs, BenchDeviceArgs, BenchFlashArgs, BenchScaleArgs, BenchVerb,
    BenchWireArgs, DeviceRow, FlashRow, RemoteAccess, Rounds, WireRow,
};
use crate::exit::Failure;
use crate::{output, stop};

/// Measures, and reports: also the rows that were measured before one failed or a signal came.
pub fn run(verb: &BenchVerb) -> Result<(), Failure> {
    let progress = Progress::new(Stop(stop::flag()?));
    let mut rows = Vec::new();
    let (rounds, ended) = match verb {
        BenchVerb::Device(args) => (&args.rounds, device(args, &progress, &mut rows)),
        BenchVerb::Wire(args) => (&args.rounds, wire(args, &progress, &mut rows)),
        BenchVerb::Remote(args) => {
            let options = remote_row::Options {
                address: args.address,
                nqn: args.nqn.clone(),
                nsid: args.nsid,
                depths: args.depths.clone(),
                write: args.access == RemoteAccess::Write,
                rounds: usize::from(args.rounds.rounds),
                time: time(&args.rounds),
            };
            (&args.rounds, remote_row::run(&options, &progress).map(|row| rows.push(row)))
        }
        BenchVerb::Scale(args) => (&args.rounds, scale(args, &progress).map(|row| rows.push(row))),
        BenchVerb::Table(args) => {
            let rounds = usize::from(args.rounds.rounds);
            let options = fill_row::Options { rounds, page_size: args.page_size, pages: args.pages };
            (&args.rounds, fill_row::run(options, &progress).map(|row| rows.push(row)))
        }
        BenchVerb::Volume(args) => {
            let (rounds, time) = (usize::from(args.rounds.rounds), time(&args.rounds));
            let options = volume_row::Options { folder: args.folder.clone(), rounds, time };
            (&args.rounds, volume(&options, &progress, &mut rows))
        }
        BenchVerb::Ceph(args) => (&args.rounds, ceph(args, &progress, &mut rows)),
        BenchVerb::KvScale(rounds) => {
            let options = kv_scale_row::Options { rounds: usize::from(rounds.rounds), time: time(rounds) };
            (rounds, kv_scale_row::run(options, &progress).map(|row| rows.push(row)))
        }
        BenchVerb::HotNode(rounds) => {
            let options = hot_node_row::Options { rounds: usize::from(rounds.rounds), time: time(rounds) };
            (rounds, hot_node_row::run(options, &progress).map(|row| rows.push(row)))
        }
        BenchVerb::Erasure(rounds) => {
            let (number, time) = (usize::from(rounds.rounds), time(rounds));
            let options = erasure_row::Options { rounds: number, time, memory: erasure_row::MEMORY_BYTES };
            (rounds, erasure_row::run(options, &progress).map(|row| rows.push(row)))
        }
        BenchVerb::Flash(args) => (&args.rounds, flash(args, &progress, &mut rows)),
        BenchVerb::Cache(args) => (&args.rounds, cache(args, &progress, &mut rows)),
        BenchVerb::CacheBusy(args) => {
            let (bytes, folder, time) = (args.size.0, args.folder.clone(), time(&args.rounds));
            let options = busy_flash_row::Options { bytes, folder, rounds: usize::from(args.rounds.rounds), time };
            (&args.rounds, busy_flash_row::run(&options, &progress).map(|row| rows.push(row)))
        }
        BenchVerb::CacheStart(args) => (&args.flash.rounds, cache_start(args, &progress, &mut rows)),
        BenchVerb::Kv(args) => {
            let options = kv_row::Options {
                replicas: args.replicas.clone(),
                records: args.values.clone(),
                folder: args.folder.clone(),
                rounds: usize::from(args.rounds.rounds),
                time: time(&args.rounds),
            };
            (&args.rounds, kv_row::run(&options, &progress, &mut rows))
        }
    };
    if ended.is_ok() || !rows.is_empty() {
        report(rounds, &rows)?;
    }
    ended.map_err(failure)
}

fn volume(options: &volume_row::Options, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    rows.push(volume_row::run(options, progress)?);
    rows.push(volume_beside_row::run(options, progress)?);
    Ok(())
}

fn ceph(args: &BenchCephArgs, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let options = ceph_row::Options {
        folder: args.folder.clone(),
        bytes: args.size.0,
        depths: args.depths.iter().copied().map(usize::from).collect(),
        rounds: usize::from(args.rounds.rounds),
        time: time(&args.rounds),
    };
    ceph_row::run(&options, progress, rows)
}

fn scale(args: &BenchScaleArgs, progress: &Progress) -> anyhow::Result<Row> {
    let members = args.members.iter().map(|&members| usize::from(members)).collect();
    scale_row::run(&scale_row::Options { members, rounds: usize::from(args.rounds.rounds) }, progress)
}

fn device(args: &BenchDeviceArgs, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let options = device_row::Options {
        file: args.file.clone(),
        size: args.size.0,
        depths: args.depths.iter().copied().map(usize::from).collect(),
        rounds: usize::from(args.rounds.rounds),
        time: time(&args.rounds),
    };
    for row in &args.rows {
        rows.push(match row {
            DeviceRow::Local => device_row::run(&options, progress)?,
            DeviceRow::Wire => device_wire_row::run(&options, progress)?,
        });
    }
    Ok(())
}

fn flash(args: &BenchFlashArgs, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let (rounds, device_writes) = (usize::from(args.rounds.rounds), u64::from(args.device_writes));
    for row in &args.rows {
        match row {
            FlashRow::Olive => flash_row::run(flash_row::Options { time: time(&args.rounds) }, progress, rows)?,
            FlashRow::Cost => {
                rows.push(flash_cost_row::run(flash_cost_row::Options { rounds, device_writes }, progress)?);
            }
        }
    }
    Ok(())
}

fn cache(args: &BenchCacheArgs, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let options = cache_row::Options {
        bytes: args.size.0,
        values: args.values.clone(),
        shares: args.shares.clone(),
        connections: args.connections.clone(),
        folder: args.folder.clone(),
        rounds: usize::from(args.rounds.rounds),
        time: time(&args.rounds),
    };
    cache_row::run(&options, progress, rows)
}

fn cache_start(args: &BenchCacheStartArgs, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let options = restart_row::Options {
        bytes: args.flash.size.0,
        values: args.values.clone(),
        folder: args.flash.folder.clone(),
        rounds: usize::from(args.flash.rounds.rounds),
    };
    restart_row::run(&options, progress, rows)
}

fn wire(args: &BenchWireArgs, progress: &Progress, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    let options = wire_row::Options { rounds: usize::from(args.rounds.rounds), time: time(&args.rounds) };
    let connections: Vec<usize> = args.connections.iter().copied().map(usize::from).collect();
    for row in &args.rows {
        match row {
            WireRow::Load => rows.extend(wire_row::run(&options, progress)?),
            WireRow::Connections => rows.push(connections_row::run(&options, &connections, progress)?),
            WireRow::Stream => rows.push(stream_row::run(&options, progress)?),
            WireRow::Memory => rows.push(idle_row::run(&options, progress)?),
            WireRow::Hostile => rows.push(neighbour_row::run(&options, progress)?),
        }
    }
    Ok(())
}

fn time(rounds: &Rounds) -> Duration {
    Duration::from_millis(u64::from(rounds.time))
}

fn report(rounds: &Rounds, rows: &[Row]) -> Result<(), Failure> {
    if let Some(directory) = &rounds.output {
        for row in rows {
            row.save(directory).map_err(failure)?;
        }
    }
    let tables = |rows: &&[Row]| rows.iter().map(Row::table).collect::<Vec<_>>().join("\n");
    output::report(rounds.common.json, &rows, tables)
}

/// The whole chain of causes in one sentence.
fn failure(error: anyhow::Error) -> Failure {
    Failure::refused(format!("{error:#}"))
}
