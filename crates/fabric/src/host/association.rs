//! An association with a controller: an admin queue and I/O queues, made together and ended together.
//!
//! Invariants:
//! - The end of one queue is the end of all: commands of one association must not live on beside those of the next.
//! - [`Association::surely_ended`] returns only when no command of the association can take effect any more; what makes that
//!   sure stands at [`super::fence`].

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use device::TRANSFER_BYTES_MAX;
use engine::sync::{Notify, Semaphore};
use engine::task::{self, Task};
use engine::time;
use nvme::PAGE_BYTES;
use nvme::ana::AnaState;
use nvme::feature::{FeatureId, async_event_config};
use nvme::register::Configuration;

use super::admin::{Admin, ConnectQueue};
use super::ana::AnaStates;
use super::connect::{connect_queue, secured};
use super::error::ConnectError;
use super::fence::{self, Fence};
use super::link::{Link, LinkError};
use super::options::{Options, Security};
use super::queue::{QUEUE_DEPTH_MAX, QueueConfig};
use super::shape::{self, Controller, Found};

/// Commands under way on an admin queue. Guessed: events, keep alive, aborts and one step at a time need four.
const ADMIN_DEPTH: u16 = 8;
/// Entries of an admin queue: one more than it holds commands (NVMe Base 2.0 §3.3.1.5); 32 is the least a target must take.
pub(super) const ADMIN_ENTRIES: u16 = 32;
/// Aborts under way, however many the controller takes. Derived: they leave half of the admin queue to everything else.
const ABORTS_MAX: usize = ADMIN_DEPTH as usize / 2;
/// I/O queues of an association. Chosen: one per core of a large host.
pub const QUEUES_MAX: u16 = 64;

const _: () = assert!(ADMIN_DEPTH < ADMIN_ENTRIES);

/// Connected queues and what is known of the controller behind them.
pub(super) struct Association {
    /// I/O queues of this reactor.
    queues: Box<[Rc<Link>]>,
    /// Where the search for the next queue begins.
    turn: Cell<usize>,
    /// `None`: the admin queue lives on the reactor that made the association.
    admin: Option<Rc<Link>>,
    pub(super) controller: Controller,
    ana: RefCell<AnaStates>,
    address: SocketAddr,
    fence: Cell<Fence>,
    fenced: Notify,
    /// Keep Alive, and the aborting of what is overdue.
    tasks: Cell<Vec<Task<()>>>,
}

/// The configuration of an admin queue.
pub(super) fn admin_config(header_digest: bool, data_digest: bool) -> QueueConfig {
    QueueConfig {
        depth: ADMIN_DEPTH,
        in_capsule_bytes_max: nvme::tcp::ADMIN_IN_CAPSULE_BYTES,
        header_digest,
        data_digest,
        read_bytes_max: PAGE_BYTES as u32,
    }
}

/// Connects an admin queue alone and enables its controller, for what namespaces of any kind have in common. The
/// controller's identifier is returned with it.
pub(super) async fn admin_alone(options: &Options) -> Result<(Rc<Link>, u16), ConnectError> {
    let config = admin_config(options.header_digest, options.data_digest);
    let queue = ConnectQueue::admin(ADMIN_ENTRIES, options.keep_alive_ms());
    let secured = secured(options, config, &queue, options.command_timeout).await?;
    let (link, controller) = connect_queue(&secured, config, &queue, options.command_timeout).await?;
    let link = Rc::new(link);
    Admin { link: &link, address: options.address }.enable_plain().await?;
    Ok((link, controller))
}

/// What was made, and what is left for other reactors.
pub(super) struct Made {
    pub(super) association: Association,
    /// What secures its I/O queues.
    pub(super) security: Security,
    /// How an I/O queue of this controller is made.
    pub(super) config: QueueConfig,
    /// Queue identifiers that other reactors may use.
    pub(super) spare: std::ops::RangeInclusive<u16>,
}

impl Association {
    /// Connects and enables the controller, and connects the I/O queues of this reactor.
    pub(super) async fn connect(options: &Options) -> Result<Made, ConnectError> {
        let patience = options.command_timeout;
        let config = admin_config(options.header_digest, options.data_digest);
        let queue = ConnectQueue::admin(ADMIN_ENTRIES, options.keep_alive_ms());
        let options = &secured(options, config, &queue, patience).await?;
        let (link, id) = connect_queue(options, config, &queue, patience).await?;
        let link = Rc::new(link);
        let admin = Admin { link: &link, address: options.address };
        let capabilities = admin.enable().await?;
        // From here on: many queues on a long way, each with its authentication, may take longer than the timeout.
        let mut tasks = Vec::new();
        if !options.keep_alive.is_zero() {
            tasks.push(task::spawn(keep_alive(Rc::clone(&link), options.address, options.keep_alive)));
        }
        let controller = Controller::identify(&admin, id, capabilities).await?;
        let page = controller.page;
        // Before the states are read: a change in between would never be told.
        enable_events(&admin, page.oaes.get()).await?;
        let states = AnaStates::read(&admin, &page).await?;
        let wanted = options.queues.saturating_add(options.queues_elsewhere).clamp(1, QUEUES_MAX);
        let allowed = number_of_queues(&admin, wanted).await?;
        let config = io_config(options, &controller);
        let mut queues = Vec::new();
        for id in 1..=options.queues.clamp(1, allowed) {
            let link = connect_io(options, config, &controller, id).await?;
            queues.push(Rc::new(link));
        }
        let spare = queues.len() as u16 + 1..=allowed;
        let association = Association::start(options, controller, states, link, queues, tasks);
        Ok(Made { association, security: options.security.clone(), config, spare })
    }

    fn start(
        options: &Options,
        controller: Controller,
        states: AnaStates,
        admin: Rc<Link>,
        queues: Vec<Rc<Link>>,
        mut tasks: Vec<Task<()>>,
    ) -> Association {
        let address = options.address;
        let aborts = Semaphore::new((usize::from(controller.page.acl) + 1).min(ABORTS_MAX));
        for (index, queue) in queues.iter().enumerate() {
            let (queue, admin) = (Rc::clone(queue), Rc::clone(&admin));
            tasks.push(task::spawn(abort_overdue(queue, admin, index as u16 + 1, address, aborts.clone())));
        }
        Association {
            queues: queues.into(),
            turn: Cell::new(0),
            admin: Some(admin),
            controller,
            ana: RefCell::new(states),
            address,
            fence: Cell::new(Fence::Alive),
            fenced: Notify::new(),
            tasks: Cell::new(tasks),
        }
    }

    /// One queue of a controller whose association another reactor keeps.
    pub(super) fn joined(options: &Options, controller: Controller, link: Link) -> Association {
        Association {
            queues: Box::new([Rc::new(link)]),
            turn: Cell::new(0),
            admin: None,
            controller,
            ana: RefCell::new(AnaStates::none()),
            address: options.address,
            fence: Cell::new(Fence::Alive),
            fenced: Notify::new(),
            tasks: Cell::default(),
        }
    }

    /// The I/O queue with the most room; equals take turns.
    pub(super) fn queue(&self) -> &Link {
        let count = self.queues.len();
        if count == 1 {
            return &self.queues[0];
        }
        let turn = self.turn.get();
        self.turn.set((turn + 1) % count);
        let inclined = (0..count).map(|step| &self.queues[(turn + step) % count]);
        inclined.rev().max_by_key(|queue| queue.available()).unwrap_or(&self.queues[0])
    }

    /// How many I/O queues it has on this reactor.
    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The admin commands, where the admin queue is on this reactor.
    pub(super) fn admin(&self) -> Option<Admin<'_>> {
        self.admin.as_ref().map(|link| Admin { link, address: self.address })
    }

    pub(super) fn admin_link(&self) -> Option<&Rc<Link>> {
        self.admin.as_ref()
    }

    /// Identifies a namespace of the subsystem.
    pub(super) async fn find(&self, options: &Options, nsid: u32) -> Result<Found, ConnectError> {
        match self.admin() {
            Some(admin) => shape::find(&admin, options, &self.controller, nsid).await,
            None => Err(ConnectError::NoAnswer { step: "identify namespace", ended: "the admin queue is elsewhere" }),
        }
    }

    /// How good this controller is for the namespaces of an ANA group.
    pub(super) fn ana_state(&self, group: u32) -> AnaState {
        self.ana.borrow().of(group)
    }

    /// Takes a command's word for the state of a group, until the log page is read again. False: there is no such page.
    pub(super) fn note_ana(&self, group: u32, state: AnaState) -> bool {
        self.ana.borrow_mut().set(group, state)
    }

    /// Reads the ANA log page anew.
    pub(super) async fn refresh_ana(&self) -> Result<(), ConnectError> {
        let Some(admin) = self.admin() else { return Ok(()) };
        let states = AnaStates::read(&admin, &self.controller.page).await?;
        *self.ana.borrow_mut() = states;
        Ok(())
    }

    fn links(&self) -> impl Iterator<Item = &Rc<Link>> {
        self.queues.iter().chain(&self.admin)
    }

    /// Whether every queue is there.
    #[inline]
    pub(super) fn is_alive(&self) -> bool {
        self.links().all(|link| !link.is_closed())
    }

    /// Ends when one of the queues has ended, and so the association: commands under way are lost.
    pub(super) async fn closed(&self) -> LinkError {
        let mut closed: Vec<Pin<Box<dyn Future<Output = LinkError> + '_>>> =
            self.links().map(|link| Box::pin(link.closed()) as _).collect();
        let error = std::future::poll_fn(|cx| {
            let ended = closed.iter_mut().find_map(|closed| match closed.as_mut().poll(cx) {
                Poll::Ready(error) => Some(error),
                Poll::Pending => None,
            });
            ended.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        self.give_up();
        error
    }

    /// Gives the I/O queues up, and so the association.
    pub(super) fn give_up(&self) {
        self.queues.iter().for_each(|queue| queue.give_up(LinkError::AssociationEnded));
    }

    /// Ends all queues at once, in order.
    pub(super) fn shutdown(&self) {
        self.links().for_each(|link| link.shutdown());
    }

    /// After [`Association::closed`]: resets the controller if it still answers, and notes when the association has surely
    /// ended on its side too.
    pub(super) async fn settle(&self, options: &Options) {
        // A Keep Alive to a controller that is disabled is an error, and would end the queue by which the reset is followed.
        drop(self.tasks.take());
        self.give_up();
        let bound = fence::bound(options.keep_alive, &self.controller.page);
        let reset = match self.admin() {
            Some(admin) if !admin.link.is_closed() => {
                let reset = time::timeout(options.connect_timeout, admin.reset(self.controller.capabilities)).await;
                matches!(reset, Ok(Ok(())))
            }
            _ => false,
        };
        self.shutdown();
        self.fence.set(match (reset, bound) {
            (true, _) => Fence::Ends(time::now() + fence::QUIESCE_TIME),
            // The reset's own commands are no sign of life that counts: only Keep Alive restarts the timer.
            (false, Some(bound)) => Fence::Ends(time::now() + bound),
            (false, None) => Fence::Never,
        });
        self.fenced.notify_all();
    }

    /// Ends when no command of this association can take effect any more. Never ends while it is alive, nor where nothing
    /// bounds that time (no keep alive).
    pub(super) async fn surely_ended(&self) {
        loop {
            let fenced = self.fenced.notified();
            match self.fence.get() {
                Fence::Ends(at) => return time::sleep_until(at).await,
                Fence::Alive | Fence::Never => fenced.await,
            }
        }
    }

    /// Whether a command of it that has no answer may still take effect.
    pub(super) fn may_act(&self) -> bool {
        !matches!(self.fence.get(), Fence::Ends(at) if at <= time::now())
    }

    /// Whether no command that nobody waits for any more can take effect: those that were under way have ended, or the
    /// association surely has.
    pub(super) fn is_abandoned_over(&self) -> bool {
        if self.is_alive() { self.queues.iter().all(|queue| queue.abandoned() == 0) } else { !self.may_act() }
    }

    /// Ends when [`Association::is_abandoned_over`] was true.
    pub(super) async fn abandoned_over(&self) {
        for queue in &self.queues {
            if !queue.abandoned_ended().await {
                return self.surely_ended().await;
            }
        }
    }

    /// Tells the controller that the host is leaving, and ends all queues.
    pub(super) async fn leave(&self) {
        if let Some(admin) = self.admin() {
            // It learns of it from the connections' end otherwise.
            let _ = admin.announce_shutdown(Configuration::enable_all(self.controller.capabilities)).await;
        }
        self.shutdown();
    }
}

/// Asks for `wanted` I/O queues; returns how many there may be (NVMe Base 2.0 §5.27.1.5: zero based, submission queues low,
/// completion queues high).
async fn number_of_queues(admin: &Admin<'_>, wanted: u16) -> Result<u16, ConnectError> {
    let asked = u32::from(wanted - 1);
    let given = admin.set_feature(FeatureId::NUMBER_OF_QUEUES, asked | asked << 16).await?;
    let least = (given & 0xFFFF).min(given >> 16) as u16;
    Ok(wanted.min(least.saturating_add(1)))
}

/// Asks for the events that are offered: Linux's target refuses the whole feature for one bit that it does not know.
async fn enable_events(admin: &Admin<'_>, offered: u32) -> Result<(), ConnectError> {
    let wanted = offered & (async_event_config::NAMESPACE_ATTRIBUTE | async_event_config::ANA_CHANGE);
    if wanted != 0 {
        admin.set_feature(FeatureId::ASYNC_EVENT_CONFIG, wanted).await?;
    }
    Ok(())
}

pub(super) fn io_config(options: &Options, controller: &Controller) -> QueueConfig {
    let depth = u32::from(options.depth).clamp(2, QUEUE_DEPTH_MAX.into()).min(controller.commands_max());
    // IOCCSZ counts the submission entry too; an ICDOFF other than zero does not exist over TCP (NVMe/TCP 1.0 §3.3.2).
    let page = &controller.page;
    let in_capsule = if page.icdoff.get() == 0 { page.ioccsz.get().saturating_mul(16) } else { 0 };
    QueueConfig {
        depth: depth as u16,
        in_capsule_bytes_max: in_capsule.saturating_sub(64).min(TRANSFER_BYTES_MAX as u32),
        header_digest: options.header_digest,
        data_digest: options.data_digest,
        read_bytes_max: TRANSFER_BYTES_MAX as u32,
    }
}

/// Connects I/O queue `id` of a controller; `options` have the security of its association.
pub(super) async fn connect_io(
    options: &Options,
    config: QueueConfig,
    controller: &Controller,
    id: u16,
) -> Result<Link, ConnectError> {
    let queue = ConnectQueue { id, entries: config.depth + 1, controller: controller.id, keep_alive_ms: 0 };
    let (link, _) = connect_queue(options, config, &queue, options.command_timeout).await?;
    Ok(link)
}

/// Gives a sign of life twice within `timeout`. A controller that is silent for as long as it would bear with us is as good as
/// gone; what else it is asked may take it longer.
pub(super) async fn keep_alive(link: Rc<Link>, address: SocketAddr, timeout: Duration) {
    let admin = Admin { link: &link, address };
    loop {
        time::sleep(timeout / 2).await;
        let reason = match time::timeout(timeout, admin.keep_alive()).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => {
                tracing::warn!(%address, %error, "keep alive failed");
                LinkError::KeepAlive
            }
            Err(_) => LinkError::Silent(timeout),
        };
        return link.give_up(reason);
    }
}

/// Asks the controller to abort what has outlasted its time (NVMe Base 2.0 §5.1), one command of a queue at a time, and of all
/// queues together as many as it takes (ACL, zero based). What does not end in the grace that follows ends the association.
async fn abort_overdue(queue: Rc<Link>, admin: Rc<Link>, id: u16, address: SocketAddr, aborts: Semaphore) {
    let admin = Admin { link: &admin, address };
    queue.arm_aborts();
    while let Some(command) = queue.next_overdue().await {
        let _one = aborts.acquire(1).await;
        if !queue.is_overdue(command) {
            continue;
        }
        tracing::warn!(%address, queue = id, command, "no answer in time: aborting the command");
        if let Err(error) = admin.abort(id, command).await {
            tracing::warn!(%address, queue = id, command, %error, "the command could not be aborted");
        }
    }
}
