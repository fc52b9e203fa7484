//! [`Roster`]: which members a file system has, as its root record says, and how that changes.
//!
//! Invariants:
//! - A member's number is never given to another, and a member that was taken out never comes back: chunks and labels name numbers.
//! - A member is taken out only when all its pages of regions are closed and empty. No page opens again, so that whatever a client
//!   believes that has not heard of it, nothing comes to lie there.
//! - Its state is changed before its pages are closed: whoever finds pages open of a member that is to be empty closes them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use engine::sync::Semaphore;
use engine::task::LocalFuture;
use engine::time::{self, Instant};

use crate::access::{Access, Held, Tries};
use crate::data::{Chunks, Few, Layout, MemberSpec, Members, Shape, SumSeed};
use crate::error::Error;
use crate::meta::Meta;
use crate::record::root::{MEMBERS_MAX, MemberRecord, MemberState, RootRecord, check_fs_name};
use crate::record::{Keys, Record as _, key};

/// Reaches a member that has joined, as far as that can be done soon.
pub type Reach = Rc<dyn Fn(u16) -> LocalFuture<'static, ()>>;

/// Why members were not changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RosterError {
    /// No member has this number, or it was taken out.
    #[error("there is no member {0}")]
    None(u16),
    /// A stripe could be put nowhere then.
    #[error("then {left} failure domains are left, and a stripe has columns in {needed}")]
    TooFewDomains {
        /// Domains of members that get new stripes.
        left: usize,
        /// Columns of a stripe.
        needed: usize,
    },
    /// It gets new stripes.
    #[error("member {0} is in use")]
    InUse(u16),
    /// Something lies on it.
    #[error("{regions} regions of member {member} are taken")]
    Held {
        /// The member.
        member: u16,
        /// Regions that chunks have.
        regions: u64,
    },
    /// What is to be moved away has no room elsewhere.
    #[error("{needed} regions are to be moved, and other members have {free} free")]
    NoRoom {
        /// Regions that are taken of the members that are to be empty.
        needed: u64,
        /// Regions that are free on those that stay, about.
        free: u64,
    },
    /// One is there at this place.
    #[error("member {0} is at this place")]
    Twice(u16),
    /// There are as many as there may be.
    #[error("a file system has {MEMBERS_MAX} members at most, with those that were taken out")]
    TooMany,
    /// What the store says.
    #[error(transparent)]
    Files(#[from] Error),
}

/// See the module.
pub struct Roster {
    access: Access,
    key: Vec<u8>,
    held: RefCell<Held<RootRecord>>,
    members: Rc<Members>,
    chunks: Chunks,
    reach: RefCell<Option<Reach>>,
    /// Whether members that are said to be lost are reached, too, if they answer.
    reaches_lost: Cell<bool>,
    /// One at a time reads the record.
    turn: Semaphore,
    read: Cell<Instant>,
}

/// What the clients of a file system agree on, by its root record.
pub fn layout_of(root: &RootRecord) -> Result<Layout, Error> {
    let damaged = |what: &str| Error::Damaged(format!("a file system's root record: {what}"));
    Ok(Layout {
        fs: root.id,
        shape: Shape::new(root.data.into(), root.parity.into())?,
        region_bytes: u32::try_from(root.region_bytes).map_err(|_| damaged("its regions"))?,
        seed: SumSeed(root.seed),
    })
}

fn specs_of(root: &RootRecord) -> Vec<MemberSpec> {
    let spec = |member: &MemberRecord| MemberSpec {
        domain: member.domain.clone(),
        bytes: member.bytes,
        is_out: member.state != MemberState::Active,
        is_lost: matches!(member.state, MemberState::Lost | MemberState::Removed),
    };
    root.members.iter().map(spec).collect()
}

impl Roster {
    /// The members of the file system of this name.
    ///
    /// # Errors
    /// There is no such file system; the store does not answer.
    pub fn open<'a>(meta: Rc<dyn Meta>, name: &'a str) -> LocalFuture<'a, Result<Rc<Roster>, Error>> {
        Box::pin(async move {
            check_fs_name(name)?;
            let access = Access::new(Rc::clone(&meta), Keys([0; 16]));
            let held = access.get::<RootRecord>(&key::root(name)).await?;
            let held = held.ok_or_else(|| Error::NotFound(format!("file system {name}")))?;
            Roster::of(meta, name, held)
        })
    }

    /// Those of a root record that was just read.
    pub(crate) fn of(meta: Rc<dyn Meta>, name: &str, held: Held<RootRecord>) -> Result<Rc<Roster>, Error> {
        let (access, key) = (Access::new(Rc::clone(&meta), Keys([0; 16])), key::root(name));
        let members = Members::new(layout_of(&held.record)?, specs_of(&held.record));
        let chunks = Chunks::new(meta, Rc::clone(&members));
        Ok(Rc::new(Roster {
            access,
            key,
            held: RefCell::new(held),
            members,
            chunks,
            reach: RefCell::default(),
            reaches_lost: Cell::new(false),
            turn: Semaphore::new(1),
            read: Cell::new(time::now()),
        }))
    }

    /// The root record as it was last read.
    pub fn root(&self) -> RootRecord {
        self.held.borrow().record.clone()
    }

    /// The members, by number.
    pub fn members(&self) -> &Rc<Members> {
        &self.members
    }

    /// From now on members that are said to be lost are reached, if they answer: whoever mends reads what they have.
    pub fn reach_lost(&self) {
        self.reaches_lost.set(true);
    }

    /// Whether a member is to be reached.
    fn is_reached(&self, state: MemberState) -> bool {
        match state {
            MemberState::Active | MemberState::Leaving => true,
            MemberState::Lost => self.reaches_lost.get(),
            MemberState::Removed => false,
        }
    }

    /// Where a member is reached; `None`: nobody is to reach it.
    pub fn place_of(&self, index: u16) -> Option<String> {
        let held = self.held.borrow();
        let member = held.record.members.get(usize::from(index)).filter(|member| self.is_reached(member.state));
        member.map(|member| member.place.clone())
    }

    /// Members that are to be empty.
    pub fn leaving(&self) -> Vec<u16> {
        let is_leaving = |state: MemberState| matches!(state, MemberState::Leaving | MemberState::Lost);
        let held = self.held.borrow();
        (0..).zip(&held.record.members).filter(|(_, member)| is_leaving(member.state)).map(|(index, _)| index).collect()
    }

    /// From now on members that join are reached by this.
    pub fn set_reach(&self, reach: Reach) {
        *self.reach.borrow_mut() = Some(reach);
    }

    /// Reads the root record: what has changed of members since counts from now on.
    ///
    /// # Errors
    /// What the store says.
    pub fn refresh(&self) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let asked = time::now();
            let _turn = self.turn.acquire(1).await;
            // Whoever had the turn has read it since this was asked.
            if self.read.get() > asked {
                return Ok(());
            }
            let sent = time::now();
            let held = self.access.get::<RootRecord>(&self.key).await?;
            let held = held.ok_or_else(|| Error::Damaged("the file system's root record is gone".into()))?;
            self.adopt(held).await?;
            self.read.set(sent);
            Ok(())
        })
    }

    /// What a root record says counts.
    async fn adopt(&self, held: Held<RootRecord>) -> Result<(), Error> {
        if held.record.id != self.members.layout().fs {
            return Err(Error::Damaged("another file system has this one's name now".into()));
        }
        if held.record.stamps().is_before(self.held.borrow().record.stamps()) {
            return Ok(());
        }
        let known = self.members.all().len();
        self.members.update(specs_of(&held.record));
        for (index, member) in (0..).zip(&held.record.members) {
            if !self.is_reached(member.state) {
                self.members.connect(index, None);
            }
        }
        let new: Vec<u16> = (0..).zip(&held.record.members).skip(known).map(|(index, _)| index).collect();
        *self.held.borrow_mut() = held;
        let reach = self.reach.borrow().clone();
        if let Some(reach) = reach {
            let mut few = Few::new();
            new.into_iter().for_each(|index| few.push((), reach(index)));
            while few.next().await.is_some() {}
        }
        Ok(())
    }

    /// Changes the root record, as it stands then.
    async fn change<T>(
        &self,
        mut change: impl FnMut(&mut RootRecord) -> Result<T, RosterError>,
    ) -> Result<T, RosterError> {
        let mut tries = Tries::new();
        loop {
            self.refresh().await?;
            let held = self.held.borrow().clone();
            let mut new = held.record.clone();
            let value = change(&mut new)?;
            if new == held.record {
                return Ok(value);
            }
            if let Some(put) = self.access.put(&self.key, Some(&held), new).await? {
                self.adopt(put).await?;
                return Ok(value);
            }
            tries.again("others change the file system's members").await?;
        }
    }

    /// Adds a member, whose label says this number, if the number is still free: whether it was. It is in the place of one that
    /// goes, perhaps.
    ///
    /// # Errors
    /// Another one is at its place, which would be two members then; there are too many; what the store says.
    pub fn add<'a>(
        &'a self,
        index: u16,
        member: &'a MemberRecord,
        instead_of: Option<u16>,
    ) -> LocalFuture<'a, Result<bool, RosterError>> {
        Box::pin(async move {
            self.change(|root| {
                if let Some(twin) = root.member_at(&member.place, instead_of) {
                    return Err(RosterError::Twice(twin));
                }
                if root.members.len() >= MEMBERS_MAX {
                    return Err(RosterError::TooMany);
                }
                let is_free = root.members.len() == usize::from(index);
                if is_free {
                    root.members.push(member.clone());
                }
                Ok(is_free)
            })
            .await
        })
    }

    /// From now on nothing new comes to lie on a member, by no client, and what it has is to be moved away; one that is `lost`
    /// is reached by nobody but whoever mends. Said again without that, it is taken back.
    ///
    /// # Errors
    /// There is no such member; too few would be left; what the store says.
    pub fn drain(&self, index: u16, is_lost: bool) -> LocalFuture<'_, Result<(), RosterError>> {
        Box::pin(async move { self.drain_all(&[index], is_lost).await })
    }

    /// The same for several at once: all of them, or none.
    ///
    /// # Errors
    /// As for one.
    pub fn drain_all<'a>(&'a self, members: &'a [u16], is_lost: bool) -> LocalFuture<'a, Result<(), RosterError>> {
        Box::pin(async move {
            self.change(|root| {
                let mut was_active = false;
                for index in members {
                    let member = root.members.get_mut(usize::from(*index));
                    let member = member.filter(|member| member.state != MemberState::Removed);
                    let member = member.ok_or(RosterError::None(*index))?;
                    was_active |= member.state == MemberState::Active;
                    let is_back = member.state == MemberState::Lost && !is_lost;
                    member.state = if is_lost { MemberState::Lost } else { MemberState::Leaving };
                    let place = member.place.clone();
                    if let Some(twin) = root.member_at(&place, Some(*index)).filter(|_| is_back) {
                        return Err(RosterError::Twice(twin));
                    }
                }
                let active = root.members.iter().filter(|member| member.state == MemberState::Active);
                let left = active.map(|member| &member.domain).collect::<BTreeSet<_>>().len();
                let needed = usize::from(root.data) + usize::from(root.parity);
                if was_active && left < needed { Err(RosterError::TooFewDomains { left, needed }) } else { Ok(()) }
            })
            .await?;
            for index in members {
                self.chunks.regions.close(*index).await?;
            }
            Ok(())
        })
    }

    /// Whether what these members have, and those that leave already, fits on those that stay, about. Of members that leave already
    /// nothing is asked: that was begun.
    ///
    /// # Errors
    /// It does not; what the store says.
    pub fn check_room<'a>(&'a self, members: &'a [u16]) -> LocalFuture<'a, Result<(), RosterError>> {
        Box::pin(async move {
            self.refresh().await?;
            let (all, mut going) = (self.members.all(), self.leaving());
            let begins = all
                .iter()
                .map(|member| member.index())
                .filter(|index| members.contains(index) && !going.contains(index));
            let begins: Vec<u16> = begins.collect();
            if begins.is_empty() {
                return Ok(());
            }
            going.extend(begins);
            let (mut needed, mut free) = (0, 0);
            for member in &all {
                if going.contains(&member.index()) {
                    needed += self.chunks_on(member.index()).await?.len() as u64;
                } else if !member.is_out() {
                    free += self.chunks.regions.free_of(member).await?;
                }
            }
            if free < needed { Err(RosterError::NoRoom { needed, free }) } else { Ok(()) }
        })
    }

    /// Closes what members that are to be empty have open still: whoever drained them may have died half-way.
    pub(crate) async fn close_leaving(&self) -> Result<(), Error> {
        for index in self.leaving() {
            self.chunks.regions.close(index).await?;
        }
        Ok(())
    }

    /// Of each region of a member that is taken the chunk that has it.
    ///
    /// # Errors
    /// What the store says.
    pub fn chunks_on(&self, index: u16) -> LocalFuture<'_, Result<Vec<u32>, Error>> {
        Box::pin(async move { self.chunks.regions.taken(index).await })
    }

    /// Gives regions of a member back, all pages of which are closed, where chunks are dying, and whoever was at that is gone, or
    /// have nothing but rows that have rested.
    pub(crate) async fn tidy(&self, index: u16) -> Result<(), Error> {
        for chunk in self.chunks_on(index).await? {
            self.chunks.tidy(chunk).await?;
        }
        Ok(())
    }

    /// Takes out a member that is empty.
    ///
    /// # Errors
    /// It is in use, or something lies on it; what the store says.
    pub fn remove(&self, index: u16) -> LocalFuture<'_, Result<(), RosterError>> {
        Box::pin(async move {
            self.refresh().await?;
            let state = self.held.borrow().record.members.get(usize::from(index)).map(|member| member.state);
            match state {
                None | Some(MemberState::Removed) => return Err(RosterError::None(index)),
                Some(MemberState::Active) => return Err(RosterError::InUse(index)),
                Some(MemberState::Leaving | MemberState::Lost) => {}
            }
            // Closed first: what is empty then stays so. Whoever drained it may have died before that.
            // So are those of others that leave: what rests for the sake of any of them is cleared with it.
            self.close_leaving().await?;
            self.tidy(index).await?;
            let regions = self.chunks.regions.taken(index).await?.len() as u64;
            if regions > 0 {
                return Err(RosterError::Held { member: index, regions });
            }
            self.change(|root| {
                let member = root.members.get_mut(usize::from(index)).ok_or(RosterError::None(index))?;
                member.state = MemberState::Removed;
                Ok(())
            })
            .await
        })
    }
}
