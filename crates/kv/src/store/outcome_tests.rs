//! What every member has refused has not happened, and is tried again; what one may have done is of unknown outcome.

use engine::time;

use super::change_tests::{Host, SHORT, Scene};
use super::tests::value;
use super::*;
use crate::testing::run;

const STEP: Duration = Duration::from_millis(10);

fn slow(host: &Host, slow: Duration) {
    host.voters.links.iter().for_each(|link| link.slow.set(slow));
}

/// A pool of three whose key holds a number, and hosts with links of their own: one whose commands take their time.
async fn scene() -> (Scene, Host, Host) {
    let scene = Scene::new([100, 100, 100, 0, 0]).await;
    let (late, host) = (scene.host(Duration::from_secs(3600)).await, scene.host(SHORT).await);
    host.store.put(b"n", value(b"0")).await.unwrap();
    assert_eq!(late.store.get(b"n").await, Ok(Some(value(b"0"))));
    host.store.settle().await;
    slow(&late, STEP);
    (scene, late, host)
}

/// A change of the pool must not cost its users errors: what met the seals alone surely did nothing, and goes on in the newer
/// epoch. It ended as of unknown outcome.
#[test]
fn what_all_homes_refused_by_a_seal_begins_anew() {
    for away in [false, true] {
        run(1, async move {
            let (_scene, late, host) = scene().await;
            let store = late.store.clone();
            let count = engine::task::spawn(async move { store.increment(b"other", 1, Some(0)).await });
            time::sleep(STEP).await;
            let store = late.store.clone();
            let put = engine::task::spawn(async move { store.put(b"n", value(b"late")).await });
            let store = late.store.clone();
            let delete = engine::task::spawn(async move { store.delete(b"n").await });
            // When they have read, and the first has its promises, what they change is on its way until the pages are sealed.
            time::sleep(STEP / 2).await;
            slow(&late, Duration::from_secs(2));
            time::sleep(STEP).await;
            assert_eq!(host.store.forget(&ForgetOptions::default()).await.hindered, None);
            slow(&late, STEP);
            late.voters.links[2].down.set(away);
            let (put, delete, count) = (put.await, delete.await, count.await);
            if away {
                // It might yet be told to do it, on a page that is not sealed as far as this host knows.
                assert!(put.unwrap_err().outcome_unknown() && delete.unwrap_err().outcome_unknown());
                assert!(count.unwrap_err().outcome_unknown());
            } else {
                assert_eq!((put, delete, count), (Ok(()), Ok(true), Ok(Increment::Value(1))));
                assert_eq!((late.store.map().epoch, late.store.get(b"other").await), (2, Ok(Some(value(b"1")))));
            }
        });
    }
}

/// Another host's ballot passes this one's by, and then a put makes a new era. Where all three have refused the attempt nothing
/// can have come of it, and it is made again; it ended as of unknown outcome. Where one has accepted it, to make it again might
/// count twice.
#[test]
fn an_attempt_that_all_have_refused_does_not_count() {
    for accepted in [false, true] {
        run(2, async move {
            let (_scene, late, host) = scene().await;
            let store = late.store.clone();
            let count = engine::task::spawn(async move { store.increment(b"n", 1, None).await });
            // It has read; its promises are on their way, and what it is to have accepted comes long after them.
            time::sleep(STEP + STEP / 2).await;
            slow(&late, Duration::from_secs(1));
            time::sleep(STEP).await;
            host.voters.links[2].down.set(accepted);
            assert_eq!(host.store.increment(b"n", 10, None).await, Ok(Increment::Value(10)));
            host.store.settle().await;
            host.voters.links[2].down.set(false);
            if accepted {
                time::sleep(Duration::from_millis(980)).await;
            }
            host.store.put(b"n", value(b"100")).await.unwrap();
            let count = count.await;
            match accepted {
                true => assert!(matches!(count, Err(StoreError::OutcomeUnknown)), "{count:?}"),
                false => assert_eq!(count, Ok(Increment::Value(101))),
            }
        });
    }
}

/// The attempt took effect everywhere, its replies were lost, and another operation has built on it since: to be refused now
/// says nothing of the first try.
#[test]
fn an_attempt_refused_after_a_doubt_counts() {
    run(3, async {
        let (_scene, late, host) = scene().await;
        let store = late.store.clone();
        let count = engine::task::spawn(async move { store.increment(b"n", 1, None).await });
        // The promises are there at 20 ms, and the accepts at 30.
        time::sleep(2 * STEP + STEP / 2).await;
        late.voters.links.iter().for_each(|link| link.cut.set(Some((0, true))));
        slow(&late, Duration::from_secs(1));
        time::sleep(STEP).await;
        // They are back at once, over the same connection as far as this host knows, and it looks a second later.
        late.voters.links.iter().for_each(|link| link.down.set(false));
        assert_eq!(host.store.increment(b"n", 10, None).await, Ok(Increment::Value(11)));
        host.store.put(b"n", value(b"100")).await.unwrap();
        let count = count.await;
        assert!(matches!(count, Err(StoreError::OutcomeUnknown)), "{count:?}");
    });
}

/// The same where the pages have been sealed since: to begin anew on the newer map would count twice.
#[test]
fn an_attempt_that_meets_seals_after_a_doubt_counts() {
    run(4, async {
        let (_scene, late, host) = scene().await;
        let store = late.store.clone();
        let count = engine::task::spawn(async move { store.increment(b"n", 1, None).await });
        time::sleep(2 * STEP + STEP / 2).await;
        late.voters.links.iter().for_each(|link| link.cut.set(Some((0, true))));
        slow(&late, Duration::from_secs(3));
        time::sleep(STEP).await;
        late.voters.links.iter().for_each(|link| link.down.set(false));
        assert_eq!(host.store.forget(&ForgetOptions::default()).await.hindered, None);
        slow(&late, STEP);
        let count = count.await;
        assert!(count.as_ref().is_err_and(StoreError::outcome_unknown), "{count:?}");
        assert_eq!(host.store.get(b"n").await, Ok(Some(value(b"1"))));
    });
}

/// Its attempt took effect, its replies were lost, and another operation has changed the value since. The version that it returned
/// was the other's, so that its caller, who had not seen that change, wrote over it by the next compare-and-set.
#[test]
fn a_compare_and_set_returns_the_version_that_it_wrote() {
    run(5, async {
        let (_scene, late, host) = scene().await;
        let before = late.store.get_versioned(b"n").await.unwrap().unwrap().version;
        let store = late.store.clone();
        let set = engine::task::spawn(async move {
            store.compare_and_set(b"n", before, value(b"7"), PutOptions::default()).await
        });
        time::sleep(2 * STEP + STEP / 2).await;
        late.voters.links.iter().for_each(|link| link.cut.set(Some((0, true))));
        slow(&late, Duration::from_secs(1));
        time::sleep(STEP).await;
        late.voters.links.iter().for_each(|link| link.down.set(false));
        assert_eq!(host.store.increment(b"n", 1, None).await, Ok(Increment::Value(8)));
        slow(&late, STEP);
        let Ok(CasOutcome::Stored(written)) = set.await else { panic!("it was stored before the increment") };
        let again = late.store.compare_and_set(b"n", written, value(b"9"), PutOptions::default()).await;
        assert!(matches!(again, Ok(CasOutcome::Changed(Some(_)))), "{again:?}");
        assert_eq!(host.store.get(b"n").await, Ok(Some(value(b"8"))));
    });
}
