//! `yagura nvme …`: any NVMe/TCP target, block by block.

use std::fs::File;
use std::net::SocketAddr;
use std::time::Duration;

pub use client::reach::CONNECT_TIME;
use device::{Durability, Lba, Namespace, NamespaceInfo};
use engine::Buf;
use engine::rng::SplitMix;
use fabric::host::{Multipath, MultipathError, MultipathOptions, Options, RemoteNamespace};
use nvme::Nqn;
use nvme::fabrics::{SubsystemType, TransportType};
use serde::Serialize;

use self::files::{Sink, Source};
use crate::cli::{NvmeHost, NvmeNamespace, NvmePaths, NvmeReadArgs, NvmeVerb, NvmeWriteArgs};
use crate::exit::Failure;
use crate::size::Size;
use crate::{output, reactors};

mod discovery;
pub mod files;
pub mod keys;
mod reservations;
mod show;
mod trial;

/// Bytes of one command. Chosen: what targets commonly take; the host splits what is too long.
const CHUNK_BYTES: usize = 128 << 10;

/// Runs a verb.
pub fn run(verb: &NvmeVerb) -> Result<(), Failure> {
    match verb {
        NvmeVerb::Discover(args) => reactors::run_one(discovery::run(args)),
        NvmeVerb::Identify(args) => reactors::run_one(show::controller(args)),
        NvmeVerb::IdNs(args) => reactors::run_one(show::namespace(args)),
        NvmeVerb::ConnectTest(args) => reactors::run_one(trial::run(args)),
        NvmeVerb::Read(args) => reactors::run_one(read(args)),
        NvmeVerb::Write(args) => reactors::run_one(write(args)),
        NvmeVerb::Reservations(args) => reactors::run_one(reservations::run(args)),
        NvmeVerb::GenDhchapKey(args) => keys::generate_dhchap(args),
        NvmeVerb::GenTlsKey(args) => keys::generate_tls(args),
        NvmeVerb::CheckTlsKey(args) => keys::check_tls(args),
    }
}

/// The only subsystem that is discovered at `address`.
async fn only_subsystem(address: SocketAddr, host: &NvmeHost) -> Result<Nqn, Failure> {
    let found = discovery::ask(discovery::options(address, host)?).await?;
    // A discovery service, here or elsewhere, is no subsystem to choose, whatever its name.
    let found =
        found.into_iter().filter(|entry| (entry.kind, entry.transport) == (SubsystemType::NVM, TransportType::TCP));
    let mut names: Vec<_> = found.map(|entry| entry.subsystem).collect();
    names.sort();
    names.dedup();
    match <[_; 1]>::try_from(names) {
        Ok([one]) => Ok(one),
        Err(names) => {
            let names: Vec<_> = names.iter().map(ToString::to_string).collect();
            let sentence =
                format!("{} subsystems are discovered at {address} ({}): choose one", names.len(), names.join(", "));
            Err(Failure::usage(format!("{sentence} with --nqn")))
        }
    }
}

/// How to reach a namespace.
pub async fn options(namespace: &NvmeNamespace) -> Result<Options, Failure> {
    let nqn = match &namespace.nqn {
        Some(nqn) => Nqn::foreign(nqn).map_err(|error| Failure::usage(format!("--nqn: {error}")))?,
        None => only_subsystem(namespace.address, &namespace.host).await?,
    };
    let mut options = Options::new(namespace.address, nqn, namespace.nsid);
    options.header_digest = namespace.header_digest;
    options.data_digest = namespace.data_digest;
    options.keep_alive = namespace.keep_alive.map_or(options.keep_alive, Duration::from_secs);
    if let Some(timeout) = namespace.timeout.map(Duration::from_secs) {
        (options.connect_timeout, options.command_timeout) = (timeout, timeout);
    }
    keys::apply(&namespace.host, &mut options)?;
    Ok(options)
}

/// Over the one path.
async fn connect(namespace: &NvmeNamespace) -> Result<RemoteNamespace, Failure> {
    RemoteNamespace::connect(options(namespace).await?).await.map_err(Failure::unavailable)
}

/// Over all paths given: commands wait for one that works, until their deadline, also where there is only one.
async fn connect_paths(namespace: &NvmeNamespace, paths: &NvmePaths) -> Result<Multipath, Failure> {
    let mut options = MultipathOptions::new(options(namespace).await?, &paths.path);
    options.deadline = Duration::from_secs(paths.deadline);
    for path in &mut options.paths {
        path.keep_alive = namespace.keep_alive.map_or(path.keep_alive, Duration::from_secs);
    }
    Multipath::connect(options).await.map_err(|error| match error {
        MultipathError::NoPath(_) => Failure::unavailable(error),
        _ => Failure::usage(error),
    })
}

#[derive(Serialize)]
struct Transferred {
    lba: u64,
    bytes: u64,
    seconds: f64,
}

impl Transferred {
    fn describe(&self, what: &str) -> String {
        format!("{what} {} from block {} on in {:.3} s", Size(self.bytes), self.lba, self.seconds)
    }
}

/// Bytes per command: whole blocks, at least one.
fn chunk_bytes(info: &NamespaceInfo) -> usize {
    let block = info.block_size as usize;
    (CHUNK_BYTES / block).clamp(1, (info.transfer_blocks_max as usize).max(1)) * block
}

async fn read(args: &NvmeReadArgs) -> Result<(), Failure> {
    let paths = connect_paths(&args.namespace, &args.paths).await?;
    let transferred = read_from(&paths, args).await?;
    paths.disconnect().await;
    if args.file.is_none() && args.verify_pattern.is_none() {
        return Ok(()); // standard output holds the bytes
    }
    let what = if args.verify_pattern.is_some() { "verified" } else { "read" };
    output::report(args.common.json, &transferred, |transferred| transferred.describe(what))
}

async fn read_from(remote: &impl Namespace, args: &NvmeReadArgs) -> Result<Transferred, Failure> {
    let info = remote.info();
    let length = args.length.map_or(u64::from(info.block_size), |size| size.0);
    let mut sink = match (&args.file, args.verify_pattern) {
        (_, Some(_)) => None,
        (Some(path), None) => {
            let path = path.clone();
            Some(Sink::open(move || File::create(&path).map_err(|error| named(&path, error))).await?)
        }
        (None, None) => Some(Sink::open(|| Ok(std::io::stdout())).await?),
    };
    let started = engine::time::now();
    let (mut done, mut expected) = (0, Vec::new());
    while done < length {
        let now = (length - done).min(chunk_bytes(&info) as u64);
        let whole = now.next_multiple_of(u64::from(info.block_size));
        let lba = args.lba.saturating_add(done / u64::from(info.block_size)); // beyond every end: refused as out of range
        let (result, buf) = remote.read(Lba(lba), Buf::with_len(whole as usize)).await;
        result.map_err(device_failure)?;
        let bytes = &buf[..now as usize];
        if let Some(seed) = args.verify_pattern {
            pattern(seed, lba.wrapping_mul(info.block_size.into()), now as usize, &mut expected);
            if bytes != expected {
                let at = bytes.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                let place = lba.wrapping_mul(info.block_size.into()) + at as u64;
                return Err(Failure::check(format!("byte {place} of the namespace is not that of pattern {seed}")));
            }
        }
        if let Some(sink) = &mut sink {
            sink.write(bytes.to_vec()).await?;
        }
        done += now;
    }
    Ok(Transferred { lba: args.lba, bytes: done, seconds: started.elapsed().as_secs_f64() })
}

async fn write(args: &NvmeWriteArgs) -> Result<(), Failure> {
    let paths = connect_paths(&args.namespace, &args.paths).await?;
    let transferred = write_to(&paths, args).await?;
    paths.disconnect().await;
    output::report(args.common.json, &transferred, |transferred| transferred.describe("wrote"))
}

async fn write_to(remote: &impl Namespace, args: &NvmeWriteArgs) -> Result<Transferred, Failure> {
    let info = remote.info();
    let durability = if args.fua { Durability::Stable } else { Durability::Cached };
    let mut source = match (&args.file, args.pattern) {
        (Some(path), _) => {
            let path = path.clone();
            Some(Source::open(move || File::open(&path).map_err(|error| named(&path, error))).await?)
        }
        (None, None) => Some(Source::open(|| Ok(std::io::stdin())).await?),
        (None, Some(_)) => None,
    };
    let length = args.length.map_or(u64::MAX, |size| size.0);
    let started = engine::time::now();
    let (mut done, mut bytes) = (0, Vec::new());
    while done < length {
        let now = (length - done).min(chunk_bytes(&info) as u64) as usize;
        let lba = args.lba.saturating_add(done / u64::from(info.block_size)); // beyond every end: refused as out of range
        match (&mut source, args.pattern) {
            (Some(source), _) => bytes = source.read(now).await?,
            (None, seed) => {
                pattern(seed.unwrap_or_default(), lba.wrapping_mul(info.block_size.into()), now, &mut bytes)
            }
        }
        if bytes.is_empty() {
            break;
        }
        done += bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(info.block_size as usize), 0);
        let data = Buf::copy_from(&bytes).freeze();
        remote.write(Lba(lba), data, durability).await.map_err(device_failure)?;
    }
    remote.flush().await.map_err(device_failure)?;
    Ok(Transferred { lba: args.lba, bytes: done, seconds: started.elapsed().as_secs_f64() })
}

fn named(path: &std::path::Path, error: std::io::Error) -> Failure {
    Failure::usage(format!("{}: {error}", path.display()))
}

/// A namespace's error as an exit status.
pub fn device_failure(error: device::Error) -> Failure {
    client::Error::from(error).into()
}

/// The pattern of `seed` at byte `place` of a namespace: each 8 bytes are a hash of seed and place, so that neither a block that
/// was written elsewhere nor one of another run passes.
fn pattern(seed: u64, place: u64, length: usize, out: &mut Vec<u8>) {
    out.resize(length.next_multiple_of(8), 0);
    for (bytes, word) in out.chunks_exact_mut(8).zip(place / 8..) {
        let hash = SplitMix(seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).draw();
        bytes.copy_from_slice(&hash.to_le_bytes());
    }
    out.truncate(length);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_depends_on_seed_and_place_and_not_on_the_cut() {
        let bytes = |seed, place, length| {
            let mut out = Vec::new();
            pattern(seed, place, length, &mut out);
            out
        };
        let whole = bytes(1, 0, 8192);
        assert_eq!([bytes(1, 0, 4096), bytes(1, 4096, 4096)].concat(), whole);
        assert_eq!(bytes(1, 0, 13), whole[..13]);
        assert!(whole[..4096] != whole[4096..] && bytes(2, 0, 8192) != whole);
    }
}
