//! `yagura pool …`

use std::str::FromStr;

use kv::resp::execute::together;
use pool::{CreateOptions, Level, Map, NewMember};
use serde::Serialize;

use crate::cli::{PoolCreateArgs, PoolStatusArgs, PoolVerb, Spread};
use crate::client::{self, Connected, Found, Way};
use crate::exit::Failure;
use crate::size::Size;
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
            let (key, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is no key=value"))?;
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
                "drive" => member.domain.drive = value.into(),
                _ => return Err(format!("unknown key `{key}`{}", crate::config::nearest(key, &KEYS))),
            }
        }
        Ok(member)
    }
}

/// Runs a verb.
pub fn run(verb: &PoolVerb) -> Result<(), Failure> {
    match verb {
        PoolVerb::Create(args) => reactors::run_one(create(args)),
        PoolVerb::Status(args) => reactors::run_one(status(args)),
    }
}

#[derive(Serialize, Debug)]
struct PoolReport {
    pool: String,
    epoch: u64,
    replicas: u8,
    spread: String,
    page_size: u32,
    members: Vec<MemberReport>,
    /// What did not answer, or could not be used.
    troubles: Vec<String>,
}

#[derive(Serialize, Debug)]
struct MemberReport {
    nguid: String,
    address: String,
    nqn: String,
    nsid: u32,
    bytes: u64,
    weight: u32,
    zone: String,
    rack: String,
    machine: String,
    drive: String,
    connected: bool,
    /// Whether it counts in quorums.
    votes: bool,
}

impl MemberSpec {
    /// The namespaces meant, connected.
    async fn find(&self, way: &Way) -> Result<Vec<NewMember<Connected>>, Failure> {
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

async fn find_all(way: &Way, specs: &[MemberSpec]) -> Result<Vec<NewMember<Connected>>, Failure> {
    let found: Result<Vec<_>, _> = together(specs.iter().map(|spec| spec.find(way))).await.into_iter().collect();
    Ok(found?.into_iter().flatten().collect())
}

async fn create(args: &PoolCreateArgs) -> Result<(), Failure> {
    if args.members.is_empty() {
        return Err(Failure::usage("a pool needs members: give each by --member ADDR"));
    }
    let options = CreateOptions {
        replicas: args.replicas,
        page_size: u32::try_from(args.page_size.0).map_err(|_| Failure::usage("--page-size: at most 64 KiB"))?,
        table_share: args.table_share,
        spread: args.spread.map(|spread| match spread {
            Spread::Drive => Level::Drive,
            Spread::Machine => Level::Machine,
            Spread::Rack => Level::Rack,
            Spread::Zone => Level::Zone,
        }),
        force: args.force,
    };
    let members = find_all(&client::way(&args.host)?, &args.members).await?;
    let map = pool::create(&members, &options).await.map_err(client::pool_failure)?;
    let votes = |_| (true, true);
    output::report(args.common.json, &describe_map(&map, votes, Vec::new()), describe)
}

/// Makes a pool of all namespaces at `addresses`, if every one of them is blank; else changes nothing and says `false`.
pub async fn create_blank(addresses: &[String], replicas: u8, table_share: u32) -> Result<bool, Failure> {
    let spec = |address: &String| address.parse().map_err(Failure::usage);
    let specs: Vec<MemberSpec> = addresses.iter().map(spec).collect::<Result<_, _>>()?;
    let options = CreateOptions { replicas, table_share, ..CreateOptions::default() };
    match pool::create(&find_all(&Way::plain(), &specs).await?, &options).await {
        Ok(_) => Ok(true),
        Err(pool::Error::InUse { .. }) => Ok(false),
        Err(error) => Err(client::pool_failure(error)),
    }
}

async fn status(args: &PoolStatusArgs) -> Result<(), Failure> {
    let reached = client::reach(&client::way(&args.address.host)?, &args.address.pool).await?;
    let store = reached.store();
    // A member's vote is found out by its first answer.
    let waited = engine::time::timeout(crate::nvme::CONNECT_TIME, store.list(b"", 0, 1)).await;
    if !matches!(waited, Ok(Ok(_))) {
        tracing::warn!("no majority of the members answers");
    }
    let members = store.members();
    let state = |index: usize| (members[index].connected, members[index].votes);
    let mut report = describe_map(&reached.map, state, reached.troubles.clone());
    for (member, found) in report.members.iter_mut().zip(&reached.members) {
        member.address = found.address.clone();
    }
    output::report(args.common.json, &report, describe)?;
    match report.members.iter().all(|member| member.votes) {
        true => Ok(()),
        false => Err(Failure::check("not every member has a vote")),
    }
}

fn describe_map(map: &Map, state: impl Fn(usize) -> (bool, bool), troubles: Vec<String>) -> PoolReport {
    let member = |(index, member): (usize, &pool::Member)| {
        let (connected, votes) = state(index);
        let pool::Domain { zone, rack, machine, drive } = member.domain.clone();
        MemberReport {
            nguid: member.id.to_string(),
            address: member.addresses.first().cloned().unwrap_or_default(),
            nqn: member.nqn.clone(),
            nsid: member.nsid,
            bytes: member.size,
            weight: member.weight,
            zone,
            rack,
            machine,
            drive,
            connected,
            votes,
        }
    };
    PoolReport {
        pool: map.pool.to_string(),
        epoch: map.epoch,
        replicas: map.replicas,
        spread: map.spread.to_string(),
        page_size: map.page_size,
        members: map.members.iter().enumerate().map(member).collect(),
        troubles,
    }
}

fn describe(report: &PoolReport) -> String {
    let PoolReport { pool, epoch, replicas, spread, page_size, members, troubles } = report;
    let mut text =
        format!("pool {pool}, epoch {epoch}: {replicas} replicas on different {spread}s, pages of {page_size}\n");
    for member in members {
        let MemberReport { nguid, address, nqn, nsid, bytes, weight, .. } = member;
        let state = match (member.connected, member.votes) {
            (true, true) => "in use",
            (true, false) => "connected, without a vote",
            (false, _) => "not connected",
        };
        text += &format!(
            "member {nguid} at {address}: {state}; {}, weight {weight}, {nqn} namespace {nsid}\n",
            Size(*bytes)
        );
    }
    for trouble in troubles {
        text += &format!("  {trouble}\n");
    }
    text
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
