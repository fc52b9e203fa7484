//! A volume by its name at a control plane.

use std::net::{SocketAddr, ToSocketAddrs};

use ::control::provision::{Limits, Moment};
use hyper::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cli::{VolumeHolders, VolumeOf};
use crate::control::{Client, path_of};
use crate::exit::Failure;
use crate::holder::HolderSpec;

/// Where the holders are, and which namespaces, where that is known.
pub struct Found {
    /// Where.
    pub holders: VolumeHolders,
    /// Their identifiers (NGUID), by slot.
    pub uids: Vec<[u8; 16]>,
}

/// Where the holders are, and which volume they are of; the control plane is asked, where they are not named.
pub fn holders(of: &VolumeOf) -> Result<(Found, Option<u128>), Failure> {
    let Some(name) = &of.name else { return Ok((told(of), None)) };
    let volume = ask(of, Method::GET, &path_of("volumes", name), None)?;
    Ok((found(of, &volume)?, Some(uuid(&volume["id"])?.as_u128())))
}

fn uuid(said: &Value) -> Result<Uuid, Failure> {
    let strange = || Failure::unavailable("the control plane does not say which volume it is, or which attachment");
    said.as_str().and_then(|text| Uuid::try_parse(text).ok()).ok_or_else(strange)
}

/// The snapshots of a volume by its name: what each is called, and what the replicas know it by.
pub fn snapshots(of: &VolumeOf, name: &str) -> Result<Vec<(String, Moment)>, Failure> {
    let path = format!("{}/snapshots", path_of("volumes", name));
    let said = Client::new(&of.access)?.ask(Method::GET, &path, None)?;
    let strange = |what: String| {
        Failure::unavailable(format!("the control plane does not say which snapshots there are: {what}"))
    };
    let items = said["items"].as_array().ok_or_else(|| strange("no list".to_owned()))?;
    let known = items.iter().map(|item| {
        let name = item["name"].as_str().ok_or_else(|| strange("one without a name".to_owned()))?;
        let moment = serde_json::from_value(item["moment"].clone()).map_err(|fault| strange(fault.to_string()))?;
        Ok((name.to_owned(), moment))
    });
    known.collect()
}

/// What the control plane has written down of an attachment.
pub struct Attachment {
    /// The volume, as its holders know it.
    pub volume: u128,
    /// The same as of this host's former attachment: no other host has had the volume since.
    pub tenure: Uuid,
    /// How much it may be used.
    pub limits: Limits,
    id: String,
    is_instead: bool,
}

impl Attachment {
    /// Where the control plane is asked what is wanted of this host.
    pub fn path(&self, name: &str) -> String {
        format!("{}/attachment/work?attachment={}", path_of("volumes", name), self.id)
    }
}

/// Asks of a volume that this host has or is to have.
fn ask(of: &VolumeOf, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
    Client::new(&of.access)?.ask(method, path, body)
}

/// What the control plane has of a volume.
pub struct Known {
    /// The volume, as its holders know it.
    pub volume: u128,
    /// Which host has it.
    pub host: Option<String>,
    /// In which tenure.
    pub tenure: Option<Uuid>,
}

/// Which volume it is, and which host has it, as the control plane has it.
pub fn known(of: &VolumeOf) -> Result<Known, Failure> {
    let name = of.name.as_deref().unwrap_or_default();
    let volume = ask(of, Method::GET, &path_of("volumes", name), None)?;
    let written = &volume["attachment"];
    Ok(Known {
        volume: uuid(&volume["id"])?.as_u128(),
        host: written["host"].as_str().map(str::to_owned),
        tenure: uuid(&written["tenure"]).ok(),
    })
}

/// Whether the control plane has it that another host has the volume; where it does not say so, it is not known.
pub fn is_anothers(of: &VolumeOf) -> bool {
    known(of).is_ok_and(|known| known.host.is_some() && known.host != of.host.host_nqn)
}

/// The same for who attaches the volume: the control plane then has it that this host uses the volume, with `take` also in the
/// place of another one.
pub fn attach(of: &VolumeOf, take: bool) -> Result<(Found, Option<Attachment>), Failure> {
    let Some(name) = &of.name else { return Ok((told(of), None)) };
    let Some(host) = &of.host.host_nqn else {
        let why = "the control plane notes by it who has the volume, and the drives let it in by it";
        return Err(Failure::usage(format!("--host-nqn: say this host's name: {why}")));
    };
    let path = format!("{}/attachment?force={take}", path_of("volumes", name));
    let volume = ask(of, Method::PUT, &path, Some(&json!({"host": host})))?;
    let (id, written) = (uuid(&volume["id"])?, &volume["attachment"]);
    let limits = serde_json::from_value(volume["limits"].clone()).unwrap_or_default();
    let attachment = Attachment {
        volume: id.as_u128(),
        tenure: uuid(&written["tenure"])?,
        limits,
        id: uuid(&written["id"])?.to_string(),
        is_instead: !written["instead_of"].is_null(),
    };
    Ok((found(of, &volume)?, Some(attachment)))
}

/// The volume could not be attached. Where the attachment is in another one's place it stays: that host, or process, may have the
/// volume still, and what nobody has in the catalogue anybody may delete.
pub fn failed(of: &VolumeOf, attachment: Option<&Attachment>) {
    match attachment {
        Some(Attachment { is_instead: true, .. }) => tracing::warn!(
            "the control plane has it that this host uses the volume, as another one did: attach it here or there by --take"
        ),
        attachment => {
            if let Err(failure) = detached(of, attachment) {
                tracing::warn!("{}", failure.sentence());
            }
        }
    }
}

/// The control plane is told that this attachment is over. Who can't be told lets no other host in but by `--take`, so that whoever
/// detaches has to know: the same host may attach again, and detach then.
pub fn detached(of: &VolumeOf, attachment: Option<&Attachment>) -> Result<(), Failure> {
    let (Some(name), Some(attachment)) = (&of.name, attachment) else { return Ok(()) };
    let path = format!("{}/attachment?attachment={}", path_of("volumes", name), attachment.id);
    match ask(of, Method::DELETE, &path, None) {
        Err(failure) if !failure.is_lost() => {
            let what = "the control plane still has it that this host uses the volume";
            Err(Failure::unavailable(format!("{what}: {}", failure.sentence())))
        }
        _ => Ok(()),
    }
}

fn told(of: &VolumeOf) -> Found {
    let holders = VolumeHolders { replicas: of.replicas.clone(), witness: of.witness.clone(), host: of.host.clone() };
    Found { holders, uids: Vec::new() }
}

fn found(of: &VolumeOf, volume: &Value) -> Result<Found, Failure> {
    let (mut replicas, mut witness, mut uids) = (Vec::new(), None, Vec::new());
    for holder in volume["holders"].as_array().into_iter().flatten() {
        let spec = spec(holder)?;
        uids.push(uuid(&holder["namespace"]["uid"])?.into_bytes());
        match holder["kind"].as_str() {
            Some("witness") => witness = Some(spec),
            _ => replicas.push(spec),
        }
    }
    Ok(Found { holders: VolumeHolders { replicas, witness, host: of.host.clone() }, uids })
}

fn spec(holder: &Value) -> Result<HolderSpec, Failure> {
    let strange = || Failure::unavailable("the control plane names a holder without address, subsystem or namespace");
    let text = |part: &str| holder[part].as_str().ok_or_else(strange);
    let (address, nqn) = (text("address")?, text("nqn")?);
    let nsid = holder["namespace"]["nsid"].as_u64().and_then(|nsid| u32::try_from(nsid).ok()).ok_or_else(strange)?;
    let unresolved = |why: &dyn std::fmt::Display| Failure::unavailable(format!("{address}: {why}"));
    let mut found = address.to_socket_addrs().map_err(|error| unresolved(&error))?;
    let address: SocketAddr = found.next().ok_or_else(|| unresolved(&"the name has no address"))?;
    Ok(HolderSpec { address, nqn: Some(nqn.to_owned()), nsid })
}
