//! Volumes of a node over crashes of the driver, on a machine of which only the calls count.

mod double;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use csi::{Access, Filesystem, Node, Use};
use double::{Content, Double};
use tempfile::TempDir;
use tonic::Code;

const EXT4: Access = Access::Mount { filesystem: Filesystem::Ext4, flags: Vec::new() };

/// A node's folders.
struct Place {
    root: TempDir,
    double: Double,
}

impl Place {
    fn new() -> Place {
        Place { root: tempfile::tempdir().expect("a folder"), double: Double::default() }
    }

    fn node(&self) -> Node<Double> {
        Node::open(self.double.clone(), &self.path("state")).expect("opened")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn staged(&self, node: &Node<Double>, access: &Access) -> Result<(), Code> {
        node.stage("a", &self.path("staging"), access).map_err(|status| status.code())
    }

    fn published(&self, node: &Node<Double>, target: &str, wanted: &Use) -> Result<(), Code> {
        let published = node.publish("a", &self.path("staging"), &self.path(target), wanted);
        published.map_err(|status| status.code())
    }

    fn unpublished(&self, node: &Node<Double>, target: &str) -> Result<(), Code> {
        node.unpublish("a", &self.path(target)).map_err(|status| status.code())
    }

    fn unstaged(&self, node: &Node<Double>) -> Result<(), Code> {
        node.unstage("a", &self.path("staging")).map_err(|status| status.code())
    }

    fn content(&self) -> Content {
        self.double.world().contents.get("a").cloned().unwrap_or_default()
    }

    /// Nothing is left of the volume on this node.
    fn is_clean(&self, what: &str) {
        let world = self.double.world();
        assert!(
            world.attached.is_empty() && world.ours.is_empty() && world.mounts.is_empty(),
            "{what}: {:?}",
            world.mounts
        );
        assert!(!self.path("target").exists(), "{what}: the target is left behind");
        let kept = std::fs::read_dir(self.path("state")).expect("read").count();
        assert_eq!(kept, 0, "{what}: the volume is not forgotten");
    }
}

fn to_use(access: &Access, is_read_only: bool) -> Use {
    Use { access: access.clone(), is_read_only, is_single: false }
}

/// Stages, publishes and ends both: whether the driver lives through it.
fn lives_through(place: &Place, access: &Access) -> bool {
    let whole = || {
        let node = place.node();
        assert_eq!(place.staged(&node, access), Ok(()));
        assert_eq!(place.published(&node, "target", &to_use(access, *access != Access::Block)), Ok(()));
        assert_eq!(place.unpublished(&node, "target"), Ok(()));
        assert_eq!(place.unstaged(&node), Ok(()));
    };
    catch_unwind(AssertUnwindSafe(whole)).is_ok()
}

#[test]
fn a_driver_that_dies_anywhere_is_gone_on_with() {
    for (access, is_reboot) in [(EXT4, false), (EXT4, true), (Access::Block, false), (Access::Block, true)] {
        let what = |point| format!("{access:?}, reboot {is_reboot}, death at {point}");
        let mut deaths = 0;
        loop {
            let place = Place::new();
            place.double.world().lives = Some(deaths);
            if lives_through(&place, &access) {
                place.is_clean(&what(deaths));
                break;
            }
            place.double.restart(is_reboot);
            let node = place.node();
            assert_eq!(place.staged(&node, &access), Ok(()), "{}", what(deaths));
            assert_eq!(
                place.published(&node, "target", &to_use(&access, access != Access::Block)),
                Ok(()),
                "{}",
                what(deaths)
            );
            assert_eq!(
                place.published(&node, "target", &to_use(&access, access != Access::Block)),
                Ok(()),
                "once more"
            );
            let expected = if access == Access::Block { Content::Blank } else { Content::Made(Filesystem::Ext4) };
            assert_eq!(place.content(), expected, "{}", what(deaths));
            let is_closed = place.double.world().mounts[&place.path("target")].1;
            assert_eq!(is_closed, access != Access::Block, "{}: it can be written to", what(deaths));
            assert_eq!(place.unpublished(&node, "target"), Ok(()), "{}", what(deaths));
            assert_eq!(place.unstaged(&node), Ok(()), "{}", what(deaths));
            place.is_clean(&what(deaths));
            assert_eq!((place.unpublished(&node, "target"), place.unstaged(&node)), (Ok(()), Ok(())), "once more");
            deaths += 1;
        }
        assert!(deaths > 8, "{access:?}: {deaths} deaths");
    }
}

#[test]
fn a_driver_that_dies_anywhere_can_be_told_to_end() {
    for access in [EXT4, Access::Block] {
        for point in 0.. {
            let place = Place::new();
            place.double.world().lives = Some(point);
            let has_lived = lives_through(&place, &access);
            place.double.restart(false);
            let node = place.node();
            assert_eq!(place.unpublished(&node, "target"), Ok(()), "{access:?} {point}");
            assert_eq!(place.unstaged(&node), Ok(()), "{access:?} {point}");
            assert_ne!(place.content(), Content::Partial, "{point}: nobody could tell what it is");
            place.is_clean(&format!("{access:?} {point}"));
            if has_lived {
                break;
            }
        }
    }
}

/// A volume that has grown while no node had it, and a clone that is larger than what it is made of.
#[test]
fn a_filesystem_that_is_smaller_than_its_device_is_grown_when_it_is_staged() {
    for is_reboot in [false, true] {
        for deaths in 0.. {
            let place = Place::new();
            {
                let mut world = place.double.world();
                world.contents.insert("a".into(), Content::Made(Filesystem::Ext4));
                world.sizes.insert("a".into(), 8);
                world.filesystems.insert("a".into(), 4);
                world.lives = Some(deaths);
            }
            let has_lived = catch_unwind(AssertUnwindSafe(|| place.staged(&place.node(), &EXT4))).is_ok();
            place.double.restart(is_reboot);
            assert_eq!(place.staged(&place.node(), &EXT4), Ok(()), "death at {deaths}");
            assert_eq!(place.double.world().filesystems["a"], 8, "reboot {is_reboot}, death at {deaths}");
            if has_lived {
                break;
            }
        }
    }
    // What nothing can be written to stays as it is.
    for flags in ["ro", "noatime,ro"] {
        let place = Place::new();
        {
            let mut world = place.double.world();
            world.contents.insert("a".into(), Content::Made(Filesystem::Ext4));
            world.sizes.insert("a".into(), 8);
        }
        let closed = Access::Mount { filesystem: Filesystem::Ext4, flags: vec![flags.into()] };
        let node = place.node();
        assert_eq!(place.staged(&node, &closed), Ok(()), "{flags}");
        let grown = node.expand("a", &place.path("staging"), 8).map_err(|status| status.code());
        assert_eq!(grown, Err(Code::FailedPrecondition), "{flags}");
        assert!(place.double.world().filesystems.is_empty(), "{flags}");
    }
}

#[test]
fn what_is_in_use_grows_when_the_kernel_shows_the_size() {
    for access in [EXT4, Access::Block] {
        let place = Place::new();
        let node = place.node();
        let grown = |bytes: u64, at: &str| node.expand("a", &place.path(at), bytes).map_err(|status| status.code());
        assert_eq!(grown(8, "staging"), Err(Code::NotFound), "it is not on this node");
        place.double.world().sizes.insert("a".into(), 4);
        assert_eq!(place.staged(&node, &access), Ok(()));
        assert_eq!(place.published(&node, "target", &to_use(&access, false)), Ok(()));
        let filesystem = || place.double.world().filesystems.get("a").copied();
        let has = |bytes: u64| (access != Access::Block).then_some(bytes);
        // The volume has grown, and the kernel does not know of that yet: an answer would be taken for the end of it.
        assert_eq!((grown(8, "target"), filesystem()), (Err(Code::Unavailable), has(4)), "{access:?}");
        place.double.world().sizes.insert("a".into(), 8);
        for at in ["target", "target", "staging"] {
            assert_eq!((grown(8, at), filesystem()), (Ok(8), has(8)), "{access:?}");
        }
        let elsewhere = if access == Access::Block { Ok(8) } else { Err(Code::NotFound) };
        assert_eq!(grown(8, "elsewhere"), elsewhere, "{access:?}");
        // The driver dies in the middle of the next growth.
        place.double.world().sizes.insert("a".into(), 12);
        for deaths in 0.. {
            place.double.world().lives = Some(deaths);
            let died = catch_unwind(AssertUnwindSafe(|| node.expand("a", &place.path("target"), 12))).is_err();
            place.double.restart(false);
            let next = place.node();
            let again = next.expand("a", &place.path("target"), 12).map_err(|status| status.code());
            assert_eq!((again, filesystem()), (Ok(12), has(12)), "{access:?}, death at {deaths}");
            if !died {
                break;
            }
        }
        if access != Access::Block {
            place.double.world().given_up += 1;
            let gone = node.expand("a", &place.path("staging"), 12).map_err(|status| status.code());
            assert_eq!(gone, Err(Code::FailedPrecondition), "what is mounted is not the volume any more");
        }
    }
}

#[test]
fn nothing_that_somebody_may_have_written_is_formatted() {
    // What is there.
    for content in [Content::Data, Content::Unreadable, Content::Partial] {
        let place = Place::new();
        place.double.world().contents.insert("a".into(), content.clone());
        let staged = place.staged(&place.node(), &EXT4);
        assert_eq!(staged, if content == Content::Data { Ok(()) } else { Err(Code::Unavailable) }, "{content:?}");
        assert_eq!(place.content(), content);
    }
    // A filesystem was being made here, and another host has had the volume since.
    let place = broken_off_and_elsewhere_since();
    assert_eq!(place.staged(&place.node(), &EXT4), Ok(()));
    assert_eq!(place.content(), Content::Data);
}

/// A node that has died while it made a filesystem; another host has had the volume meanwhile, and has let it go.
fn broken_off_and_elsewhere_since() -> Place {
    let broke_off = (1..100).find_map(|lives| {
        let place = Place::new();
        place.double.world().lives = Some(lives);
        let _died = catch_unwind(AssertUnwindSafe(|| place.staged(&place.node(), &EXT4)));
        (place.content() == Content::Partial).then_some(place)
    });
    let place = broke_off.expect("a format can break off");
    place.double.restart(true);
    {
        let mut world = place.double.world();
        world.ours.clear();
        world.contents.insert("a".into(), Content::Data);
    }
    place
}

/// Whether another host has had a volume was once asked since the last process of the volume, and forgotten by the next one: what
/// this host had begun long before was then taken for what it was at now.
#[test]
fn what_another_host_has_written_is_not_formatted_by_a_driver_that_starts_twice_or_tries_again() {
    // The driver starts again before anybody asks, or after the device could not be read.
    let place = broken_off_and_elsewhere_since();
    drop(place.node());
    place.double.restart(false);
    assert_eq!(place.staged(&place.node(), &EXT4), Ok(()));
    assert_eq!(place.content(), Content::Data);
    for is_restart in [false, true] {
        let place = broken_off_and_elsewhere_since();
        let mut node = place.node();
        place.double.world().contents.insert("a".into(), Content::Unreadable);
        assert_eq!(place.staged(&node, &EXT4), Err(Code::Unavailable));
        if is_restart {
            place.double.restart(false);
            node = place.node();
        }
        place.double.world().contents.insert("a".into(), Content::Data);
        assert_eq!(place.staged(&node, &EXT4), Ok(()));
        assert_eq!(place.content(), Content::Data);
    }
    let place = broken_off_and_elsewhere_since();
    drop(place.node());
    assert!(place.double.world().ours.is_empty(), "a volume that was another host's is not taken unasked");
    place.double.restart(false);
    assert_eq!(place.unstaged(&place.node()), Ok(()));
    assert_eq!(place.content(), Content::Data);
    place.is_clean("unstaged");
}

#[test]
fn what_is_in_the_way_is_said_by_its_code() {
    let place = Place::new();
    let node = place.node();
    let (read, write) = (to_use(&EXT4, true), to_use(&EXT4, false));
    assert_eq!(place.published(&node, "target", &write), Err(Code::FailedPrecondition), "not staged");
    assert_eq!(place.staged(&node, &EXT4), Ok(()));
    assert_eq!(place.staged(&node, &EXT4), Ok(()), "once more");
    assert_eq!(place.staged(&node, &Access::Block), Err(Code::AlreadyExists));
    let elsewhere = node.stage("a", &place.path("elsewhere"), &EXT4).map_err(|status| status.code());
    assert_eq!(elsewhere, Err(Code::AlreadyExists));
    assert_eq!(place.published(&node, "target", &to_use(&Access::Block, false)), Err(Code::FailedPrecondition));
    assert_eq!(place.published(&node, "target", &write), Ok(()));
    assert_eq!(place.published(&node, "target", &read), Err(Code::AlreadyExists));
    assert_eq!(place.published(&node, "second", &read), Ok(()));
    let alone = Use { is_single: true, ..write.clone() };
    assert_eq!(place.published(&node, "third", &alone), Err(Code::FailedPrecondition));
    assert_eq!(place.unstaged(&node), Err(Code::FailedPrecondition), "it is published");
    let usage =
        |volume: &str, path: &Path| node.usage(volume, path).map(|usage| usage.bytes).map_err(|status| status.code());
    assert_eq!(usage("a", &place.path("target")), Ok(4));
    assert_eq!(usage("a", &place.path("staging")), Ok(4));
    for (volume, path) in [("a", "third"), ("b", "target"), ("../a", "target")] {
        assert_eq!(usage(volume, &place.path(path)), Err(Code::NotFound), "{volume} {path}");
    }
    assert_eq!((place.unpublished(&node, "target"), place.unpublished(&node, "second")), (Ok(()), Ok(())));
    assert_eq!(place.published(&node, "third", &alone), Ok(()));
    assert_eq!(place.unpublished(&node, "third"), Ok(()));
    // A folder with something in it is somebody's.
    assert_eq!(place.published(&node, "theirs", &write), Ok(()));
    std::fs::create_dir_all(place.path("theirs/folder")).expect("made");
    assert_eq!(place.unpublished(&node, "theirs"), Err(Code::Internal));
    assert!(place.path("theirs/folder").exists());
    std::fs::remove_dir_all(place.path("theirs")).expect("removed");
    assert_eq!(place.unpublished(&node, "theirs"), Ok(()));
    assert_eq!(place.unstaged(&node), Ok(()));
    place.is_clean("at the end");
    let nameless = node.stage("../a", &place.path("staging"), &EXT4).map_err(|status| status.code());
    assert_eq!(nameless, Err(Code::NotFound));
}

#[test]
fn a_volume_of_another_host_is_refused_and_forgotten() {
    let place = Place::new();
    let node = place.node();
    place.double.world().is_refused = true;
    assert_eq!(place.staged(&node, &EXT4), Err(Code::FailedPrecondition));
    place.is_clean("refused");
    place.double.world().is_refused = false;
    assert_eq!(place.staged(&node, &EXT4), Ok(()));
    // Staged before, it is not forgotten: somebody has to unmount it.
    place.double.world().is_refused = true;
    assert_eq!(place.staged(&node, &EXT4), Err(Code::FailedPrecondition));
    assert!(node.knows("a").expect("read"));
}

/// A volume that stays with a node no other node gets: who is told that it is unstaged has to be able to rely on that.
#[test]
fn a_volume_is_not_unstaged_before_any_other_host_may_have_it() {
    let place = Place::new();
    let node = place.node();
    assert_eq!(place.staged(&node, &EXT4), Ok(()));
    place.double.world().is_cut_off = true;
    assert_eq!(place.unstaged(&node), Err(Code::Unavailable));
    place.double.world().is_cut_off = false;
    assert_eq!(place.unstaged(&node), Ok(()));
    place.is_clean("unstaged");
    // A driver has died after the volume was attached, before that was written down; the next one does not reach anybody.
    let place = Place::new();
    place.double.world().lives = Some(1);
    let died = catch_unwind(AssertUnwindSafe(|| place.staged(&place.node(), &EXT4)));
    assert!(died.is_err() && !place.double.world().ours.is_empty());
    place.double.restart(false);
    let node = place.node();
    place.double.world().is_cut_off = true;
    assert_eq!(place.staged(&node, &EXT4), Err(Code::Unavailable));
    assert_eq!(place.unstaged(&node), Err(Code::Unavailable));
    place.double.world().is_cut_off = false;
    assert_eq!(place.unstaged(&node), Ok(()));
    place.is_clean("it could be detached at last");
}

/// What was mounted of a device that the kernel has given up was taken for the volume: every use of it failed, and no call was left
/// that would have mounted the new device.
#[test]
fn what_is_mounted_of_a_device_that_was_given_up_is_not_the_volume() {
    for access in [EXT4, Access::Block] {
        let place = Place::new();
        let node = place.node();
        let wanted = to_use(&access, false);
        assert_eq!(place.staged(&node, &access), Ok(()));
        assert_eq!(place.published(&node, "target", &wanted), Ok(()));
        place.double.world().given_up += 1;
        if access != Access::Block {
            assert_eq!(place.published(&node, "other", &wanted), Err(Code::FailedPrecondition), "not staged any more");
        }
        assert_eq!(place.staged(&node, &access), Ok(()));
        assert_eq!(place.published(&node, "target", &wanted), Ok(()));
        let device = PathBuf::from("/dev/double/1/a");
        let shown = |at: &str| place.double.world().mounts.get(&place.path(at)).map(|(from, _)| from.clone());
        assert_eq!(shown("target"), Some(device.clone()), "{access:?}");
        if access != Access::Block {
            assert_eq!(shown("staging"), Some(device));
        }
        // Whatever else is mounted there is not the volume's to end.
        place.double.world().mounts.insert(place.path("theirs"), ("/dev/sda".into(), false));
        assert_eq!(place.published(&node, "theirs", &wanted), Err(Code::FailedPrecondition));
        assert!(shown("theirs").is_some());
    }
}

/// A file at any path was removed, and any mount ended, whatever volume was said.
#[test]
fn only_what_was_published_is_unpublished() {
    let place = Place::new();
    let node = place.node();
    assert_eq!(place.staged(&node, &EXT4), Ok(()));
    assert_eq!(place.published(&node, "target", &to_use(&EXT4, false)), Ok(()));
    node.stage("b", &place.path("b"), &EXT4).expect("staged");
    std::fs::write(place.path("file"), "").expect("written");
    for (volume, path) in [("b", "target"), ("b", "file"), ("c", "target"), ("../c", "file"), ("a", "file")] {
        node.unpublish(volume, &place.path(path)).expect("nothing is published there");
    }
    assert!(place.path("file").exists() && place.double.world().mounts.contains_key(&place.path("target")));
    assert_eq!(place.unpublished(&node, "target"), Ok(()));
    assert!(!place.double.world().mounts.contains_key(&place.path("target")));
}

/// A bind mount that is closed to writes keeps nobody from writing to a device.
#[test]
fn a_block_device_is_not_published_to_be_read_alone() {
    let place = Place::new();
    let node = place.node();
    assert_eq!(place.staged(&node, &Access::Block), Ok(()));
    assert_eq!(place.published(&node, "target", &to_use(&Access::Block, true)), Err(Code::FailedPrecondition));
    assert_eq!(place.published(&node, "target", &to_use(&Access::Block, false)), Ok(()));
}

/// A volume that another host has taken is not asked for by a use of what was staged.
#[test]
fn a_volume_that_is_not_attached_any_more_is_not_published() {
    for access in [EXT4, Access::Block] {
        let place = Place::new();
        let node = place.node();
        assert_eq!(place.staged(&node, &access), Ok(()));
        {
            let mut world = place.double.world();
            world.attached.clear();
            world.ours.clear();
        }
        assert_eq!(place.published(&node, "target", &to_use(&access, false)), Err(Code::FailedPrecondition));
        assert!(place.double.world().ours.is_empty());
    }
}

/// The driver did not start at all, and the volumes of every other file were lost to their users after an hour.
#[test]
fn a_file_that_is_damaged_or_of_another_version_is_of_one_volume_alone() {
    for damaged in ["{", "{\"version\": 9, \"port\": 14420}"] {
        let place = Place::new();
        assert_eq!(place.staged(&place.node(), &EXT4), Ok(()));
        std::fs::write(place.path("state/b.json"), damaged).expect("written");
        place.double.restart(false);
        let node = place.node();
        assert!(place.double.world().attached.contains("a"), "{damaged}: the others are attached again");
        assert_eq!(place.published(&node, "target", &to_use(&EXT4, false)), Ok(()), "{damaged}");
        node.stage("c", &place.path("c"), &Access::Block).expect("a volume that is new");
        let refused = node.stage("b", &place.path("b"), &Access::Block).map_err(|status| status.code());
        assert_eq!(refused, Err(Code::Internal), "{damaged}");
        let unstaged = node.unstage("b", &place.path("b")).map_err(|status| status.code());
        assert_eq!(unstaged, Err(Code::Internal), "{damaged}");
    }
}

#[test]
fn volumes_have_ports_of_their_own() {
    let place = Place::new();
    let node = place.node();
    for volume in ["a", "b", "c"] {
        node.stage(volume, &place.path(volume), &Access::Block).expect("staged");
    }
    let port = |volume: &str| {
        let text = std::fs::read_to_string(place.path(&format!("state/{volume}.json"))).expect("written");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["port"].as_u64().expect("a port")
    };
    let mut ports: Vec<u64> = ["a", "b", "c"].map(port).to_vec();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 3, "{ports:?}");
}
