//! [`Inode`]: what a name leads to.
//!
//! ```text
//!   stamps      33 B   `stamps.rs`
//!   kind        u8
//!   mode        u16    the twelve bits of permissions
//!   owner       u32, u32   user, group
//!   device      u64    of a device's name; else 0
//!   times       4 × 12 B   accessed, modified, changed, created
//!   parent      u64    of a directory: the one that it is in; else 0
//!   move        u64    of a directory: the number of the last move that it has heard of; else 0
//!   size        u64
//!   links       u16, then each u64: the names' links, ascending
//!   keepers     u16, then each u64: clients that have it open and took a name of it away, ascending
//!   attributes  u16, then each: name (8 bits of length), value (16 bits of length), by name
//!   content     u8: 0 inline, 1 in stripes; with bit 6, it is a directory that has a quota; with bit 7, the quota comes next, for
//!               which it counts (u64); 16 bits of length, and so many bytes: what they mean is said in `data::content`
//! ```

use std::collections::BTreeMap;

use super::stamps::Stamps;
use super::{Kind, Record, Time, stamped};
use crate::bytes::{Reader, Writer};
use crate::data::EXTENTS_BYTES_MAX;
use crate::error::Error;

/// Names of an inode. Chosen: the record stays within the store's shorter values.
pub const LINKS_MAX: usize = 1000;
/// Clients that may keep an inode without a name at once. Chosen: as many as there are names to take away.
pub const KEEPERS_MAX: usize = LINKS_MAX;
/// Bytes of content in an inode. Chosen: with all else the value usually stays within a page of the store.
pub const INLINE_BYTES_MAX: usize = 2048;
/// Bytes of a symbolic link, as Linux's PATH_MAX without its NUL.
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Bytes of a map in an inode, with what says that it is one.
pub const STRIPES_BYTES_MAX: usize = EXTENTS_BYTES_MAX + 1;
/// Bytes of all extended attributes of an inode, names and values. Chosen: what a page of a local file system holds.
pub const ATTRIBUTES_BYTES_MAX: usize = 4096;
/// Bytes of an attribute's name, as Linux's XATTR_NAME_MAX.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 255;

/// Where a file's bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Here; also the path of a symbolic link.
    Inline(Vec<u8>),
    /// In stripes: a map, or where its maps are ([`crate::data::Content`]).
    Stripes(Vec<u8>),
}

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// What it is.
    pub kind: Kind,
    /// The twelve bits of permissions.
    pub mode: u16,
    /// The user that owns it.
    pub uid: u32,
    /// The group that owns it.
    pub gid: u32,
    /// Of a device's name.
    pub device: u64,
    /// When it was read, as far as that is noted.
    pub accessed: Time,
    /// When its content changed; of a directory the root of its trie says that.
    pub modified: Time,
    /// When it changed.
    pub changed: Time,
    /// When it was made.
    pub created: Time,
    /// Of a directory: the one that it is in.
    pub parent: u64,
    /// Of a directory: the last move that it has heard of.
    pub moved: u64,
    /// Bytes.
    pub size: u64,
    /// The names' links: a set, ascending.
    pub links: Vec<u64>,
    /// Clients that keep it though its names go, until they have closed it: a set, ascending.
    pub keepers: Vec<u64>,
    /// Extended attributes.
    pub attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The quota that it counts for, by its directory's number; 0: none. It stays what it was when the inode was made.
    pub quota: u64,
    /// Of a directory: it has a quota itself, for which counts what is made in it. Once it has one, that stays.
    pub has_quota: bool,
    /// Where its bytes are.
    pub content: Content,
}

const HAS_QUOTA: u8 = 0x40;
const COUNTS: u8 = 0x80;

impl Inode {
    /// The quota for which counts what is made in this directory, of this number.
    pub fn quota_within(&self, ino: u64) -> u64 {
        if self.has_quota { ino } else { self.quota }
    }

    /// Whether it has a link.
    pub fn has_link(&self, link: u64) -> bool {
        self.links.binary_search(&link).is_ok()
    }

    /// Adds a link that it may have already.
    pub fn add_link(&mut self, link: u64) {
        add(&mut self.links, link);
    }

    /// Takes out a link; whether it had it.
    pub fn remove_link(&mut self, link: u64) -> bool {
        remove(&mut self.links, link)
    }

    /// Adds a keeper that it may have already.
    pub fn add_keeper(&mut self, client: u64) {
        add(&mut self.keepers, client);
    }

    /// Takes out a keeper; whether it had it.
    pub fn remove_keeper(&mut self, client: u64) -> bool {
        remove(&mut self.keepers, client)
    }

    /// Bytes of attributes.
    pub fn attributes_bytes(&self) -> usize {
        self.attributes.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// The bound of inline content.
    pub fn inline_bytes_max(kind: Kind) -> usize {
        match kind {
            Kind::File => INLINE_BYTES_MAX,
            Kind::Symlink => SYMLINK_BYTES_MAX,
            Kind::Directory | Kind::Fifo | Kind::Socket | Kind::Character | Kind::Block => 0,
        }
    }
}

fn add(set: &mut Vec<u64>, number: u64) {
    if let Err(at) = set.binary_search(&number) {
        set.insert(at, number);
    }
}

fn remove(set: &mut Vec<u64>, number: u64) -> bool {
    let found = set.binary_search(&number);
    found.map(|at| set.remove(at)).is_ok()
}

impl Record for Inode {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        to.u8(self.kind as u8).u16(self.mode).u32(self.uid).u32(self.gid).u64(self.device);
        [self.accessed, self.modified, self.changed, self.created].into_iter().for_each(|time| time.write(&mut to));
        to.u64(self.parent).u64(self.moved).u64(self.size);
        for set in [&self.links, &self.keepers] {
            to.u16(set.len() as u16);
            set.iter().for_each(|&number| {
                to.u64(number);
            });
        }
        to.u16(self.attributes.len() as u16);
        self.attributes.iter().for_each(|(name, value)| {
            to.short(name).counted(value);
        });
        let (form, bytes) = match &self.content {
            Content::Inline(bytes) => (0, bytes),
            Content::Stripes(bytes) => (1, bytes),
        };
        let has_quota = if self.has_quota { HAS_QUOTA } else { 0 };
        match self.quota {
            0 => to.u8(form | has_quota),
            quota => to.u8(form | has_quota | COUNTS).u64(quota),
        };
        to.counted(bytes);
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<Inode, Error> {
        let mut from = Reader::new("an inode", bytes);
        let stamps = Stamps::read(&mut from)?;
        let kind = from.u8()?;
        let kind = Kind::from_byte(kind).ok_or_else(|| from.damaged("a kind that is none"))?;
        let (mode, uid, gid, device) = (from.u16()?, from.u32()?, from.u32()?, from.u64()?);
        from.check(mode <= 0o7777, "a mode of more than twelve bits")?;
        let mut time = || Time::read(&mut from);
        let (accessed, modified, changed, created) = (time()?, time()?, time()?, time()?);
        let (parent, moved, size) = (from.u64()?, from.u64()?, from.u64()?);
        from.check((kind == Kind::Directory) == (parent != 0), "a directory, and no other, is in one")?;
        let (links, keepers) = (read_set(&mut from, LINKS_MAX)?, read_set(&mut from, KEEPERS_MAX)?);
        let attributes = read_attributes(&mut from)?;
        let form = from.u8()?;
        let (has_quota, quota) = (form & HAS_QUOTA != 0, if form & COUNTS != 0 { from.number()? } else { 0 });
        from.check(!has_quota || kind == Kind::Directory, "a quota of what is no directory")?;
        let content = read_content(&mut from, form & !(HAS_QUOTA | COUNTS), kind, size)?;
        from.end()?;
        let owned = Inode {
            stamps,
            kind,
            mode,
            uid,
            gid,
            device,
            accessed,
            modified,
            changed,
            created,
            parent,
            moved,
            size,
            links,
            keepers,
            attributes,
            quota,
            has_quota,
            content,
        };
        Ok(owned)
    }

    stamped!(Inode);

    /// It has neither a name nor a keeper, and gets none any more.
    fn is_going(&self) -> bool {
        self.links.is_empty() && self.keepers.is_empty()
    }
}

fn read_set(from: &mut Reader<'_>, most: usize) -> Result<Vec<u64>, Error> {
    let count = from.u16()?;
    from.check(usize::from(count) <= most, "too many links or keepers")?;
    let set = (0..count).map(|_| from.number()).collect::<Result<Vec<u64>, Error>>()?;
    from.check(set.is_sorted_by(|a, b| a < b), "links or keepers out of order")?;
    Ok(set)
}

fn read_attributes(from: &mut Reader<'_>) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
    let (count, mut attributes, mut bytes) = (from.u16()?, BTreeMap::new(), 0);
    for _ in 0..count {
        let (name, value) = (from.short()?.to_vec(), from.counted()?.to_vec());
        bytes += name.len() + value.len();
        let is_next = attributes.last_key_value().is_none_or(|(last, _)| *last < name);
        from.check(is_next && !name.is_empty(), "attributes out of order")?;
        attributes.insert(name, value);
    }
    from.check(bytes <= ATTRIBUTES_BYTES_MAX, "attributes that are too long")?;
    Ok(attributes)
}

fn read_content(from: &mut Reader<'_>, form: u8, kind: Kind, size: u64) -> Result<Content, Error> {
    from.check(form == 0 || kind == Kind::File, "stripes of what is no file")?;
    match form {
        0 => {
            let bytes = from.counted()?.to_vec();
            from.check(bytes.len() <= Inode::inline_bytes_max(kind), "inline content that is too long")?;
            from.check(bytes.len() as u64 == size, "inline content of another size")?;
            Ok(Content::Inline(bytes))
        }
        1 => {
            let bytes = from.counted()?.to_vec();
            from.check(bytes.len() <= STRIPES_BYTES_MAX, "a map that is too long")?;
            Ok(Content::Stripes(bytes))
        }
        _ => Err(from.damaged("content of no kind")),
    }
}
