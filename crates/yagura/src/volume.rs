//! `yagura volume …`

mod attach;
mod backup;
mod kernel;
mod named;
mod nbd;
mod reach;
mod snapshots;
mod ublk;
mod used;
mod wishes;
mod words;
pub mod work;

use ::volume::{Error, FormatOptions, Inspected, Kind, Options, Origin, Set};
use device::Error::Reserved;
use kv::resp::execute::together;
use serde::Serialize;

use crate::cli::{
    VolumeCreateArgs, VolumeRecoverArgs, VolumeReplaceArgs, VolumeStatusArgs, VolumeVerb, VolumeVerifyArgs,
};
use crate::exit::Failure;
use crate::size::Size;
use crate::{output, reactors};
use words::{failure, name};

/// Runs a verb.
pub fn run(verb: &VolumeVerb) -> Result<(), Failure> {
    match verb {
        VolumeVerb::Create(args) => reactors::run_one(create(args)),
        VolumeVerb::Attach(args) => attach::run(args),
        VolumeVerb::Status(args) => reactors::run_one(status(args)),
        VolumeVerb::Verify(args) => reactors::run_one(verify(args)),
        VolumeVerb::Replace(args) => reactors::run_one(replace(args)),
        VolumeVerb::Recover(args) => reactors::run_one(recover(args)),
        VolumeVerb::Snapshot(args) => reactors::run_one(snapshots::take(args)),
        VolumeVerb::Diff(args) => reactors::run_one(backup::diff(args)),
        VolumeVerb::Export(args) => reactors::run_one(backup::export(args)),
        VolumeVerb::Import(args) => reactors::run_one(backup::import(args)),
    }
}

#[derive(Serialize, Debug)]
struct Created {
    volume: String,
    bytes: u64,
    block_size: u32,
    replicas: u8,
    region_bytes: u64,
}

async fn create(args: &VolumeCreateArgs) -> Result<(), Failure> {
    let replicas = args.holders.replicas.len() as u8;
    let reaches = reach::reaches(&args.holders)?;
    let (bytes, force) = (args.size.map(|size| size.0), args.force);
    let lease = std::time::Duration::from_secs(args.lease.into());
    let options = FormatOptions { replicas, bytes, lease, force, ..FormatOptions::default() };
    let shape = ::volume::format(reaches, options).await.map_err(failure)?;
    let created = Created {
        volume: name(shape.volume),
        bytes: shape.blocks * u64::from(shape.block_size),
        block_size: shape.block_size,
        replicas,
        region_bytes: u64::from(shape.region_blocks) * u64::from(shape.block_size),
    };
    output::report(args.common.json, &created, |created| {
        let Created { volume, bytes, block_size, replicas, .. } = created;
        let replicas = output::many(u64::from(*replicas), "replica");
        format!("volume {volume}: {}, blocks of {block_size}, {replicas}\n", Size(*bytes))
    })
}

/// What one holder says.
#[derive(Serialize, Debug)]
struct Holder {
    holder: String,
    #[serde(flatten)]
    said: Said,
}

#[derive(Serialize, Debug)]
#[serde(tag = "state", rename_all = "kebab-case")]
enum Said {
    /// What it says.
    Read {
        volume: String,
        slot: u8,
        witness: bool,
        bytes: u64,
        used_bytes: u64,
        /// Ballot's round and version: the holder with the highest has the newest record.
        record: (u64, u64),
        in_sync: Vec<usize>,
        snapshots: Vec<String>,
        /// Of what it is a copy, or a part of one.
        origin: Option<String>,
        /// It is a part of a copy: good for nothing until the import is gone on with.
        is_partial: bool,
    },
    /// A host has it attached, or had it last: only who takes it may read it.
    Taken,
    /// It can't be reached, or is no holder.
    Unknown { reason: String },
}

fn said(found: Result<Inspected, Error>) -> Said {
    match found {
        Ok(Inspected { label, record, used_blocks }) => Said::Read {
            volume: name(label.shape.volume),
            slot: label.slot,
            witness: label.kind == Kind::Witness,
            bytes: label.shape.blocks * u64::from(label.shape.block_size),
            used_bytes: used_blocks * u64::from(label.shape.block_size),
            record: (record.accepted.ballot.round, record.accepted.version),
            in_sync: record.accepted.in_sync.iter().collect(),
            snapshots: record.accepted.snapshots.iter().map(|snapshot| snapshot.name.to_string()).collect(),
            origin: record.accepted.origin.map(|origin| origin.to_string()),
            is_partial: matches!(record.accepted.origin, Some(Origin::InPart { .. })),
        },
        Err(Error::Device { source: Reserved(_), .. }) => Said::Taken,
        Err(error) => Said::Unknown { reason: error.to_string() },
    }
}

async fn status(args: &VolumeStatusArgs) -> Result<(), Failure> {
    let (found, _) = named::holders(&args.of)?;
    let reaches = reach::named(&found.holders, &found.uids)?;
    let asked = together(
        reaches.iter().map(|reach| async move { (reach.name(), ::volume::inspect(&**reach, args.take).await) }),
    )
    .await;
    let all_away = asked.iter().all(|(_, found)| matches!(found, Err(Error::Unreachable { .. })));
    let holders: Vec<_> = asked.into_iter().map(|(holder, found)| Holder { said: said(found), holder }).collect();
    output::report(args.common.json, &holders, |holders| holders.iter().map(describe).collect())?;
    match holders.iter().all(|holder| matches!(holder.said, Said::Unknown { .. })) {
        true if all_away => Err(Failure::unavailable("no holder can be reached")),
        true => Err(Failure::refused("no namespace that was reached is a holder that can be read")),
        false => Ok(()),
    }
}

fn describe(holder: &Holder) -> String {
    let Holder { holder, said } = holder;
    match said {
        Said::Read { volume, slot, witness, bytes, record: (round, version), in_sync, snapshots, origin, .. } => {
            let what = if *witness { "witness".to_owned() } else { format!("replica of {}", Size(*bytes)) };
            let in_sync: Vec<String> = in_sync.iter().map(ToString::to_string).collect();
            let record = format!("record {round}.{version}: in sync {}", in_sync.join(", "));
            let mut text = format!("slot {slot}: {holder}: {what}, volume {volume}, {record}\n");
            if let Some(origin) = origin {
                text += &format!("slot {slot}: {origin}\n");
            }
            if !snapshots.is_empty() {
                text += &format!("slot {slot}: snapshots {}\n", snapshots.join(", "));
            }
            text
        }
        Said::Taken => format!("{holder}: of a host that has it attached, or had it last; --take reads it\n"),
        // What is wrong with a holder names it.
        Said::Unknown { reason } => format!("{reason}\n"),
    }
}

#[derive(Serialize, Debug)]
struct Verified {
    volume: String,
    in_sync: Vec<usize>,
    regions: u64,
    /// Of each slot, the regions that were read there as a whole.
    compared: Vec<u64>,
    differing: Vec<u64>,
    unreadable: Vec<(usize, u64)>,
    /// Slots whose label, record or log is damaged.
    damaged: Vec<usize>,
}

async fn verify(args: &VolumeVerifyArgs) -> Result<(), Failure> {
    let (found, volume) = named::holders(&args.of)?;
    let reaches = reach::named(&found.holders, &found.uids)?;
    if !args.take {
        reach::check_untaken(&reaches).await?;
    }
    let volume = ::volume::attach(reaches, Options { volume, ..Options::default() }).await.map_err(failure)?;
    let found = volume.verify(None).await;
    let in_sync: Set = volume.in_sync();
    volume.detach().await.map_err(failure)?;
    let found = found.map_err(Failure::unavailable)?;
    let verified = Verified {
        volume: name(volume.shape().volume),
        in_sync: in_sync.iter().collect(),
        regions: found.regions,
        compared: found.compared[..volume.shape().replicas.into()].to_vec(),
        differing: found.differing.clone(),
        unreadable: found.unreadable.clone(),
        damaged: found.damaged.clone(),
    };
    output::report(args.common.json, &verified, describe_verified)?;
    match found.is_clean() {
        true => Ok(()),
        false => {
            Err(Failure::check("replicas in sync differ, are damaged or can't be read: replace the medium that did it"))
        }
    }
}

fn describe_verified(verified: &Verified) -> String {
    let Verified { regions, compared, differing, unreadable, damaged, .. } = verified;
    let (differ, unread) = (differing.len(), unreadable.len());
    let regions = output::many(*regions, "region");
    let mut text = format!("{regions} compared, {differ} differ, {unread} unreadable\n");
    for (slot, compared) in compared.iter().enumerate() {
        text += &format!("slot {slot}: {} read as a whole\n", output::many(*compared, "region"));
    }
    for slot in damaged {
        text += &format!("slot {slot}: its label, record or log is damaged: replace the holder\n");
    }
    text
}

#[derive(Serialize, Debug)]
struct Replaced {
    volume: String,
    slot: u8,
    life: String,
}

async fn replace(args: &VolumeReplaceArgs) -> Result<(), Failure> {
    let like = reach::reach(&args.like, &args.host);
    let shape = ::volume::inspect(&*like, true).await.map_err(failure)?.label.shape;
    let with = reach::reach(&args.with, &args.host);
    let life = ::volume::format_replacement(with, shape, args.slot.into(), args.force).await.map_err(failure)?;
    let replaced = Replaced { volume: name(shape.volume), slot: args.slot, life: name(life) };
    output::report(args.common.json, &replaced, |replaced| {
        let next = "attach the volume with it in the slot, and it is filled";
        format!("slot {} of volume {}: a new holder; {next}\n", replaced.slot, replaced.volume)
    })
}

#[derive(Serialize, Debug)]
struct Recovered {
    volume: String,
    from: u8,
}

async fn recover(args: &VolumeRecoverArgs) -> Result<(), Failure> {
    let reaches = reach::reaches(&args.holders)?;
    let shape = ::volume::recover(reaches, args.from.into(), args.size.map(|size| size.0), args.force)
        .await
        .map_err(failure)?;
    let recovered = Recovered { volume: name(shape.volume), from: args.from };
    output::report(args.common.json, &recovered, |recovered| {
        let Recovered { volume, from } = recovered;
        format!("volume {volume}: a new one, of the copy in slot {from}; attach it, and the others are filled\n")
    })
}
