//! Small records: the next inode's number, the place of a scrub, moves of directories, clients.

use super::stamps::Stamps;
use super::{Record, Time, stamped};
use crate::bytes::{Reader, Writer};
use crate::error::Error;

/// Files that a client may hold open without a name. Chosen: the record stays within the store's shorter values.
pub const ORPHANS_MAX: usize = 4096;
/// Bytes of a host's name. Chosen: as DNS has it.
pub const HOST_BYTES_MAX: usize = 255;

/// Findings of a scrub that was ended: members' faults, and what is told in words. Derived: 11 and 18 KiB.
pub const SCRUB_FAULTS_MAX: usize = 1024;
/// See there.
pub const SCRUB_WORDS_MAX: usize = 32;

/// A text cut to what a record holds of a short one, as a host's name.
pub(crate) fn short_text(host: &str) -> String {
    let mut end = host.len().min(HOST_BYTES_MAX);
    while !host.is_char_boundary(end) {
        end -= 1;
    }
    host[..end].to_owned()
}

/// Which inode numbers are given out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NextInode {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// The first that is not.
    pub next: u64,
}

impl Record for NextInode {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        to.u64(self.next);
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<NextInode, Error> {
        let mut from = Reader::new("the next inode", bytes);
        let record = NextInode { stamps: Stamps::read(&mut from)?, next: from.number()? };
        from.end()?;
        Ok(record)
    }

    stamped!(NextInode);
}

/// How far a scrub has come.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubPlace {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// Where to go on among the keys of inodes, as the store counts them.
    pub cursor: u64,
    /// When the scrub began.
    pub began: Time,
    /// What it has found up to there.
    pub found: ScrubFound,
}

/// What a scrub has found before it was ended, so that whoever goes on with it tells of all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubFound {
    /// Files, stripes, bytes, stripes written anew, bytes lost, failures, stripes not read.
    pub counts: [u64; 7],
    /// Columns that were not as they should be: member, fault, how many.
    pub faults: Vec<(u16, u8, u64)>,
    /// Bytes that are lost: inode, from, to, and why.
    pub lost: Vec<(u64, u64, u64, String)>,
    /// What could not be mended, in words.
    pub failures: Vec<String>,
}

impl ScrubFound {
    fn write(&self, to: &mut Writer) {
        self.counts.iter().for_each(|count| {
            to.u64(*count);
        });
        to.u16(self.faults.len() as u16);
        for (member, fault, count) in &self.faults {
            to.u16(*member).u8(*fault).u64(*count);
        }
        to.u16(self.lost.len() as u16);
        for (inode, from, end, reason) in &self.lost {
            to.u64(*inode).u64(*from).u64(*end).short(reason.as_bytes());
        }
        to.u16(self.failures.len() as u16);
        self.failures.iter().for_each(|failure| {
            to.short(failure.as_bytes());
        });
    }

    fn read(from: &mut Reader<'_>) -> Result<ScrubFound, Error> {
        let mut found = ScrubFound::default();
        for count in &mut found.counts {
            *count = from.u64()?;
        }
        for _ in 0..from.u16()? {
            found.faults.push((from.u16()?, from.u8()?, from.u64()?));
        }
        let words = |from: &mut Reader<'_>| {
            String::from_utf8(from.short()?.to_vec()).map_err(|_| from.damaged("a finding is no text"))
        };
        for _ in 0..from.u16()? {
            found.lost.push((from.u64()?, from.u64()?, from.u64()?, words(from)?));
        }
        for _ in 0..from.u16()? {
            found.failures.push(words(from)?);
        }
        let bounded = found.faults.len() <= SCRUB_FAULTS_MAX
            && found.lost.len() <= SCRUB_WORDS_MAX
            && found.failures.len() <= SCRUB_WORDS_MAX;
        from.check(bounded, "too many findings")?;
        Ok(found)
    }
}

impl Record for ScrubPlace {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        to.u64(self.cursor);
        self.began.write(&mut to);
        self.found.write(&mut to);
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<ScrubPlace, Error> {
        let mut from = Reader::new("the place of a scrub", bytes);
        let stamps = Stamps::read(&mut from)?;
        let (cursor, began) = (from.u64()?, Time::read(&mut from)?);
        let place = ScrubPlace { stamps, cursor, began, found: ScrubFound::read(&mut from)? };
        from.end()?;
        Ok(place)
    }

    stamped!(ScrubPlace);
}

/// Moves of directories from one parent to another: one at a time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// Of the move that is, or was, the last.
    pub number: u64,
    /// Its intent. Whoever begins the next one sees first that this one is done with.
    pub current: Option<u64>,
}

impl Record for Moves {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        to.u64(self.number).u64(self.current.unwrap_or(0));
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<Moves, Error> {
        let mut from = Reader::new("moves of directories", bytes);
        let stamps = Stamps::read(&mut from)?;
        let (number, current) = (from.u64()?, from.u64()?);
        from.end()?;
        Ok(Moves { stamps, number, current: Some(current).filter(|&current| current != 0) })
    }

    stamped!(Moves);
}

/// A client that is there, or was.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientRecord {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// Where it runs, for people.
    pub host: String,
    /// When it last said that it is there.
    pub renewed: Time,
    /// Its locks of this term count, and of no other.
    pub term: u32,
    /// Inodes that it has open and whose last name is gone, or about to go: ascending.
    pub orphans: Vec<u64>,
}

impl Record for ClientRecord {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        to.short(self.host.as_bytes());
        self.renewed.write(&mut to);
        to.u32(self.term).u16(self.orphans.len() as u16);
        self.orphans.iter().for_each(|&ino| {
            to.u64(ino);
        });
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<ClientRecord, Error> {
        let mut from = Reader::new("a client", bytes);
        let stamps = Stamps::read(&mut from)?;
        let host = String::from_utf8(from.short()?.to_vec()).map_err(|_| from.damaged("a host's name is no text"))?;
        let (renewed, term, count) = (Time::read(&mut from)?, from.u32()?, from.u16()?);
        from.check(usize::from(count) <= ORPHANS_MAX, "too many orphans")?;
        let orphans = (0..count).map(|_| from.number()).collect::<Result<Vec<u64>, Error>>()?;
        from.check(orphans.is_sorted_by(|a, b| a < b), "orphans out of order")?;
        from.end()?;
        Ok(ClientRecord { stamps, host, renewed, term, orphans })
    }

    stamped!(ClientRecord);
}
