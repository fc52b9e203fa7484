//! A volume by its name at a control plane.

use ::control::provision::{Limits, Moment};
use hyper::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cli::{VolumeHolders, VolumeOf};
use crate::control::{Client, path_of};
use crate::exit::Failure;
use crate::holder::HolderSpec;

use super::reach;

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

/// What a control plane allows, as the volume keeps to it.
pub fn allowed(&Limits { iops, bandwidth, burst }: &Limits) -> ::volume::Limits {
    ::volume::Limits { iops, bandwidth, burst }
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
    // The catalogue has it from now on that this host uses the volume. Who can't reach it by what is said there does not.
    match found(of, &volume).and_then(|found| reach::named(&found.holders, &found.uids).map(|_| found)) {
        Ok(found) => Ok((found, Some(attachment))),
        Err(failure) => {
            failed(of, Some(&attachment));
            Err(failure)
        }
    }
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
    Ok(HolderSpec { address: address.to_owned(), nqn: Some(nqn.to_owned()), nsid })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::PermissionsExt;
    use std::thread::JoinHandle;

    use clap::Parser;

    use super::*;

    const ID: &str = "01234567-89ab-4def-8123-456789abcdef";

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        of: VolumeOf,
    }

    /// A control plane that answers each request with the next of `answers`, and then tells how each began.
    fn control_plane(answers: Vec<Value>) -> (String, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = format!("http://{}", listener.local_addr().expect("an address"));
        let served = std::thread::spawn(move || {
            let answer = |answer: Value| {
                let (mut stream, _) = listener.accept().expect("a question");
                let (mut head, mut bytes, body) = (String::new(), [0; 4096], answer.to_string());
                while !head.contains("\r\n\r\n") {
                    let read = stream.read(&mut bytes).expect("read");
                    if read == 0 {
                        return "nothing".to_owned();
                    }
                    head += std::str::from_utf8(&bytes[..read]).expect("text");
                }
                let length = body.len();
                let says = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
                write!(stream, "{says}\r\ncontent-length: {length}\r\n\r\n{body}").expect("written");
                head.split(' ').next().unwrap_or_default().to_owned()
            };
            answers.into_iter().map(answer).collect()
        });
        (at, served)
    }

    /// A volume that this host has just been written down for, with holders at these addresses.
    fn attached(addresses: &[&str]) -> Value {
        let holder = |address: &&str| {
            let namespace = json!({"nsid": 1, "uid": ID});
            json!({"kind": "replica", "address": address, "nqn": "nqn.2026-11.io.yagura:a", "namespace": namespace})
        };
        let holders: Vec<Value> = addresses.iter().map(holder).collect();
        json!({"id": ID, "holders": holders, "attachment": {"id": ID, "tenure": ID}})
    }

    /// Attaches at a control plane that answers so.
    fn attach_by(answers: Vec<Value>) -> (Result<Vec<String>, String>, Vec<String>) {
        let folder = tempfile::tempdir().expect("a folder");
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, "secret").expect("written");
        std::fs::set_permissions(&token_file, PermissionsExt::from_mode(0o600)).expect("private");
        let (at, served) = control_plane(answers);
        let token_file = format!("--token-file={}", token_file.display());
        let flags = ["test", "--name=db", "--host-nqn=nqn.2026-11.io.yagura:host", "--control", &at, &token_file];
        let attached = attach(&Flags::parse_from(flags).of, false);
        // Where it waits for more than was asked it gets that.
        while !served.is_finished() {
            drop(at.strip_prefix("http://").map(TcpStream::connect));
        }
        let addresses = |(found, _): (Found, _)| found.holders.replicas.into_iter().map(|spec| spec.address).collect();
        let attached = attached.map(addresses).map_err(|failure| failure.sentence().to_string());
        (attached, served.join().expect("it was asked"))
    }

    /// One that nobody knew let the host have nothing of a volume that was well, and kept it from all others.
    #[test]
    fn a_holder_whose_name_nobody_knows_is_away() {
        let addresses = ["10.0.0.1:4420", "no-such-name.invalid:4420", "10.0.0.3:4420"];
        let (attached, asked) = attach_by(vec![attached(&addresses)]);
        assert_eq!(attached.expect("two holders are known"), addresses);
        assert_eq!(asked, ["PUT"]);
    }

    #[test]
    fn what_cannot_be_attached_is_not_written_down_as_attached() {
        let two = ["10.0.0.1:4420", "10.0.0.2:4420"];
        let mut strange = attached(&two);
        strange["holders"][1]["address"] = Value::Null;
        for (volume, why) in [(strange, "without address"), (attached(&two), "--witness")] {
            let (attached, asked) = attach_by(vec![volume, json!({})]);
            let said = attached.expect_err("it can't be used");
            assert!(said.contains(why), "{said}");
            assert_eq!(asked, ["PUT", "DELETE"]);
        }
    }
}
