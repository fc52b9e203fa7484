//! A namespace that is given by its address on the command line: of a pool, or of a file system.

use std::str::FromStr;

use ::client::members::NewMember;
use kv::resp::execute::together;

use crate::client::{self, Found, Way};
use crate::exit::Failure;
use crate::spec::pair;

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

/// What may stand behind an address.
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

impl MemberSpec {
    /// The namespaces meant, connected.
    pub async fn find(&self, way: &Way) -> Result<Vec<NewMember>, Failure> {
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

/// The namespaces that these words mean.
pub async fn find_all(way: &Way, specs: &[MemberSpec]) -> Result<Vec<NewMember>, Failure> {
    let found: Result<Vec<_>, _> = together(specs.iter().map(|spec| spec.find(way))).await.into_iter().collect();
    Ok(found?.into_iter().flatten().collect())
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
