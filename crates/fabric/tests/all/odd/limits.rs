//! Controllers that take little, know little, or are busy.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::{Buf, task};
use fabric::host::{Options, RemoteNamespace, trial, watch};
use nvme::identify::Cns;
use nvme::opcode::{AdminOpcode, NvmOpcode};
use nvme::{Nqn, Status};

use super::Scene;
use super::fake::{Answer, BLOCK, BLOCKS, Seen};

/// SPDK answers Controller Busy, without Do Not Retry, while a subsystem is paused: for a moment, at which the first connect
/// failed for good.
#[test]
fn a_busy_controller_is_asked_again() {
    let scene = Scene::new(1);
    let free = scene.world.now() + Duration::from_secs(2);
    scene.fake.script(move |seen| match seen.is_connect() && seen.at < free {
        true => Answer::Status(Status::CONNECT_CONTROLLER_BUSY),
        false => Answer::Usual,
    });
    assert!(scene.connect().is_connected());
    // For ever it is not, and what is final is taken for final.
    let busy = Status::CONNECT_CONTROLLER_BUSY;
    for (status, tries) in [(busy, 20..200), (busy.do_not_retry(), 1..2), (Status::CONNECT_INVALID_HOST, 1..2)] {
        let scene = Scene::new(2);
        scene.fake.script(move |seen| if seen.is_connect() { Answer::Status(status) } else { Answer::Usual });
        let options = scene.options.clone();
        scene.run(async move { RemoteNamespace::connect(options).await.err().expect("refused") });
        let found = scene.fake.count(Seen::is_connect);
        assert!(tries.contains(&found), "{status}: {found} tries");
    }
}

/// A host that was told not to try again did so at the pace at which it looks for a target that is away.
#[test]
fn who_was_denied_does_not_hammer() {
    // The third is what a Connect gets whose controller has just gone: no denial.
    for (status, tries) in [
        (Status::CONNECT_CONTROLLER_BUSY, 100..300),
        (Status::CONNECT_INVALID_HOST.do_not_retry(), 10..60),
        (Status::SEQUENCE_ERROR.do_not_retry(), 100..300),
    ] {
        let scene = Scene::new(3);
        let remote = scene.connect();
        scene.fake.script(move |seen| match seen.is_connect() {
            true => Answer::Status(status),
            false => Answer::Never,
        });
        scene.run_for(Duration::from_secs(3));
        assert!(!remote.is_connected());
        let before = scene.fake.count(Seen::is_connect);
        scene.run_for(Duration::from_secs(12));
        let found = scene.fake.count(Seen::is_connect) - before;
        assert!(tries.contains(&found), "{status}: {found} tries in 12 s");
        // It is let in again as soon as the target does.
        scene.fake.script(|_| Answer::Usual);
        scene.run_for(Duration::from_secs(1));
        assert!(remote.is_connected());
    }
}

/// A queue of two entries takes one command at a time. It got two, as a fused pair needs.
#[test]
fn a_controller_that_takes_one_command_gets_one() {
    for by_entries in [true, false] {
        let scene = Scene::new(4);
        if by_entries {
            scene.fake.capabilities.set(scene.fake.capabilities.get() & !0xFFFF | 1);
        } else {
            scene.fake.controller.borrow_mut().maxcmd = 1.into();
        }
        let remote = Rc::new(scene.connect());
        let slow = Duration::from_millis(50);
        scene.fake.script(move |seen| match seen.is_nvm(NvmOpcode::READ) {
            true => Answer::After(slow, Box::new(Answer::Usual)),
            false => Answer::Usual,
        });
        assert_eq!(remote.info().compare_and_write_blocks_max, 0);
        let reader = Rc::clone(&remote);
        let swapped = scene.run(async move {
            let reads = (0..4u64).map(|lba| {
                let remote = Rc::clone(&reader);
                task::spawn(async move { remote.read(Lba(lba), Buf::with_len(BLOCK)).await.0 })
            });
            for read in reads.collect::<Vec<_>>() {
                assert_eq!(read.await, Ok(()));
            }
            let page = Buf::zeroed(BLOCK).freeze();
            reader.compare_and_write(Lba(0), page.clone(), page, Durability::Stable).await
        });
        assert!(matches!(swapped, Err(Error::Unsupported(_))), "{swapped:?}");
        let times = scene.fake.times(|seen| seen.is_nvm(NvmOpcode::READ));
        assert!(times.windows(2).all(|pair| pair[1].duration_since(pair[0]) >= slow), "{times:?}");
    }
}

/// A namespace with an EUI-64 alone could not be used where the controller knows no identification descriptors.
#[test]
fn an_eui64_is_identity_enough() {
    let scene = Scene::new(5);
    {
        let mut namespace = scene.fake.namespace.borrow_mut();
        (namespace.nguid, namespace.eui64) = ([0; 16], [1, 2, 3, 4, 5, 6, 7, 8]);
    }
    let remote = scene.connect();
    assert_eq!(remote.info().nguid, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(scene.fake.count(|seen| seen.is_identify(Cns::DESCRIPTORS)), 1);
}

/// Linux's target said ffffh for years.
#[test]
fn an_odd_maxh2cdata_is_no_obstacle() {
    let scene = Scene::new(6);
    scene.fake.maxh2cdata.set(0xFFFF);
    let remote = scene.connect();
    let data = Buf::zeroed(64 * BLOCK).freeze();
    assert_eq!(scene.run(async move { remote.write(Lba(0), data, Durability::Stable).await }), Ok(()));
}

/// The limits of commands without data were never read: pieces were as long as a read may be, too long or too short.
#[test]
fn commands_without_data_keep_to_their_own_limits() {
    let pieces = |scene: &Scene, opcode: NvmOpcode| scene.fake.count(|seen| seen.is_nvm(opcode)) as u64;
    for refused in [false, true] {
        let scene = Scene::new(7);
        scene.fake.controller.borrow_mut().mdts = 4; // 16 blocks
        {
            let mut limits = scene.fake.limits.borrow_mut();
            (limits.wzsl, limits.vsl, limits.dmrsl) = (2, 8, 64.into());
        }
        if refused {
            scene.fake.script(|seen| match seen.is_identify(Cns::CSI_CONTROLLER) {
                true => Answer::Status(Status::INVALID_FIELD.do_not_retry()),
                false => Answer::Usual,
            });
        }
        let remote = scene.connect();
        scene.run(async move {
            remote.write_zeroes(Lba(0), BLOCKS, Durability::Cached).await.expect("zeroed");
            remote.verify(Lba(0), BLOCKS).await.expect("verified");
            remote.deallocate(Lba(0), BLOCKS).await.expect("deallocated");
        });
        let found =
            [NvmOpcode::WRITE_ZEROES, NvmOpcode::VERIFY, NvmOpcode::DATASET_MANAGEMENT].map(|one| pieces(&scene, one));
        assert_eq!(found, if refused { [32, 32, 1] } else { [128, 2, 8] });
    }
}

/// Dataset Management is advisory: a controller that keeps some blocks was believed to have zeroed all of them.
#[test]
fn what_is_to_read_as_zeroes_is_deallocated_by_write_zeroes() {
    for (dlfeat, zeroes) in [(0, false), (1, false), (1 << 3, false), (1 | 1 << 3, true)] {
        let scene = Scene::new(9);
        scene.fake.namespace.borrow_mut().dlfeat = dlfeat;
        let remote = scene.connect();
        let reads_zero = scene.run(async move {
            remote.deallocate(Lba(0), BLOCKS).await.expect("deallocated");
            remote.info().deallocated_reads_zero
        });
        let found = [NvmOpcode::WRITE_ZEROES, NvmOpcode::DATASET_MANAGEMENT]
            .map(|one| scene.fake.count(|seen| seen.is_nvm(one)) > 0);
        assert_eq!((reads_zero, found), (zeroes, [zeroes, !zeroes]), "DLFEAT {dlfeat}");
    }
}

/// The association that a trial goes through step by step promised signs of life and gave none: a slow step ended it.
#[test]
fn a_trial_promises_no_sign_of_life_that_it_does_not_give() {
    let scene = Scene::new(8);
    let options = scene.options.clone();
    let found = scene.run(async move { trial(&options).await });
    assert!(found.failed.is_none(), "{:?}", found.failed);
    let seen = scene.fake.seen.borrow();
    let admin: Vec<_> = seen.iter().filter(|seen| seen.is_connect() && seen.queue == 0).collect();
    assert_eq!(admin.len(), 2);
    let first = seen.iter().filter(|seen| seen.connection == admin[0].connection);
    let alive = first.filter(|seen| seen.is_admin(AdminOpcode::KEEP_ALIVE)).count();
    assert!(admin[0].connect().kato.get() == 0 || alive > 0);
    assert!(admin[1].connect().kato.get() > 0);
}

/// Discovery services from before NVMe-oF 1.1 keep no connections and refuse a keep alive timeout: watching one told of nothing but
/// that, for ever.
#[test]
fn a_service_that_keeps_no_connections_is_asked_now_and_then() {
    let scene = Scene::new(9);
    let told: Rc<Cell<(u32, u32)>> = Rc::default();
    let generation = Cell::new(0u8);
    let fake = Rc::clone(&scene.fake);
    scene.fake.script(move |seen| {
        if seen.is_connect() {
            generation.set(generation.get() + 1);
            fake.log.borrow_mut()[0] = generation.get();
        }
        match seen.is_connect() && seen.connect().kato.get() != 0 {
            true => Answer::Status(Status::CONNECT_INVALID_PARAMETERS.do_not_retry()),
            false => Answer::Usual,
        }
    });
    let options = Options { subsystem: Nqn::discovery(), ..scene.options.clone() };
    let telling = Rc::clone(&told);
    let watching = scene.world.spawn_on(scene.host, async move {
        watch(options, move |log| {
            let (good, bad) = telling.get();
            telling.set(if log.is_ok() { (good + 1, bad) } else { (good, bad + 1) });
        })
        .await;
    });
    scene.run_for(Duration::from_secs(2));
    assert_eq!(told.get(), (1, 0));
    scene.fake.log.borrow_mut()[0] = 99;
    scene.run_for(Duration::from_secs(2));
    assert_eq!(told.get(), (2, 0));
    drop(watching);
}
