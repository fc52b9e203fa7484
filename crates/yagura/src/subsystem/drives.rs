//! `--drive`: drives whose namespaces a target serves, and `yagura target drive …` on the side of the target.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use device::drive::NamespaceUsage;
use device::{AnyNamespace, Drive, DriveNamespace, NamespaceSpec};
use engine::job::Jobs;
use fabric::subsystem::{DeleteError, Target};
use nvme::Nqn;
use serde::Serialize;
use serde_json::{Value, json};

use super::ServedNamespace;
use super::control::choose;
use super::request::DriveAction;
use super::scrub::DriveScrub;
use super::spec::Plan;
use crate::drive::{self, Listed, Used};
use crate::exit::Failure;
use crate::size::Size;
use crate::spec::{once, pairs, parse_nqn};

/// `--drive PATH[,subsystem=NQN]`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriveSpec {
    path: PathBuf,
    subsystem: Option<Nqn>,
}

impl FromStr for DriveSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<DriveSpec, String> {
        let (path, rest) = text.split_once(',').unwrap_or((text, ""));
        if path.is_empty() {
            return Err("say where it is: PATH[,subsystem=NQN]".into());
        }
        let mut subsystem = None;
        for pair in pairs(rest, &["subsystem"]).take_while(|_| !rest.is_empty()) {
            let (key, value) = pair?;
            once(&mut subsystem, key, parse_nqn(value)?)?;
        }
        Ok(DriveSpec { path: path.into(), subsystem })
    }
}

/// A drive that is served.
pub struct ServedDrive {
    path: PathBuf,
    drive: Drive,
    /// The subsystem whose hosts may make namespaces on it.
    nqn: Nqn,
    scrub: DriveScrub,
}

/// Opens the drives and takes in their namespaces.
pub async fn serve(
    specs: &[DriveSpec],
    plan: &Plan,
    target: &Target,
    jobs: &Jobs,
) -> Result<(Vec<ServedDrive>, Vec<ServedNamespace>), Failure> {
    let (mut drives, mut served) = (Vec::new(), Vec::new());
    for DriveSpec { path, subsystem } in specs {
        let known = |nqn: &Nqn| plan.subsystems.iter().any(|planned| planned.nqn == *nqn);
        let nqn = match (subsystem, &plan.subsystems[..]) {
            (Some(nqn), _) if known(nqn) => nqn.clone(),
            (Some(nqn), _) => return Err(Failure::usage(format!("--drive: there is no subsystem {nqn}"))),
            (None, [only]) => only.nqn.clone(),
            (None, _) => {
                let sentence = format!("--drive {}: say where it belongs by subsystem=NQN", path.display());
                return Err(Failure::usage(sentence));
            }
        };
        let drive = drive::hold(path).await?;
        target.add_store(&nqn, Arc::new(drive.clone())).map_err(Failure::usage)?;
        let one = ServedDrive { path: path.clone(), drive, nqn, scrub: DriveScrub::new(jobs.clone()) };
        for usage in one.drive.namespaces() {
            let namespace = one.drive.namespace(usage.number).map_err(drive::failure)?;
            let place = Target::place_of(&AnyNamespace::from(namespace.clone())).map_err(Failure::refused)?;
            // A snapshot is there to be cloned; and one may be served by a --namespace of its own.
            if usage.read_only && place.is_none() || place_in(target, usage.nguid).is_some() {
                continue;
            }
            let kept = place.map(|(nqn, _)| nqn).filter(|nqn| subsystem.is_none() && known(nqn));
            let nqn = kept.unwrap_or_else(|| one.nqn.clone());
            let nsid = one.adopt(target, &nqn, namespace).await?;
            served.push(describe(&one, &nqn, nsid, &usage));
        }
        drives.push(one);
    }
    Ok((drives, served))
}

fn describe(drive: &ServedDrive, nqn: &Nqn, nsid: u32, usage: &NamespaceUsage) -> ServedNamespace {
    ServedNamespace {
        nqn: nqn.to_string(),
        nsid,
        group: fabric::subsystem::ANA_GROUP_DEFAULT,
        medium: format!("{} of drive {}", usage.name, drive.path.display()),
        bytes: usage.bytes,
        block_size: usage.block_size,
        nguid: hex(usage.nguid),
    }
}

fn hex(nguid: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(nguid))
}

/// Where the target serves the namespace with this NGUID.
fn place_in(target: &Target, nguid: [u8; 16]) -> Option<(Nqn, u32)> {
    let nguid = hex(nguid);
    target.report().subsystems.into_iter().find_map(|subsystem| {
        let found = subsystem.namespaces.iter().find(|namespace| namespace.nguid == nguid)?;
        Some((subsystem.nqn.parse().ok()?, found.nsid))
    })
}

/// Ends the drives with a last checkpoint each.
pub async fn close(drives: Vec<ServedDrive>) -> Result<(), Failure> {
    for ServedDrive { drive, scrub, .. } in drives {
        scrub.stop().await;
        drive.close().await.map_err(drive::failure)?;
    }
    Ok(())
}

/// Does what the operator asks of a drive.
pub async fn perform(
    target: &Target,
    drives: &[ServedDrive],
    wanted: Option<&Path>,
    action: &DriveAction,
) -> Result<Value, Failure> {
    let known: Vec<String> = drives.iter().map(|drive| drive.path.display().to_string()).collect();
    let known = known.join(", ");
    let found = match (wanted, drives) {
        (_, []) => return Err(Failure::usage("the target serves no drive; start it with --drive PATH")),
        (None, [only]) => only,
        (None, _) => return Err(Failure::usage(format!("choose one with --drive: {known}"))),
        (Some(path), _) => drives
            .iter()
            .find(|drive| drive.path == path)
            .ok_or_else(|| Failure::usage(format!("the target serves no drive {}; it has {known}", path.display())))?,
    };
    found.perform(target, action).await
}

impl ServedDrive {
    async fn perform(&self, target: &Target, action: &DriveAction) -> Result<Value, Failure> {
        let drive = &self.drive;
        match action {
            DriveAction::List {} => {
                let listed = drive.namespaces().into_iter().map(|usage| {
                    let place = place_in(target, usage.nguid);
                    Listed { served: place.map(|(nqn, nsid)| format!("namespace {nsid} of {nqn}")), ..usage.into() }
                });
                as_json(&listed.collect::<Vec<Listed>>())
            }
            DriveAction::Usage {} => as_json(&Used::of(drive)),
            DriveAction::Create { name, bytes, block, subsystem } => {
                let nqn = match subsystem {
                    Some(_) => choose(target, subsystem.as_deref())?,
                    None => self.nqn.clone(),
                };
                let spec = NamespaceSpec { name: name.clone(), bytes: *bytes, block_size: *block };
                let made = drive.create(&spec).await.map_err(drive::failure)?;
                self.taken_in(target, &nqn, made).await
            }
            DriveAction::Clone { name, new } => {
                let source = drive.find(name).map_err(drive::failure)?;
                let made = drive.clone_of(source, new).await.map_err(drive::failure)?;
                self.taken_in(target, &self.nqn, made).await
            }
            DriveAction::Snapshot { name, new } => {
                let source = drive.find(name).map_err(drive::failure)?;
                drive.snapshot(source, new).await.map_err(drive::failure)?;
                Ok(json!({ "done": format!("{new} is a snapshot of {name}") }))
            }
            DriveAction::Delete { name, force } => self.delete(target, name, *force).await,
            DriveAction::Grow { name, bytes } => {
                let number = drive.find(name).map_err(drive::failure)?;
                drive.grow(number, *bytes).await.map_err(drive::failure)?;
                let nguid = drive.namespace(number).map_err(drive::failure)?;
                if let Some((nqn, nsid)) = place_in(target, device::Namespace::info(&nguid).nguid) {
                    target.refresh_namespace(&nqn, nsid).map_err(Failure::usage)?;
                }
                Ok(json!({ "done": format!("{name} has {}", Size(*bytes)) }))
            }
            DriveAction::Scrub { begin, bytes_per_second } => {
                let begun = begin.then(|| self.scrub.begin(drive, &self.path, *bytes_per_second)).flatten();
                if let Some(bytes_per_second) = begun {
                    tracing::info!(drive = %self.path.display(), bytes_per_second, "a scrub begins for the operator");
                }
                as_json(&self.scrub.state())
            }
            DriveAction::StopScrub {} => {
                let none = || Failure::usage(format!("no scrub of {} is under way", self.path.display()));
                as_json(&self.scrub.stop().await.ok_or_else(none)?)
            }
        }
    }

    async fn adopt(&self, target: &Target, nqn: &Nqn, made: DriveNamespace) -> Result<u32, Failure> {
        let adopted = target.adopt(nqn, Arc::new(self.drive.clone()), AnyNamespace::from(made)).await;
        adopted.map_err(|error| Failure::refused(error).during(self.path.display()))
    }

    async fn taken_in(&self, target: &Target, nqn: &Nqn, made: DriveNamespace) -> Result<Value, Failure> {
        let name = made.name().to_owned();
        let nsid = self.adopt(target, nqn, made).await?;
        Ok(json!({ "done": format!("{name} is namespace {nsid} of {nqn}"), "nsid": nsid }))
    }

    async fn delete(&self, target: &Target, name: &str, force: bool) -> Result<Value, Failure> {
        let number = self.drive.find(name).map_err(drive::failure)?;
        let namespace = self.drive.namespace(number).map_err(drive::failure)?;
        match place_in(target, device::Namespace::info(&namespace).nguid) {
            Some((nqn, nsid)) => target.delete_namespace(&nqn, nsid, force).await.map_err(|error| {
                let mend = match error {
                    DeleteError::Attached(_) => "disconnect them, or delete it under them all the same with --force",
                    _ => "if it was added by --namespace, remove it first: yagura target remove-namespace",
                };
                Failure::refused(format!("namespace {nsid} of {nqn}: {error} ({mend})"))
            })?,
            None => self.drive.delete(number).await.map_err(drive::failure)?,
        }
        Ok(json!({ "done": format!("{name} is deleted") }))
    }
}

/// A report in JSON.
pub fn as_json(value: &impl Serialize) -> Result<Value, Failure> {
    let written = serde_json::to_value(value);
    written.map_err(|error| Failure::refused(format!("the report cannot be written as JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs() {
        let plain = DriveSpec { path: "a".into(), subsystem: None };
        assert_eq!("a".parse(), Ok(plain));
        let placed: DriveSpec = "a,subsystem=nqn.2026-01.example:a".parse().expect("a spec");
        assert_eq!(placed.subsystem.expect("given").as_str(), "nqn.2026-01.example:a");
        let error = |text: &str| text.parse::<DriveSpec>().expect_err("refused");
        assert!(error("").contains("PATH[,subsystem=NQN]"));
        assert!(error("a,subsytem=x").contains("did you mean `subsystem`?"));
        assert!(error("a,subsystem=x").contains("is no NQN"));
    }
}
