//! The load: clients that use blocks of the volume, and write down what they asked and were told.
//!
//! Each write of a block has a tag of its own, which fills the block. A command for several blocks is one operation for each of
//! them: what is judged is each block.

use std::cell::Cell;
use std::rc::Rc;

use check::{Action, Recorder, Token};
use device::{Durability, Error, Lba, Namespace};
use engine::{Buf, View, time};
use volume::Volume;

use crate::cluster::BLOCK;
use crate::sim::scenario::{Rng, Scenario};

/// What all clients of a run share.
#[derive(Clone, Default)]
pub struct Book {
    pub recorder: Recorder,
    tags: Rc<Cell<u64>>,
    /// Commands that were answered.
    pub answered: Rc<Cell<u64>>,
}

impl Book {
    fn tag(&self) -> u64 {
        self.tags.set(self.tags.get() + 1);
        self.tags.get()
    }

    /// A read has shown that; what is torn says nothing that could be judged.
    pub fn seen(&self, token: Token, shown: Shown) -> Option<Option<u64>> {
        match shown {
            Shown::Whole(tag) => {
                self.recorder.returned(token, tag);
                Some(tag)
            }
            Shown::Torn => {
                self.recorder.failed(token);
                None
            }
        }
    }

    fn begin(&self, client: u32, lba: u64, action: Action, value: Option<u64>) -> Token {
        self.recorder.invoked(client, &format!("{lba:03}"), action, value)
    }
}

/// What a block shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    /// The tag that fills it; `None`: zeroes.
    Whole(Option<u64>),
    /// Parts of several writes. A medium that fails a write leaves such a block, and a host that dies before the replica is left
    /// out leaves the block to the next one, as a drive alone would.
    Torn,
}

/// See [`Shown`]. Only a disk that fails writes tears blocks.
pub fn shown(block: &[u8], scenario: &Scenario) -> Shown {
    let (words, _) = block.as_chunks::<8>();
    if words.iter().any(|word| *word != words[0]) {
        assert!(scenario.faults.write_errors, "a torn block");
        return Shown::Torn;
    }
    let tag = u64::from_le_bytes(words[0]);
    Shown::Whole((tag != 0).then_some(tag))
}

fn filled(tags: &[Option<u64>]) -> View {
    let mut buf = Buf::with_len(tags.len() * BLOCK);
    for (block, tag) in buf.chunks_exact_mut(BLOCK).zip(tags) {
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&tag.unwrap_or(0).to_le_bytes()));
    }
    buf.freeze()
}

/// One client of a host.
pub struct Client {
    pub volume: Rc<Volume>,
    pub book: Book,
    pub number: u32,
    pub rng: Rng,
    /// What it has left to do.
    pub left: Rc<Cell<u64>>,
    last_seen: Option<(u64, Option<u64>)>,
}

impl Client {
    pub fn new(volume: Rc<Volume>, book: Book, number: u32, rng: Rng, left: Rc<Cell<u64>>) -> Client {
        Client { volume, book, number, rng, left, last_seen: None }
    }

    /// Works until all is done, or the volume is somebody else's.
    pub async fn work(mut self, scenario: Scenario) {
        while self.left.get() > 0 && self.volume.link().is_up {
            self.left.set(self.left.get() - 1);
            let pause = self.rng.millis(0, scenario.think.as_millis() as u64);
            time::sleep(pause).await;
            let blocks = self.rng.within(1, 6.min(scenario.blocks));
            // Of a volume that grows, also at its end.
            let is_last = scenario.grows && self.rng.one_in(4);
            let first = if is_last { self.volume.info().blocks - scenario.blocks } else { 0 };
            let lba = first + self.rng.within(0, scenario.blocks - blocks);
            match self.rng.within(0, 99) {
                0..=39 => self.read(lba, blocks, &scenario).await,
                40..=69 => self.write(lba, blocks).await,
                70..=77 => self.zero(lba, blocks, false).await,
                78..=84 => self.zero(lba, blocks, true).await,
                85..=96 => self.swap(lba).await,
                _ => drop(self.volume.flush().await), // it has nothing to pass on, and may be refused
            }
        }
    }

    async fn read(&mut self, lba: u64, blocks: u64, scenario: &Scenario) {
        let begin = |lba| self.book.begin(self.number, lba, Action::Get, None);
        let tokens: Vec<Token> = (lba..lba + blocks).map(begin).collect();
        let (result, buf) = self.volume.read(Lba(lba), Buf::with_len(blocks as usize * BLOCK)).await;
        match result {
            Err(_) => tokens.into_iter().for_each(|token| self.book.recorder.failed(token)),
            Ok(()) => {
                for ((token, block), lba) in tokens.into_iter().zip(buf.chunks_exact(BLOCK)).zip(lba..) {
                    self.last_seen =
                        self.book.seen(token, shown(block, scenario)).map_or(self.last_seen, |tag| Some((lba, tag)));
                }
                self.book.answered.set(self.book.answered.get() + 1);
            }
        }
    }

    async fn write(&mut self, lba: u64, blocks: u64) {
        let tags: Vec<_> = (0..blocks).map(|_| Some(self.book.tag())).collect();
        let begin = |(lba, tag): (u64, &Option<u64>)| self.book.begin(self.number, lba, Action::Put, *tag);
        let tokens: Vec<Token> = (lba..).zip(&tags).map(begin).collect();
        let result = self.volume.write(Lba(lba), filled(&tags), Durability::Cached).await;
        self.changed(tokens, result);
    }

    async fn zero(&mut self, lba: u64, blocks: u64, deallocates: bool) {
        let begin = |lba| self.book.begin(self.number, lba, Action::Delete, None);
        let tokens: Vec<Token> = (lba..lba + blocks).map(begin).collect();
        let result = match deallocates {
            true => self.volume.deallocate(Lba(lba), blocks).await,
            false => self.volume.write_zeroes(Lba(lba), blocks, Durability::Cached).await,
        };
        self.changed(tokens, result);
    }

    fn changed(&self, tokens: Vec<Token>, result: Result<(), Error>) {
        for token in tokens {
            match &result {
                Ok(()) => self.book.recorder.returned(token, None),
                // It may have happened, and may yet.
                Err(error) if error.outcome_unknown() => {}
                Err(_) => self.book.recorder.failed(token),
            }
        }
        self.book.answered.set(self.book.answered.get() + u64::from(result.is_ok()));
    }

    /// A compare-and-write of one block, from what was seen there last.
    async fn swap(&mut self, lba: u64) {
        let (lba, expected) = self.last_seen.unwrap_or((lba, None));
        let tag = self.book.tag();
        let token = self.book.begin(self.number, lba, Action::CompareAndSet { expected }, Some(tag));
        let (before, after) = (filled(&[expected]), filled(&[Some(tag)]));
        match self.volume.compare_and_write(Lba(lba), before, after, Durability::Stable).await {
            Ok(()) => {
                self.book.recorder.decided(token, true);
                self.last_seen = Some((lba, Some(tag)));
                self.book.answered.set(self.book.answered.get() + 1);
            }
            Err(Error::CompareFailure) => self.book.recorder.decided(token, false),
            Err(error) if error.outcome_unknown() => {}
            Err(_) => self.book.recorder.failed(token),
        }
    }
}
