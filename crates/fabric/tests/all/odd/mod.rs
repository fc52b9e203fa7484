//! The host against controllers that are odd in one thing each, as those of others are: slow, sparse, busy, of an older version.

mod answers;
mod connecting;
mod fake;
mod limits;

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use engine::sim::{NodeId, SimConfig, World};
use engine::time;
use fabric::host::{Options, RemoteNamespace};
use fake::Fake;
use nvme::Nqn;

const PORT: u16 = 4420;

fn nqn() -> Nqn {
    Nqn::foreign("odd-subsystem-1").expect("a name")
}

/// A host, and a controller that answers as it is told to.
struct Scene {
    world: World,
    host: NodeId,
    fake: Rc<Fake>,
    options: Options,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let world = World::new(seed, SimConfig::default());
        let (node, host) = (world.node("fake"), world.node("host"));
        let address = SocketAddr::new(world.addr(node), PORT);
        let fake = Fake::new();
        world.spawn_on(node, Rc::clone(&fake).serve(address)).detach();
        world.run_for(Duration::from_millis(1)).expect("no stall");
        let mut options = Options::new(address, nqn(), 1);
        options.command_timeout = Duration::from_secs(5);
        options.keep_alive = Duration::from_secs(1);
        options.backoff_max = Duration::from_millis(100);
        Scene { world, host, fake, options }
    }

    fn run<T: 'static>(&self, body: impl Future<Output = T> + 'static) -> T {
        let task = self.world.spawn_on(self.host, body);
        self.world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"))
    }

    /// Connects, and waits a little.
    fn connect(&self) -> RemoteNamespace {
        let options = self.options.clone();
        self.run(async move {
            let remote = RemoteNamespace::connect(options).await.expect("connected");
            time::sleep(Duration::from_millis(10)).await;
            remote
        })
    }

    fn run_for(&self, duration: Duration) {
        self.world.run_for(duration).expect("no stall");
    }
}
