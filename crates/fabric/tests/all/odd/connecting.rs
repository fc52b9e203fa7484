//! Controllers that are slow to come up, slow to answer, or have failed.

use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::{Buf, task, time};
use fabric::host::{ConnectError, Multipath, MultipathOptions, QUIESCE_TIME, RemoteNamespace};
use nvme::Status;
use nvme::identify::Cns;
use nvme::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use nvme::register::{Capabilities, offset};

use super::Scene;
use super::fake::{Answer, BLOCK, Seen};

fn is_keep_alive(seen: &Seen) -> bool {
    seen.is_admin(AdminOpcode::KEEP_ALIVE)
}

/// Every admin command once had only the keep alive timeout to be answered: an array that took three seconds for an Identify was
/// left, again and again. Only Keep Alive is bounded so.
#[test]
fn a_slow_admin_command_is_no_silent_controller() {
    let scene = Scene::new(1);
    let slow = Duration::from_secs(3);
    scene.fake.script(move |seen| match seen.is_identify(Cns::NAMESPACE) {
        true => Answer::After(slow, Box::new(Answer::Usual)),
        false => Answer::Usual,
    });
    let remote = scene.connect();
    assert!(remote.is_connected() && remote.epoch() == 1, "{:?}", remote.last_error());
    assert!(scene.fake.count(is_keep_alive) >= 4, "signs of life while the Identify was under way");
    // Now it is silent in earnest.
    scene.fake.script(|_| Answer::Never);
    let since = scene.world.now();
    scene.run(async move {
        while remote.is_connected() {
            remote.changed().await;
        }
        assert!(remote.last_error().is_some_and(|error| error.contains("silent")), "{:?}", remote.last_error());
    });
    let took = scene.world.now().duration_since(since);
    assert!(took <= scene.options.keep_alive * 3 / 2 + Duration::from_millis(50), "it took {took:?}");
}

/// CAP.TO has room for 127 seconds and a half; what takes longer says so in CRTO, which was never read.
#[test]
fn a_controller_has_the_time_that_its_ready_timeouts_say() {
    let scene = Scene::new(2);
    scene.fake.capabilities.set(Capabilities::fabrics(128, 1).0);
    scene.fake.ready_timeouts.set(20);
    let ready = scene.world.now() + Duration::from_secs(8);
    scene.fake.script(move |seen| match seen.is_property(FabricsType::PROPERTY_GET, offset::CSTS) {
        true if time::now() < ready => Answer::Result(0),
        _ => Answer::Usual,
    });
    assert!(scene.connect().is_connected());
    // One that promises the property and does not have it is no worse for that.
    let scene = Scene::new(3);
    scene.fake.script(move |seen| match seen.is_property(FabricsType::PROPERTY_GET, offset::CRTO) {
        true => Answer::Status(Status::INVALID_FIELD.do_not_retry()),
        false => Answer::Usual,
    });
    assert!(scene.connect().is_connected());
}

/// A controller whose fatal status is set may say that it is ready, too.
#[test]
fn a_failed_controller_is_called_so() {
    let scene = Scene::new(4);
    scene.fake.script(move |seen| match seen.is_property(FabricsType::PROPERTY_GET, offset::CSTS) {
        true => Answer::Result(3),
        false => Answer::Usual,
    });
    let options = scene.options.clone();
    let error = scene.run(async move { RemoteNamespace::connect(options).await.err().expect("refused") });
    assert_eq!(error, ConnectError::Fatal(3));
}

/// Four queues with four overdue commands each once had an Abort per queue under way, where the controller took two.
#[test]
fn aborts_of_all_queues_keep_to_the_controllers_limit() {
    let mut scene = Scene::new(5);
    scene.fake.controller.borrow_mut().acl = 1;
    (scene.options.queues, scene.options.command_timeout) = (4, Duration::from_secs(2));
    let under_way = Rc::new(std::cell::Cell::new((0u32, 0u32)));
    let counted = Rc::clone(&under_way);
    scene.fake.script(move |seen| {
        if seen.is_nvm(NvmOpcode::READ) {
            return Answer::After(Duration::from_millis(2800), Box::new(Answer::Usual));
        }
        if !seen.is_admin(AdminOpcode::ABORT) {
            return Answer::Usual;
        }
        let (now, most) = counted.get();
        counted.set((now + 1, most.max(now + 1)));
        let over = Rc::clone(&counted);
        let pause = Duration::from_millis(20);
        task::spawn(async move {
            time::sleep(pause).await;
            over.set((over.get().0 - 1, over.get().1));
        })
        .detach();
        Answer::After(pause, Box::new(Answer::Usual))
    });
    let remote = Rc::new(scene.connect());
    scene.run(async move {
        let reads = (0..16u64).map(|lba| {
            let remote = Rc::clone(&remote);
            task::spawn(async move { remote.read(Lba(lba), Buf::with_len(BLOCK)).await.0 })
        });
        for read in reads.collect::<Vec<_>>() {
            assert_eq!(read.await, Ok(()));
        }
    });
    assert_eq!(under_way.get().1, 2, "aborts under way at a time");
    assert!(scene.fake.count(|seen| seen.is_admin(AdminOpcode::ABORT)) >= 8);
}

/// Linux's target acknowledges a reset at once and lets what it had begun run on. A write whose data came late landed after the
/// reset, when the next copy of it, and a newer write, had been acknowledged over the new association.
#[test]
fn after_an_acknowledged_reset_the_quiesce_time_is_waited_for() {
    let mut scene = Scene::new(6);
    scene.options.command_timeout = Duration::from_millis(400);
    let stuck = std::cell::Cell::new(true);
    scene.fake.script(move |seen| match seen.is_nvm(NvmOpcode::WRITE) && stuck.replace(false) {
        true => Answer::Never,
        false => Answer::Usual,
    });
    let options = MultipathOptions::new(scene.options.clone(), &[]);
    let written = scene.run(async move {
        let paths = Multipath::connect(options).await.expect("connected");
        paths.write(Lba(0), Buf::zeroed(BLOCK).freeze(), Durability::Stable).await
    });
    assert_eq!(written, Ok::<(), Error>(()));
    let is_reset =
        |seen: &Seen| seen.is_property(FabricsType::PROPERTY_SET, offset::CC) && seen.property().value.get() == 0;
    let (resets, writes) = (scene.fake.times(is_reset), scene.fake.times(|seen| seen.is_nvm(NvmOpcode::WRITE)));
    assert_eq!((resets.len(), writes.len()), (1, 2));
    assert!(
        writes[1] >= resets[0] + QUIESCE_TIME,
        "sent again {:?} after the reset",
        writes[1].duration_since(resets[0])
    );
}
