//! Hosts whose calendars differ: what nobody has asked for is ended by none of them alone.

use engine::sim::{SimConfig, World};
use engine::time;

use super::change_tests::Scene;
use super::tests::value;
use super::*;
use crate::testing::run;

const DAY_MS: i64 = 86_400_000;
const MINUTE: Duration = Duration::from_secs(60);
const REPAIR: RepairOptions = RepairOptions {
    check_values: false,
    check_heap: false,
    accept_stale: false,
    bytes_per_second: None,
    progress: None,
};

/// A gateway a day ahead deleted every key that ends within the day in its first walk.
#[test]
fn a_walk_ends_no_key_by_one_calendar() {
    run(95, async {
        let scene = Scene::new([100; 5]).await;
        let (right, ahead) = (scene.host(LEASE_DEFAULT).await, scene.host(LEASE_DEFAULT).await);
        ahead.store.inner.clock_error.set(DAY_MS);
        let now = time::unix_time().as_millis() as u64;
        let options = PutOptions { expiry: Some(now + 900_000), tag: 0 };
        right.store.put_with(b"k", value(b"v"), options).await.unwrap();
        right.store.settle().await;
        // It walks at once, and again when its clock has been noted as far as time allows, and the right one beside it.
        for _ in 0..3 {
            assert_eq!(ahead.store.repair(&REPAIR).await.expired, 0);
            assert_eq!(right.store.get(b"k").await, Ok(Some(value(b"v"))));
            time::sleep(3 * MINUTE).await;
            right.store.repair(&REPAIR).await;
        }
        let noted = scene.voters.now().clock.ms;
        assert!(noted.abs_diff(time::unix_time().as_millis() as u64) < 600_000, "the pool's time went astray");
        // Nobody reads it, and when it has ended by all clocks it goes.
        time::sleep(20 * MINUTE).await;
        assert_eq!(right.store.repair(&REPAIR).await.expired, 1);
        assert_eq!(ahead.store.repair(&REPAIR).await.expired, 0);
        // Who asks is answered by the calendar of the host that it asks.
        right.store.put_with(b"k", value(b"w"), PutOptions { expiry: Some(now + 9_000_000), tag: 0 }).await.unwrap();
        assert_eq!(ahead.store.get(b"k").await, Ok(None));
    });
}

/// A walk that a timer begins each hour has seen no time pass, so that its keys never ended.
#[test]
fn processes_that_come_and_go_end_keys_too_and_none_by_one_calendar() {
    const HOUR_MS: u64 = 3_600_000;
    let config = SimConfig { virtual_time_max: Duration::from_secs(3 * 86_400), ..SimConfig::default() };
    let world = World::new(96, config).run_until(async {
        let scene = Scene::new([100; 5]).await;
        let walk = async |machine: u64, error: i64| {
            let host = scene.host(LEASE_DEFAULT).await;
            host.store.inner.machine.set(Some(machine));
            host.store.inner.clock_error.set(error);
            host.store.repair(&REPAIR).await.expired
        };
        let now = || time::unix_time().as_millis() as u64;
        let writer = scene.host(LEASE_DEFAULT).await;
        for (key, hours) in [(b"first", 1), (b"later", 20)] {
            let options = PutOptions { expiry: Some(now() + hours * HOUR_MS), tag: 0 };
            writer.store.put_with(key, value(b"v"), options).await.unwrap();
        }
        writer.store.settle().await;
        drop(writer);
        // One machine alone.
        let mut expired = 0;
        for _ in 0..3 {
            expired += walk(1, 0).await;
            time::sleep(60 * MINUTE).await;
        }
        assert_eq!((expired, scene.voters.now().clock.marks.len()), (1, 1));
        // Beside one that is a day ahead and comes as often; it does not go by its calendar, and nor does anybody.
        for _ in 0..8 {
            assert_eq!(walk(2, DAY_MS).await, 0);
            time::sleep(30 * MINUTE).await;
            assert_eq!(walk(1, 0).await, 0);
            time::sleep(30 * MINUTE).await;
            let ahead = scene.voters.now().clock.ms.saturating_sub(now());
            assert!(ahead < 600_000, "the pool's time is ahead by {ahead} ms");
        }
        // The other one is started again, and goes on from where the pool is.
        for machine in [3, 3] {
            time::sleep(600 * MINUTE).await;
            expired += walk(machine, 0).await;
        }
        assert_eq!(expired, 2);
    });
    world.unwrap();
}

/// Twice what has passed since its own note was enough for one that walks more often than who is right.
#[test]
fn a_fast_calendar_that_walks_more_often_than_a_right_one_ends_nothing_early() {
    const HOUR: Duration = Duration::from_secs(3600);
    let config = SimConfig { virtual_time_max: Duration::from_secs(2 * 86_400), ..SimConfig::default() };
    let world = World::new(97, config).run_until(async {
        let scene = Scene::new([100; 5]).await;
        let (right, ahead) = (scene.host(LEASE_DEFAULT).await, scene.host(LEASE_DEFAULT).await);
        right.store.inner.machine.set(Some(1));
        ahead.store.inner.machine.set(Some(2));
        ahead.store.inner.clock_error.set(DAY_MS);
        let now = || time::unix_time().as_millis() as u64;
        let options = PutOptions { expiry: Some(now() + 20 * 3_600_000), tag: 0 };
        right.store.put_with(b"k", value(b"v"), options).await.unwrap();
        right.store.settle().await;
        for hours in 0..19 {
            if hours == 0 {
                right.store.repair(&REPAIR).await;
            }
            if hours % 5 == 3 {
                assert_eq!(ahead.store.repair(&REPAIR).await.expired, 0, "after {hours} hours");
            }
            time::sleep(HOUR).await;
        }
        // A calendar that begins with its machine is not noted.
        let noted = scene.voters.now().clock;
        right.store.inner.clock_error.set(300_000 - i64::try_from(now()).unwrap());
        right.store.repair(&REPAIR).await;
        assert_eq!(scene.voters.now().clock, noted);
        right.store.inner.clock_error.set(0);
        time::sleep(3 * HOUR).await;
        assert_eq!(right.store.repair(&REPAIR).await.expired, 1);
    });
    world.unwrap();
}
