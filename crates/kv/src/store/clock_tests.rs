//! Hosts whose calendars differ: what nobody has asked for is ended by none of them alone.

use engine::time;

use super::change_tests::Scene;
use super::tests::value;
use super::*;
use crate::testing::run;

const DAY_MS: i64 = 86_400_000;
const MINUTE: Duration = Duration::from_secs(60);
const REPAIR: RepairOptions =
    RepairOptions { check_values: false, check_heap: false, bytes_per_second: None, progress: None };

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
        let noted = scene.voters.now().clock_ms;
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
