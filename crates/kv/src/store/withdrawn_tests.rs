//! What becomes of an attempt of a conditional operation that pauses behind a refusal, on a member that is late: where it was sent
//! nothing it never is, and the attempt is struck; where it was sent it, the attempt counts.

use engine::sync::{Notify, Permit};
use engine::task::Task;
use engine::time;

use super::tests::{Pool, value};
use super::*;
use crate::table::{Content, FREES_MAX};
use crate::testing::{Counting, QUEUE_SLOTS, run};

/// The member that is late.
const LATE: usize = 2;
/// Longer than whatever is not held takes: nothing takes any time.
const STEP: Duration = Duration::from_millis(10);
/// Bytes of a value that fits no page.
const LONG: usize = 9000;

/// A pool of three, and an update of its key that another host's gets in the way of, which the late member hears nothing of.
struct Scene {
    pool: Pool,
    other: Store,
    /// Commands of these members wait.
    held: RefCell<[Option<Permit>; 3]>,
    /// The update has looked at what is there once more.
    looked: Notify,
    /// How many results of attempts were kept at each look.
    kept: RefCell<Vec<usize>>,
}

type Updated = Task<Result<Rc<()>, StoreError>>;

impl Scene {
    async fn new() -> Rc<Scene> {
        let pool = Pool::new(3, 3).await;
        pool.store.put(b"k", value(b"v")).await.unwrap();
        pool.store.settle().await;
        let links: Vec<_> = pool.members.iter().map(|member| Counting::new(member.inner.clone())).collect();
        links[LATE].down.set(true);
        let other = Store::new(pool.map.clone(), links.into_iter().map(Some).collect());
        let (held, looked, kept) = (RefCell::default(), Notify::new(), RefCell::default());
        Rc::new(Scene { pool, other, held, looked, kept })
    }

    fn hold(&self, member: usize) {
        let permit = self.pool.members[member].queue.try_acquire(QUEUE_SLOTS);
        self.held.borrow_mut()[member] = Some(permit.expect("none of its commands is under way"));
    }

    fn release(&self, member: usize) {
        self.held.borrow_mut()[member] = None;
    }

    /// Lets those commands of a member be done that wait now, and neither those of `meanwhile` nor any after them.
    async fn let_by(&self, member: usize, meanwhile: impl Future<Output = ()>) {
        let next = engine::task::spawn(self.pool.members[member].queue.acquire(QUEUE_SLOTS));
        time::sleep(STEP).await;
        meanwhile.await;
        time::sleep(STEP).await;
        self.release(member);
        let permit = next.await;
        self.held.borrow_mut()[member] = Some(permit);
        time::sleep(STEP).await;
    }

    /// Begins the update. Its first look is before the first attempt; at each other it has been promised something, and all but
    /// the late member are held before they hear what for. That one is held from look `late` on. `put`: what it makes of each look.
    fn update(self: &Rc<Self>, late: Option<usize>, put: impl Fn(usize) -> Vec<u8> + 'static) -> Updated {
        let scene = self.clone();
        engine::task::spawn(async move {
            let result = Rc::new(());
            let decide = |_: Option<&Versioned>| {
                scene.kept.borrow_mut().push(Rc::strong_count(&result) - 1);
                let look = scene.kept.borrow().len();
                if late == Some(look) {
                    scene.hold(LATE);
                }
                if look > 1 {
                    (0..LATE).for_each(|member| scene.hold(member));
                    scene.looked.notify_one();
                }
                Change::Put { value: value(&put(look)), options: PutOptions::default(), result: result.clone() }
            };
            scene.pool.store.update(b"k", decide).await
        })
    }

    /// Has the attempt that has looked refused: another host's change has come before.
    async fn refuse(&self) {
        self.other.append(b"k", b"x").await.unwrap();
        // The late member comes as far as it can.
        time::sleep(STEP).await;
        (0..LATE).for_each(|member| self.release(member));
    }

    /// Waits until the update pauses behind its first refusal.
    async fn paused(&self) {
        while self.pool.store.stats().conflicts.load(Ordering::Relaxed) == 0 {
            time::sleep(Duration::from_micros(1)).await;
        }
    }

    /// Ends the update, and everything that is held; what the late member then has.
    async fn end(&self, update: Updated) -> Vec<u8> {
        drop(update);
        (0..=LATE).for_each(|member| self.release(member));
        self.late_has().await
    }

    async fn late_has(&self) -> Vec<u8> {
        self.pool.store.settle().await;
        let key = Key::new(b"k", self.pool.map.hash_seed).unwrap();
        match self.pool.store.table(LATE).unwrap().read(&key).await.unwrap().content {
            Content::Inline(bytes) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

/// It had the request in hand, and waited for the value of an attempt before to be freed, which it does itself where many frees are
/// under way. Meanwhile the request was withdrawn and its attempt struck, and then it was sent: the operation could be applied once
/// more on top of it.
#[test]
fn a_member_that_frees_a_value_is_not_sent_what_was_withdrawn_meanwhile() {
    run(1, async {
        let scene = Scene::new().await;
        let (store, late) = (&scene.pool.store, &scene.pool.members[LATE]);
        let (table, key) = (store.table(LATE).unwrap(), Key::new(b"freed", scene.pool.map.hash_seed).unwrap());
        let mut copies = Vec::new();
        for _ in 0..FREES_MAX {
            let placed = table.place_early(&key, store.inner.next_op(), &value(&[1; LONG])).await;
            copies.push(placed.unwrap().expect("it fits no page"));
        }
        late.take();
        let update = scene.update(Some(2), |look| match look {
            3 => b"withdrawn".to_vec(),
            _ => vec![2; LONG],
        });
        // The first attempt's value is on its way to the late member,
        scene.looked.notified().await;
        scene.refuse().await;
        // where it is placed when the second, which is a short one, is to be stored.
        scene.looked.notified().await;
        // Its place is claimed before it is written.
        while late.writes.get() == 0 {
            scene.let_by(LATE, async {}).await;
        }
        let frees = async {
            for copy in copies {
                table.discard_early(&key, copy).await;
            }
        };
        scene.let_by(LATE, frees).await;
        scene.refuse().await;
        scene.looked.notified().await;
        assert_eq!(scene.kept.take(), [0; 4], "neither was sent to the late member: both are struck");
        assert_eq!(scene.end(update).await, b"v");
    });
}

/// It tells nothing, and has not failed either: what it was sent lands when nobody thinks of it any more.
#[test]
fn an_attempt_that_is_on_its_way_to_a_member_counts() {
    run(2, async {
        let scene = Scene::new().await;
        let update = scene.update(Some(2), |look| match look {
            2 => b"on its way".to_vec(),
            // Which is placed first: it ends before it is to be stored anywhere.
            _ => vec![2; LONG],
        });
        scene.looked.notified().await;
        scene.refuse().await;
        scene.looked.notified().await;
        assert_eq!(scene.kept.take(), [0, 0, 1], "it may yet take effect there");
        assert_eq!(scene.end(update).await, b"on its way");
    });
}

/// It would be asked for nothing any more, and miss what the operation comes to, though it is well again.
#[test]
fn a_member_that_finds_its_request_withdrawn_waits_for_the_next() {
    run(3, async {
        let scene = Scene::new().await;
        let update = scene.update(Some(1), |look| format!("look {look}").into_bytes());
        scene.looked.notified().await;
        scene.refuse().await;
        scene.paused().await;
        scene.release(LATE);
        scene.looked.notified().await;
        assert_eq!(scene.kept.borrow()[..], [0; 3], "it was not sent the first attempt");
        (0..LATE).for_each(|member| scene.release(member));
        update.await.unwrap();
        assert_eq!(scene.late_has().await, b"look 3");
    });
}

/// Also when the operation ends in its pause: nobody waits for that request any more. The member still places a value for it.
#[test]
fn what_was_withdrawn_is_sent_to_nobody_when_the_operation_has_ended() {
    run(4, async {
        let scene = Scene::new().await;
        let update = scene.update(Some(2), |_| vec![2; LONG]);
        scene.looked.notified().await;
        scene.refuse().await;
        scene.paused().await;
        assert_eq!(scene.end(update).await, b"v");
    });
}

/// The member was away when it was to be sent the request, and comes back in the pause.
#[test]
fn what_was_withdrawn_is_not_sent_to_a_member_that_comes_back() {
    run(5, async {
        let scene = Scene::new().await;
        scene.pool.down(LATE, true);
        let update = scene.update(None, |look| format!("look {look}").into_bytes());
        scene.looked.notified().await;
        scene.refuse().await;
        scene.paused().await;
        scene.pool.down(LATE, false);
        assert_eq!(scene.end(update).await, b"v");
    });
}
