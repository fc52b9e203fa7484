//! Answers of which a multipath host makes more than an error.

use std::cell::Cell;
use std::time::Duration;

use device::{Durability, Error, Lba, Namespace};
use engine::Buf;
use fabric::host::{Multipath, MultipathOptions};
use nvme::Status;
use nvme::opcode::NvmOpcode;

use super::Scene;
use super::fake::{Answer, BLOCK, Seen};

fn is_read(seen: &Seen) -> bool {
    seen.is_nvm(NvmOpcode::READ)
}

fn is_write(seen: &Seen) -> bool {
    seen.is_nvm(NvmOpcode::WRITE)
}

impl Scene {
    /// Connects by one path, with this deadline.
    fn paths(&self, deadline: Duration) -> Multipath {
        let options = MultipathOptions { deadline, ..MultipathOptions::new(self.options.clone(), &[]) };
        self.run(async move { Multipath::connect(options).await.expect("connected") })
    }

    /// The first `count` commands that are such get `answer`, the others the usual one.
    fn at_first(&self, count: u32, such: fn(&Seen) -> bool, answer: Answer) {
        let left = Cell::new(count);
        self.fake.script(move |seen| {
            if !such(seen) || left.get() == 0 {
                return Answer::Usual;
            }
            left.set(left.get() - 1);
            answer.clone()
        });
    }
}

async fn read(paths: Multipath) -> Result<(), Error> {
    paths.read(Lba(0), Buf::with_len(BLOCK)).await.0
}

async fn write(paths: Multipath) -> Result<(), Error> {
    paths.write(Lba(0), Buf::zeroed(BLOCK).freeze(), Durability::Stable).await
}

/// A read whose data the wire had spoilt once failed for good, though the target had done nothing wrong.
#[test]
fn a_read_with_a_wrong_digest_is_sent_again() {
    let mut scene = Scene::new(1);
    scene.options.data_digest = true;
    scene.at_first(8, is_read, Answer::WrongDigest);
    assert_eq!(scene.run(read(scene.paths(Duration::from_secs(10)))), Ok(()));
    assert_eq!(scene.fake.count(is_read), 9);
    // A target that keeps sending too little is given up.
    let scene = Scene::new(2);
    scene.at_first(1, is_read, Answer::ShortData);
    assert_eq!(scene.run(read(scene.paths(Duration::from_secs(10)))), Ok(()));
    scene.at_first(u32::MAX, is_read, Answer::ShortData);
    let since = scene.world.now();
    let error = scene.run(read(scene.paths(Duration::from_secs(10)))).expect_err("too little");
    assert!(matches!(error, Error::ReadFault(_)) && scene.world.now().duration_since(since) < Duration::from_secs(2));
}

/// An Internal Error that may be tried again once ended reads at the first one; so did path errors that are not in our table.
#[test]
fn a_fault_that_may_pass_is_tried_again_some_times() {
    for status in [Status::INTERNAL_ERROR, Status::new(3, 0x61), Status::HOST_PATHING_ERROR] {
        for (seed, such) in [(3, is_read as fn(&Seen) -> bool), (4, is_write)] {
            let scene = Scene::new(seed);
            scene.at_first(3, such, Answer::Status(status));
            let paths = scene.paths(Duration::from_secs(10));
            let result = if seed == 3 { scene.run(read(paths)) } else { scene.run(write(paths)) };
            assert_eq!((result, scene.fake.count(such)), (Ok(()), 4), "{status}");
            // One that stays, or is final, is told.
            for (answer, sent) in [(status, 6), (status.do_not_retry(), 1)] {
                let before = scene.fake.count(such);
                scene.at_first(u32::MAX, such, Answer::Status(answer));
                let paths = scene.paths(Duration::from_secs(10));
                let result = if seed == 3 { scene.run(read(paths)) } else { scene.run(write(paths)) };
                assert!(result.is_err(), "{answer}");
                assert_eq!(scene.fake.count(such) - before, sent, "{answer}");
            }
        }
    }
}

/// A controller that reports no ANA answered with an ANA status: nothing noted the state, so the command came back at once,
/// thousands of times a second.
#[test]
fn an_ana_status_without_ana_lets_the_path_rest() {
    for status in [Status::ANA_TRANSITION, Status::ANA_INACCESSIBLE] {
        let scene = Scene::new(5);
        scene.at_first(u32::MAX, is_read, Answer::Status(status));
        let error = scene.run(read(scene.paths(Duration::from_secs(2)))).expect_err("no usable path");
        assert!(scene.fake.count(is_read) < 40, "{} times in two seconds", scene.fake.count(is_read));
        // The error at the deadline once said nothing of what had come before.
        assert!(error.to_string().contains("Asymmetric Access"), "{error}");
    }
}

/// What stood in the way of the last try is told at the deadline; of a path that is down, why it is.
#[test]
fn the_deadline_tells_the_last_reason() {
    let scene = Scene::new(6);
    scene.at_first(u32::MAX, is_write, Answer::Status(Status::INTERRUPTED));
    let error = scene.run(write(scene.paths(Duration::from_secs(1)))).expect_err("interrupted for ever");
    assert!(error.to_string().contains("aborted") || error.to_string().contains("Aborted"), "{error}");
    let scene = Scene::new(7);
    let paths = scene.paths(Duration::from_secs(1));
    scene.fake.script(|seen| {
        if seen.is_connect() { Answer::Status(Status::CONNECT_INVALID_HOST.do_not_retry()) } else { Answer::Never }
    });
    scene.run_for(Duration::from_secs(4));
    let error = scene.run(read(paths)).expect_err("no path");
    assert!(error.to_string().contains("does not let this host"), "{error}");
}
