//! Walking all members' tables side by side, in hash order, a stretch at a time: the base of list, verify and repair.
//!
//! Memory is bounded by the stretch: [`SCAN_BYTES`] of the member with the most pages, and as much of the hash space of
//! every other.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use engine::sync::Notify;
use engine::time;
use pool::{KeyHash, TablePage};

use super::OPERATION_TIME_MAX;
use super::member::{Life, Member, MemberError};
use super::topology::{Topology, forgets};
use crate::table::{Found, PageImage, SCAN_BYTES, TableError};
use crate::types::{Ballot, Timestamp};
use engine::job::Job;

/// How long a member may take for a stretch before the walk goes on without it.
const STRETCH_TIME_MAX: Duration = Duration::from_secs(2);
/// How long members that are not needed on every count are waited for before it is worked out whether those that have
/// answered are enough. Guessed: above the spread of answers over members that are well.
const GRACE: Duration = Duration::from_millis(20);

/// Hashes from `from` to before `to` (`None`: to the end).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stretch {
    pub(super) from: u64,
    pub(super) to: Option<u64>,
}

impl Stretch {
    fn contains(&self, hash: u64) -> bool {
        hash >= self.from && self.to.is_none_or(|to| hash < to)
    }

    fn last(&self) -> u64 {
        self.to.map_or(u64::MAX, |to| to - 1)
    }
}

/// A page without a vote.
#[derive(Clone, Debug)]
pub(super) struct DamagedPage {
    pub(super) member: usize,
    /// Which member that is under any map.
    pub(super) life: Life,
    pub(super) page: TablePage,
    pub(super) error: TableError,
}

impl DamagedPage {
    /// Which page it is, under any map.
    pub(super) fn id(&self) -> PageOfLife {
        (self.life, self.page)
    }

    /// Where its member is in a map, if that has it yet.
    pub(super) fn index_in(&self, topology: &Topology) -> Option<usize> {
        topology.members.iter().position(|member| member.life() == self.life)
    }
}

/// A page of a life of a member.
pub(super) type PageOfLife = (Life, TablePage);

/// The damaged pages that a walk meets, each once: one of a member with a smaller table may lie in two stretches.
#[derive(Default)]
pub(super) struct DamagedPages {
    /// Of each member, as walks go in hash order.
    last: BTreeMap<Life, TablePage>,
    /// The first of them.
    pub(super) first: Vec<DamagedPage>,
    /// How many more there are.
    pub(super) more: u64,
}

impl DamagedPages {
    /// Whether a page was not met before.
    pub(super) fn is_new(&mut self, page: &DamagedPage) -> bool {
        self.last.insert(page.life, page.page).is_none_or(|last| last < page.page)
    }

    /// Keeps up to `most` of those that were not met before, and are none of `known`.
    pub(super) fn keep(&mut self, pages: Vec<DamagedPage>, known: &BTreeSet<PageOfLife>, most: usize) {
        for page in pages {
            match self.is_new(&page) && !known.contains(&page.id()) {
                true if self.first.len() < most => self.first.push(page),
                true => self.more += 1,
                false => {}
            }
        }
    }
}

/// By hash and key, in hash order: which members hold what.
pub(super) type Keys = BTreeMap<(u64, Vec<u8>), Vec<(usize, Found)>>;

/// What the members hold in a stretch.
pub(super) struct Seen {
    pub(super) keys: Keys,
    pub(super) damaged: Vec<DamagedPage>,
    /// Members that answered.
    pub(super) answered: Vec<bool>,
}

impl Seen {
    /// What is seen before anybody was asked.
    pub(super) fn nothing(members: usize) -> Seen {
        Seen { keys: BTreeMap::new(), damaged: Vec::new(), answered: vec![false; members] }
    }

    /// Keys of which a higher ballot may have been told that the newest, which a conditional operation wrote, is not there: one of
    /// the members has promised that, and holds something older. Each with those that hold the newest.
    pub(super) fn undecided(&self) -> impl Iterator<Item = (&[u8], Vec<usize>)> {
        self.keys.iter().filter_map(|((_, key), found)| {
            let newest = found.iter().map(|(_, found)| found.timestamp).max().unwrap_or(Timestamp::ZERO);
            let passes = |found: &Found| found.timestamp < newest && found.promise > newest.ballot;
            let is_undecided = newest.ballot != Ballot::NONE && found.iter().any(|(_, found)| passes(found));
            let holders = found.iter().filter(|(_, found)| found.timestamp == newest).map(|(member, _)| *member);
            is_undecided.then(|| (key.as_slice(), holders.collect()))
        })
    }

    /// Whether a member has told all it holds in this stretch.
    pub(super) fn is_whole(&self, member: usize) -> bool {
        self.answered[member] && !self.damaged.iter().any(|page| page.member == member)
    }
}

/// Answers to one look, as they come in.
#[derive(Default)]
struct Looks {
    answers: RefCell<Vec<(usize, Result<Pages, MemberError>)>>,
    answered: Notify,
}

pub(super) type Pages = Vec<(TablePage, Result<PageImage, TableError>)>;

impl Topology {
    /// The next stretch to walk from `from` on.
    pub(super) fn stretch(&self, from: u64) -> Stretch {
        let geometries = (0..self.members.len()).map(|index| self.map.geometry(index));
        let Some(finest) = geometries.max_by_key(|geometry| geometry.table_pages) else {
            return Stretch { from, to: None };
        };
        let pages = (SCAN_BYTES as u32 / finest.page_size).max(1);
        let next = finest.home(from).0.saturating_add(pages);
        Stretch { from, to: finest.first_hash(TablePage(next)) }
    }

    /// About `pages` pages of the member with the most, between two multiples of `unit`, a power of two.
    pub(super) fn stretch_between(&self, from: u64, pages: u32, unit: u64) -> Stretch {
        let geometries = (0..self.members.len()).map(|index| self.map.geometry(index));
        let Some(finest) = geometries.max_by_key(|geometry| geometry.table_pages) else {
            return Stretch { from, to: None };
        };
        // `from` may lie just before the page that the walk has come to: it was rounded down.
        let next = finest.home(from.saturating_add(unit - 1)).0.saturating_add(pages.max(1));
        let to = finest.first_hash(TablePage(next)).map(|hash| hash & !(unit - 1));
        Stretch { from, to }
    }

    /// The hashes at home in one page of a member.
    pub(super) fn stretch_of(&self, member: usize, page: TablePage) -> Option<Stretch> {
        let geometry = self.map.geometry(member);
        Some(Stretch { from: geometry.first_hash(page)?, to: geometry.first_hash(TablePage(page.0 + 1)) })
    }

    /// Reads a stretch on all members, and goes on as soon as a majority of the homes of every key has told all: a slow
    /// member is not waited for. What it was asked outlives this look, bounded as all that outlives its operation.
    pub(super) async fn see_enough(self: &Rc<Self>, stretch: Stretch) -> Seen {
        let (looks, mut seen): (Rc<Looks>, Seen) = (Rc::default(), Seen::nothing(self.members.len()));
        let mut begun = Vec::new();
        for member in &self.members {
            let under_way = match member.begin() {
                Ok(under_way) => Rc::new(under_way),
                Err(error) => {
                    tracing::debug!(member = member.index, %error, "a member was passed over");
                    continue;
                }
            };
            begun.push(under_way.clone());
            let (member, looks) = (member.clone(), looks.clone());
            engine::task::spawn(async move {
                let pages = member.pages(stretch).await;
                looks.answers.borrow_mut().push((member.index, pages));
                looks.answered.notify_one();
                drop(under_way);
            })
            .detach();
        }
        let (mut waiting, mut grace, start) = (begun.len(), GRACE, time::now());
        loop {
            for (index, pages) in looks.answers.take() {
                waiting -= 1;
                match pages {
                    Ok(pages) => self.gather(index, stretch, pages, &mut seen),
                    Err(error) => tracing::debug!(member = index, %error, "a member was passed over"),
                }
            }
            if waiting == 0 || self.is_surely_enough(&seen) {
                break;
            }
            if time::timeout(grace, looks.answered.notified()).await.is_err() {
                if self.is_enough(&seen) || start.elapsed() >= STRETCH_TIME_MAX {
                    break;
                }
                grace = STRETCH_TIME_MAX.saturating_sub(start.elapsed()).min(grace * 2);
            }
        }
        begun.iter().for_each(|under_way| under_way.straggle(SCAN_BYTES));
        seen
    }

    /// Whether a majority of the homes of every key has told all it holds. Costs a walk over the ring, unless it is plain.
    pub(super) fn is_enough(&self, seen: &Seen) -> bool {
        self.is_surely_enough(seen) || self.placement.quorum_everywhere(|member| seen.is_whole(member))
    }

    /// So few members are missing that no key can lack its majority.
    fn is_surely_enough(&self, seen: &Seen) -> bool {
        let lacking = (0..self.members.len()).filter(|&member| !seen.is_whole(member)).count();
        self.placement.is_whole() && lacking <= self.placement.replicas() - self.placement.majority()
    }

    /// Reads a stretch on all members that `asked` names, at one time, once `job` may read as much: what is rebuilt on one of them
    /// after it was read is taken from the others after they were.
    pub(super) async fn see(self: &Rc<Self>, stretch: Stretch, asked: impl Fn(usize) -> bool, job: &Job) -> Seen {
        let (mut reads, mut seen) = (Vec::new(), Seen::nothing(self.members.len()));
        let asked: Vec<&Rc<Member>> = self.members.iter().filter(|member| asked(member.index)).collect();
        let is_there = |member: &&&Rc<Member>| member.away_for().is_none();
        job.take(asked.iter().filter(is_there).map(|member| member.bytes_of(stretch)).sum()).await;
        let since = time::now();
        for member in asked {
            let (member, index) = (member.clone(), member.index);
            let read = async move {
                let under_way = member.begin()?;
                let pages = time::timeout(STRETCH_TIME_MAX, member.pages(stretch)).await;
                drop(under_way);
                // The timer of a host that has slept says nothing.
                let is_late = since.elapsed() > OPERATION_TIME_MAX;
                pages.ok().filter(|_| !is_late).unwrap_or(Err(MemberError::Slow))
            };
            reads.push((index, engine::task::spawn(read)));
        }
        for (index, read) in reads {
            match read.await {
                Ok(pages) => self.gather(index, stretch, pages, &mut seen),
                Err(error) => tracing::debug!(member = index, %error, "a member was passed over"),
            }
        }
        seen
    }

    pub(super) fn gather(&self, index: usize, stretch: Stretch, pages: Pages, seen: &mut Seen) {
        let Some(table) = self.members[index].table() else { return };
        // As if they were dropped already: one member may have done so before another.
        let forgets = forgets(&self.map);
        seen.answered[index] = true;
        for (page, image) in pages {
            let entries = image.and_then(|image| image.entries(table));
            match entries {
                Ok(entries) => {
                    for (key, found) in entries.into_iter().filter(|(_, found)| !found.is_forgotten(forgets)) {
                        let hash = KeyHash::new(&key, self.map.hash_seed).home;
                        if stretch.contains(hash) {
                            seen.keys.entry((hash, key)).or_default().push((index, found));
                        }
                    }
                }
                Err(error) => {
                    let life = self.members[index].life();
                    seen.damaged.push(DamagedPage { member: index, life, page, error });
                }
            }
        }
    }
}

impl Member {
    /// Bytes that are read for [`Member::pages`].
    pub(super) fn bytes_of(&self, stretch: Stretch) -> u64 {
        let Some(table) = self.table() else { return 0 };
        let geometry = table.layout().geometry;
        let pages = geometry.home(stretch.last()).0 - geometry.home(stretch.from).0 + 1;
        u64::from(pages.next_multiple_of(table.pages_per_read())) * table.layout().page_bytes() as u64
    }

    /// Reads the pages at which the hashes of a stretch are at home.
    pub(super) async fn pages(&self, stretch: Stretch) -> Result<Pages, MemberError> {
        let (table, epoch) = self.voting().await?;
        let geometry = table.layout().geometry;
        let (mut next, last) = (geometry.home(stretch.from), geometry.home(stretch.last()));
        let mut pages = Vec::new();
        while next <= last {
            for image in table.read_pages(next).await? {
                if next <= last {
                    if let Ok(image) = &image {
                        // Sealed for a later epoch: another map says who holds what.
                        table.check(image)?;
                    }
                    pages.push((next, image));
                }
                next = TablePage(next.0 + 1);
            }
        }
        self.counts(epoch)?;
        Ok(pages)
    }
}
