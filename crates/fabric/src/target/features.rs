//! Get and Set Features (NVMe Base 2.0 §5.15, §5.27).

use engine::time::Instant;
use engine::{Buf, View};
use nvme::feature::{FeatureId, SAVE, async_event_config, select};
use nvme::{AnaState, NSID_ALL, Status, Submission};

use super::controller::{Controller, Features};
use super::limits::IO_QUEUES_MAX;
use super::shared::Shared;

/// Features of an I/O controller, ascending.
pub(super) const SUPPORTED: [FeatureId; 10] = [
    FeatureId::ARBITRATION,
    FeatureId::POWER_MANAGEMENT,
    FeatureId::TEMPERATURE_THRESHOLD,
    FeatureId::ERROR_RECOVERY,
    FeatureId::VOLATILE_WRITE_CACHE,
    FeatureId::NUMBER_OF_QUEUES,
    FeatureId::WRITE_ATOMICITY,
    FeatureId::ASYNC_EVENT_CONFIG,
    FeatureId::KEEP_ALIVE_TIMER,
    FeatureId::HOST_ID,
];
/// Capabilities (SELECT 3): changeable.
const CHANGEABLE: u32 = 1 << 2;

const INVALID: Status = Status::INVALID_FIELD.do_not_retry();

/// A feature's value: dword 0, and data for the features that have some.
pub(super) struct Value {
    pub result: u32,
    pub data: Option<View>,
}

fn is_supported(controller: &Controller, feature: FeatureId) -> bool {
    if controller.is_discovery() {
        return matches!(feature, FeatureId::ASYNC_EVENT_CONFIG | FeatureId::KEEP_ALIVE_TIMER);
    }
    SUPPORTED.contains(&feature)
}

fn has_cache<N>(shared: &Shared<N>, controller: &Controller) -> bool {
    shared.namespaces(controller).iter().any(|attached| attached.info.volatile_cache)
}

/// Zero based counts of submission and completion queues.
fn queue_counts() -> u32 {
    let zero_based = u32::from(IO_QUEUES_MAX) - 1;
    zero_based << 16 | zero_based
}

/// Get Features.
pub(super) fn get<N>(shared: &Shared<N>, controller: &Controller, command: &Submission) -> Result<Value, Status> {
    let cdw10 = command.cdw10.get();
    let feature = FeatureId(cdw10 as u8);
    if !is_supported(controller, feature) {
        return Err(INVALID);
    }
    check_path(shared, controller, feature, command.nsid.get(), false)?;
    let features = match (cdw10 >> 8) as u8 & 7 {
        select::CURRENT => controller.features(),
        select::DEFAULT | select::SAVED => Features::DEFAULT,
        select::CAPABILITIES => {
            let fixed = matches!(feature, FeatureId::HOST_ID);
            return Ok(Value { result: if fixed { 0 } else { CHANGEABLE }, data: None });
        }
        _ => return Err(INVALID),
    };
    let result = match feature {
        FeatureId::ARBITRATION => features.arbitration,
        FeatureId::TEMPERATURE_THRESHOLD => temperature(&features, command.cdw11.get())?.into(),
        FeatureId::ERROR_RECOVERY => features.error_recovery,
        FeatureId::WRITE_ATOMICITY => features.write_atomicity,
        FeatureId::ASYNC_EVENT_CONFIG => features.async_event,
        FeatureId::KEEP_ALIVE_TIMER => controller.keep_alive_ms(),
        FeatureId::NUMBER_OF_QUEUES => queue_counts(),
        FeatureId::VOLATILE_WRITE_CACHE if has_cache(shared, controller) => u32::from(!controller.write_through()),
        FeatureId::VOLATILE_WRITE_CACHE => return Err(INVALID),
        FeatureId::HOST_ID => {
            // EXHID: over fabrics the identifier always has 128 bits (NVMe Base 2.0 §5.27.1.25).
            if command.cdw11.get() & 1 == 0 {
                return Err(INVALID);
            }
            return Ok(Value { result: 0, data: Some(Buf::copy_from(&controller.host_id()).freeze()) });
        }
        _ => 0, // power management: state 0
    };
    Ok(Value { result, data: None })
}

/// Features of a namespace over a path that can't reach it (NVMe Base 2.0 §8.1.1.10).
fn check_path<N>(
    shared: &Shared<N>,
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
pub(super) fn set<N>(
    shared: &Shared<N>,
    controller: &Controller,
    command: &Submission,
    now: Instant,
) -> Result<u32, Status> {
    let feature = FeatureId(command.cdw10.get() as u8);
    let value = command.cdw11.get();
    if !is_supported(controller, feature) {
        return Err(INVALID);
    }
    if command.cdw10.get() & SAVE != 0 {
        return Err(Status::FEATURE_NOT_SAVEABLE.do_not_retry());
    }
    check_path(shared, controller, feature, command.nsid.get(), true)?;
    match feature {
        FeatureId::ARBITRATION => controller.update_features(|features| features.arbitration = value),
        FeatureId::POWER_MANAGEMENT if value & 0x1F != 0 => return Err(INVALID), // there is state 0 only
        FeatureId::POWER_MANAGEMENT => {}
        FeatureId::TEMPERATURE_THRESHOLD => {
            temperature(&Features::DEFAULT, value)?;
            controller.update_features(|features| match value >> 20 & 3 {
                0 => features.temperature_over = value as u16,
                _ => features.temperature_under = value as u16,
            });
        }
        // DULBE: reads of deallocated blocks never fail here.
        FeatureId::ERROR_RECOVERY if value & 1 << 16 != 0 => return Err(INVALID),
        FeatureId::ERROR_RECOVERY => controller.update_features(|features| features.error_recovery = value & 0xFFFF),
        FeatureId::VOLATILE_WRITE_CACHE if has_cache(shared, controller) => {
            controller.set_write_through(value & 1 == 0);
        }
        FeatureId::VOLATILE_WRITE_CACHE => return Err(INVALID),
        FeatureId::NUMBER_OF_QUEUES => return set_queues(value),
        FeatureId::WRITE_ATOMICITY => controller.update_features(|features| features.write_atomicity = value & 1),
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

/// Number of Queues (NVMe Base 2.0 §5.27.1.5): a host may ask for any number and gets what there is.
fn set_queues(value: u32) -> Result<u32, Status> {
    if value & 0xFFFF == 0xFFFF || value >> 16 == 0xFFFF {
        return Err(INVALID);
    }
    Ok(queue_counts())
}
