//! Get and Set Features (NVMe Base 2.0 §5.15, §5.27).

use std::collections::BTreeMap;

use engine::time::Instant;
use engine::{Buf, View};
use nvme::feature::{FeatureId, SAVE, async_event_config, select};
use nvme::opcode::AdminOpcode;
use nvme::{AnaState, NSID_ALL, Status, Submission};

use super::controller::Controller;
use super::limits::NSID_MAX;
use super::reservation;
use super::shared::Shared;

/// Features of an I/O controller, ascending.
pub(super) const SUPPORTED: [FeatureId; 15] = [
    FeatureId::ARBITRATION,
    FeatureId::POWER_MANAGEMENT,
    FeatureId::TEMPERATURE_THRESHOLD,
    FeatureId::ERROR_RECOVERY,
    FeatureId::VOLATILE_WRITE_CACHE,
    FeatureId::NUMBER_OF_QUEUES,
    FeatureId::WRITE_ATOMICITY,
    FeatureId::ASYNC_EVENT_CONFIG,
    FeatureId::TIMESTAMP,
    FeatureId::KEEP_ALIVE_TIMER,
    FeatureId::HOST_BEHAVIOR,
    FeatureId::COMMAND_SET_PROFILE,
    FeatureId::HOST_ID,
    FeatureId::RESERVATION_NOTIFICATION,
    FeatureId::RESERVATION_PERSISTENCE,
];
/// Those of reservations.
pub(super) const RESERVATION: [FeatureId; 2] =
    [FeatureId::RESERVATION_NOTIFICATION, FeatureId::RESERVATION_PERSISTENCE];
/// Those of what is not in every profile.
pub(super) const OPTIONAL: [FeatureId; 3] =
    [FeatureId::COMMAND_SET_PROFILE, FeatureId::RESERVATION_NOTIFICATION, FeatureId::RESERVATION_PERSISTENCE];
/// The index of a combination of I/O command sets: bits 8:0 of CDW11 (NVMe Base 2.0c §5.27.1.21).
const COMBINATION_MASK: u32 = 0x1FF;
/// Capabilities (SELECT 3): changeable.
const CHANGEABLE: u32 = 1 << 2;
/// Capabilities (SELECT 3): a value for each namespace.
const NAMESPACE_SPECIFIC: u32 = 1 << 1;
/// TMPSEL of Set Features: all sensors there are.
const ALL_SENSORS: u32 = 0xF;
/// Bytes of the Timestamp data structure (NVMe Base 2.0c §5.27.1.11).
const TIMESTAMP_BYTES: usize = 8;
/// Bytes of the Host Behavior Support data structure (NVMe Base 2.0c §5.27.1.18).
const HOST_BEHAVIOR_BYTES: usize = 512;

const INVALID: Status = Status::INVALID_FIELD.do_not_retry();

/// 25 °C: software has no sensor, and hosts read 0 as an error.
pub(super) const TEMPERATURE_KELVIN: u16 = 298;

/// A feature's value: dword 0, and data for the features that have some.
pub(super) struct Value {
    pub result: u32,
    pub data: Option<View>,
}

/// Feature values of a controller.
#[derive(Clone, Debug)]
pub(super) struct Features {
    pub arbitration: u32,
    pub temperature_over: u16,
    pub temperature_under: u16,
    /// For namespaces that have none of their own.
    pub error_recovery: u32,
    /// By namespace; bounded by the identifiers there are.
    pub error_recovery_of: BTreeMap<u32, u32>,
    pub write_atomicity: u32,
    pub async_event: u32,
    pub timestamp: Timestamp,
    /// ACRE: the host honours Command Retry Delay. No command here asks for a delay.
    pub advanced_retry: bool,
}

impl Features {
    /// Values after a reset: the temperature threshold is the highest, so that it is never crossed.
    pub const DEFAULT: Features = Features {
        arbitration: 7,
        temperature_over: 0xFFFF,
        temperature_under: 0,
        error_recovery: 0,
        error_recovery_of: BTreeMap::new(),
        write_atomicity: 0,
        async_event: 0,
        timestamp: Timestamp { millis: 0, since: None, by_host: false },
        advanced_retry: false,
    };

    /// Whether the temperature is at or beyond a threshold (NVMe Base 2.0c §5.27.1.3).
    pub fn is_temperature_critical(&self) -> bool {
        TEMPERATURE_KELVIN >= self.temperature_over || TEMPERATURE_KELVIN <= self.temperature_under
    }
}

/// The controller's idea of the time: what the host said, or 0 at the reset, and the time since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timestamp {
    millis: u64,
    since: Option<Instant>,
    by_host: bool,
}

impl Timestamp {
    pub fn reset(&mut self, now: Instant) {
        *self = Timestamp { millis: 0, since: Some(now), by_host: false };
    }

    fn set(&mut self, data: &[u8], now: Instant) {
        let mut millis = [0; 8];
        millis[..6].copy_from_slice(&data[..6]);
        *self = Timestamp { millis: u64::from_le_bytes(millis), since: Some(now), by_host: true };
    }

    /// 48 bits of milliseconds, then the origin in bits 3:1 of byte 6: 1 where a host has set it. Time never stopped (bit 0).
    fn encode(self, now: Instant) -> [u8; TIMESTAMP_BYTES] {
        let passed = self.since.map_or(0, |since| now.duration_since(since).as_millis() as u64);
        let mut data = (self.millis + passed).to_le_bytes();
        data[6..].copy_from_slice(&[u8::from(self.by_host) << 1, 0]);
        data
    }
}

/// Bytes that a Set Features command brings, where its feature has data.
pub(super) fn data_bytes(command: &Submission) -> Option<u32> {
    if command.opcode != AdminOpcode::SET_FEATURES.0 {
        return None;
    }
    match FeatureId(command.cdw10.get() as u8) {
        FeatureId::TIMESTAMP => Some(TIMESTAMP_BYTES as u32),
        FeatureId::HOST_BEHAVIOR => Some(HOST_BEHAVIOR_BYTES as u32),
        _ => None,
    }
}

/// The namespace that a command on a feature may name (NVMe Base 2.0c §5.15, §5.27).
fn check_namespace(
    shared: &Shared,
    controller: &Controller,
    feature: FeatureId,
    nsid: u32,
    set: bool,
) -> Result<(), Status> {
    let none = nsid == 0 || nsid > NSID_MAX;
    let attached = || shared.namespaces(controller).iter().any(|attached| attached.nsid == nsid);
    match feature {
        _ if is_of_namespaces(feature) => match nsid {
            NSID_ALL if set => Ok(()),
            // There is no one value of all (NVMe Base 2.0c §5.27.1.26, §5.27.1.27; of the others §5.15).
            NSID_ALL if RESERVATION.contains(&feature) => Err(INVALID),
            _ if none => Err(Status::INVALID_NAMESPACE.do_not_retry()),
            _ if !attached() => Err(INVALID),
            _ => Ok(()),
        },
        _ if !set || nsid == 0 || nsid == NSID_ALL => Ok(()),
        _ if none => Err(Status::INVALID_NAMESPACE.do_not_retry()),
        _ => Err(Status::FEATURE_NOT_NAMESPACE.do_not_retry()),
    }
}

fn is_supported(shared: &Shared, controller: &Controller, feature: FeatureId) -> bool {
    if controller.is_discovery() {
        return matches!(feature, FeatureId::ASYNC_EVENT_CONFIG | FeatureId::KEEP_ALIVE_TIMER);
    }
    let in_profile = shared.config.profile.optional_commands || !OPTIONAL.contains(&feature);
    SUPPORTED.contains(&feature) && in_profile
}

/// Zero based counts of submission and completion queues.
fn queue_counts(io_queues_max: u16) -> u32 {
    let zero_based = u32::from(io_queues_max) - 1;
    zero_based << 16 | zero_based
}

/// Features of which each namespace has a value of its own.
pub(super) fn is_of_namespaces(feature: FeatureId) -> bool {
    feature == FeatureId::ERROR_RECOVERY || RESERVATION.contains(&feature)
}

/// Get Features.
pub(super) fn get(
    shared: &Shared,
    controller: &Controller,
    command: &Submission,
    now: Instant,
) -> Result<Value, Status> {
    let cdw10 = command.cdw10.get();
    let feature = FeatureId(cdw10 as u8);
    if !is_supported(shared, controller, feature) {
        return Err(INVALID);
    }
    check_namespace(shared, controller, feature, command.nsid.get(), false)?;
    check_path(shared, controller, feature, command.nsid.get(), false)?;
    let features = match (cdw10 >> 8) as u8 & 7 {
        select::CURRENT => controller.features(),
        select::DEFAULT | select::SAVED => Features::DEFAULT,
        select::CAPABILITIES => {
            let result = match feature {
                FeatureId::HOST_ID => 0,
                _ if is_of_namespaces(feature) => CHANGEABLE | NAMESPACE_SPECIFIC,
                _ => CHANGEABLE,
            };
            return Ok(Value { result, data: None });
        }
        _ => return Err(INVALID),
    };
    let result = match feature {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::TEMPERATURE_THRESHOLD => temperature(&features, command.cdw11.get())?.into(),
        FeatureId::ERROR_RECOVERY => {
            let own = features.error_recovery_of.get(&command.nsid.get());
            own.copied().unwrap_or(features.error_recovery)
        }
        FeatureId::TIMESTAMP => {
            let data = Buf::copy_from(&features.timestamp.encode(now));
            return Ok(Value { result: 0, data: Some(data.freeze()) });
        }
        FeatureId::HOST_BEHAVIOR => {
            let mut data = Buf::zeroed(HOST_BEHAVIOR_BYTES);
            data[0] = features.advanced_retry.into();
            return Ok(Value { result: 0, data: Some(data.freeze()) });
        }
        FeatureId::WRITE_ATOMICITY => features.write_atomicity,
        FeatureId::ASYNC_EVENT_CONFIG => features.async_event,
        FeatureId::KEEP_ALIVE_TIMER => controller.keep_alive_ms(),
        FeatureId::NUMBER_OF_QUEUES => queue_counts(shared.config.profile.io_queues_max),
        FeatureId::RESERVATION_NOTIFICATION => reservation::of_namespace(shared, controller, command)?.mask(),
        FeatureId::RESERVATION_PERSISTENCE => reservation::of_namespace(shared, controller, command)?.persists().into(),
        FeatureId::VOLATILE_WRITE_CACHE => u32::from(!controller.write_through()),
        FeatureId::HOST_ID => {
            // EXHID: over fabrics the identifier always has 128 bits (NVMe Base 2.0 §5.27.1.25).
            if command.cdw11.get() & 1 == 0 {
                return Err(INVALID);
            }
            return Ok(Value { result: 0, data: Some(Buf::copy_from(&controller.host_id().id).freeze()) });
        }
        _ => 0, // power management: state 0
    };
    Ok(Value { result, data: None })
}

/// Features of a namespace over a path that can't reach it (NVMe Base 2.0 §8.1.1.10).
fn check_path(
    shared: &Shared,
    controller: &Controller,
    feature: FeatureId,
    nsid: u32,
    set: bool,
) -> Result<(), Status> {
    let at_namespace = matches!(
        feature,
        FeatureId::ERROR_RECOVERY
            | FeatureId::WRITE_ATOMICITY
            | FeatureId::RESERVATION_NOTIFICATION
            | FeatureId::RESERVATION_PERSISTENCE
    );
    for attached in shared.namespaces(controller).iter().filter(|found| nsid == NSID_ALL || nsid == found.nsid) {
        let lost = attached.access == AnaState::PersistentLoss;
        if let Some(status) = attached.access.refusal()
            && (at_namespace || set && (lost || nsid == NSID_ALL))
        {
            return Err(status);
        }
    }
    Ok(())
}

/// The threshold of the composite temperature: type select 0 over, 1 under; there are no other sensors.
fn temperature(features: &Features, cdw11: u32) -> Result<u16, Status> {
    match (cdw11 >> 16 & 0xF, cdw11 >> 20 & 3) {
        (0, 0) => Ok(features.temperature_over),
        (0, 1) => Ok(features.temperature_under),
        _ => Err(INVALID),
    }
}

/// Set Features; dword 0 of the completion.
pub(super) fn set(
    shared: &Shared,
    controller: &Controller,
    command: &Submission,
    data: &[u8],
    now: Instant,
) -> Result<u32, Status> {
    let feature = FeatureId(command.cdw10.get() as u8);
    let value = command.cdw11.get();
    if !is_supported(shared, controller, feature) {
        return Err(INVALID);
    }
    if command.cdw10.get() & SAVE != 0 {
        return Err(Status::FEATURE_NOT_SAVEABLE.do_not_retry());
    }
    check_namespace(shared, controller, feature, command.nsid.get(), true)?;
    check_path(shared, controller, feature, command.nsid.get(), true)?;
    match feature {
        FeatureId::ARBITRATION => controller.update_features(|features| features.arbitration = value),
        FeatureId::POWER_MANAGEMENT if value & 0x1F != 0 => return Err(INVALID), // there is state 0 only
        FeatureId::POWER_MANAGEMENT => {}
        FeatureId::TEMPERATURE_THRESHOLD => {
            let sensors = if value >> 16 & 0xF == ALL_SENSORS { value & !(ALL_SENSORS << 16) } else { value };
            temperature(&Features::DEFAULT, sensors)?;
            controller.set_temperature_threshold(value >> 20 & 3 == 0, value as u16);
        }
        // DULBE: reads of deallocated blocks never fail here.
        FeatureId::ERROR_RECOVERY if value & 1 << 16 != 0 => return Err(INVALID),
        FeatureId::ERROR_RECOVERY => controller.update_features(|features| match command.nsid.get() {
            NSID_ALL => {
                features.error_recovery = value & 0xFFFF;
                features.error_recovery_of.clear();
            }
            nsid => {
                features.error_recovery_of.insert(nsid, value & 0xFFFF);
            }
        }),
        FeatureId::TIMESTAMP => controller.update_features(|features| features.timestamp.set(data, now)),
        FeatureId::HOST_BEHAVIOR => return set_host_behavior(controller, data),
        FeatureId::VOLATILE_WRITE_CACHE => controller.set_write_through(value & 1 == 0),
        // Only before the first I/O queue is made (NVMe Base 2.0c §5.27.1.5).
        FeatureId::NUMBER_OF_QUEUES if controller.queues_made() => return Err(Status::SEQUENCE_ERROR.do_not_retry()),
        FeatureId::NUMBER_OF_QUEUES => return set_queues(value, shared.config.profile.io_queues_max),
        FeatureId::RESERVATION_NOTIFICATION => reservation::set_notification_mask(shared, controller, command)?,
        FeatureId::RESERVATION_PERSISTENCE => {} // durable before it is answered, and so set by the caller
        FeatureId::WRITE_ATOMICITY => controller.update_features(|features| features.write_atomicity = value & 1),
        // There is one combination, with all that there are.
        FeatureId::COMMAND_SET_PROFILE if value & COMBINATION_MASK != 0 => {
            return Err(Status::COMMAND_SET_COMBINATION_REJECTED.do_not_retry());
        }
        FeatureId::COMMAND_SET_PROFILE => {}
        FeatureId::ASYNC_EVENT_CONFIG => {
            use async_event_config::{ANA_CHANGE, DISCOVERY_CHANGE, HEALTH_MASK, NAMESPACE_ATTRIBUTE};
            let known = NAMESPACE_ATTRIBUTE | ANA_CHANGE | DISCOVERY_CHANGE | HEALTH_MASK;
            controller.update_features(|features| features.async_event = value & known);
        }
        FeatureId::KEEP_ALIVE_TIMER if !controller.set_keep_alive(value, now) => {
            return Err(Status::KEEP_ALIVE_INVALID.do_not_retry());
        }
        FeatureId::KEEP_ALIVE_TIMER => {}
        // The identifier came with Connect and stays (NVMe Base 2.0 §5.27.1.25).
        _ => return Err(Status::SEQUENCE_ERROR.do_not_retry()),
    }
    Ok(0)
}

/// Host Behavior Support: of what hosts may announce only ACRE has a meaning here; what would change how we answer and is not
/// built is refused.
fn set_host_behavior(controller: &Controller, data: &[u8]) -> Result<u32, Status> {
    if data[0] > 1 || data[1..].iter().any(|&byte| byte != 0) {
        return Err(INVALID);
    }
    controller.update_features(|features| features.advanced_retry = data[0] == 1);
    Ok(0)
}

/// Number of Queues (NVMe Base 2.0 §5.27.1.5): a host may ask for any number and gets what there is.
fn set_queues(value: u32, io_queues_max: u16) -> Result<u32, Status> {
    if value & 0xFFFF == 0xFFFF || value >> 16 == 0xFFFF {
        return Err(INVALID);
    }
    Ok(queue_counts(io_queues_max))
}
