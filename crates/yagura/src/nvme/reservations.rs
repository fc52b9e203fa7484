//! `yagura nvme reservations`: who may write to a namespace, shown and changed, on any target.

use fabric::host::{HostIdentity, RemoteNamespace};
use nvme::reservation::{
    AcquireAction, PersistChange, RegisterAction, ReleaseAction, ReservationCommand, ReservationType,
};
use serde::Serialize;

use super::{device_failure, options};
use crate::cli::{NvmeReservationsArgs, ReservationVerb};
use crate::exit::Failure;
use crate::output;

#[derive(Serialize)]
struct Report {
    generation: u32,
    #[serde(rename = "type")]
    rtype: Option<String>,
    persist: bool,
    registrants: Vec<Registrant>,
}

#[derive(Serialize)]
struct Registrant {
    host_id: String,
    key: String,
    holder: bool,
}

/// Does what is asked, and shows what is then.
pub async fn run(args: &NvmeReservationsArgs) -> Result<(), Failure> {
    let id = args.host_id.as_deref().map(host_id).transpose()?;
    let mut options = options(&args.namespace).await?;
    match id {
        // The next command is the same host.
        Some(id) if args.namespace.host.host_nqn.is_none() => options.host = HostIdentity::of(id),
        Some(id) => options.host.id = id,
        None => {}
    }
    let remote = RemoteNamespace::connect(options).await.map_err(Failure::unavailable)?;
    if let Some((command, keys)) = command(args) {
        remote.reserve(command, &keys).await.map_err(device_failure)?;
    }
    let (head, entries) = remote.reservation_report().await.map_err(device_failure)?;
    remote.disconnect().await;
    let registrants = entries.iter().map(|entry| Registrant {
        host_id: format!("{:032x}", u128::from_be_bytes(entry.host_id)),
        key: format!("{:#x}", entry.key.get()),
        holder: entry.status & 1 != 0,
    });
    let report = Report {
        generation: head.generation.get(),
        rtype: ReservationType::from_code(head.rtype).map(|rtype| rtype.to_string()),
        persist: head.persist & 1 != 0,
        registrants: registrants.collect(),
    };
    output::report(args.common.json, &report, describe)
}

fn host_id(text: &str) -> Result<[u8; 16], Failure> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(id) if id != 0 && digits.len() == 32 => Ok(id.to_be_bytes()),
        _ => Err(Failure::usage(format!("--host-id: {text:?} is not 32 hexadecimal digits or a UUID, and not zero"))),
    }
}

/// The command and its keys, little-endian, its own first (NVMe Base 2.0 §7.2 to §7.4); a report needs none.
fn command(args: &NvmeReservationsArgs) -> Option<(ReservationCommand, Vec<u8>)> {
    let (current, rtype) = (args.key.unwrap_or(0), args.rtype);
    let persist = if args.persist { PersistChange::Set } else { PersistChange::Keep };
    let register = |action, current: u64, new: u64| {
        let keys = [current, new].map(u64::to_le_bytes).concat();
        (ReservationCommand::Register { action, ignore_key: false, persist }, keys)
    };
    let acquire = |action, preempt: u64| {
        let keys = [current, preempt].map(u64::to_le_bytes).concat();
        (ReservationCommand::Acquire { action, rtype }, keys)
    };
    let release = |action| (ReservationCommand::Release { action, rtype: Some(rtype) }, current.to_le_bytes().to_vec());
    Some(match args.verb {
        ReservationVerb::Report => return None,
        ReservationVerb::Register => match args.new_key {
            Some(new) => register(RegisterAction::Replace, current, new),
            None => register(RegisterAction::Register, 0, current),
        },
        ReservationVerb::Unregister => register(RegisterAction::Unregister, current, 0),
        ReservationVerb::Acquire => acquire(AcquireAction::Acquire, 0),
        ReservationVerb::Preempt => {
            let action = if args.abort { AcquireAction::PreemptAndAbort } else { AcquireAction::Preempt };
            acquire(action, args.preempt_key.unwrap_or(0))
        }
        ReservationVerb::Release => release(ReleaseAction::Release),
        ReservationVerb::Clear => release(ReleaseAction::Clear),
    })
}

fn describe(report: &Report) -> String {
    let held = report.rtype.as_deref().unwrap_or("no reservation");
    let persist = if report.persist { "survives power loss" } else { "does not survive power loss" };
    let mut text = format!("{held}, generation {}, {persist}\n", report.generation);
    for Registrant { host_id, key, holder } in &report.registrants {
        text += &format!("host {host_id} key {key}{}\n", if *holder { " holds it" } else { "" });
    }
    text
}
