//! Voters for the store's tests: one map, agreed on at once.

use engine::task::LocalFuture;
use engine::time;
use pool::MemberId;
use pool::clock::Moment;

use super::tests::Member;
use super::*;

/// The pool's voters, and the way to its members: one map, agreed on at once.
pub(super) struct Voters {
    map: RefCell<Map>,
    /// This host's connections to all members there ever are.
    pub(super) links: Vec<Member>,
    /// The host sleeps, as far as the map goes: it hears of no change.
    deaf: Cell<bool>,
    /// What it goes by while it is deaf.
    last: RefCell<Option<Map>>,
    shared: Option<Rc<Voters>>,
    /// How often this host has asked for marks of all members, to sweep.
    pub(super) sweeps_begun: Cell<u32>,
}

impl Voters {
    pub(super) fn new(map: Map) -> Voters {
        let (map, last, deaf) = (RefCell::new(map), RefCell::default(), Cell::new(false));
        Voters { map, links: Vec::new(), deaf, last, shared: None, sweeps_begun: Cell::default() }
    }

    /// The same as a host reaches them, which has these connections.
    pub(super) fn of_host(all: &Rc<Voters>, links: Vec<Member>) -> Voters {
        Voters { links, shared: Some(all.clone()), ..Voters::new(all.now()) }
    }

    /// Who agrees.
    pub(super) fn all(&self) -> &Voters {
        self.shared.as_deref().unwrap_or(self)
    }

    /// Whether the host sleeps, as far as the map goes.
    pub(super) fn deaf(&self, deaf: bool) {
        self.deaf.set(deaf);
    }

    pub(super) fn now(&self) -> Map {
        self.all().map.borrow().clone()
    }

    pub(super) fn set(&self, map: Map) {
        *self.map.borrow_mut() = map;
    }

    fn agreed(&self, map: Map) -> LocalFuture<'_, Result<Map, String>> {
        self.all().set(map);
        Box::pin(async { Ok(self.now()) })
    }

    /// The same where every member has to be marked: one that is silent can't be.
    fn agreed_if_marked(&self, map: Map) -> LocalFuture<'_, Result<Map, String>> {
        let now = self.now();
        let is_silent = |member: &pool::Member| {
            let link = self.links.iter().find(|link| device::Namespace::info(&**link).nguid == member.id.0);
            !member.lost && link.is_some_and(|link| link.down.get())
        };
        match now.members.iter().find(|member| is_silent(member)) {
            Some(member) => {
                let refusal = format!("member {} could not be marked", member.id);
                Box::pin(std::future::ready(Err(refusal)))
            }
            None => self.agreed(map),
        }
    }
}

impl MapSource for Voters {
    fn newest(&self) -> LocalFuture<'_, Result<Map, String>> {
        Box::pin(async {
            time::sleep(Duration::from_micros(300)).await;
            if !self.deaf.get() {
                *self.last.borrow_mut() = Some(self.now());
            }
            Ok(self.last.borrow().clone().unwrap_or_else(|| self.now()))
        })
    }

    fn settle_carried<'a>(&'a self, _: &'a Map, _: MemberId) -> LocalFuture<'a, Result<Map, String>> {
        self.newest()
    }

    fn raise_epoch(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        let now = self.now();
        self.agreed(if now.epoch == epoch { now.raise_epoch() } else { now })
    }

    fn begin_sweep(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        let now = self.now();
        self.sweeps_begun.set(self.sweeps_begun.get() + 1);
        self.agreed_if_marked(if now.epoch == epoch { now.raise_epoch() } else { now })
    }

    fn note_unequal(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        self.agreed(self.now().note_unequal(epoch))
    }

    fn note_clock(&self, before: u64, now_ms: u64, by: Option<Moment>) -> LocalFuture<'_, Result<Map, String>> {
        self.agreed(self.now().note_clock(before, now_ms, by))
    }

    fn note_swept(&self, epoch: u64) -> LocalFuture<'_, Result<Map, String>> {
        self.agreed_if_marked(self.now().note_swept(epoch))
    }

    fn connect<'a>(&'a self, map: &'a Map, index: usize) -> LocalFuture<'a, Option<AnyRemote>> {
        let id = map.members[index].id.0;
        let link = self.links.iter().find(|link| device::Namespace::info(&**link).nguid == id).cloned();
        Box::pin(async move { link.map(AnyRemote::from) })
    }
}
