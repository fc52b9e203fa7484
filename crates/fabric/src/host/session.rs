//! A host's dealings with one controller: the association, made anew whenever it ends, and the namespaces that are used over it.
//!
//! Invariants:
//! - A namespace is up only on an association on which it was identified as the one it was before (identity, block size, at
//!   least the size). One that changes while it is up ends the association: what was sent may have met the other one.
//! - A namespace's epoch moves whenever it comes up; while it is down no command is sent to it.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Poll;

use device::{NamespaceInfo, ZonedInfo};
use engine::backoff::jittered;
use engine::sync::Notify;
use engine::task::{self, Task};
use engine::time;
use nvme::AnaState;

use super::association::{Association, Made, connect_io};
use super::error::ConnectError;
use super::events::{watch_ana, watch_events};
use super::joining::{Offer, Offers};
use super::options::Options;
use super::shape::{Found, Limits};

/// How many of the longest pauses lie between two tries where the target has said that trying again is of no use. Guessed: it may
/// be on its way up, with the subsystem or the list of hosts not in place yet, so it is asked all the same.
const DENIED_FACTOR: u32 = 4;

/// See the module. Belongs to the reactor thread that made it.
pub(super) struct Session {
    pub(super) inner: Rc<Inner>,
    _supervisor: Task<()>,
}

pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) shared: Arc<Offers>,
    pub(super) association: RefCell<Option<Rc<Association>>>,
    attached: RefCell<Vec<Weak<Attached>>>,
    last_error: RefCell<Option<String>>,
    /// A command was answered with an ANA state that the log page did not tell.
    pub(super) ana_doubted: Notify,
}

/// A namespace that is used.
pub(super) struct Attached {
    pub(super) nsid: u32,
    /// For errors: namespace, subsystem and address.
    pub(super) name: String,
    /// What was found when it was first connected, and grows.
    pub(super) info: RefCell<NamespaceInfo>,
    up: RefCell<Option<Up>>,
    epoch: Cell<u64>,
    pub(super) changed: Notify,
    last_error: RefCell<Option<String>>,
    /// Why it was refused when that was last said: the same refusal, try after try, is said once.
    refused: RefCell<Option<String>>,
    /// What writes say of where they go.
    pub(super) placement: Cell<Option<u16>>,
    /// What its zones are, as last seen; `None`: it has none, or was never seen.
    pub(super) zoned: Cell<Option<ZonedInfo>>,
}

/// Where a namespace's commands go.
#[derive(Clone)]
pub(super) struct Up {
    pub(super) association: Rc<Association>,
    pub(super) limits: Limits,
}

impl Session {
    /// Connects; afterwards it reconnects by itself. A target that is busy (SPDK is while a subsystem is paused) is asked again for
    /// as long as connecting may take.
    pub(super) async fn connect(options: Options) -> Result<Session, ConnectError> {
        let deadline = time::now() + options.connect_timeout;
        let mut backoff = options.backoff();
        loop {
            let pause = backoff.pause();
            match Session::connect_once(options.clone()).await {
                Err(error) if error.may_pass() && time::now() + pause < deadline => {
                    tracing::debug!(address = %options.address, %error, "asking again");
                    time::sleep(jittered(pause)).await;
                }
                made => return made,
            }
        }
    }

    /// The same, where others may be asked first.
    pub(super) async fn connect_once(options: Options) -> Result<Session, ConnectError> {
        let made = Association::connect(&options).await?;
        Ok(Session::start(options, Some(made)))
    }

    /// Connects in the background.
    pub(super) fn expecting(options: Options) -> Session {
        Session::start(options, None)
    }

    fn start(options: Options, made: Option<Made>) -> Session {
        let inner = Rc::new(Inner::new(options, Arc::default()));
        let first = made.map(|made| inner.begin(made));
        let supervisor = task::spawn(supervise(Rc::clone(&inner), first));
        Session { inner, _supervisor: supervisor }
    }

    /// Has the ANA log page read soon; asked for again meanwhile, it is read once.
    pub(super) fn refresh_ana_soon(&self) {
        self.inner.ana_doubted.notify_one();
    }

    /// Takes part in an association that another reactor keeps.
    pub(super) fn join(options: Options, shared: Arc<Offers>) -> Session {
        let inner = Rc::new(Inner::new(options, shared));
        let supervisor = task::spawn(take_part(Rc::clone(&inner)));
        Session { inner, _supervisor: supervisor }
    }
}

impl Attached {
    /// A namespace that is down, as `info` says it was.
    pub(super) fn new(options: &Options, nsid: u32, info: NamespaceInfo, changed: Notify) -> Attached {
        Attached {
            nsid,
            name: format!("{} namespace {nsid} at {}", options.subsystem, options.address),
            info: RefCell::new(info),
            up: RefCell::new(None),
            epoch: Cell::new(0),
            changed,
            last_error: RefCell::new(None),
            refused: RefCell::new(None),
            placement: Cell::new(None),
            zoned: Cell::new(None),
        }
    }

    /// Where commands go now.
    pub(super) fn up(&self) -> Option<Up> {
        self.up.borrow().clone()
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.up.borrow().as_ref().is_some_and(|up| up.association.is_alive())
    }

    /// Up, in a state that takes commands or will never do so again.
    pub(super) fn is_usable(&self) -> bool {
        let up = self.up.borrow();
        let state = up.as_ref().map(|up| up.association.ana_state(up.limits.ana_group));
        !matches!(state, Some(AnaState::Inaccessible | AnaState::Change))
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.last_error.borrow().clone()
    }

    /// Lets the namespace up on `association` if what was found there is the same one.
    fn rise(&self, association: &Rc<Association>, found: &Found) -> Result<(), ConnectError> {
        if let Err(error) = self.check(found) {
            *self.last_error.borrow_mut() = Some(error.to_string());
            return Err(error);
        }
        *self.info.borrow_mut() = found.info.clone();
        self.zoned.set(found.limits.zones.map(|zones| zones.info));
        let up = Up { association: Rc::clone(association), limits: found.limits };
        *self.up.borrow_mut() = Some(up);
        *self.refused.borrow_mut() = None;
        self.epoch.set(self.epoch.get() + 1);
        self.changed.notify_all();
        Ok(())
    }

    fn check(&self, found: &Found) -> Result<(), ConnectError> {
        let expected = self.info.borrow();
        let size = |zoned: Option<ZonedInfo>| zoned.map(|zoned| zoned.zone_blocks);
        let (zones, expected_zones) = (size(found.limits.zones.map(|zones| zones.info)), size(self.zoned.get()));
        let found = &found.info;
        let same = found.nguid == expected.nguid && found.block_size == expected.block_size;
        // What was never seen may have any.
        let same = same && (zones == expected_zones || self.epoch.get() == 0);
        if !same || found.blocks < expected.blocks {
            let (expected, found) = (describe(&expected, expected_zones), describe(found, zones));
            return Err(ConnectError::OtherNamespace { expected, found });
        }
        Ok(())
    }

    pub(super) fn fall(&self, reason: &str) {
        let before = self.up.borrow_mut().take();
        *self.last_error.borrow_mut() = Some(reason.to_owned());
        if before.is_some() {
            self.changed.notify_all();
        }
    }
}

fn describe(info: &NamespaceInfo, zone_blocks: Option<u64>) -> String {
    let zones = zone_blocks.map(|blocks| format!(" in zones of {blocks}")).unwrap_or_default();
    format!("{:032x} of {} blocks of {} bytes{zones}", u128::from_be_bytes(info.nguid), info.blocks, info.block_size)
}

/// An association in force, and its number among those that other reactors may join.
struct Current {
    association: Rc<Association>,
    number: u64,
}

impl Inner {
    fn new(options: Options, shared: Arc<Offers>) -> Inner {
        Inner {
            options,
            shared,
            association: RefCell::new(None),
            attached: RefCell::default(),
            last_error: RefCell::new(None),
            ana_doubted: Notify::new(),
        }
    }

    fn begin(&self, made: Made) -> Current {
        let association = Rc::new(made.association);
        *self.association.borrow_mut() = Some(Rc::clone(&association));
        let number = self.shared.offer(association.controller, (made.config, made.security), made.spare, Vec::new());
        Current { association, number }
    }

    /// Uses a namespace; with what was `found` of it, it is up at once.
    pub(super) fn attach(
        &self,
        attached: Attached,
        found: Option<(&Rc<Association>, &Found)>,
    ) -> Result<Rc<Attached>, ConnectError> {
        let attached = Rc::new(attached);
        if let Some((association, found)) = found {
            attached.rise(association, found)?;
            self.shared.update(attached.nsid, found);
        }
        if let Some(reason) = self.last_error.borrow().as_deref()
            && found.is_none()
        {
            attached.fall(reason);
        }
        self.attached.borrow_mut().push(Rc::downgrade(&attached));
        Ok(attached)
    }

    /// Those still used.
    pub(super) fn attached(&self) -> Vec<Rc<Attached>> {
        let mut attached = self.attached.borrow_mut();
        attached.retain(|weak| weak.strong_count() > 0);
        attached.iter().filter_map(Weak::upgrade).collect()
    }

    /// Identifies every namespace that is down; an error if not one of all is up then.
    async fn raise(&self, association: &Rc<Association>) -> Result<(), ConnectError> {
        let mut trouble = None;
        let mut any = false;
        for attached in self.attached() {
            if attached.is_up() {
                any = true;
                continue;
            }
            let found = association.find(&self.options, attached.nsid).await;
            let risen = found.and_then(|found| attached.rise(association, &found).map(|()| found));
            match risen {
                Ok(found) => {
                    any = true;
                    self.shared.update(attached.nsid, &found);
                    tracing::info!(target = %attached.name, "connected");
                }
                Err(error) => {
                    attached.fall(&error.to_string());
                    let said = attached.refused.replace(Some(error.to_string()));
                    if said == Some(error.to_string()) {
                        tracing::debug!(target = %attached.name, %error, "refused again");
                    } else {
                        tracing::error!(target = %attached.name, %error, "refused");
                    }
                    trouble = Some(error);
                }
            }
        }
        match trouble {
            Some(error) if !any => Err(error),
            _ => Ok(()),
        }
    }

    /// After a notice of change: growth is taken note of, what is missing is looked for, and a namespace that is another one
    /// now is an error.
    pub(super) async fn look_again(&self, association: &Rc<Association>) -> Result<(), ConnectError> {
        for attached in self.attached().into_iter().filter(|attached| attached.is_up()) {
            let found = association.find(&self.options, attached.nsid).await?;
            attached.check(&found)?;
            *attached.info.borrow_mut() = found.info.clone();
            if let Some(up) = &mut *attached.up.borrow_mut() {
                up.limits = found.limits;
            }
            self.shared.update(attached.nsid, &found);
        }
        // One that is still missing keeps nobody else from working.
        let _ = self.raise(association).await;
        Ok(())
    }

    fn fall(&self, reason: &str) {
        *self.association.borrow_mut() = None;
        *self.last_error.borrow_mut() = Some(reason.to_owned());
        self.attached().iter().for_each(|attached| attached.fall(reason));
    }

    pub(super) fn notify(&self) {
        self.attached().iter().for_each(|attached| attached.changed.notify_all());
    }
}

/// Keeps the association, for as long as its owner keeps it.
async fn supervise(inner: Rc<Inner>, first: Option<Current>) {
    let options = &inner.options;
    let mut current = first;
    let mut backoff = options.backoff();
    loop {
        if let Some(Current { association, number }) = current.take() {
            let since = time::now();
            let events = task::spawn(watch_events(Rc::clone(&inner), Rc::clone(&association)));
            let states = task::spawn(watch_ana(Rc::clone(&inner), Rc::clone(&association)));
            let error = over(&inner.shared, &association, number).await;
            drop((events, states));
            tracing::warn!(address = %options.address, %error, "connection lost");
            inner.shared.withdraw(number);
            inner.fall(&error);
            association.settle(options).await;
            // A target that lets us in only to drop us must not be stormed.
            if since.elapsed() > options.backoff_max {
                backoff.reset();
            }
        }
        time::sleep(jittered(backoff.pause())).await;
        match Association::connect(options).await {
            Ok(made) => {
                let begun = inner.begin(made);
                match inner.raise(&begun.association).await {
                    Ok(()) => current = Some(begun),
                    Err(error) => {
                        inner.shared.withdraw(begun.number);
                        begun.association.leave().await;
                        inner.fall(&error.to_string());
                        backoff.set_next(options.backoff_max);
                    }
                }
            }
            Err(error) => {
                tracing::debug!(address = %options.address, %error, "could not connect");
                inner.fall(&error.to_string());
                if error.is_denial() {
                    backoff.set_next(options.backoff_max * DENIED_FACTOR);
                }
            }
        }
    }
}

/// Ends when the association has: one of our queues ended, or another reactor says so.
async fn over(shared: &Offers, association: &Association, number: u64) -> String {
    let mut closed = std::pin::pin!(association.closed());
    let mut seen = 0;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(error) = closed.as_mut().poll(cx) {
            return Poll::Ready(error.to_string());
        }
        while shared.poll_changed(&mut seen, cx).is_ready() {
            if !shared.is_current(number) {
                return Poll::Ready("a queue of another reactor was lost".to_owned());
            }
        }
        Poll::Pending
    })
    .await
}

/// Joins each association that the reactor which keeps it offers.
async fn take_part(inner: Rc<Inner>) {
    let shared = Arc::clone(&inner.shared);
    let mut seen = 0;
    let mut done = 0;
    loop {
        let offer = shared.current().filter(|offer| offer.number != done);
        let Some(offer) = offer else {
            std::future::poll_fn(|cx| shared.poll_changed(&mut seen, cx)).await;
            continue;
        };
        done = offer.number;
        let Some(id) = shared.take_id(offer.number) else {
            let reason = "every I/O queue of the association is in use: raise queues_elsewhere";
            inner.fall(reason);
            continue;
        };
        let secured = Options { security: offer.security.clone(), ..inner.options.clone() };
        match connect_io(&secured, offer.config, &offer.controller, id.id).await {
            Ok(link) => {
                let association = Rc::new(Association::joined(&inner.options, offer.controller, link));
                let error = partake(&inner, &association, &offer).await;
                association.give_up();
                shared.withdraw(offer.number);
                inner.fall(&error);
            }
            Err(error) => {
                // The others' queues are not the worse for it.
                inner.fall(&error.to_string());
                time::sleep(jittered(inner.options.backoff_max)).await;
                done = 0;
            }
        }
    }
}

/// Uses an offered association until it is over; says why it is.
async fn partake(inner: &Inner, association: &Rc<Association>, offer: &Offer) -> String {
    *inner.association.borrow_mut() = Some(Rc::clone(association));
    let mut closed = std::pin::pin!(association.closed());
    let mut seen = 0;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(error) = closed.as_mut().poll(cx) {
            return Poll::Ready(error.to_string());
        }
        while inner.shared.poll_changed(&mut seen, cx).is_ready() {
            let Some(now) = inner.shared.current().filter(|now| now.number == offer.number) else {
                return Poll::Ready("the association has ended".to_owned());
            };
            for attached in inner.attached() {
                let found = now.namespaces.iter().find(|(nsid, _)| *nsid == attached.nsid);
                let Some((_, found)) = found else { continue };
                let risen = match attached.is_up() {
                    true => attached.check(found).map(|()| *attached.info.borrow_mut() = found.info.clone()),
                    false => attached.rise(association, found),
                };
                if let Err(error) = risen {
                    attached.fall(&error.to_string());
                }
            }
        }
        Poll::Pending
    })
    .await
}
