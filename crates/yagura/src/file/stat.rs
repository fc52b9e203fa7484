//! `yagura file stat` and `df`.

use ::file::record::Kind;
use ::file::record::root::MemberState;
use ::file::{Attributes, ContentKind, Footprint};
use engine::Buf;
use serde::Serialize;

use super::fault::{failure, path_failure};
use super::place;
use super::place::{Inside, shown};
use super::quota;
use super::session::Session;
use super::streams::Out;
use super::told::{Told, kind_name, mode_text, time_text};
use crate::cli::{FileDfArgs, FileStatArgs};
use crate::exit::Failure;
use crate::output;
use crate::size::Size;

#[derive(Serialize)]
struct Status {
    #[serde(flatten)]
    told: Told,
    /// Names of extended attributes.
    attributes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Content>,
}

/// Where a file's bytes are.
#[derive(Serialize)]
struct Content {
    kind: &'static str,
    /// Bytes that are no holes.
    data: u64,
    /// Bytes on members, parity too, or in the inode.
    stored: u64,
    stripes: u64,
    /// Of these, those with a column that is missing.
    stripes_short: u64,
}

fn content(footprint: &Footprint) -> Content {
    let kind = match footprint.kind {
        ContentKind::Inline => "inline",
        ContentKind::Map => "map",
        ContentKind::Spans => "spans",
    };
    let Footprint { data, stored, stripes, short, .. } = *footprint;
    Content { kind, data, stored, stripes, stripes_short: short }
}

/// Shows all that is known of files.
pub async fn stat(session: &Session, args: &FileStatArgs) -> Result<(), Failure> {
    let paths = Inside::parse_all(&args.paths)?;
    let mut out = Out::new()?;
    let done = session.each(&paths, async |path| {
        let text = one(session, path, args.common.json).await?;
        out.write(Buf::copy_from(text.as_bytes()).freeze()).await.map(drop)
    });
    let done = done.await;
    out.finish().await.and(done)
}

async fn one(session: &Session, path: &Inside, json: bool) -> Result<String, Failure> {
    let files = session.files(path).await?;
    let failed = |error| path_failure(path, error);
    let told = files.resolve(&path.path, false).await.map_err(failed)?;
    let target = match told.kind {
        Kind::Symlink => Some(files.names().readlink(told.ino).await.map_err(failed)?),
        _ => None,
    };
    let content = match told.kind {
        Kind::File => {
            let file = files.open_file(told.ino).await.map_err(failed)?;
            let footprint = file.footprint().await;
            files.close_file(&file).await.map_err(failed)?;
            Some(content(&footprint.map_err(failed)?))
        }
        _ => None,
    };
    let attributes = files.names().list_xattrs(told.ino).await.map_err(failed)?;
    let attributes: Vec<String> = attributes.iter().map(|name| shown(name)).collect();
    let given = [path.name.as_bytes(), b":", &path.path].concat();
    let status = Status { told: Told::of(&given, &told, target.as_deref()), attributes, content };
    if json {
        return Ok(serde_json::to_string(&status).map_err(Failure::usage)? + "\n");
    }
    Ok(describe(path, &told, &status))
}

fn describe(path: &Inside, told: &Attributes, status: &Status) -> String {
    let Attributes { ino, kind, mode, uid, gid, links, size, .. } = *told;
    let mut text = format!("{path}: {}", kind_name(kind));
    if let Some(target) = &status.told.target {
        text += &format!(" to {}", place::shown(target.as_bytes()));
    }
    text += &format!("\n  size {} ({size} bytes), inode {ino}, {}\n", Size(size), output::many(links.into(), "name"));
    text += &format!("  permissions {} ({mode:04o}), owner {uid}, group {gid}\n", mode_text(kind, mode));
    let times = [
        ("accessed", told.accessed),
        ("modified", told.modified),
        ("changed", told.changed),
        ("created", told.created),
    ];
    for (what, time) in times {
        text += &format!("  {what:<8} {}.{:09} UTC\n", time_text(time), time.nanos);
    }
    if !status.attributes.is_empty() {
        text += &format!("  attributes {}\n", status.attributes.join(", "));
    }
    match &status.content {
        Some(Content { kind: "inline", data, .. }) => text += &format!("  {} in the inode\n", Size(*data)),
        Some(Content { kind, data, stored, stripes, stripes_short }) => {
            let map = if *kind == "map" { "its map in the inode" } else { "its map in records of its own" };
            text +=
                &format!("  {} in {}, {map}; {} stored", Size(*data), output::many(*stripes, "stripe"), Size(*stored));
            if *stripes_short > 0 {
                text += &format!("; {} with a column missing", output::many(*stripes_short, "stripe"));
            }
            text.push('\n');
        }
        None => {}
    }
    text
}

#[derive(Serialize)]
struct Room {
    name: String,
    data: u8,
    parity: u8,
    /// Bytes of files that fit in all, and that fit besides what is there, about.
    bytes: u64,
    free: u64,
    members: Vec<MemberRoom>,
    quotas: Vec<quota::Told>,
}

#[derive(Serialize)]
struct MemberRoom {
    member: usize,
    place: String,
    domain: String,
    state: &'static str,
    is_reached: bool,
    /// Bytes of whole regions, and those of them that are free, about.
    bytes: u64,
    free: u64,
}

/// Shows how much room there is.
pub async fn df(session: &Session, args: &FileDfArgs) -> Result<(), Failure> {
    let files = session.files_of(args.name.trim_end_matches(':')).await?;
    let (bytes, free) = files.usage().await.map_err(failure)?;
    let rooms = files.room().await.map_err(failure)?;
    let root = files.roster().root();
    let members = files.members().all();
    let of_member = |(index, (bytes, free)): (usize, (u64, u64))| {
        let record = root.members.get(index).filter(|record| record.state != MemberState::Removed)?;
        let state = record.state.word();
        let is_reached = members.get(index).is_some_and(|member| member.is_reachable());
        let (place, domain) = (record.place.clone(), record.domain.clone());
        Some(MemberRoom { member: index, place, domain, state, is_reached, bytes, free })
    };
    let members = rooms.into_iter().enumerate().filter_map(of_member).collect();
    let name = args.name.trim_end_matches(':').to_owned();
    let quotas = quota::all(&files, &name).await?;
    let room = Room { name, data: root.data, parity: root.parity, bytes, free, members, quotas };
    output::report(args.common.json, &room, |room| {
        let mut text = format!(
            "file system {}, {} + {} columns: room for {}, {} of that free\n{:>6} {:>10} {:>10} {:>5}  {}\n",
            room.name,
            room.data,
            room.parity,
            Size(room.bytes),
            Size(room.free),
            "member",
            "size",
            "free",
            "used",
            "state, domain and address"
        );
        for MemberRoom { member, place, domain, state, is_reached, bytes, free } in &room.members {
            let used = (bytes - free.min(bytes)) * 100 / (*bytes).max(1);
            let address = place.split(',').next().unwrap_or(place);
            let state = if *is_reached { *state } else { "not reached" };
            let (bytes, free) = (Size(*bytes).to_string(), Size(*free).to_string());
            text += &format!("{member:>6} {bytes:>10} {free:>10} {used:>3} %  {state}, {domain} ({address})\n");
        }
        text + &quota::lines(&room.quotas)
    })
}
