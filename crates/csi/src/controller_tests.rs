use control::provision::{Level, Name};
use serde_json::{Value, json};
use tonic::Code;

use super::*;
use crate::plane_double::{Double, GIB, MOST};
use crate::wire::{
    AccessMode, AccessType, CapacityRange, CreateSnapshotRequest, ExpandRequest, Snapshot, SnapshotId,
    SnapshotsRequest, SourceType, VolumeCapability, VolumeContentSource,
};

fn volume(bytes: u64, replicas: usize, level: &str) -> VolumeView {
    let id = "3f0c7d2e-5b4f-4a53-9d87-0f2f6a1f7b11";
    let holder = json!({"kind": "replica", "drive": "a", "address": "10.0.0.1:4420", "nqn": "nqn.2026-11.io.yagura:a",
        "namespace": null});
    let view: Value = json!({"id": id, "tenant": "a", "name": "db", "bytes": bytes, "state": "ready", "level": level,
        "holders": vec![holder; replicas], "attachment": null, "operation": null, "limits": {}, "snapshots": [], "created": 0});
    serde_json::from_value(view).expect("a volume")
}

fn source(volume: &str, snapshot: &str) -> Source {
    let name = |text: &str| Name::new(text).expect("a name");
    Source { volume: name(volume), snapshot: Some(name(snapshot)) }
}

#[test]
fn a_volume_of_the_name_is_the_one_that_is_asked_for_or_in_the_way() {
    let asked = Parameters { replicas: 2, level: Level::Rack, relax: false };
    let compared = |volume: &VolumeView, range: (i64, i64), asked: &Parameters| {
        let wanted = Size::of(Some(CapacityRange { required_bytes: range.0, limit_bytes: range.1 })).expect("a size");
        same(volume, &wanted, asked, None).map_err(|status| status.code())
    };
    let (there, other) = (volume(8192, 2, "rack"), Err(Code::AlreadyExists));
    for range in [(8192, 8192), (8192, 0), (4097, 0), (0, 8192), (0, 0)] {
        assert_eq!(compared(&there, range, &asked), Ok(()), "{range:?}");
    }
    for range in [(8193, 0), (0, 4096), (4096, 4096)] {
        assert_eq!(compared(&there, range, &asked), other, "{range:?}");
    }
    assert_eq!(compared(&there, (0, 0), &Parameters { replicas: 3, ..asked }), other);
    assert_eq!(compared(&volume(8192, 2, "node"), (0, 0), &asked), other);
    assert_eq!(compared(&volume(8192, 2, "zone"), (0, 0), &asked), other);
    assert_eq!(compared(&volume(8192, 2, "node"), (0, 0), &Parameters { relax: true, ..asked }), Ok(()));
    let (made, wanted) = (Some(source("a", "s")), Size::of(None).expect("a size"));
    for (of, asked_of, expected) in [
        (made.clone(), Some(source("a", "s")), Ok(())),
        (made.clone(), Some(source("a", "t")), other),
        (made.clone(), Some(source("b", "s")), other),
        (made.clone(), Some(Source { snapshot: None, ..source("a", "s") }), other),
        (made, None, other),
        (None, Some(source("a", "s")), other),
    ] {
        let found = VolumeView { from: of, ..volume(8192, 2, "rack") };
        let compared = same(&found, &wanted, &asked, asked_of.as_ref()).map_err(|status| status.code());
        assert_eq!(compared, expected, "{:?}, asked for {asked_of:?}", found.from);
    }
}

fn of_volume(volume: &str) -> SourceType {
    SourceType::Volume(VolumeId { volume_id: volume.into() })
}

fn of_snapshot(id: &str) -> SourceType {
    SourceType::Snapshot(SnapshotId { snapshot_id: id.into() })
}

fn range(required: u64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes: required as i64, limit_bytes: 0 })
}

fn to_create(name: &str, required: u64, from: Option<SourceType>) -> CreateVolumeRequest {
    let access_mode = Some(AccessMode { mode: 1 });
    let capability = VolumeCapability { access_type: Some(AccessType::Block(Nothing {})), access_mode };
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: range(required),
        volume_capabilities: vec![capability],
        volume_content_source: from.map(|source| VolumeContentSource { source: Some(source) }),
        ..CreateVolumeRequest::default()
    }
}

async fn created(driver: &Controller, name: &str, required: u64, from: Option<SourceType>) -> Result<Volume, Code> {
    let made = driver.create(to_create(name, required, from)).await.map_err(|status| status.code())?;
    Ok(made.volume.expect("a volume"))
}

async fn taken(driver: &Controller, volume: &str, name: &str) -> Result<Snapshot, Code> {
    let (source_volume_id, name) = (volume.into(), name.into());
    let request = CreateSnapshotRequest { source_volume_id, name, ..CreateSnapshotRequest::default() };
    let taken = driver.take(request).await.map_err(|status| status.code())?;
    Ok(taken.snapshot.expect("a snapshot"))
}

async fn deleted(driver: &Controller, volume: &str) -> Result<(), Code> {
    let request = VolumeId { volume_id: volume.into() };
    driver.delete(request).await.map(drop).map_err(|status| status.code())
}

/// The ids of a page, and the token of the next one.
async fn listed(driver: &Controller, request: &SnapshotsRequest) -> Result<(Vec<String>, String), Code> {
    let listed = driver.snapshots(request.clone()).await.map_err(|status| status.code())?;
    let ids = listed.entries.into_iter().map(|entry| entry.snapshot.expect("a snapshot").snapshot_id);
    Ok((ids.collect(), listed.next_token))
}

#[tokio::test]
async fn a_snapshot_is_one_of_one_volume() {
    let double = Double::start();
    let driver = Controller::new(double.plane());
    ["a", "b", "c", "d", "e"].iter().for_each(|name| double.world().add(name, GIB));
    let first = taken(&driver, "e", "s").await.expect("taken");
    assert_eq!((first.snapshot_id.as_str(), first.source_volume_id.as_str()), ("e@s", "e"));
    let created = double.world().snapshots[&("e".to_owned(), "s".to_owned())]["created"].as_i64();
    assert_eq!((first.size_bytes, first.ready_to_use), (1 << 30, true));
    assert_eq!(first.creation_time.map(|time| time.seconds), created);
    assert_eq!(taken(&driver, "e", "s").await, Ok(first.clone()), "once more");
    assert_eq!(taken(&driver, "a", "s").await, Err(Code::AlreadyExists), "of another volume, on the last page");
    assert_eq!(taken(&driver, "none", "t").await, Err(Code::NotFound));
    assert_eq!(taken(&driver, "../e", "t").await, Err(Code::NotFound));
    for (volume, name) in [("", "t"), ("e", ""), ("e", &"a".repeat(129))] {
        assert_eq!(taken(&driver, volume, name).await, Err(Code::InvalidArgument));
    }
    driver.plane.take("a", "s").await.expect("asked").expect("taken");
    assert_eq!(taken(&driver, "e", "s").await, Ok(first), "what is there is answered whoever else has the name");
    driver.plane.forget("a", "s").await.expect("asked").expect("gone");
    // What is in the way is kept, and what is not there is gone.
    assert_eq!(deleted(&driver, "e").await, Err(Code::FailedPrecondition));
    for id in ["e@t", "none@s", "nothing", "e@s", "e@s"] {
        driver.forget(SnapshotId { snapshot_id: id.into() }).await.expect("gone");
    }
    assert!(double.world().snapshots.is_empty());
    assert_eq!(deleted(&driver, "e").await, Ok(()));
}

#[tokio::test]
async fn snapshots_are_listed_in_pages_that_go_on_where_one_is_gone() {
    let double = Double::start();
    let driver = Controller::new(double.plane());
    ["a", "b", "c", "d"].iter().for_each(|name| double.world().add(name, GIB));
    for (volume, name) in [("a", "y"), ("a", "x"), ("d", "z"), ("c", "w")] {
        taken(&driver, volume, name).await.expect("taken");
    }
    // What the control plane has taken for itself is none of the orchestrator's.
    driver.plane.take("b", "own").await.expect("asked").expect("taken");
    double.world().snapshots.get_mut(&("b".to_owned(), "own".to_owned())).expect("taken")["temporary"] = true.into();
    let all = ["a@x", "a@y", "c@w", "d@z"];
    let asked = SnapshotsRequest::default();
    assert_eq!(listed(&driver, &asked).await, Ok((all.map(str::to_owned).to_vec(), String::new())));
    for most in 1..=4 {
        let (mut found, mut next) = (Vec::new(), asked.clone());
        next.max_entries = most as i32;
        loop {
            let (ids, token) = listed(&driver, &next).await.expect("listed");
            assert!(ids.len() <= most);
            found.extend(ids);
            next.starting_token = token;
            if next.starting_token.is_empty() {
                break;
            }
        }
        assert_eq!(found, all, "pages of {most}");
    }
    driver.forget(SnapshotId { snapshot_id: "a@x".into() }).await.expect("gone");
    let behind = SnapshotsRequest { starting_token: "after:a@x".into(), ..asked.clone() };
    assert_eq!(listed(&driver, &behind).await.expect("listed").0, all[1..]);
    let strange = SnapshotsRequest { starting_token: "a".into(), ..asked.clone() };
    assert_eq!(listed(&driver, &strange).await, Err(Code::Aborted));
    for (id, volume, expected) in [
        ("a@y", "", &["a@y"][..]),
        ("a@y", "a", &["a@y"]),
        ("a@y", "c", &[]),
        ("a@x", "", &[]),
        ("nothing", "", &[]),
        ("", "a", &["a@y"]),
        ("", "b", &[]),
        ("", "none", &[]),
        ("", "../a", &[]),
    ] {
        let (snapshot_id, source_volume_id) = (id.into(), volume.into());
        let found = listed(&driver, &SnapshotsRequest { snapshot_id, source_volume_id, ..asked.clone() }).await;
        assert_eq!(found.expect("listed").0, expected, "{id} of {volume}");
    }
}

#[tokio::test]
async fn a_volume_begins_as_what_it_is_made_of() {
    let double = Double::start();
    let driver = Controller::new(double.plane());
    double.world().add("a", 2 * GIB);
    let snapshot = taken(&driver, "a", "s").await.expect("taken").snapshot_id;
    let made = created(&driver, "new", 0, Some(of_snapshot(&snapshot))).await.expect("made");
    assert_eq!(made.capacity_bytes, 2 << 30, "as large as what it is made of");
    assert_eq!(made.content_source, Some(VolumeContentSource { source: Some(of_snapshot(&snapshot)) }));
    assert_eq!(created(&driver, "new", 0, Some(of_snapshot(&snapshot))).await, Ok(made), "once more");
    for other in [None, Some(of_volume("a")), Some(of_snapshot("a@t"))] {
        assert_eq!(created(&driver, "new", 0, other).await, Err(Code::AlreadyExists));
    }
    let larger = created(&driver, "larger", 3 * GIB, Some(of_volume("a"))).await.expect("made");
    assert_eq!(larger.capacity_bytes, 3 << 30);
    assert_eq!(larger.content_source, Some(VolumeContentSource { source: Some(of_volume("a")) }));
    let unsaid = created(&driver, "smaller", GIB, Some(of_volume("a"))).await.expect("made");
    assert_eq!(unsaid.capacity_bytes, 2 << 30, "no smaller than what it is made of");
    for missing in [of_snapshot("a@none"), of_snapshot("nothing"), of_volume("none"), of_volume("A")] {
        assert_eq!(created(&driver, "none", 0, Some(missing.clone())).await, Err(Code::NotFound), "{missing:?}");
    }
    // What is refused leaves nothing.
    let mut bounded = to_create("none", 0, Some(of_volume("a")));
    bounded.capacity_range = Some(CapacityRange { required_bytes: 0, limit_bytes: GIB as i64 });
    assert_eq!(driver.create(bounded).await.map_err(|status| status.code()), Err(Code::OutOfRange));
    let refused = created(&driver, "none", MOST + 4096, Some(of_volume("a"))).await;
    assert_eq!(refused, Err(Code::OutOfRange), "larger than what it is made of can become");
    // Of a call that came second for its name, while the first one's volume was made.
    double.world().add("b", GIB);
    assert_eq!(created(&driver, "larger", 0, Some(of_volume("b"))).await, Err(Code::AlreadyExists));
    let neither = CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { source: None }),
        ..to_create("none", 0, None)
    };
    assert_eq!(driver.create(neither).await.map_err(|status| status.code()), Err(Code::InvalidArgument));
    let world = double.world();
    assert!(world.snapshots.keys().eq([&("a".to_owned(), "s".to_owned())]), "{:?}", world.snapshots);
    assert!(!world.volumes.contains_key("none"));
}

#[tokio::test]
async fn a_driver_that_dies_anywhere_has_a_volume_copied_once_or_not_at_all() {
    for (is_done, is_given_up) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut deaths = 0;
        loop {
            let what = format!("death at {deaths}, done {is_done}, given up {is_given_up}");
            let double = Double::start();
            let driver = Controller::new(double.plane());
            double.world().add("a", GIB);
            double.world().dies = Some((deaths, is_done));
            let made = created(&driver, "new", 2 * GIB, Some(of_volume("a"))).await;
            let left = double.world().dies.take();
            let is_alive = left.is_some_and(|(left, _)| left > 0);
            assert!(made.is_ok() || made == Err(Code::Unavailable) && !is_alive, "{what}: {made:?}");
            if !is_given_up {
                let again = created(&driver, "new", 2 * GIB, Some(of_volume("a"))).await.expect(&what);
                assert_eq!(again.content_source, Some(VolumeContentSource { source: Some(of_volume("a")) }), "{what}");
                assert!(double.world().volumes.keys().eq(["a", "new"]), "{what}");
            }
            assert_eq!(deleted(&driver, "new").await, Ok(()), "{what}");
            assert_eq!(deleted(&driver, "a").await, Ok(()), "{what}");
            assert!(double.world().volumes.is_empty(), "{what}");
            if is_alive {
                break;
            }
            deaths += 1;
        }
        assert!(deaths > 3, "{deaths} deaths");
    }
}

#[tokio::test]
async fn a_copy_is_of_what_its_source_is_when_the_copy_is_asked_for_and_needs_it_no_more() {
    let double = Double::start();
    let driver = Controller::new(double.plane());
    double.world().add("a", GIB);
    double.world().fails = true;
    assert_eq!(created(&driver, "new", 0, Some(of_volume("a"))).await, Err(Code::Unavailable));
    assert!(double.world().volumes.keys().eq(["a"]), "what is undone leaves nothing");
    double.world().volumes.get_mut("a").expect("there")["bytes"] = (2 * GIB).into();
    let made = created(&driver, "new", 0, Some(of_volume("a"))).await.expect("made");
    assert_eq!(made.capacity_bytes, 2 << 30);
    assert_eq!(deleted(&driver, "a").await, Ok(()));
    assert_eq!(created(&driver, "new", 0, Some(of_volume("a"))).await, Ok(made), "it is there");
}

#[tokio::test]
async fn a_snapshot_without_a_copy_is_not_ready() {
    let double = Double::start();
    let driver = Controller::new(double.plane());
    double.world().add("a", GIB);
    let id = taken(&driver, "a", "s").await.expect("taken").snapshot_id;
    double.world().snapshots.get_mut(&("a".to_owned(), "s".to_owned())).expect("taken")["copies"] = json!([]);
    assert!(!taken(&driver, "a", "s").await.expect("there").ready_to_use);
    assert_eq!(created(&driver, "new", 0, Some(of_snapshot(&id))).await, Err(Code::FailedPrecondition));
    assert!(double.world().snapshots.len() == 1 && double.world().volumes.len() == 1, "nothing is changed");
}

#[tokio::test]
async fn a_volume_grows_to_what_is_wanted_and_does_not_shrink() {
    let double = Double::start();
    let driver = Controller::new(double.plane());
    double.world().add("a", GIB);
    let grown = async |volume: &str, capacity_range: Option<CapacityRange>| {
        let request = ExpandRequest { volume_id: volume.into(), capacity_range };
        let grown = driver.expand(request).await.map_err(|status| status.code())?;
        assert!(grown.node_expansion_required, "the node waits for the device");
        Ok(grown.capacity_bytes as u64)
    };
    assert_eq!(grown("a", range(2 * GIB - 1)).await, Ok(2 * GIB), "rounded");
    assert_eq!(grown("a", range(2 * GIB - 1)).await, Ok(2 * GIB), "once more");
    assert_eq!(grown("a", range(GIB)).await, Ok(2 * GIB), "larger already");
    let bounded =
        |required: u64, limit: u64| Some(CapacityRange { required_bytes: required as i64, limit_bytes: limit as i64 });
    assert_eq!(grown("a", bounded(0, 3 * GIB)).await, Ok(2 * GIB));
    assert_eq!(grown("a", bounded(3 * GIB, 3 * GIB)).await, Ok(3 * GIB));
    for (range, code) in [
        (bounded(GIB, 2 * GIB), Code::OutOfRange),
        (bounded(MOST + 4096, 0), Code::OutOfRange),
        (bounded(3 * GIB + 1, 3 * GIB + 2), Code::OutOfRange),
        (bounded(2, 1), Code::InvalidArgument),
        (None, Code::InvalidArgument),
    ] {
        assert_eq!(grown("a", range).await, Err(code), "{range:?}");
    }
    assert_eq!(grown("none", range(GIB)).await, Err(Code::NotFound));
    assert_eq!(grown("../a", range(GIB)).await, Err(Code::NotFound));
    assert_eq!(grown("", range(GIB)).await, Err(Code::InvalidArgument));
}
