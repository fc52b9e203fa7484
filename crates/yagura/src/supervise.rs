//! Storage nodes, and what else serves, as child processes: started, watched, restarted, and stopped with their supervisor.
//!
//! Invariants:
//! - One thread owns all children; others ask it by [`Order`] and hear from it by [`News`]. No reactor waits for a process.
//! - A node that ends unasked is started again after a pause that doubles up to [`PAUSE_MAX`]: a node that cannot start must
//!   not burn the machine. One that ran for [`STEADY`] begins anew at [`PAUSE_MIN`].
//! - A node keeps the address it first got: hosts reconnect to where they were.
//! - Children hold the read end of a pipe from us; when we are gone, however, they stop. Else a killed supervisor would leave
//!   nodes that keep its members locked.

use std::io::BufReader;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use engine::backoff::Backoff;
use engine::sync::{MailReceiver, MailSender, mailbox};
use engine::time;
use serde::Deserialize;

use crate::exit::Failure;

/// The first pause before a restart.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause before a restart. Chosen: an operator who mends the cause waits no longer than this.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Who ran this long did start well.
const STEADY: Duration = Duration::from_secs(30);
/// How often children are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a node may take to stop before it is killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// News that may wait. Derived: a start and an end per node and restart; what no longer fits is dropped with a log line.
const NEWS_MAX: usize = 1024;

/// How a node is started.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// What it is, in words.
    pub name: String,
    /// This program.
    pub program: PathBuf,
    /// Its arguments but for `--listen`.
    pub arguments: Vec<String>,
    /// Where it listens; port 0: anywhere free, and there again after a restart.
    pub listen: SocketAddr,
}

/// What the supervisor is asked to do.
#[derive(Debug)]
enum Order {
    /// End a node by SIGKILL and leave it ended.
    Kill(usize),
    /// Start a node that was killed.
    Start(usize),
    /// A node said where it serves.
    Serves(usize, Ready, u32),
    /// End all nodes in good order.
    Stop,
}

/// What the supervisor tells.
#[derive(Clone, Debug)]
pub enum News {
    /// A node serves.
    Started {
        /// Which.
        node: usize,
        /// Where.
        listening: SocketAddr,
        /// Where its metrics are.
        metrics: Option<SocketAddr>,
        /// Its process.
        pid: u32,
    },
    /// A node has ended.
    Ended {
        /// Which.
        node: usize,
        /// How.
        status: String,
    },
}

/// What a node says on its standard output once it serves; see [`crate::subsystem`].
#[derive(Deserialize, Debug)]
struct Ready {
    listening: SocketAddr,
    metrics: Option<SocketAddr>,
}

/// The supervising thread, from outside.
pub struct Supervisor {
    orders: Sender<Order>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Supervisor {
    /// Starts all nodes.
    pub fn start(specs: Vec<NodeSpec>) -> Result<(Supervisor, MailReceiver<News>), Failure> {
        let (orders, inbox) = channel();
        let (news, receiver) = mailbox(NEWS_MAX);
        let nodes = specs.into_iter().enumerate().map(|(index, spec)| Node::new(index, spec)).collect();
        let thread = Thread { nodes, inbox, orders: orders.clone(), news };
        let thread = std::thread::Builder::new().name("supervisor".into()).spawn(move || thread.run())?;
        Ok((Supervisor { orders, thread: Some(thread) }, receiver))
    }

    /// Ends node `node` by SIGKILL, for good until [`Supervisor::restart`].
    pub fn kill(&self, node: usize) {
        self.order(Order::Kill(node));
    }

    /// Starts node `node` again after [`Supervisor::kill`].
    pub fn restart(&self, node: usize) {
        self.order(Order::Start(node));
    }

    fn order(&self, order: Order) {
        // The thread ends only by Stop, which is the last order.
        let _ = self.orders.send(order);
    }
}

impl Drop for Supervisor {
    /// Stops all nodes in good order and waits for them, a bounded time each.
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the supervisor has panicked");
        }
    }
}

/// What the first start of an only child comes to, within `time`: where it serves, and where its metrics are.
pub async fn first_start(
    news: &MailReceiver<News>,
    name: &str,
    time: Duration,
) -> Result<(SocketAddr, Option<SocketAddr>), Failure> {
    match time::timeout(time, news.recv()).await {
        Ok(Some(News::Started { listening, metrics, .. })) => Ok((listening, metrics)),
        Ok(Some(News::Ended { status, .. })) => {
            Err(Failure::refused(format!("the {name} ended at its start ({status}); it says why above")))
        }
        Ok(None) => Err(Failure::refused("the supervisor has ended")),
        Err(_) => Err(Failure::unavailable(format!("the {name} does not serve after {time:?}"))),
    }
}

enum State {
    Running {
        child: Child,
        since: Instant,
    },
    /// To be started at this time.
    Pausing(Instant),
    /// Killed on order.
    Held,
}

struct Node {
    index: usize,
    spec: NodeSpec,
    state: State,
    backoff: Backoff,
    /// It has ended unasked, and does not serve again yet.
    has_ended: bool,
}

impl Node {
    fn new(index: usize, spec: NodeSpec) -> Node {
        let backoff = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        Node { index, spec, state: State::Pausing(Instant::now()), backoff, has_ended: false }
    }

    fn start(&mut self, orders: &Sender<Order>) {
        let mut command = Command::new(&self.spec.program);
        command.args(&self.spec.arguments).arg(format!("--listen={}", self.spec.listen));
        // A group of its own: an interrupt from the terminal is for us, and we stop the nodes when nobody needs them any more.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        match command.spawn() {
            Ok(mut child) => {
                tracing::info!(process = self.spec.name, pid = child.id(), "started");
                if let Some(stdout) = child.stdout.take() {
                    await_ready(self.index, self.spec.name.clone(), child.id(), stdout, orders.clone());
                }
                self.state = State::Running { child, since: Instant::now() };
            }
            Err(error) => {
                tracing::error!(process = self.spec.name, %error, "could not be started");
                self.pause_after(Duration::ZERO);
            }
        }
    }

    fn pause_after(&mut self, ran: Duration) {
        if ran >= STEADY {
            self.backoff.reset();
        }
        self.state = State::Pausing(Instant::now() + self.backoff.pause());
    }

    /// Looks whether the child has ended, and whether a pause has.
    fn look(&mut self, news: &MailSender<News>, orders: &Sender<Order>) {
        match &mut self.state {
            State::Running { child, since } => {
                let (ended, ran) = (child.try_wait(), since.elapsed());
                if let Ok(Some(status)) = ended {
                    tracing::warn!(process = self.spec.name, %status, "ended");
                    self.tell_end(news, status);
                    self.has_ended = true;
                    self.pause_after(ran);
                }
            }
            State::Pausing(until) if Instant::now() >= *until => self.start(orders),
            State::Pausing(_) | State::Held => {}
        }
    }

    /// It keeps its address. Whoever was told that it had ended is told once that it is back.
    fn serves(&mut self, listening: SocketAddr, pid: u32) {
        self.spec.listen = listening;
        if std::mem::take(&mut self.has_ended) {
            tracing::warn!(process = self.spec.name, pid, %listening, "serves again: it was started anew");
        }
    }

    fn tell_end(&self, news: &MailSender<News>, status: ExitStatus) {
        tell(news, News::Ended { node: self.index, status: status.to_string() });
    }

    fn kill(&mut self, news: &MailSender<News>) {
        if let State::Running { child, .. } = &mut self.state {
            let ended = child.kill().and_then(|()| child.wait());
            match ended {
                Ok(status) => self.tell_end(news, status),
                Err(error) => tracing::error!(process = self.spec.name, %error, "could not be killed"),
            }
        }
        self.state = State::Held;
    }
}

fn tell(news: &MailSender<News>, item: News) {
    if let Err(error) = news.try_send(item) {
        tracing::debug!(%error, "news that nobody reads");
    }
}

/// Waits, on a thread of its own, for a node to say that it serves.
fn await_ready(node: usize, process: String, pid: u32, stdout: std::process::ChildStdout, orders: Sender<Order>) {
    let thread = std::thread::Builder::new().name(process.clone());
    let unheard = process.clone();
    let wait = move || {
        let mut said = serde_json::Deserializer::from_reader(BufReader::new(stdout)).into_iter::<Ready>();
        match said.next() {
            Some(Ok(ready)) => {
                // Nobody left to tell: everything is being stopped.
                let _ = orders.send(Order::Serves(node, ready, pid));
            }
            Some(Err(error)) => tracing::error!(process, %error, "said something that is not understood"),
            // It ended before it served; that is told by who watches the process.
            None => {}
        }
    };
    if let Err(error) = thread.spawn(wait) {
        tracing::error!(process = unheard, %error, "cannot be listened to");
    }
}

struct Thread {
    nodes: Vec<Node>,
    inbox: Receiver<Order>,
    /// For the threads that listen to the nodes.
    orders: Sender<Order>,
    news: MailSender<News>,
}

impl Thread {
    fn run(mut self) {
        loop {
            for node in &mut self.nodes {
                node.look(&self.news, &self.orders);
            }
            match self.inbox.recv_timeout(LOOK_EVERY) {
                Ok(Order::Kill(node)) => self.nodes[node].kill(&self.news),
                Ok(Order::Start(node)) if matches!(self.nodes[node].state, State::Held) => {
                    self.nodes[node].backoff.reset();
                    self.nodes[node].start(&self.orders);
                }
                Ok(Order::Serves(node, Ready { listening, metrics }, pid)) => {
                    self.nodes[node].serves(listening, pid);
                    tell(&self.news, News::Started { node, listening, metrics, pid });
                }
                Ok(Order::Start(_)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return self.stop(),
            }
        }
    }

    fn stop(self) {
        let mut children: Vec<(String, Child)> = Vec::new();
        for node in self.nodes {
            if let State::Running { mut child, .. } = node.state {
                // The end of its standard input is the order to stop.
                drop(child.stdin.take());
                children.push((node.spec.name, child));
            }
        }
        let deadline = Instant::now() + STOP_TIME_MAX;
        while !children.is_empty() && Instant::now() < deadline {
            children.retain_mut(|(_, child)| !matches!(child.try_wait(), Ok(Some(_))));
            std::thread::sleep(LOOK_EVERY);
        }
        for (process, mut child) in children {
            tracing::warn!(process, "did not stop in time and is killed");
            if let Err(error) = child.kill().and_then(|()| child.wait()) {
                tracing::error!(process, %error, "could not be killed");
            }
        }
    }
}
