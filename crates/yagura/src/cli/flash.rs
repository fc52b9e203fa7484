//! Flags of `yagura flash`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flash::presets::Preset;

use super::Common;
use crate::size::Size;

/// `yagura flash …`
#[derive(Subcommand, Debug)]
pub enum FlashVerb {
    /// Make a file with a model of a flash device in it, or lay out a zoned block device: empty and ready to be served.
    Format(FlashFormatArgs),
    /// Show what the device is, how much of it is used, and what was written.
    Info(FlashFileArgs),
    /// Hold the map against what is on flash.
    Check(FlashFileArgs),
    /// Draw parallel units and chunks by state, and by how much of each is valid.
    Map(FlashPictureArgs),
    /// Draw parallel units and chunks by wear.
    Wear(FlashPictureArgs),
    /// Show the table of bad chunks, or put chunks into it.
    #[command(subcommand)]
    Bbt(FlashBadVerb),
    /// Replay a block trace on a model in memory, in its own time: latencies, write amplification, wear.
    Replay(FlashReplayArgs),
}

/// A flash device that nobody else has open.
#[derive(Args, Debug)]
pub struct FlashFileArgs {
    #[command(flatten)]
    pub common: Common,
    /// The file that the model is in, or a zoned block device.
    pub path: PathBuf,
}

/// `yagura flash map` and `yagura flash wear`
#[derive(Args, Debug)]
pub struct FlashPictureArgs {
    #[command(flatten)]
    pub flash: FlashFileArgs,
    /// Write the picture to this file too, as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// `yagura flash format`
#[derive(Args, Debug)]
pub struct FlashFormatArgs {
    #[command(flatten)]
    pub flash: FlashFileArgs,
    /// Of which device the model is: small (8 MiB on four parallel units), tlc (64 GiB on 32), olive (2 GiB on four) or zoned
    /// (768 MiB on eight, in chunks that take single sectors).
    #[arg(long, value_name = "NAME", value_parser = parse_preset)]
    pub preset: Option<Preset>,
    /// Of the room for data, what is kept for collection and for chunks that go bad, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=90))]
    pub spare: u32,
    /// Put no log on it: its chunks are zones, which `yagura target --namespace zones=FILE` serves to hosts that manage them.
    #[arg(long, conflicts_with = "spare")]
    pub zones: bool,
    /// Flash in all, rounded up to whole chunks of each parallel unit; default: the preset's.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Format a zoned block device on which something is written: it is lost.
    #[arg(long)]
    pub force: bool,
}

/// `yagura flash bbt …`
#[derive(Subcommand, Debug)]
pub enum FlashBadVerb {
    /// Show the chunks that are bad.
    Get(FlashBadGetArgs),
    /// Declare chunks bad: they are never used again.
    Set(FlashBadSetArgs),
}

/// `yagura flash bbt get`
#[derive(Args, Debug)]
pub struct FlashBadGetArgs {
    #[command(flatten)]
    pub flash: FlashFileArgs,
}

/// `yagura flash bbt set`
#[derive(Args, Debug)]
pub struct FlashBadSetArgs {
    #[command(flatten)]
    pub flash: FlashFileArgs,
    /// Chunks, each by its parallel unit and its number there.
    #[arg(value_name = "UNIT:CHUNK", required = true)]
    pub chunks: Vec<String>,
    /// Lose what is in use in them.
    #[arg(long)]
    pub force: bool,
}

/// `yagura flash replay`
#[derive(Args, Debug)]
pub struct FlashReplayArgs {
    #[command(flatten)]
    pub common: Common,
    /// The trace: the text of `blkparse`, or a log of fio (`write_iolog`) in version 2 or 3.
    pub trace: PathBuf,
    /// Which device: small, tlc, olive or zoned, as for `yagura flash format`.
    #[arg(long, value_name = "NAME", value_parser = parse_preset)]
    pub preset: Preset,
    /// Of the room for data, what is kept for collection and for chunks that go bad, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=90))]
    pub spare: u32,
    /// Flash in all, rounded up to whole chunks of each parallel unit; default: the preset's.
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Write every sector once before the trace, so that the device collects from the begin.
    #[arg(long)]
    pub fill: bool,
    /// What happens by chance follows from it: which chunks are bad from the factory.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

fn parse_preset(text: &str) -> Result<Preset, String> {
    let names = Preset::ALL.map(Preset::name);
    Preset::named(text).ok_or_else(|| format!("there is no preset `{text}`{}", crate::config::nearest(text, &names)))
}
