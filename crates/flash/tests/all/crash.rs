//! Power is lost at every program and every erase of a life: what was flushed is there, every sector is one of the versions that it
//! had since, and a second loss of power directly after recovery, or within it, changes nothing.
//!
//! A life follows from its seed: it is run once to its end to see how many programs and erases it has, and then once for each of
//! them. What a loss of power makes of the commands under way follows from the seed and the number of the run.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use device::{Error, Lba, Namespace};
use engine::file::Lifetime;
use engine::rng::SplitMix;
use engine::sim::{SimConfig, World};
use engine::task;
use flash::nand::{Chances, Nand, NandConfig, Timing};
use flash::{FlashDevice, FlashNamespace, FormatOptions, Geometry, Manager, ManagerOptions, Policy, Sector};

use crate::model::{Model, durability};
use crate::over_zones::Below;

/// A kind of device.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub oob_bytes: u32,
    pub bad_ppm: u32,
    pub program_ppm: u32,
    pub erase_ppm: u32,
    pub policy: Policy,
    pub interleave: u32,
    pub below: Below,
}

pub const PLAIN: Kind = Kind {
    oob_bytes: 24,
    bad_ppm: 0,
    program_ppm: 0,
    erase_ppm: 0,
    policy: Policy::Greedy,
    interleave: 0,
    below: Below::Nothing,
};

pub fn config(kind: Kind, seed: u64) -> NandConfig {
    if let Below::Zones(zoning) = kind.below {
        return NandConfig { geometry: zoning.geometry(), ..config(Kind { below: Below::Nothing, ..kind }, seed) };
    }
    // Without an out-of-band area a unit is four sectors, too, since 44 has no larger divisor that would do.
    let (chunks, sectors) = if kind.oob_bytes > 0 { (28, 8) } else { (18, 44) };
    let geometry = Geometry {
        groups: 2,
        units_per_group: 1,
        chunks,
        sectors,
        write_unit: 4,
        oob_bytes: kind.oob_bytes,
        open_max: 0,
    };
    let timing = Timing {
        bus_bytes_per_second: 2_000_000_000,
        read: Duration::from_micros(5),
        program: Duration::from_micros(40),
        erase: Duration::from_micros(100),
        ..Timing::default()
    };
    let chances = Chances { program_ppm: kind.program_ppm, erase_ppm: kind.erase_ppm, read_ppm: 0 };
    NandConfig { geometry, timing, endurance: 0, factory_bad_ppm: kind.bad_ppm, chances, seed }
}

fn options(kind: Kind) -> ManagerOptions {
    let Kind { policy, interleave, .. } = kind;
    ManagerOptions { policy, buffer_units: 2, lines_per_root: 3, wear_spread: 6, interleave }
}

pub struct Life {
    pub nand: Rc<Nand>,
    pub model: Rc<RefCell<Model>>,
    kind: Kind,
    rng: SplitMix,
}

impl Life {
    pub async fn begin(kind: Kind, seed: u64, spare_percent: u32) -> Life {
        let nand = Nand::in_memory(config(kind, seed)).expect("a geometry that works");
        let life = Life { nand, model: Rc::default(), kind, rng: SplitMix(seed ^ 0x11fe) };
        let device = life.device().await.expect("there is a device");
        Manager::format(device, &FormatOptions { spare_percent, capacity: None }).await.expect("formatted");
        life
    }

    /// Power comes: the device that the media manager has.
    async fn device(&self) -> Result<Rc<dyn FlashDevice>, flash::ManagerError> {
        match self.kind.below {
            Below::Nothing => Ok(self.nand.power_on()),
            Below::Zones(zoning) => zoning.device(&self.nand).await,
        }
    }

    /// Where the model has a sector of that device.
    fn on_nand(&self, sector: Sector) -> Sector {
        match self.kind.below {
            Below::Nothing => sector,
            Below::Zones(zoning) => zoning.on_nand(sector),
        }
    }

    pub async fn open(&self) -> Result<Rc<FlashNamespace>, flash::ManagerError> {
        let manager = Manager::open(self.device().await?, options(self.kind)).await?;
        let namespace = Rc::new(FlashNamespace::new(manager));
        LAST.set(Rc::downgrade(&namespace));
        Ok(namespace)
    }

    /// Some steps; `Err`: power is gone, or the device is worn out.
    pub async fn go_on(&mut self, namespace: &mut Rc<FlashNamespace>, steps: u32) -> Result<(), Error> {
        for _ in 0..steps {
            self.step(namespace).await?;
        }
        Ok(())
    }

    fn range(&mut self, blocks: u64, most: u64) -> (u64, u64) {
        // Half of all commands meet in an eighth of the namespace.
        let end = if self.rng.below(2) == 0 { blocks / 8 } else { blocks };
        let count = 1 + self.rng.below(most);
        (self.rng.below(end - count.min(end - 1)), count.min(end - 1))
    }

    async fn step(&mut self, namespace: &mut Rc<FlashNamespace>) -> Result<(), Error> {
        let blocks = namespace.info().blocks;
        match self.rng.below(24) {
            0..=8 => {
                let (lba, count) = self.range(blocks, 12);
                self.write(namespace, lba, count).await?;
            }
            9..=13 => self.write_at_once(namespace, blocks).await?,
            14 | 15 => {
                let (lba, count) = self.range(blocks, 20);
                self.model.borrow_mut().deallocate(lba, count);
                namespace.deallocate(Lba(lba), count).await?;
            }
            16 => {
                let (lba, count) = self.range(blocks, 2);
                self.model.borrow_mut().spoil(lba, count);
                namespace.write_uncorrectable(Lba(lba), count).await?;
                self.model.borrow_mut().stable(lba, count);
            }
            17 | 18 => {
                let (lba, count) = self.range(blocks, 9);
                let model = self.model.take();
                model.read(namespace, lba, count).await;
                self.model.replace(model);
            }
            19 => {
                let hint = [Lifetime::Short, Lifetime::Long][self.rng.index(2)];
                namespace.hint_lifetime(hint).await;
            }
            20 if self.rng.below(4) == 0 => self.reopen(namespace).await?,
            20 => engine::time::sleep(Duration::from_micros(self.rng.below(300))).await,
            _ => {
                namespace.flush().await?;
                self.model.borrow_mut().flushed();
            }
        }
        Ok(())
    }

    async fn write(&mut self, namespace: &Rc<FlashNamespace>, lba: u64, count: u64) -> Result<(), Error> {
        let is_stable = self.rng.below(4) == 0;
        let data = self.model.borrow_mut().write(lba, count);
        namespace.write(Lba(lba), data, durability(is_stable)).await?;
        if is_stable {
            self.model.borrow_mut().stable(lba, count);
        }
        Ok(())
    }

    async fn write_stable(&mut self, namespace: &Rc<FlashNamespace>) -> Result<(), Error> {
        let data = self.model.borrow_mut().write(0, 1);
        namespace.write(Lba(0), data, durability(true)).await
    }

    /// Several writes at the same time, in parts of the namespace that differ.
    async fn write_at_once(&mut self, namespace: &Rc<FlashNamespace>, blocks: u64) -> Result<(), Error> {
        let part = blocks / 4;
        let mut tasks = Vec::new();
        for index in 0..4 {
            let count = 1 + self.rng.below(8);
            let lba = index * part + self.rng.below(part - count);
            let is_stable = self.rng.below(3) == 0;
            let (data, to, model) = (self.model.borrow_mut().write(lba, count), namespace.clone(), self.model.clone());
            tasks.push(task::spawn(async move {
                to.write(Lba(lba), data, durability(is_stable)).await?;
                if is_stable {
                    model.borrow_mut().stable(lba, count);
                }
                Ok(())
            }));
        }
        let mut result = Ok(());
        for task in tasks {
            result = result.and(task.await);
        }
        result
    }

    async fn reopen(&mut self, namespace: &mut Rc<FlashNamespace>) -> Result<(), Error> {
        let manager = FlashNamespace::into_manager(Life::take(namespace).await?);
        manager.close().await?;
        self.model.borrow_mut().flushed();
        *namespace = self.open().await.map_err(|error| Error::WriteFault(error.to_string()))?;
        Ok(())
    }

    /// The namespace out of its counter: nobody else has it between steps.
    async fn take(namespace: &mut Rc<FlashNamespace>) -> Result<FlashNamespace, Error> {
        let other = Nand::in_memory(config(PLAIN, 1)).expect("a geometry that works");
        Manager::format(other.power_on(), &FormatOptions::default()).await.expect("formatted");
        let other = Manager::open(other.power_on(), ManagerOptions::default()).await.expect("opened");
        let taken = std::mem::replace(namespace, Rc::new(FlashNamespace::new(other)));
        Ok(Rc::into_inner(taken).expect("nobody else has it between steps"))
    }

    /// Each sector is what it may be.
    pub async fn verify(&self, namespace: &FlashNamespace, story: &str) {
        let mut model = self.model.take();
        model.verify(namespace, story).await;
        self.model.replace(model);
    }

    /// The same directly after an opening, when everything is on flash: each sector is what it may be, and so is the map.
    pub async fn verify_opened(&self, namespace: &FlashNamespace, story: &str) {
        self.verify(namespace, story).await;
        let model = self.model.take();
        model.check_map(namespace.manager(), &self.nand, |sector| self.on_nand(sector), story).await;
        self.model.replace(model);
    }

    /// The check finds nothing.
    pub async fn check(&self, namespace: &FlashNamespace, story: &str) {
        let report = namespace.manager().check().await;
        assert_eq!(report.faults, Vec::<String>::new(), "{story}");
    }
}

thread_local! {
    /// What was opened last, to be shown where a run stands still.
    static LAST: RefCell<Weak<FlashNamespace>> = const { RefCell::new(Weak::new()) };
}

pub fn simulated<T: 'static>(seed: u64, main: impl Future<Output = T> + 'static) -> T {
    let world = World::new(seed, SimConfig::default());
    let node = world.node("n");
    let task = world.spawn_on(node, main);
    world.run_until(task).unwrap_or_else(|stalled| {
        let last = LAST.with_borrow(Weak::upgrade);
        panic!("seed {seed}: {stalled} {:?}", last.as_ref().map(|namespace| namespace.manager()))
    })
}

/// Steps of a life: until lines have been emptied several times.
fn steps(kind: Kind) -> u32 {
    if kind.oob_bytes > 0 && kind.below == Below::Nothing { 60 } else { 130 }
}

/// What is kept of the room, in percent: chunks that fail have to come out of it.
fn spare(kind: Kind) -> u32 {
    match kind.below {
        Below::Nothing => 10,
        Below::Zones(zoning) => zoning.spare,
    }
}

/// Programs and erases of a life that nothing ends.
fn operations(kind: Kind, seed: u64) -> (u64, u64) {
    simulated(seed, async move {
        let mut life = Life::begin(kind, seed, spare(kind)).await;
        let before = life.nand.counts();
        let mut namespace = life.open().await.expect("opened");
        life.go_on(&mut namespace, steps(kind)).await.expect("nothing fails");
        life.verify(&namespace, "at the end").await;
        life.check(&namespace, "at the end").await;
        let after = life.nand.counts();
        (after.programs - before.programs, after.erases - before.erases)
    })
}

/// A life whose power is lost at the n-th program or erase, and the next one while it recovers from that.
fn crash(kind: Kind, seed: u64, at: u64) {
    let story = format!("{kind:?}, seed {seed}, power lost at {at}");
    simulated(seed, async move {
        let mut life = Life::begin(kind, seed, spare(kind)).await;
        life.nand.cut_at(Some(at));
        let result = match life.open().await {
            Ok(mut namespace) => {
                let mut result = life.go_on(&mut namespace, steps(kind)).await;
                if result.is_ok() && !life.nand.is_on() {
                    // It was lost for what nobody waited for: whoever writes next is told.
                    result = life.write_stable(&namespace).await;
                }
                result.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        assert!(result.is_err() || life.nand.is_on(), "{story}: nobody noticed");
        // Every other time it is lost once more, in recovery.
        if at.is_multiple_of(2) {
            life.nand.cut_at(Some(1 + at / 2 % 5));
            let _either = life.open().await; // in time, or behind what it had to write
        }
        life.nand.cut_at(None);
        let namespace = life.open().await.unwrap_or_else(|error| panic!("{story}: {error}"));
        life.verify_opened(&namespace, &story).await;
        life.check(&namespace, &story).await;
        drop(namespace);
        let mut namespace = life.open().await.unwrap_or_else(|error| panic!("{story}: {error}"));
        life.verify_opened(&namespace, &format!("{story}, and after recovery")).await;
        let result = life.go_on(&mut namespace, 20).await;
        if namespace.manager().failure().is_some_and(|why| why.contains("no chunk for roots is left")) {
            // A bad chunk has left one copy, and that one has failed: all that was kept can be read.
            return life.verify(&namespace, &format!("{story}, and wore out")).await;
        }
        if !(kind.program_ppm > 0 && matches!(result, Err(Error::ReadOnly(_)))) {
            result.unwrap_or_else(|error| panic!("{story}, and went on: {error}"));
        } // or so many chunks have failed that no more writes are taken: all that was kept can be read
        life.verify(&namespace, &format!("{story}, and went on")).await;
        life.check(&namespace, &format!("{story}, and went on")).await;
    });
}

pub fn at_every_operation(kind: Kind, seeds: std::ops::Range<u64>) {
    at_operations(kind, seeds, 1);
}

/// At each of them whose number is so many after the one before.
pub fn at_operations(kind: Kind, seeds: std::ops::Range<u64>, apart: usize) {
    for seed in seeds {
        let (programs, erases) = operations(kind, seed);
        assert!(
            programs > 100 && erases > 10,
            "{kind:?}, seed {seed}: a life of {programs} programs and {erases} erases"
        );
        (1..=programs + erases).step_by(apart).for_each(|at| crash(kind, seed, at));
    }
}

#[test]
fn power_is_lost_at_every_operation() {
    at_every_operation(PLAIN, 0..2);
}

#[test]
fn power_is_lost_at_every_operation_without_an_out_of_band_area() {
    at_every_operation(Kind { oob_bytes: 0, ..PLAIN }, 0..2);
}

#[test]
fn power_is_lost_at_every_operation_with_bad_chunks() {
    let kind = Kind { bad_ppm: 60_000, program_ppm: 3_000, erase_ppm: 3_000, policy: Policy::CostBenefit, ..PLAIN };
    at_every_operation(kind, 2..4);
}
