//! How much room there is for volumes. It is a hint: who places volumes looks at the drives themselves.

use std::collections::BTreeMap;

use control::provision::{Drive, DriveState, Level, Name, Node, Pool, Tenant, VOLUME_BYTES_MAX, room};

use crate::parameters::Parameters;
use crate::wire::{CapacityResponse, Number};

/// Bytes of all volumes that there is room for, and of the largest one.
pub fn available(drives: &[Drive], nodes: &[Node], pool: &Pool, parameters: &Parameters) -> (u64, u64) {
    // Of each domain, what all of its drives have left, and the one that has most.
    let mut domains: BTreeMap<Vec<&Name>, (u64, u64)> = BTreeMap::new();
    for drive in drives.iter().filter(|drive| drive.state == DriveState::InUse) {
        let Some(domain) = domain(drive, nodes, parameters) else { continue };
        let left = room(drive, pool.overcommit_percent).saturating_sub(drive.promised);
        let (all, most) = domains.entry(domain).or_default();
        *all = all.saturating_add(left);
        *most = left.max(*most);
    }
    let replicas = usize::from(parameters.replicas);
    let mut most: Vec<u64> = domains.values().map(|(_, most)| *most).collect();
    most.sort_unstable_by(|a, b| b.cmp(a));
    let Some(largest) = most.get(replicas - 1) else { return (0, 0) };
    let all = domains.values().fold(0u64, |sum, (all, _)| sum.saturating_add(*all));
    (all / replicas as u64, (*largest).min(VOLUME_BYTES_MAX))
}

/// What no two replicas may have in common.
fn domain<'a>(drive: &'a Drive, nodes: &'a [Node], parameters: &Parameters) -> Option<Vec<&'a Name>> {
    let level = if parameters.relax { Level::Drive } else { parameters.level };
    let node = nodes.iter().find(|node| node.name == drive.node)?;
    match level {
        Level::Drive => Some(vec![&drive.name]),
        Level::Node => Some(vec![&node.name]),
        Level::Rack => Some(node.zone.iter().chain([node.rack.as_ref()?]).collect()),
        Level::Zone => Some(vec![node.zone.as_ref()?]),
    }
}

/// The answer, with what the tenant may have still.
pub fn narrowed((all, largest): (u64, u64), tenant: Option<&Tenant>) -> CapacityResponse {
    let left = tenant.and_then(|tenant| Some(tenant.quota_bytes?.saturating_sub(tenant.bytes))).unwrap_or(u64::MAX);
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let maximum_volume_size = Some(Number { value: number(largest.min(left)) });
    CapacityResponse { available_capacity: number(all.min(left)), maximum_volume_size }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn drive(name: &str, node: &str, promised: u64) -> Drive {
        let drive = json!({"name": name, "node": node, "address": "10.0.0.1:4420", "nqn": "nqn.2026-11.io.yagura:a",
            "state": "in-use", "total": 100, "thin": true, "foreign": [], "promised": promised, "holders": 0});
        serde_json::from_value(drive).expect("a drive")
    }

    fn node(name: &str, zone: Option<&str>) -> Node {
        serde_json::from_value(json!({"name": name, "rack": null, "zone": zone, "drives": 1})).expect("a node")
    }

    #[test]
    fn the_largest_volume_has_room_for_every_replica_apart_from_the_others() {
        let nodes = [node("a", Some("z1")), node("b", Some("z1")), node("c", Some("z2"))];
        let mut drives = vec![drive("a1", "a", 0), drive("a2", "a", 90), drive("b", "b", 40), drive("c", "c", 70)];
        let asked = |drives: &[Drive], replicas, level, relax| {
            available(drives, &nodes, &Pool::default(), &Parameters { replicas, level, relax })
        };
        assert_eq!(asked(&drives, 1, Level::Node, false), (200, 100));
        assert_eq!(asked(&drives, 2, Level::Node, false), (100, 60));
        assert_eq!(asked(&drives, 3, Level::Node, false), (66, 30));
        assert_eq!(asked(&drives, 2, Level::Zone, false), (100, 30));
        assert_eq!(asked(&drives, 3, Level::Zone, false), (0, 0));
        assert_eq!(asked(&drives, 3, Level::Zone, true), (66, 30));
        drives[0].state = DriveState::Draining;
        assert_eq!(asked(&drives, 3, Level::Node, false), (33, 10));
        let tenant = json!({"id": uuid(), "name": "a", "quota_bytes": 50, "quota_volumes": null, "bytes": 20, "volumes": 1,
            "pending": 0});
        let tenant: Tenant = serde_json::from_value(tenant).expect("a tenant");
        let answer = narrowed((66, 40), Some(&tenant));
        assert_eq!((answer.available_capacity, answer.maximum_volume_size.map(|size| size.value)), (30, Some(30)));
        assert_eq!(narrowed((u64::MAX, 1), None).available_capacity, i64::MAX);
    }

    fn uuid() -> &'static str {
        "3f0c7d2e-5b4f-4a53-9d87-0f2f6a1f7b11"
    }
}
