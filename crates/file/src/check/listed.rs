//! [`Listed`]: all keys of a file system that there were, but for those of space, which are listed with it.
//!
//! Memory: 8 bytes an inode, 24 a node, and as many twice a span.

use crate::data::SpanId;
use crate::error::Error;
use crate::meta::Meta;
use crate::record::{Keys, Path};

/// Keys that are listed at once.
const LISTED: usize = 4096;

/// See the module. Each is there once.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) inodes: Vec<u64>,
    pub(crate) nodes: Vec<(u64, Path)>,
    pub(crate) spans: Vec<SpanId>,
    pub(crate) intents: Vec<u64>,
    pub(crate) clients: Vec<u64>,
    pub(crate) locks: Vec<u64>,
    /// Keys that no record has.
    pub(crate) odd: Vec<Vec<u8>>,
}

impl Listed {
    pub(crate) async fn read(meta: &dyn Meta, keys: Keys) -> Result<Listed, Error> {
        let (prefix, mut cursor, mut listed) = (keys.all(), 0, Listed::default());
        loop {
            let (page, next) = meta.list(&prefix, cursor, LISTED).await?;
            for key in page {
                let added = key.strip_prefix(&*prefix).and_then(|rest| listed.add(rest));
                if added.is_none() {
                    listed.odd.push(key);
                }
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        listed.once();
        Ok(listed)
    }

    /// Spans alone, as there are now.
    pub(crate) async fn spans(meta: &dyn Meta, keys: Keys) -> Result<Vec<SpanId>, Error> {
        let (prefix, kind, mut cursor, mut listed) = (keys.all(), keys.of(b'b', &[]), 0, Listed::default());
        loop {
            let (page, next) = meta.list(&kind, cursor, LISTED).await?;
            for rest in page.iter().filter_map(|key| key.strip_prefix(&*prefix)) {
                // A key that is none is told by whoever reads all.
                let _added = listed.add(rest);
            }
            if next == 0 {
                return Ok(listed.spans);
            }
            cursor = next;
        }
    }

    /// `None`: a key that is none. Of kinds that are not known here, and of those of space, nothing is said.
    fn add(&mut self, rest: &[u8]) -> Option<()> {
        let (kind, rest) = rest.split_first()?;
        let number = || Some(u64::from_be_bytes(rest.try_into().ok()?));
        match kind {
            b'i' => self.inodes.push(number()?),
            b'x' => self.intents.push(number()?),
            b'c' => self.clients.push(number()?),
            b'l' => self.locks.push(number()?),
            // They are read by themselves.
            b'q' => drop(number()?),
            b'd' => {
                let (dir, path) = rest.split_first_chunk()?;
                self.nodes.push((u64::from_be_bytes(*dir), Path::of_nibbles(path)?));
            }
            b'b' => {
                let (words, behind) = rest.as_chunks::<8>();
                let [inode, map, span] = <[_; 3]>::try_from(words).ok()?.map(u64::from_be_bytes);
                behind.is_empty().then_some(())?;
                self.spans.push(SpanId { inode, map, span });
            }
            _ => {}
        }
        Some(())
    }

    fn once(&mut self) {
        for numbers in [&mut self.inodes, &mut self.intents, &mut self.clients, &mut self.locks] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        self.nodes.sort_unstable();
        self.nodes.dedup();
        self.spans.sort_unstable();
        self.spans.dedup();
        self.odd.sort_unstable();
        self.odd.dedup();
    }
}
