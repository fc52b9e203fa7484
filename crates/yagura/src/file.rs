//! `yagura file …`

mod caller;
mod cat;
mod copy;
mod fault;
mod fsck;
mod layout;
mod list;
mod members;
mod mount;
mod names;
mod paths;
mod place;
mod quota;
mod reach;
mod rebuild;
mod scrub;
mod session;
mod stat;
mod streams;
mod told;
mod uses;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::rc::Rc;

use ::client::members::NewMember;
use ::file::data::{LabelError, Layout, REGION_BYTES_MAX, REGION_BYTES_MIN};
use ::file::meta::{Meta, StoreMeta};
use ::file::record::root::{MemberRecord, MemberState, RootRecord};
use ::file::{CreateOptions, FileSystem, layout_of};
use device::Namespace;
use serde::Serialize;

pub use fault::failure;

use crate::cli::{FileCreateArgs, FileVerb};
use crate::exit::Failure;
use crate::size::Size;
use crate::{client, member, output, reactors};

/// Regions of the smallest member, at least. Chosen: every client that writes holds some.
const REGIONS_WANTED: u64 = 256;
/// What a region may have of bytes.
const REGIONS: RangeInclusive<u64> = REGION_BYTES_MIN as u64..=REGION_BYTES_MAX as u64;
/// Permissions of a new file system's root.
const ROOT_MODE: u16 = 0o755;

/// Runs a verb.
pub fn run(verb: &FileVerb) -> Result<(), Failure> {
    match verb {
        FileVerb::Create(args) => reactors::run_one(create(args)),
        FileVerb::Mount(args) => mount::run(args),
        FileVerb::Scrub(args) => scrub::run(args),
        FileVerb::Rebuild(args) => rebuild::run(args),
        FileVerb::Member(verb) => members::run(verb),
        FileVerb::Fsck(args) => fsck::run(args),
        FileVerb::Use(verb) => uses::run(verb),
    }
}

#[derive(Serialize)]
struct Created {
    name: String,
    data: u8,
    parity: u8,
    members: usize,
    domains: usize,
    region_bytes: u64,
    bytes: u64,
}

async fn create(args: &FileCreateArgs) -> Result<(), Failure> {
    let way = client::way(&args.address.host)?;
    let store = client::open(&args.address).await?;
    let meta: Rc<dyn Meta> = Rc::new(StoreMeta::new(Rc::new(store.clone())));
    let found = member::find_all(&way, &args.members).await?;
    let options = options((args.data, args.parity), args.region, &found)?;
    make(meta, &args.name, &options, &found, args.force).await?;
    crate::kv::settle(&store).await;
    let bytes: u64 = options.members.iter().map(|member| member.bytes).sum();
    let created = Created {
        name: args.name.clone(),
        data: args.data,
        parity: args.parity,
        members: options.members.len(),
        domains: domains(&found).len(),
        region_bytes: options.region_bytes,
        bytes: bytes / columns((args.data, args.parity)) as u64 * u64::from(args.data),
    };
    let pool_flag = match args.address.pool.as_slice() {
        [] => String::new(),
        addresses => format!("--pool={}", addresses.join(",")),
    };
    output::report(args.common.json, &created, |created| {
        format!(
            "file system {}: {} + {} columns over {} in {}, room for {}; mount it by\n  yagura file mount {} DIRECTORY {}",
            created.name,
            created.data,
            created.parity,
            output::many(created.members as u64, "member"),
            output::many(created.domains as u64, "failure domain"),
            Size(created.bytes),
            created.name,
            pool_flag,
        )
    })
}

/// Makes a file system over these namespaces: its root record.
pub async fn make(
    meta: Rc<dyn Meta>,
    name: &str,
    options: &CreateOptions,
    found: &[NewMember],
    force: bool,
) -> Result<RootRecord, Failure> {
    FileSystem::check_free(&meta, name).await.map_err(failure)?;
    let root = FileSystem::draw_root(options);
    // Labels come first: a file system that can be found has all its members.
    format(force, &layout_of(&root).map_err(failure)?, found).await?;
    FileSystem::create_with(meta, name, options, root.clone()).await.map_err(failure)?;
    Ok(root)
}

fn columns((data, parity): (u8, u8)) -> usize {
    usize::from(data) + usize::from(parity)
}

fn domains(found: &[NewMember]) -> BTreeSet<String> {
    found.iter().map(reach::domain_of).collect()
}

/// What the file system is to be, of columns of data and of parity, where that can be.
pub fn options((data, parity): (u8, u8), region: Option<Size>, found: &[NewMember]) -> Result<CreateOptions, Failure> {
    let (columns, domains) = (columns((data, parity)), domains(found).len());
    if domains < columns {
        return Err(Failure::usage(format!(
            "{data} columns of data and {parity} of parity need {columns} failure domains, and these members are in {domains}: give \
             more members, or say which are apart by `machine=NAME` behind their addresses",
        )));
    }
    // Some targets name nothing.
    let same = |a: &NewMember, b: &NewMember| {
        let [a, b] = [a, b].map(|found| found.namespace.info().nguid);
        a == b && a != [0; 16]
    };
    if let Some(again) = (1..found.len()).find(|&at| found[..at].iter().any(|other| same(other, &found[at]))) {
        return Err(Failure::usage(format!("{}: this namespace is given twice", reach::place_of(&found[again]))));
    }
    let member = |found: &NewMember| MemberRecord {
        place: reach::place_of(found),
        bytes: found.namespace.info().bytes(),
        state: MemberState::Active,
        domain: reach::domain_of(found),
    };
    let members: Vec<MemberRecord> = found.iter().map(member).collect();
    let smallest = members.iter().map(|member| member.bytes).min().unwrap_or(0);
    let region_bytes = match region {
        Some(Size(bytes)) if !bytes.is_power_of_two() || !REGIONS.contains(&bytes) => {
            let (least, most) = (Size(*REGIONS.start()), Size(*REGIONS.end()));
            return Err(Failure::usage(format!("--region is a power of two from {least} to {most}")));
        }
        Some(Size(bytes)) => bytes,
        None => (smallest / REGIONS_WANTED).next_power_of_two().clamp(*REGIONS.start(), *REGIONS.end()),
    };
    Ok(CreateOptions {
        data,
        parity,
        region_bytes,
        members,
        mode: ROOT_MODE,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    })
}

async fn format(force: bool, layout: &Layout, found: &[NewMember]) -> Result<(), Failure> {
    for (index, found) in found.iter().enumerate() {
        let label = layout.label(index as u16, found.namespace.info().bytes());
        label.format(&*reach::erased(&found.namespace), force).await.map_err(|error| {
            let place = reach::place_of(found);
            Failure::refused(match error {
                LabelError::NotBlank(_) => format!("{place}: it is not blank; --force destroys what it holds"),
                error => format!("{place}: {error}"),
            })
        })?;
    }
    Ok(())
}
