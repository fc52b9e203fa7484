//! `yagura pool …`

pub mod change;
mod status;

use std::collections::BTreeSet;

use ::client::members;
use pool::{CreateOptions, Level};
use serde::Serialize;

use crate::cli::{PoolCreateArgs, PoolVerb, Spread};
use crate::client::{self, Way};
use crate::exit::Failure;
use crate::member::{MemberSpec, find_all};
use crate::size::Size;
use crate::{output, reactors};

/// Bytes of the values of which `pool create` says how many fit.
const ROOM_SHOWN: [u64; 2] = [1 << 10, 100 << 10];

/// Runs a verb.
pub fn run(verb: &PoolVerb) -> Result<(), Failure> {
    match verb {
        PoolVerb::Create(args) => reactors::run_one(create(args)),
        PoolVerb::Status(args) => reactors::run_one(status::run(args)),
        PoolVerb::Add(args) => reactors::run_one(change::add(args)),
        PoolVerb::Remove(args) => reactors::run_one(change::remove(args)),
        PoolVerb::Replace(args) => reactors::run_one(change::replace(args)),
        PoolVerb::Drain(args) => reactors::run_one(change::drain(args)),
        PoolVerb::SetWeight(args) => reactors::run_one(change::set_weight(args)),
        PoolVerb::Rebalance(args) => reactors::run_one(change::rebalance(args)),
    }
}

async fn create(args: &PoolCreateArgs) -> Result<(), Failure> {
    if args.members.is_empty() {
        return Err(Failure::usage("a pool needs members: give each by --member ADDR"));
    }
    let page_size = u32::try_from(args.page_size.0).map_err(|_| Failure::usage("--page-size: at most 64 KiB"))?;
    let options = CreateOptions {
        replicas: args.replicas,
        page_size,
        table_share: args.values.map_or(args.table_share, |values| pool::table_share_for(values.0, page_size)),
        spread: args.spread.map(|spread| match spread {
            Spread::Drive => Level::Drive,
            Spread::Machine => Level::Machine,
            Spread::Rack => Level::Rack,
            Spread::Zone => Level::Zone,
        }),
        force: args.force,
    };
    let members = find_all(&client::way(&args.host)?, &args.members).await?;
    let bar = output::progress_share("empty the tables", args.common.json);
    let map = members::create(&members, &options, &|share| bar.show(share)).await;
    bar.finish_and_clear();
    let map = map.map_err(client::pool_failure)?;
    let lengths = ROOM_SHOWN.into_iter().chain(args.values.map(|values| values.0));
    let room = |value_bytes| Room { value_bytes, bytes: map.room_for(value_bytes) };
    let report = Created {
        pool: status::report(&map, |_| (true, true), Vec::new()),
        room: lengths.collect::<BTreeSet<u64>>().into_iter().map(room).collect(),
    };
    let is_told = args.values.is_some() || args.table_share != pool::TABLE_SHARE_DEFAULT;
    output::report(args.common.json, &report, |created| describe_created(created, is_told))
}

/// What was made.
#[derive(Serialize, Debug)]
struct Created {
    #[serde(flatten)]
    pool: status::PoolReport,
    room: Vec<Room>,
}

/// About how much fits.
#[derive(Serialize, Debug)]
struct Room {
    /// Bytes of each value.
    value_bytes: u64,
    /// Bytes of all values, until the first member is full.
    bytes: u64,
}

/// `is_told`: how the members are divided is what was asked for.
fn describe_created(created: &Created, is_told: bool) -> String {
    let room = created.room.iter().map(|room| format!("{} of {} each", Size(room.bytes), Size(room.value_bytes)));
    let room: Vec<String> = room.collect();
    let mut text = format!("{}room for values, about: {}\n", status::describe(&created.pool), room.join(", or "));
    if !is_told {
        text += "members stay divided so, half and half; --values SIZE divides them for values of one length\n";
    }
    text
}

/// Makes a pool of the first namespace at each of `addresses`, if every one of them is blank; else changes nothing and says
/// `false`. What else is served there has other uses.
pub async fn create_blank(addresses: &[String], replicas: u8, table_share: u32) -> Result<bool, Failure> {
    let spec = |address: &String| format!("{address},nsid=1").parse().map_err(Failure::usage);
    let specs: Vec<MemberSpec> = addresses.iter().map(spec).collect::<Result<_, _>>()?;
    let options = CreateOptions { replicas, table_share, ..CreateOptions::default() };
    match members::create(&find_all(&Way::plain(), &specs).await?, &options, &|_share| ()).await {
        Ok(_) => Ok(true),
        Err(pool::Error::InUse { .. }) => Ok(false),
        Err(error) => Err(client::pool_failure(error)),
    }
}
