//! Hosts that write and read the same few keys over members whose commands are lost, late or answered to nobody, and that
//! go down one at a time: every history is linearizable, and after repair all replicas are equal.

use check::Recorder;
use device::{Fault, FaultConfig, Memory};
use engine::time;

use super::actor::Actor;
use super::*;
use crate::testing::{Counting, create, memories, run};

type Faulty = Rc<Counting<Fault<Memory>>>;

/// Operations of one client.
const STEPS: usize = 30;

fn faulty(memory: &Arc<Memory>, seed: u64) -> Faulty {
    Counting::new(Fault::new(
        memory.clone(),
        FaultConfig {
            seed,
            lost_command_ppm: 10_000,
            late_command_ppm: 10_000,
            lost_reply_ppm: 10_000,
            delay: Duration::ZERO..Duration::from_millis(1),
            ..FaultConfig::default()
        },
    ))
}

/// Takes members down one at a time, for every host at once, until told to stop.
async fn chaos(links: Vec<Vec<Faulty>>, stop: Rc<Cell<bool>>) {
    while !stop.get() {
        let victim = engine::task::random_u64() as usize % links[0].len();
        let pause = Duration::from_micros(engine::task::random_u64() % 20_000);
        links.iter().for_each(|links| links[victim].down.set(true));
        time::sleep(pause).await;
        for links in &links {
            links[victim].epoch.set(links[victim].epoch.get() + 1);
            links[victim].down.set(false);
        }
        time::sleep(pause / 2).await;
    }
}

async fn scenario(seed: u64, members: usize, replicas: u8) {
    let memories = memories(members, 32 << 20);
    let map = create(&memories, replicas, 500).await;
    let recorder = Recorder::new();
    let (mut links, mut clients, mut stores) = (Vec::new(), Vec::new(), Vec::new());
    for host in 0..3u64 {
        let own: Vec<_> =
            memories.iter().enumerate().map(|(i, memory)| faulty(memory, seed * 100 + host * 10 + i as u64)).collect();
        let store = Store::new(map.clone(), own.iter().cloned().map(Some).collect());
        links.push(own);
        for task in 0..2 {
            let mut actor = Actor::new(host as u32 * 2 + task, store.clone(), recorder.clone());
            clients.push(engine::task::spawn(async move {
                for _ in 0..STEPS {
                    actor.act().await;
                }
            }));
        }
        stores.push(store);
    }
    let stop = Rc::new(Cell::new(false));
    let chaos = engine::task::spawn(chaos(links, stop.clone()));
    for client in clients {
        client.await;
    }
    stop.set(true);
    chaos.await;
    for store in &stores {
        store.settle().await;
    }
    if let Err(fault) = check::check(&recorder.history()) {
        panic!("seed {seed}: {fault}");
    }
    time::sleep(Duration::from_secs(1)).await;
    let clean = Store::new(map, memories.into_iter().map(Some).collect());
    let report = clean.repair(&RepairOptions { check_values: true, ..RepairOptions::default() }).await;
    assert!(report.is_complete(), "seed {seed}: {report:?}");
    let report = clean.scrub(&ScrubOptions { check_values: true, ..ScrubOptions::default() }).await;
    assert!(report.is_equal(), "seed {seed}: {report:?}");
}

#[test]
fn histories_are_linearizable() {
    // 5398: a compare-and-set whose replies were lost returned the version of what another had made of its value since.
    for seed in (0..30).chain([5398]) {
        let (members, replicas) = [(3, 3), (4, 3), (5, 5), (2, 2), (1, 1)][seed as usize % 5];
        run(seed, scenario(seed, members, replicas));
    }
}
