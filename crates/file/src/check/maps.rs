//! [`Inodes`]: all inodes, and what their maps name.
//!
//! Memory: about 200 bytes an inode. What a map names goes to whoever asks, and is not kept.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::job::Job;
use engine::time::{self, Instant};

use super::TOGETHER;
use super::listed::Listed;
use crate::access::Held;
use crate::amount::Amount;
use crate::data::{Content, Contents, Few, SpanId, Stripe, counted};
use crate::error::Error;
use crate::fs::FileSystem;
use crate::meta::Version;
use crate::record::inode::Inode;
use crate::record::{Kind, Record as _};
use crate::stored::content_of;

/// An inode as it was read.
pub(crate) struct InodeSeen {
    pub(crate) version: Version,
    pub(crate) kind: Kind,
    pub(crate) parent: u64,
    pub(crate) is_going: bool,
    /// Each, and whether a name was met that has it.
    pub(crate) links: Box<[(u64, bool)]>,
    pub(crate) keepers: Box<[u64]>,
    /// The quota that it counts for.
    quota: u64,
    pub(crate) has_quota: bool,
    /// The long map that it has.
    map: Option<u64>,
}

/// Which map: an inode's own, or that of a span of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Whose {
    pub(crate) ino: u64,
    pub(crate) span: Option<SpanId>,
    /// It goes, or nobody has it: whoever removes it is to free what it names, and may be doing so.
    pub(crate) goes: bool,
}

/// See the module.
pub(crate) struct Inodes {
    pub(crate) all: BTreeMap<u64, InodeSeen>,
    /// When the last of them was read: each was at its version then, or had another later.
    pub(crate) read_at: Instant,
    /// Those that do not parse, and why.
    pub(crate) damaged: BTreeMap<u64, String>,
    /// Files whose maps do not parse, and why: what they name is not known.
    pub(crate) unmapped: BTreeMap<u64, String>,
    /// What counts for each quota.
    pub(crate) counted: BTreeMap<u64, Amount>,
    /// Spans of maps that no inode has.
    pub(crate) stray: Vec<SpanId>,
    /// One of these does not parse, and what it names is not known.
    is_stray_damaged: bool,
}

fn rows_of(stripe: &Stripe) -> Amount {
    Amount::of_bytes(counted(stripe.length.into()))
}

impl Inodes {
    /// Something counts for a quota.
    fn count(&mut self, quota: u64, amount: Amount) {
        if quota != 0 {
            let counted = self.counted.entry(quota).or_default();
            *counted = *counted + amount;
        }
    }

    /// Whether all that maps name is known.
    pub(crate) fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.unmapped.is_empty() && !self.is_stray_damaged
    }

    /// A name was met that has this link. False: the inode does not know of it, or is not known.
    pub(crate) fn name(&mut self, ino: u64, link: u64) -> bool {
        let Some(seen) = self.all.get_mut(&ino) else { return false };
        let found = seen.links.iter_mut().find(|(other, _)| *other == link);
        found.map(|(_, is_named)| *is_named = true).is_some()
    }

    /// Reads all inodes, and gives every stripe that one of their maps names to `visit`.
    pub(crate) async fn read(
        names: &FileSystem,
        contents: &Rc<Contents>,
        listed: &Listed,
        job: &Job,
        mut visit: impl FnMut(Whose, &Stripe),
    ) -> Result<Inodes, Error> {
        let mut inodes = Inodes {
            all: BTreeMap::new(),
            read_at: time::now(),
            damaged: BTreeMap::new(),
            unmapped: BTreeMap::new(),
            counted: BTreeMap::new(),
            stray: Vec::new(),
            is_stray_damaged: false,
        };
        job.begin("read inodes");
        let (mut few, mut waiting, mut done) = (Few::new(), listed.inodes.iter(), 0);
        loop {
            while few.keys().count() < TOGETHER
                && let Some(&ino) = waiting.next()
            {
                few.push(ino, async move { names.access.get::<Inode>(&names.access.keys.inode(ino)).await });
            }
            let Some((ino, met)) = few.next().await else { break };
            inodes.meet(contents, ino, met, &mut visit)?;
            done += 1;
            job.reached(done as f64 / listed.inodes.len() as f64);
        }
        inodes.read_at = time::now();
        inodes.read_spans(names, contents, listed, job, &mut visit).await?;
        Ok(inodes)
    }

    fn meet(
        &mut self,
        contents: &Contents,
        ino: u64,
        met: Result<Option<Held<Inode>>, Error>,
        visit: &mut impl FnMut(Whose, &Stripe),
    ) -> Result<(), Error> {
        let held = match met {
            Ok(Some(held)) => held,
            Ok(None) => return Ok(()),
            Err(Error::Damaged(why)) => {
                self.damaged.insert(ino, why);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let (version, inode) = (held.version(), held.record);
        let mut map = None;
        let goes = inode.is_going();
        // What goes was given back by whoever made it so, or is with its share.
        let quota = if goes { 0 } else { inode.quota };
        self.count(quota, Amount::FILE);
        match content_of(&inode, contents.members().layout().shape) {
            Ok(Content::Inline(_)) => {}
            Ok(Content::Extents(map)) => {
                for stripe in map.stripes() {
                    self.count(quota, rows_of(&stripe));
                    visit(Whose { ino, span: None, goes }, &stripe);
                }
            }
            // Of what is going they are nobody's.
            Ok(Content::Spans(spans)) => map = Some(spans.map).filter(|_| !goes),
            Err(Error::Damaged(why)) => drop(self.unmapped.insert(ino, why)),
            Err(error) => return Err(error),
        }
        let seen = InodeSeen {
            version,
            kind: inode.kind,
            parent: inode.parent,
            is_going: goes,
            links: inode.links.iter().map(|link| (*link, false)).collect(),
            keepers: inode.keepers.into(),
            quota,
            has_quota: inode.has_quota && !goes,
            map,
        };
        self.all.insert(ino, seen);
        Ok(())
    }

    async fn read_spans(
        &mut self,
        names: &FileSystem,
        contents: &Rc<Contents>,
        listed: &Listed,
        job: &Job,
        visit: &mut impl FnMut(Whose, &Stripe),
    ) -> Result<(), Error> {
        job.begin("read maps of long files");
        // Once more: of a map that an inode was given since keys were listed only some may have been there. All of them are put
        // before the inode has it.
        let mut ids = Listed::spans(names.meta().as_ref(), names.access.keys).await?;
        ids.extend_from_slice(&listed.spans);
        ids.sort_unstable();
        ids.dedup();
        let owned = |all: &BTreeMap<u64, InodeSeen>, id: &SpanId| {
            all.get(&id.inode).is_some_and(|seen| seen.map == Some(id.map))
        };
        let is_unread = |inode| self.damaged.contains_key(&inode) || self.unmapped.contains_key(&inode);
        let stray = listed.spans.iter().filter(|id| !owned(&self.all, id) && !is_unread(id.inode));
        self.stray = stray.copied().collect();
        let (mut few, mut waiting, mut done) = (Few::new(), ids.iter(), 0);
        loop {
            while few.keys().count() < TOGETHER
                && let Some(&id) = waiting.next()
            {
                few.push(id, contents.spans.load(id));
            }
            let Some((id, met)) = few.next().await else { break };
            match met {
                Ok(stood) => {
                    let stripes = stood.0.as_ref().map(|span| span.map.stripes()).unwrap_or_default();
                    let whose = Whose { ino: id.inode, span: Some(id), goes: !owned(&self.all, &id) };
                    let quota = self.all.get(&id.inode).map_or(0, |seen| if whose.goes { 0 } else { seen.quota });
                    for stripe in &stripes {
                        self.count(quota, rows_of(stripe));
                        visit(whose, stripe);
                    }
                }
                // One that nobody has is told as such.
                Err(Error::Damaged(why)) if owned(&self.all, &id) => drop(self.unmapped.insert(id.inode, why)),
                Err(Error::Damaged(_)) => self.is_stray_damaged = true,
                Err(error) => return Err(error),
            }
            done += 1;
            job.reached(f64::from(done) / ids.len() as f64);
        }
        Ok(())
    }
}
