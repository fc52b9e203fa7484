//! Where a block device is, in words, and how it is reached.

use std::rc::Rc;
use std::str::FromStr;

use device::Namespace;
use fabric::host::{AnyRemote, Options, RemoteNamespace};
use nvme::Nqn;
use volume::{NvmeReach, Reach, Volume};

use crate::error::Error;
use crate::resolve::{check, resolve};
use crate::way::{Way, unavailable};

/// Which device is meant. As text: `namespace HOLDER`, or `volume HOLDER HOLDER HOLDER`, where a holder is
/// `HOST:PORT[,nqn=NQN][,nsid=N]`. Without `nqn` the only subsystem that is discovered at the address is meant, without `nsid` 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A namespace of a target, also a member of a store.
    Namespace(Holder),
    /// A volume: its holders by slot, the witness of one with two replicas at the end.
    Volume(Vec<Holder>),
}

/// A namespace of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    address: String,
    nqn: Option<Nqn>,
    nsid: u32,
}

impl FromStr for Place {
    type Err = Error;

    fn from_str(text: &str) -> Result<Place, Error> {
        let mut words = text.split_ascii_whitespace();
        let kind = words.next();
        let holders = words.map(str::parse).collect::<Result<Vec<Holder>, Error>>()?;
        match (kind, <[Holder; 1]>::try_from(holders)) {
            (Some("namespace"), Ok([holder])) => Ok(Place::Namespace(holder)),
            (Some("volume"), Ok(holder)) => Ok(Place::Volume(holder.into())),
            (Some("volume"), Err(holders)) if holders.len() == 3 => Ok(Place::Volume(holders)),
            (Some("volume"), Err(_)) => Err(Error::Usage(format!(
                "device `{text}`: a volume has one holder or three (of two replicas and a witness, too)"
            ))),
            _ => Err(Error::Usage(format!(
                "device `{text}`: write `namespace HOST:PORT` or `volume HOST:PORT HOST:PORT HOST:PORT`"
            ))),
        }
    }
}

impl FromStr for Holder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Holder, Error> {
        let mut parts = text.split(',');
        let address = parts.next().unwrap_or_default().to_owned();
        check(&address)?;
        let wrong = |why: String| Error::Usage(format!("`{text}`: {why}"));
        let (mut nqn, mut nsid) = (None, None);
        for part in parts {
            match part.split_once('=') {
                Some(("nqn", value)) if nqn.is_none() => {
                    nqn = Some(Nqn::foreign(value).map_err(|error| wrong(error.to_string()))?);
                }
                Some(("nsid", value)) if nsid.is_none() => {
                    let number = value.parse::<u32>().ok().filter(|number| *number > 0);
                    nsid = Some(number.ok_or_else(|| wrong(format!("nsid `{value}` is no number from 1 on")))?);
                }
                _ => return Err(wrong(format!("`{part}` is neither `nqn=…` nor `nsid=…`, or comes twice"))),
            }
        }
        Ok(Holder { address, nqn, nsid: nsid.unwrap_or(1) })
    }
}

impl Holder {
    async fn options(&self, way: &Way) -> Result<Options, Error> {
        let socket = resolve(&self.address).await?;
        let nqn = match &self.nqn {
            Some(nqn) => nqn.clone(),
            None => <[Nqn; 1]>::try_from(way.subsystems(socket).await?).map(|[nqn]| nqn).map_err(|found| {
                Error::Usage(format!("{} subsystems are discovered at {}: say `nqn=…`", found.len(), self.address))
            })?,
        };
        Ok(way.options(socket, nqn, self.nsid))
    }
}

/// A device that is open.
pub(super) enum Opened {
    Namespace(AnyRemote),
    Volume(Rc<Volume>),
}

impl Opened {
    pub async fn open(place: &Place, way: &Way) -> Result<Opened, Error> {
        match place {
            Place::Namespace(holder) => {
                let remote = RemoteNamespace::connect(holder.options(way).await?).await.map_err(unavailable)?;
                if remote.zoned().is_some() {
                    let why = "its zones are written in order, and a block device is written anywhere";
                    return Err(Error::Refused(format!("namespace {} at {}: {why}", holder.nsid, holder.address)));
                }
                Ok(Opened::Namespace(remote.into()))
            }
            Place::Volume(holders) => {
                let mut reaches: Vec<Rc<dyn Reach>> = Vec::new();
                for holder in holders {
                    reaches.push(Rc::new(NvmeReach::new(holder.options(way).await?)));
                }
                let volume = volume::attach(reaches, volume::Options::default()).await?;
                Ok(Opened::Volume(Rc::new(volume)))
            }
        }
    }

    pub fn namespace(&self) -> AnyRemote {
        match self {
            Opened::Namespace(remote) => remote.clone(),
            Opened::Volume(volume) => volume.any(),
        }
    }

    pub async fn close(self) -> Result<(), Error> {
        match self {
            Opened::Namespace(_) => Ok(()),
            Opened::Volume(volume) => Ok(volume.detach().await?),
        }
    }
}

impl From<volume::Error> for Error {
    fn from(error: volume::Error) -> Error {
        let sentence = error.to_string();
        match error {
            volume::Error::Unreachable { .. } | volume::Error::NoMajority { .. } => Error::Unavailable(sentence),
            volume::Error::Device { holder, source } => Error::from(source).during(&holder),
            _ => Error::Refused(sentence),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let Ok(Place::Namespace(holder)) = "namespace h:4420,nsid=3,nqn=nqn.2026-01.example:a".parse() else {
            panic!("a namespace");
        };
        assert_eq!((holder.address.as_str(), holder.nsid), ("h:4420", 3));
        assert_eq!(holder.nqn.map(|nqn| nqn.to_string()).as_deref(), Some("nqn.2026-01.example:a"));
        let is_volume = |text: &str| matches!(text.parse(), Ok(Place::Volume(_)));
        assert!(is_volume("volume 127.0.0.1:1") && is_volume(" volume  a:1 b:2 c:3 "));
        let wrong = [
            "",
            "h:4420",
            "namespace",
            "namespace h",
            "namespace a:1 b:1",
            "volume",
            "volume a:1 b:1",
            "volume a:1 b:1 c:1 d:1",
            "namespace a:1,nsid=0",
            "namespace a:1,nsid=1,nsid=1",
            "namespace a:1,key=2",
        ];
        for text in wrong {
            assert!(matches!(text.parse::<Place>(), Err(Error::Usage(_))), "`{text}`");
        }
    }
}
