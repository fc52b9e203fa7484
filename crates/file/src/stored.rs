//! [`Stored`]: an inode as whoever reads and writes bytes needs it, over the record that names have of it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::task::LocalFuture;

use crate::access::Held;
use crate::data::{self, Content, Funds, Shape, State};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::meta::Version;
use crate::ops::Attributes;
use crate::record::inode::{Content as InRecord, Inode};
use crate::record::{Record as _, Time};

/// See the module.
pub(crate) struct Stored {
    names: Rc<FileSystem>,
    ino: u64,
    shape: Shape,
    /// The latest of its values that was met.
    seen: RefCell<Option<Seen>>,
    /// When its bytes were last written by whoever has it open here: what goes out later was changed then.
    written: Cell<Option<Time>>,
    /// Locks on it were lost while it was open here. That stays, also when those who open it later know nothing of it any more:
    /// what was on its way for it must not come then.
    is_lost: Cell<bool>,
    /// What is changed is where bytes lie, and not what they are: the file's times stay.
    keeps_times: bool,
    funds: Funds,
}

#[derive(Clone)]
pub(crate) struct Seen {
    held: Rc<Held<Inode>>,
    state: Rc<State>,
}

/// Where an inode's bytes are.
pub(crate) fn content_of(inode: &Inode, shape: Shape) -> Result<Content, Error> {
    match &inode.content {
        InRecord::Inline(bytes) => Ok(Content::Inline(bytes.clone())),
        InRecord::Stripes(bytes) => Content::decode(bytes, shape),
    }
}

impl Stored {
    /// As it was met when it was opened.
    pub(crate) fn new(names: Rc<FileSystem>, ino: u64, shape: Shape, held: Held<Inode>) -> Result<Stored, Error> {
        let (seen, written, is_lost) = (RefCell::default(), Cell::default(), Cell::default());
        // It counts for that for good.
        let funds = names.quotas.funds(held.record.quota);
        let stored = Stored { names, ino, shape, seen, written, is_lost, keeps_times: false, funds };
        stored.see(held)?;
        Ok(stored)
    }

    /// The same for whoever moves bytes, and changes none.
    pub(crate) fn moving(names: Rc<FileSystem>, ino: u64, shape: Shape, held: Held<Inode>) -> Result<Stored, Error> {
        Ok(Stored { keeps_times: true, ..Stored::new(names, ino, shape, held)? })
    }

    /// When bytes were written that are not in stripes yet; `None`: all are.
    pub(crate) fn written(&self) -> Option<Time> {
        self.written.get()
    }

    /// Whether its bytes lie in the inode, as it was met last.
    pub(crate) fn is_inline(&self) -> bool {
        let seen = self.seen.borrow();
        seen.as_ref().is_some_and(|seen| matches!(seen.state.content, Content::Inline(_)))
    }

    /// Says when bytes were written that go out later; `None`: all are out.
    pub(crate) fn set_written(&self, when: Option<Time>) {
        self.written.set(when);
    }

    /// Forgets what was seen of the inode before it was told to have had so many changes. Whether it has.
    pub(crate) fn forget_before(&self, changes: u64) -> bool {
        self.seen.borrow_mut().take_if(|seen| seen.held.record.stamps.changes() < changes).is_some()
    }

    /// What was seen of it since, if anything was.
    pub(crate) fn seen_since(&self, changes: u64) -> Option<Attributes> {
        let seen = self.seen.borrow();
        let inode = seen.as_ref().map(|seen| &seen.held.record)?;
        (inode.stamps.changes() > changes).then(|| Attributes::of(self.ino, inode))
    }

    /// Takes note of a value, unless a later one was met while this was on its way.
    pub(crate) fn see(&self, held: Held<Inode>) -> Result<Seen, Error> {
        let mut seen = self.seen.borrow_mut();
        if let Some(known) = &*seen
            && held.record.stamps().is_before(known.held.record.stamps())
        {
            return Ok(known.clone());
        }
        let state = Rc::new(State { content: content_of(&held.record, self.shape)?, size: held.record.size });
        Ok(seen.insert(Seen { held: Rc::new(held), state }).clone())
    }

    async fn put(&self, version: Version, state: &State, may: &dyn Fn() -> Result<(), Error>) -> Result<bool, Error> {
        let known = self.seen.borrow().clone();
        let Some(Seen { held, .. }) = known.filter(|known| known.held.version() == version) else {
            return Ok(false);
        };
        let now = Time::now();
        let written = self.written.get().unwrap_or(now);
        let (accessed, modified, changed) = match self.keeps_times {
            true => (held.record.accessed, held.record.modified, held.record.changed),
            // It was written when whoever wrote was told so; but by when it was changed others see that more of it has gone out
            // since, so that each time differs. Nobody notes when it is read.
            false => (held.record.accessed.max(written), written, now),
        };
        let content = (&state.content).into();
        let new = Inode { content, size: state.size, accessed, modified, changed, ..held.record.clone() };
        let key = self.names.access.keys.inode(self.ino);
        let put = self.names.access.put_while(&key, Some(&held), new, may).await?;
        let is_done = put.is_some();
        if let Some(held) = put {
            self.see(held)?;
        }
        Ok(is_done)
    }
}

impl data::Inode for Stored {
    fn number(&self) -> u64 {
        self.ino
    }

    fn load(&self, fresh: bool) -> LocalFuture<'_, Result<(Rc<State>, Version), Error>> {
        Box::pin(async move {
            let known = self.seen.borrow().clone().filter(|_| !fresh);
            let Seen { held, state } = match known {
                Some(known) => known,
                None => self.see(self.names.inode(self.ino).await?.ok_or(Error::Stale)?)?,
            };
            Ok((state, held.version()))
        })
    }

    fn store_while<'a>(
        &'a self,
        version: Version,
        state: State,
        may: &'a dyn Fn() -> Result<(), Error>,
    ) -> LocalFuture<'a, Result<bool, Error>> {
        Box::pin(async move { self.put(version, &state, &|| self.may_change().and_then(|()| may())).await })
    }

    fn store_anyway(&self, version: Version, state: State) -> LocalFuture<'_, Result<bool, Error>> {
        Box::pin(async move { self.put(version, &state, &|| Ok(())).await })
    }

    fn funds(&self) -> Funds {
        self.funds.clone()
    }

    fn may_change(&self) -> Result<(), Error> {
        if !self.is_lost.get() && self.names.check_locks(self.ino).is_ok() {
            return Ok(());
        }
        self.is_lost.set(true);
        Err(Error::LostLock)
    }
}
