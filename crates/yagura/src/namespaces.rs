//! `--namespace`: what a target serves.

use std::path::PathBuf;
use std::str::FromStr;

use device::{AnyNamespace, FileNamespace, FileOptions, Memory, OpenError};
use fabric::subsystem::{ANA_GROUP_DEFAULT, NSID_MAX};
use nvme::Nqn;
use serde::{Deserialize, Serialize};

use crate::exit::Failure;
use crate::size::Size;
use crate::spec::{once, pairs, parse_group, parse_nqn, text};

/// One namespace as the command line says it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceSpec {
    medium: Medium,
    block_size: u32,
    nguid: Option<[u8; 16]>,
    /// The subsystem it belongs to, if it says one.
    #[serde(with = "text::optional")]
    pub subsystem: Option<Nqn>,
    /// Its identifier there, if it says one.
    pub nsid: Option<u32>,
    /// Its ANA group.
    pub group: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Medium {
    File {
        path: PathBuf,
        size: Option<u64>,
    },
    Device(PathBuf),
    Memory(u64),
    /// A namespace of a drive.
    Drive {
        path: PathBuf,
        name: Option<String>,
    },
    /// A model of a flash device, in a file, with a log on it.
    Flash(PathBuf),
    /// The chunks of one as zones.
    Zones(PathBuf),
}

const KEYS: [&str; 13] = [
    "file",
    "device",
    "memory",
    "drive",
    "flash",
    "zones",
    "name",
    "size",
    "block",
    "nguid",
    "subsystem",
    "nsid",
    "group",
];

const NO_MEDIUM: &str =
    "say what it is in: file=PATH, device=PATH or memory=SIZE, drive=PATH,name=NAME, flash=FILE or zones=FILE";

impl FromStr for NamespaceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<NamespaceSpec, String> {
        let (mut medium, mut size, mut block_size, mut nguid) = (None, None, 4096, None);
        let (mut subsystem, mut nsid, mut group, mut name) = (None, None, None, None);
        for pair in pairs(text, &KEYS) {
            let (key, value) = pair?;
            let kind = match key {
                "file" => Medium::File { path: value.into(), size: None },
                "device" => Medium::Device(value.into()),
                "memory" => Medium::Memory(value.parse::<Size>()?.0),
                "drive" => Medium::Drive { path: value.into(), name: None },
                "flash" => Medium::Flash(value.into()),
                "zones" => Medium::Zones(value.into()),
                "name" => {
                    once(&mut name, key, value.to_owned())?;
                    continue;
                }
                "size" => {
                    size = Some(value.parse::<Size>()?.0);
                    continue;
                }
                "block" => {
                    let allowed = || format!("block size `{value}`: must be 512 or 4096");
                    block_size = value.parse().ok().filter(|n| matches!(n, 512 | 4096)).ok_or_else(allowed)?;
                    continue;
                }
                "nguid" => {
                    nguid = Some(parse_nguid(value)?);
                    continue;
                }
                "subsystem" => {
                    once(&mut subsystem, key, parse_nqn(value)?)?;
                    continue;
                }
                "nsid" => {
                    once(&mut nsid, key, parse_nsid(value)?)?;
                    continue;
                }
                _ => {
                    once(&mut group, key, parse_group(value)?)?;
                    continue;
                }
            };
            if medium.replace(kind).is_some() {
                return Err("one namespace has one medium: file, device, memory, drive, flash or zones".into());
            }
        }
        let medium = match (medium, size) {
            (None, _) => return Err(NO_MEDIUM.into()),
            (Some(Medium::Drive { .. }), _) if name.is_none() => {
                return Err("say which namespace of the drive: drive=PATH,name=NAME".into());
            }
            (Some(Medium::Drive { .. } | Medium::Flash(_) | Medium::Zones(_)), _)
                if nguid.is_some() || size.is_some() =>
            {
                return Err("a namespace of a drive or on flash has a size and an nguid of its own".into());
            }
            (Some(Medium::Drive { path, .. }), _) => Medium::Drive { path, name: name.take() },
            (Some(Medium::File { path, .. }), size) => Medium::File { path, size },
            (Some(other), None) => other,
            (Some(_), Some(_)) => {
                return Err("size goes with file only: a device has its own, memory=SIZE says it".into());
            }
        };
        if name.is_some() {
            return Err("name goes with drive=PATH only".into());
        }
        Ok(NamespaceSpec { medium, block_size, nguid, subsystem, nsid, group: group.unwrap_or(ANA_GROUP_DEFAULT) })
    }
}

fn parse_nsid(text: &str) -> Result<u32, String> {
    let nsid = text.parse().ok().filter(|nsid| (1..=NSID_MAX).contains(nsid));
    nsid.ok_or_else(|| format!("nsid `{text}`: must be a number from 1 to {NSID_MAX}"))
}

fn parse_nguid(text: &str) -> Result<[u8; 16], String> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(text, 16).ok().filter(|number| digits && *number != 0);
    number.map(u128::to_be_bytes).ok_or_else(|| format!("nguid `{text}`: must be 32 hexadecimal digits, not all zero"))
}

impl NamespaceSpec {
    /// Opens it; inside a reactor.
    pub async fn open(&self) -> Result<AnyNamespace, Failure> {
        let (path, create) = match &self.medium {
            Medium::Memory(bytes) => {
                let nguid = self.nguid.unwrap_or_else(device::random_nguid);
                return Ok(Memory::new(*bytes, self.block_size, nguid).map_err(Failure::usage)?.into());
            }
            Medium::File { path, size: None } if !path.exists() => {
                let mend = "does not exist; give its size to create it, as in file=PATH,size=10GiB";
                return Err(Failure::usage(format!("{}: {mend}", path.display())));
            }
            Medium::File { path, size } => (path, *size),
            Medium::Device(path) => (path, None),
            Medium::Flash(_) if self.block_size != 4096 => {
                return Err(Failure::usage("flash has blocks of 4096: leave block out"));
            }
            Medium::Flash(path) => return crate::flash::served::serve(path).await,
            Medium::Zones(_) if self.block_size != 4096 => {
                return Err(Failure::usage("zones have blocks of their device's write unit: leave block out"));
            }
            Medium::Zones(path) => return crate::flash::served::serve_zones(path).await,
            Medium::Drive { path, name } => {
                return Ok(crate::drive::serve(path, name.as_deref().unwrap_or_default()).await?.into());
            }
        };
        let options = FileOptions { block_size: self.block_size, create, read_only: false, nguid: self.nguid };
        let opened = FileNamespace::open(path, &options).await;
        opened.map(AnyNamespace::from).map_err(|error| match error {
            OpenError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
                Failure::out_of_space(error)
            }
            OpenError::BlockSize(_) | OpenError::Size { .. } | OpenError::ExistsWithOtherSize { .. } => {
                Failure::usage(error)
            }
            other => Failure::refused(other),
        })
    }

    /// The file it is in, if it is in one.
    pub fn file(&self) -> Option<&std::path::Path> {
        match &self.medium {
            Medium::File { path, .. } => Some(path),
            Medium::Device(_) | Medium::Memory(_) | Medium::Drive { .. } | Medium::Flash(_) | Medium::Zones(_) => None,
        }
    }

    /// Whether it is in a model of a flash device, which a target alone closes at its end.
    pub fn is_flash(&self) -> bool {
        matches!(self.medium, Medium::Flash(_) | Medium::Zones(_))
    }

    /// The file that is made when it is opened, and its size, if it is in one that is not there yet.
    pub fn new_file(&self) -> Option<(&std::path::Path, u64)> {
        match &self.medium {
            Medium::File { path, size: Some(bytes) } if !path.exists() => Some((path, *bytes)),
            _ => None,
        }
    }

    /// What it is in, for reports.
    pub fn describe(&self) -> String {
        match &self.medium {
            Medium::File { path, .. } => format!("file {}", path.display()),
            Medium::Device(path) => format!("device {}", path.display()),
            Medium::Memory(bytes) => format!("memory {}", Size(*bytes)),
            Medium::Flash(path) => format!("flash {}", path.display()),
            Medium::Zones(path) => format!("zones {}", path.display()),
            Medium::Drive { path, name } => {
                format!("{} of drive {}", name.as_deref().unwrap_or_default(), path.display())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        let file = NamespaceSpec {
            medium: Medium::File { path: "a".into(), size: Some(1 << 30) },
            block_size: 4096,
            nguid: None,
            subsystem: None,
            nsid: None,
            group: 1,
        };
        assert_eq!("file=a,size=1G".parse(), Ok(file.clone()));
        let over_the_socket = |spec: &NamespaceSpec| {
            let json = serde_json::to_string(spec).expect("JSON");
            assert_eq!(serde_json::from_str::<NamespaceSpec>(&json).expect(&json), *spec);
        };
        over_the_socket(&file);
        let memory = NamespaceSpec { medium: Medium::Memory(1 << 20), block_size: 512, ..file };
        assert_eq!("memory=1MiB,block=512".parse(), Ok(memory.clone()));
        let medium = Medium::Drive { path: "d".into(), name: Some("vm".into()) };
        let drive = NamespaceSpec { medium, block_size: 4096, ..memory.clone() };
        assert_eq!("drive=d,name=vm".parse(), Ok(drive));
        let flash = NamespaceSpec { medium: Medium::Flash("f".into()), block_size: 4096, ..memory.clone() };
        assert_eq!("flash=f".parse(), Ok(flash.clone()));
        over_the_socket(&flash);
        let zones = NamespaceSpec { medium: Medium::Zones("f".into()), ..flash };
        assert_eq!("zones=f".parse(), Ok(zones.clone()));
        over_the_socket(&zones);
        let subsystem = Some("nqn.2026-01.example:a".parse().expect("an NQN"));
        let placed = NamespaceSpec { subsystem, nsid: Some(7), group: 3, ..memory };
        assert_eq!("memory=1MiB,block=512,subsystem=nqn.2026-01.example:a,nsid=7,group=3".parse(), Ok(placed.clone()));
        over_the_socket(&placed);
    }

    #[test]
    fn wrong_specs_say_what_is_right() {
        let error = |text: &str| text.parse::<NamespaceSpec>().expect_err("refused");
        assert!(error("fil=a").contains("did you mean `file`?"));
        assert!(error("size=1G").contains("file=PATH, device=PATH or memory=SIZE"));
        assert!(error("file=a,memory=1").contains("one medium"));
        assert!(error("memory=1M,size=1M").contains("size goes with file"));
        assert!(error("file=a,block=1000").contains("512 or 4096"));
        assert!(error("file=a,nguid=12").contains("32 hexadecimal digits"));
        assert!(error("drive=a").contains("drive=PATH,name=NAME"));
        assert!(error("drive=a,name=b,size=1G").contains("of its own"));
        assert!(error("flash=a,size=1G").contains("of its own"));
        assert!(error("zones=a,size=1G").contains("of its own"));
        assert!(error("zones=a,flash=a").contains("one medium"));
        assert!(error("file=a,name=b").contains("name goes with drive"));
        assert!(error("a").contains("no key=value"));
        assert!(error("memory=1M,nsid=0").contains("nsid `0`: must be a number from 1 to 1024"));
        assert!(error("memory=1M,group=129").contains("from 1 to 128"));
        assert!(error("memory=1M,subsystem=x").contains("\"x\" is no NQN"));
        assert!(error("memory=1M,nsid=1,nsid=2").contains("nsid is given twice"));
    }
}
