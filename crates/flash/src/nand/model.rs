//! [`Nand`] and [`Powered`]: the commands of the model.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use device::AnyNamespace;
use engine::rng::SplitMix;
use engine::task::LocalFuture;
use engine::{Buf, View};

use super::chunks::{Chunks, FRESH};
use super::content::{self, Content};
use super::faults::{Chances, Fault, Faults, Outcome, Torn};
use super::timing::{Lanes, Timing};
use crate::address::{Chunk, Sector};
use crate::device::{ChunkReport, ChunkState, FlashDevice, FlashError, Read};
use crate::geometry::{Geometry, GeometryError, SECTOR_BYTES};

/// What a model is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NandConfig {
    /// Its parts.
    pub geometry: Geometry,
    /// Its times.
    pub timing: Timing,
    /// Erases of a chunk that go well; 0: all.
    pub endurance: u32,
    /// Chunks in a million that are bad from the factory, by the seed.
    pub factory_bad_ppm: u32,
    /// Failures in use.
    pub chances: Chances,
    /// What chance follows from.
    pub seed: u64,
}

impl NandConfig {
    /// One that takes no time, and in which nothing fails.
    pub fn ideal(geometry: Geometry, seed: u64) -> NandConfig {
        NandConfig {
            geometry,
            timing: Timing::default(),
            endurance: 0,
            factory_bad_ppm: 0,
            chances: Chances::default(),
            seed,
        }
    }
}

/// Why there is no model.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NandError {
    /// The geometry can't work.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// What it is kept on failed, or has no room.
    #[error(transparent)]
    Medium(#[from] FlashError),
    /// Nothing was laid out there.
    #[error("there is no flash device on the medium: format it")]
    NoDevice,
}

/// Commands that a model has executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Programs, failed ones among them.
    pub programs: u64,
    /// Erases, failed ones among them.
    pub erases: u64,
}

/// The medium; see the module.
pub struct Nand {
    config: NandConfig,
    serial: [u8; 16],
    content: Content,
    chunks: RefCell<Chunks>,
    faults: RefCell<Faults>,
    lanes: RefCell<Rc<Lanes>>,
    counts: Cell<Counts>,
    /// Counts the times that power came and went: odd while there is some.
    life: Cell<u64>,
    is_claimed: Cell<bool>,
}

fn serial_of(seed: u64) -> [u8; 16] {
    let mut rng = SplitMix(seed ^ 0x5e71a1);
    let mut serial = [0; 16];
    serial[..8].copy_from_slice(&rng.draw().to_le_bytes());
    serial[8..].copy_from_slice(&rng.draw().to_le_bytes());
    serial
}

fn factory_bad(config: &NandConfig) -> Vec<Chunk> {
    let mut rng = SplitMix(config.seed ^ 0xbadc);
    let mut bad = |_: &Chunk| rng.below(1_000_000) < u64::from(config.factory_bad_ppm);
    (0..config.geometry.chunks_total()).map(Chunk).filter(|chunk| bad(chunk)).collect()
}

impl Nand {
    fn new(config: NandConfig, serial: [u8; 16], content: Content, reports: Vec<ChunkReport>) -> Rc<Nand> {
        let geometry = config.geometry;
        Rc::new(Nand {
            serial,
            content,
            chunks: RefCell::new(Chunks::new(geometry, reports)),
            faults: RefCell::new(Faults::new(config.seed, config.chances)),
            lanes: RefCell::new(Rc::new(Lanes::new(config.timing.clone(), geometry))),
            counts: Cell::default(),
            life: Cell::new(0),
            is_claimed: Cell::new(false),
            config,
        })
    }

    /// A fresh medium in memory.
    ///
    /// # Errors
    /// A geometry that can't work.
    pub fn in_memory(config: NandConfig) -> Result<Rc<Nand>, NandError> {
        let geometry = config.geometry.checked()?;
        let bad = factory_bad(&config);
        let state = |chunk| if bad.contains(&chunk) { ChunkState::Offline } else { ChunkState::Free };
        let reports =
            (0..geometry.chunks_total()).map(|chunk| ChunkReport { state: state(Chunk(chunk)), ..FRESH }).collect();
        let serial = serial_of(config.seed);
        Ok(Nand::new(config, serial, Content::in_memory(geometry), reports))
    }

    /// Bytes that a namespace must have to keep a device of this geometry.
    pub fn bytes_on_namespace(geometry: Geometry) -> u64 {
        content::bytes_on_namespace(geometry)
    }

    /// Whether a medium that begins like this has a device on it, whole or damaged.
    pub fn is_laid_out(head: &[u8]) -> bool {
        head.starts_with(&content::MAGIC)
    }

    /// A fresh medium on a namespace, whose content is lost.
    ///
    /// # Errors
    /// A geometry that can't work, a namespace that is too small or fails.
    pub fn create(namespace: AnyNamespace, config: NandConfig) -> LocalFuture<'static, Result<Rc<Nand>, NandError>> {
        Box::pin(async move {
            let geometry = config.geometry.checked()?;
            let serial = device::random_nguid();
            let (content, reports) = content::lay_out(namespace, geometry, serial, &factory_bad(&config)).await?;
            Ok(Nand::new(config, serial, content, reports))
        })
    }

    /// The medium on a namespace. Of the configuration the geometry is what it was made with.
    ///
    /// # Errors
    /// Where there is none, or it is damaged.
    pub fn open(namespace: AnyNamespace, config: NandConfig) -> LocalFuture<'static, Result<Rc<Nand>, NandError>> {
        Box::pin(async move {
            let (geometry, serial, content, reports) = content::open(namespace).await?.ok_or(NandError::NoDevice)?;
            Ok(Nand::new(NandConfig { geometry, ..config }, serial, content, reports))
        })
    }

    /// What it is made of.
    pub fn config(&self) -> &NandConfig {
        &self.config
    }

    /// Power comes; what was a device before is none any more.
    pub fn power_on(self: &Rc<Nand>) -> Rc<Powered> {
        self.power_off();
        self.life.set(self.life.get() + 1);
        self.chunks.borrow_mut().forget_begun();
        self.is_claimed.set(false);
        *self.lanes.borrow_mut() = Rc::new(Lanes::new(self.config.timing.clone(), self.config.geometry));
        Rc::new(Powered { nand: self.clone(), life: self.life.get() })
    }

    /// The device with power on, as one of any kind. Whoever makes it one itself compiles all of the model.
    #[inline(never)]
    pub fn device(self: &Rc<Nand>) -> Rc<dyn FlashDevice> {
        self.power_on()
    }

    /// Power goes.
    pub fn power_off(&self) {
        if !self.life.get().is_multiple_of(2) {
            self.life.set(self.life.get() + 1);
        }
    }

    /// Whether there is power.
    pub fn is_on(&self) -> bool {
        !self.life.get().is_multiple_of(2)
    }

    /// Power is lost in the n-th program or erase from now, counted from 1; `None`: in none.
    pub fn cut_at(&self, operation: Option<u64>) {
        self.faults.borrow_mut().cut_at(operation);
    }

    /// Something fails that would not.
    pub fn arm(&self, fault: Fault) {
        self.faults.borrow_mut().arm(fault);
    }

    /// Commands so far.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// A sector as it is, with its out-of-band bytes, for tests: `None` where it can't be read.
    pub fn peek(&self, sector: Sector) -> LocalFuture<'_, Option<(Buf, Buf)>> {
        Box::pin(async move {
            let checked = self.chunks.borrow().check_read(sector, SECTOR_BYTES);
            let (chunk, offset, _) = checked.ok()?;
            let oob = Buf::with_len(self.config.geometry.oob_bytes as usize);
            let (result, data, oob) = self.content.read(chunk, offset, Buf::with_len(SECTOR_BYTES), oob).await;
            result.is_ok().then_some((data, oob))
        })
    }

    /// What is left of a program: of each sector something.
    async fn tear(&self, chunk: Chunk, offset: u32, data: &[u8], oob: &[u8]) -> Result<(), FlashError> {
        let (mut data, mut oob) = (Buf::copy_from(data), Buf::copy_from(oob));
        let area = self.config.geometry.oob_bytes as usize;
        let count = data.len() / SECTOR_BYTES;
        let mut spoilt = Vec::new();
        for index in 0..count {
            let torn = self.faults.borrow_mut().torn();
            let (sector, side) = (index * SECTOR_BYTES..(index + 1) * SECTOR_BYTES, index * area..(index + 1) * area);
            match torn {
                Torn::New => {}
                Torn::Blank => {
                    data[sector].fill(0xff);
                    oob[side].fill(0xff);
                }
                Torn::Garbage => {
                    self.faults.borrow_mut().garbage(&mut data[sector]);
                    self.faults.borrow_mut().garbage(&mut oob[side]);
                }
                Torn::Unreadable => spoilt.push(offset + index as u32),
            }
        }
        self.store(chunk, offset, &data, &oob).await?;
        spoilt.into_iter().for_each(|sector| self.content.spoil(chunk, sector));
        Ok(())
    }

    async fn store(&self, chunk: Chunk, offset: u32, data: &[u8], oob: &[u8]) -> Result<(), FlashError> {
        let count = (data.len() / SECTOR_BYTES) as u32;
        let mut then = self.chunks.borrow().report(chunk);
        then.write_pointer = then.write_pointer.max(offset + count);
        if then.write_pointer == self.config.geometry.sectors {
            then.state = ChunkState::Closed;
        }
        self.content.write(chunk, offset, data, oob, then).await?;
        self.chunks.borrow_mut().end_write(chunk, offset, count);
        Ok(())
    }

    /// Power is gone while a program was under way.
    async fn lose_program(&self, chunk: Chunk, offset: u32, data: &[u8], oob: &[u8]) -> Result<(), FlashError> {
        let outcome = self.faults.borrow_mut().outcome();
        // Without power nobody sees whether it goes well.
        let _unseen = match outcome {
            Outcome::Nothing => Ok(()),
            Outcome::Complete => self.store(chunk, offset, data, oob).await,
            Outcome::Mixed => self.tear(chunk, offset, data, oob).await,
        };
        Err(FlashError::PowerLost)
    }

    /// Power is gone while an erase was under way.
    async fn lose_erase(&self, chunk: Chunk) -> Result<(), FlashError> {
        let outcome = self.faults.borrow_mut().outcome();
        match outcome {
            Outcome::Nothing => {}
            Outcome::Complete => self.end_erase(chunk, ChunkState::Free).await?,
            Outcome::Mixed => {
                for sector in 0..self.chunks.borrow().report(chunk).write_pointer {
                    if self.faults.borrow_mut().is_hit() {
                        self.content.spoil(chunk, sector);
                    }
                }
            }
        }
        Err(FlashError::PowerLost)
    }

    async fn end_erase(&self, chunk: Chunk, state: ChunkState) -> Result<(), FlashError> {
        let wear = self.chunks.borrow().report(chunk).wear + 1;
        self.content.set_state(chunk, ChunkReport { state, write_pointer: 0, wear }, true).await?;
        self.chunks.borrow_mut().end_reset(chunk, state);
        let geometry = self.config.geometry;
        self.faults.borrow_mut().erased(geometry.sector(chunk, 0), geometry.sectors);
        Ok(())
    }
}

/// The device while it has power; one that has lost it fails for good.
pub struct Powered {
    nand: Rc<Nand>,
    life: u64,
}

impl Powered {
    fn check_power(&self) -> Result<(), FlashError> {
        if self.nand.life.get() == self.life { Ok(()) } else { Err(FlashError::PowerLost) }
    }

    fn lanes(&self) -> Rc<Lanes> {
        self.nand.lanes.borrow().clone()
    }

    async fn read_sectors(&self, first: Sector, data: Buf, oob: Buf) -> Read {
        let checked = self.check_power().and_then(|()| {
            let chunks = self.nand.chunks.borrow();
            let (chunk, offset, count) = chunks.check_read(first, data.len())?;
            let no_oob = oob.is_empty();
            if no_oob {
                Ok((chunk, offset, count))
            } else {
                chunks.check_oob(count, oob.len()).map(|()| (chunk, offset, count))
            }
        });
        let (chunk, offset, count) = match checked {
            Ok(found) => found,
            Err(error) => return (Err(error), data, oob),
        };
        self.nand.count(|counts| counts.reads += 1);
        let (lanes, geometry) = (self.lanes(), self.nand.config.geometry);
        let unit = geometry.unit_of(chunk);
        lanes.to_unit(unit, 0).await;
        lanes.read(unit, count.div_ceil(geometry.write_unit)).await;
        lanes.to_host(unit, data.len() + oob.len()).await;
        // Only now: meanwhile the chunk may have been reset, and is read as it is.
        let failed = self.check_power().and_then(|()| {
            self.nand.chunks.borrow().check_read(first, data.len())?;
            let failed = self.nand.faults.borrow_mut().read_fails(first, count);
            let spoilt =
                self.nand.content.unreadable(chunk, offset, count).map(|offset| geometry.sector(chunk, offset));
            failed.or(spoilt).map_or(Ok(()), |sector| Err(FlashError::ReadFailed(sector)))
        });
        match failed {
            Ok(()) => self.nand.content.read(chunk, offset, data, oob).await,
            Err(error) => (Err(error), data, oob),
        }
    }

    async fn program(&self, first: Sector, data: View, oob: View) -> Result<(), FlashError> {
        self.check_power()?;
        let nand = &*self.nand;
        nand.chunks.borrow().check_oob((data.len() / SECTOR_BYTES) as u32, oob.len())?;
        let (chunk, offset, count) = nand.chunks.borrow_mut().begin_write(first, data.len())?;
        nand.count(|counts| counts.programs += 1);
        let (lanes, geometry) = (self.lanes(), nand.config.geometry);
        let (unit, units) = (geometry.unit_of(chunk), count / geometry.write_unit);
        let is_cut = nand.faults.borrow_mut().cuts();
        lanes.to_unit(unit, data.len() + oob.len()).await;
        self.check_power()?;
        lanes.program(unit, units, if is_cut { 2 } else { 1 }).await;
        if is_cut && self.check_power().is_ok() {
            nand.power_off();
        }
        if self.check_power().is_err() {
            // In another life the chunk's begun writes are forgotten: what a late write left would lie in a gap.
            let same_night = nand.life.get() == self.life + 1;
            return if same_night {
                nand.lose_program(chunk, offset, &data, &oob).await
            } else {
                Err(FlashError::PowerLost)
            };
        }
        let fails = nand.faults.borrow_mut().program_fails(chunk);
        if fails {
            nand.tear(chunk, offset, &data, &oob).await?;
            nand.chunks.borrow_mut().fail_write(chunk);
            let report = nand.chunks.borrow().report(chunk);
            nand.content.set_state(chunk, report, false).await?;
            return Err(FlashError::ProgramFailed(chunk));
        }
        nand.chunks.borrow().check_taken(chunk, offset, count)?;
        let stored = nand.store(chunk, offset, &data, &oob).await;
        if stored.is_err() {
            nand.chunks.borrow_mut().drop_write(chunk, offset);
        }
        stored
    }

    async fn erase(&self, chunk: Chunk) -> Result<(), FlashError> {
        self.check_power()?;
        let nand = &*self.nand;
        nand.chunks.borrow().begin_reset(chunk)?;
        nand.count(|counts| counts.erases += 1);
        let (lanes, unit) = (self.lanes(), nand.config.geometry.unit_of(chunk));
        let is_cut = nand.faults.borrow_mut().cuts();
        lanes.to_unit(unit, 0).await;
        self.check_power()?;
        lanes.erase(unit, if is_cut { 2 } else { 1 }).await;
        if is_cut && self.check_power().is_ok() {
            nand.power_off();
        }
        if self.check_power().is_err() {
            let same_night = nand.life.get() == self.life + 1;
            return if same_night { nand.lose_erase(chunk).await } else { Err(FlashError::PowerLost) };
        }
        let worn_out = nand.config.endurance > 0 && nand.chunks.borrow().report(chunk).wear >= nand.config.endurance;
        let fails = nand.faults.borrow_mut().erase_fails(chunk);
        if worn_out || fails {
            nand.end_erase(chunk, ChunkState::Offline).await?;
            return Err(FlashError::EraseFailed(chunk));
        }
        nand.end_erase(chunk, ChunkState::Free).await
    }

    /// The state of a chunk changes without a word about its content; where it can't be kept it is as before.
    async fn change_state(&self, chunk: Chunk, then: ChunkReport) -> Result<(), FlashError> {
        self.nand.content.set_state(chunk, then, false).await?;
        self.nand.chunks.borrow_mut().end_change(chunk, then);
        Ok(())
    }
}

impl FlashDevice for Powered {
    fn geometry(&self) -> Geometry {
        self.nand.config.geometry
    }

    fn serial(&self) -> [u8; 16] {
        self.nand.serial
    }

    fn claim(&self) -> Result<(), FlashError> {
        self.check_power()?;
        if self.nand.is_claimed.replace(true) { Err(FlashError::InUse) } else { Ok(()) }
    }

    fn release(&self) {
        if self.check_power().is_ok() {
            self.nand.is_claimed.set(false);
        }
    }

    fn report(&self) -> LocalFuture<'_, Result<Vec<ChunkReport>, FlashError>> {
        Box::pin(async move { self.check_power().map(|()| self.nand.chunks.borrow().reports()) })
    }

    fn read(&self, first: Sector, data: Buf, oob: Buf) -> LocalFuture<'_, Read> {
        Box::pin(self.read_sectors(first, data, oob))
    }

    fn write(&self, first: Sector, data: View, oob: View) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(self.program(first, data, oob))
    }

    fn reset(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(self.erase(chunk))
    }

    fn finish(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(async move {
            self.check_power()?;
            let then = self.nand.chunks.borrow().begin_finish(chunk)?;
            self.change_state(chunk, then).await
        })
    }

    fn set_bad(&self, chunk: Chunk) -> LocalFuture<'_, Result<(), FlashError>> {
        Box::pin(async move {
            self.check_power()?;
            let report = self.nand.chunks.borrow().check_chunk(chunk)?;
            self.change_state(chunk, ChunkReport { state: ChunkState::Offline, ..report }).await
        })
    }
}
