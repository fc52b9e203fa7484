//! A holder of a volume as flags say it.

use std::net::SocketAddr;
use std::str::FromStr;

use crate::spec::{once, pair};

const KEYS: [&str; 2] = ["nqn", "nsid"];

/// A holder as the command line says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderSpec {
    /// Where its target listens: an address, or, as a control plane says it, a name, which is looked up when the holder is reached.
    /// One that nobody knows is a holder that is away.
    pub address: String,
    /// Its subsystem; none: the only one that is discovered there.
    pub nqn: Option<String>,
    /// Its namespace there.
    pub nsid: u32,
}

impl FromStr for HolderSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<HolderSpec, String> {
        let mut parts = text.split(',');
        let address = parts.next().unwrap_or_default();
        let wrong = |_| format!("`{text}` does not begin with an address and a port, as in 10.0.0.1:4420,nsid=2");
        let address: SocketAddr = address.parse().map_err(wrong)?;
        let (mut nqn, mut nsid) = (None, None);
        for part in parts {
            match pair(part, &KEYS)? {
                (key @ "nqn", value) => once(&mut nqn, key, value.to_owned())?,
                (key, value) => {
                    let number = value.parse::<u32>().ok().filter(|number| *number > 0);
                    once(&mut nsid, key, number.ok_or_else(|| format!("nsid `{value}`: must be a number from 1 on"))?)?;
                }
            }
        }
        Ok(HolderSpec { address: address.to_string(), nqn, nsid: nsid.unwrap_or(1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        let holder: HolderSpec = "127.0.0.1:4420,nsid=3,nqn=nqn.2026-01.example:a".parse().expect("right");
        assert_eq!((holder.nsid, holder.nqn.as_deref()), (3, Some("nqn.2026-01.example:a")));
        let error = |text: &str| text.parse::<HolderSpec>().expect_err("refused");
        assert!(error("nsid=3").contains("does not begin with an address"));
        assert!(error("127.0.0.1:1,nsid=0").contains("from 1 on"));
        assert!(error("127.0.0.1:1,nsi=2").contains("did you mean `nsid`?"));
        assert!(error("127.0.0.1:1,nsid=2,nsid=2").contains("given twice"));
    }
}
