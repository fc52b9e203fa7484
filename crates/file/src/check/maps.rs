//! [`Inodes`]: all inodes, and what their maps name.
//!
//! Memory: about 200 bytes an inode. What a map names goes to whoever asks, and is not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::job::Job;
use engine::time::{self, Instant};

use super::TOGETHER;
use super::listed::Listed;
use crate::access::Held;
use crate::data::{Content, Contents, Few, SpanId, Stripe};
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
    /// The long map that it has, and up to where.
    map: Option<(u64, u64)>,
}

/// Which map: an inode's own, or that of a span of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Whose {
    pub(crate) ino: u64,
    pub(crate) span: Option<SpanId>,
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
    /// Spans of maps that no inode has.
    pub(crate) stray: Vec<SpanId>,
}

impl Inodes {
    /// Whether all that maps name is known.
    pub(crate) fn is_whole(&self) -> bool {
        self.damaged.is_empty() && self.unmapped.is_empty()
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
            stray: Vec::new(),
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
        inodes.read_spans(contents, listed, job, &mut visit).await?;
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
        // What is going has nothing any more, however far its remover came.
        let content = match inode.is_going() {
            true => Ok(Content::empty()),
            false => content_of(&inode, contents.members().layout().shape),
        };
        match content {
            Ok(Content::Inline(_)) => {}
            Ok(Content::Extents(map)) => {
                map.stripes().iter().for_each(|stripe| visit(Whose { ino, span: None }, stripe));
            }
            Ok(Content::Spans(spans)) => map = Some((spans.map, spans.reach)),
            Err(Error::Damaged(why)) => drop(self.unmapped.insert(ino, why)),
            Err(error) => return Err(error),
        }
        let seen = InodeSeen {
            version,
            kind: inode.kind,
            parent: inode.parent,
            is_going: inode.is_going(),
            links: inode.links.iter().map(|link| (*link, false)).collect(),
            keepers: inode.keepers.into(),
            map,
        };
        self.all.insert(ino, seen);
        Ok(())
    }

    async fn read_spans(
        &mut self,
        contents: &Rc<Contents>,
        listed: &Listed,
        job: &Job,
        visit: &mut impl FnMut(Whose, &Stripe),
    ) -> Result<(), Error> {
        job.begin("read maps of long files");
        let map_of = |seen: &InodeSeen| seen.map.map(|(map, _)| map);
        let (mut ids, mut met): (Vec<SpanId>, BTreeSet<u64>) = Default::default();
        for id in &listed.spans {
            match self.all.get(&id.inode) {
                Some(seen) if map_of(seen) == Some(id.map) => {
                    met.insert(id.inode);
                    ids.push(*id);
                }
                _ if self.damaged.contains_key(&id.inode) || self.unmapped.contains_key(&id.inode) => {}
                _ => self.stray.push(*id),
            }
        }
        // A map that was put in place of the inode's own since the keys were listed names what that had.
        for (&inode, seen) in self.all.iter().filter(|(ino, _)| !met.contains(ino)) {
            let Some((map, reach)) = seen.map else { continue };
            let mut cursor = 0;
            loop {
                let spans = 0..reach.div_ceil(crate::data::SPAN_BYTES);
                let (numbers, next) = contents.spans.numbers(inode, map, &spans, cursor).await?;
                ids.extend(numbers.into_iter().map(|span| SpanId { inode, map, span }));
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
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
                    stripes.iter().for_each(|stripe| visit(Whose { ino: id.inode, span: Some(id) }, stripe));
                }
                Err(Error::Damaged(why)) => drop(self.unmapped.insert(id.inode, why)),
                Err(error) => return Err(error),
            }
            done += 1;
            job.reached(f64::from(done) / ids.len() as f64);
        }
        Ok(())
    }
}
