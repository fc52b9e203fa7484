//! `yagura pool …`

pub mod change;
mod status;

use std::collections::BTreeSet;
use std::str::FromStr;

use ::client::members::{self, NewMember};
use kv::resp::execute::together;
use pool::{CreateOptions, Level};
use serde::Serialize;

use crate::cli::{PoolCreateArgs, PoolVerb, Spread};
use crate::client::{self, Found, Way};
use crate::exit::Failure;
use crate::size::Size;
use crate::spec::pair;
use crate::{output, reactors};

/// A member as the command line says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberSpec {
    /// Where it is.
    pub address: String,
    /// Its subsystem; none: what is discovered there.
    pub nqn: Option<String>,
    /// Its namespace; none: all of the subsystem.
    pub nsid: Option<u32>,
    /// Its share; none: by size.
    pub weight: Option<u32>,
    /// What it fails together with.
    pub domain: pool::Domain,
}

/// Bytes of the values of which `pool create` says how many fit.
const ROOM_SHOWN: [u64; 2] = [1 << 10, 100 << 10];
const KEYS: [&str; 7] = ["nqn", "nsid", "weight", "zone", "rack", "machine", "drive"];

impl FromStr for MemberSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<MemberSpec, String> {
        let mut parts = text.split(',');
        let address = parts.next().unwrap_or_default().to_string();
        if address.is_empty() || address.contains('=') {
            return Err(format!("`{text}` does not begin with an address, as in 127.0.0.1:4420,rack=a"));
        }
        let mut member = MemberSpec { address, nqn: None, nsid: None, weight: None, domain: pool::Domain::default() };
        for part in parts {
            let (key, value) = pair(part, &KEYS)?;
            let number = || {
                let number = value.parse::<u32>().ok().filter(|number| *number > 0);
                number.ok_or_else(|| format!("{key} `{value}`: must be a number from 1 on"))
            };
            match key {
                "nqn" => member.nqn = Some(value.into()),
                "nsid" => member.nsid = Some(number()?),
                "weight" => member.weight = Some(number()?),
                "zone" => member.domain.zone = value.into(),
                "rack" => member.domain.rack = value.into(),
                "machine" => member.domain.machine = value.into(),
                _ => member.domain.drive = value.into(),
            }
        }
        Ok(member)
    }
}

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

impl MemberSpec {
    /// The namespaces meant, connected.
    async fn find(&self, way: &Way) -> Result<Vec<NewMember>, Failure> {
        let nqn = self.nqn.as_ref().map(|nqn| nqn.parse()).transpose();
        let nqn = nqn.map_err(|error| Failure::usage(format!("member {}: {error}", self.address)))?;
        let found = client::find(way, &self.address, nqn, self.nsid).await?;
        if found.is_empty() {
            return Err(Failure::unavailable(format!("{}: the target there has no namespace", self.address)));
        }
        let member = |found: Found| NewMember {
            namespace: found.namespace,
            nqn: found.nqn.to_string(),
            nsid: found.nsid,
            addresses: vec![found.address],
            weight: self.weight,
            domain: self.domain.clone(),
        };
        Ok(found.into_iter().map(member).collect())
    }
}

async fn find_all(way: &Way, specs: &[MemberSpec]) -> Result<Vec<NewMember>, Failure> {
    let found: Result<Vec<_>, _> = together(specs.iter().map(|spec| spec.find(way))).await.into_iter().collect();
    Ok(found?.into_iter().flatten().collect())
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
    output::report(args.common.json, &report, describe_created)
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

fn describe_created(created: &Created) -> String {
    let room = created.room.iter().map(|room| format!("{} of {} each", Size(room.bytes), Size(room.value_bytes)));
    let room: Vec<String> = room.collect();
    format!("{}room for values, about: {}\n", status::describe(&created.pool), room.join(", or "))
}

/// Makes a pool of all namespaces at `addresses`, if every one of them is blank; else changes nothing and says `false`.
pub async fn create_blank(addresses: &[String], replicas: u8, table_share: u32) -> Result<bool, Failure> {
    let spec = |address: &String| address.parse().map_err(Failure::usage);
    let specs: Vec<MemberSpec> = addresses.iter().map(spec).collect::<Result<_, _>>()?;
    let options = CreateOptions { replicas, table_share, ..CreateOptions::default() };
    match members::create(&find_all(&Way::plain(), &specs).await?, &options, &|_share| ()).await {
        Ok(_) => Ok(true),
        Err(pool::Error::InUse { .. }) => Ok(false),
        Err(error) => Err(client::pool_failure(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        let member: MemberSpec = "h:1,rack=r1,nsid=2,weight=50".parse().expect("right");
        assert_eq!((member.address.as_str(), member.nsid, member.weight), ("h:1", Some(2), Some(50)));
        assert_eq!(member.domain.rack, "r1");
        let error = |text: &str| text.parse::<MemberSpec>().expect_err("refused");
        assert!(error("rack=a").contains("does not begin with an address"));
        assert!(error("h:1,rak=a").contains("did you mean `rack`?"));
        assert!(error("h:1,nsid=0").contains("must be a number from 1 on"));
    }
}
