//! The media manager on the zones of a namespace: the same lives and losses of power as on flash itself. The zones are those of a
//! model's chunks.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use device::{Durability, Error, Lba, Namespace, NamespaceInfo, Writability, Zone, ZoneAction, ZoneState, ZonedInfo};
use engine::rng::SplitMix;
use engine::{Buf, View};
use flash::nand::{Fault, Nand};
use flash::presets::Preset;
use flash::{
    Chunk, ChunkState, FlashDevice, FlashError, FlashNamespace, FormatOptions, Geometry, Manager, ManagerError,
    ManagerOptions, OverZones, Policy, SECTOR_BYTES, Sector, ZoneLayout, Zones,
};

use crate::crash::{self, Kind, PLAIN, at_every_operation, at_operations, simulated};
use crate::model::{Model, durability};
use crate::sim::survived;

const UNIT: u32 = 4;
/// Streams twice, roots, and a zone in which a write has failed.
const OPEN_MAX: u32 = 13;

/// What is between the media manager and the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Below {
    Nothing,
    Zones(Zoning),
}

/// Zones of a model, and how they behave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Zoning {
    /// Sectors of a zone beyond the last whole unit.
    pub tail: u32,
    /// Sectors of one transfer; what is longer is written in pieces, and power can be lost between them.
    pub transfer: u32,
    /// Writes in a million that fail on their way, with a part written, in a zone that is as good as before.
    pub fault_ppm: u32,
    /// What is kept of the room for data, in percent.
    pub spare: u32,
}

const SMOOTH: Zoning = Zoning { tail: 0, transfer: 256, fault_ppm: 0, spare: 10 };
/// One chunk is a thirtieth of such a device.
const FAILING: Zoning = Zoning { spare: 30, ..SMOOTH };
const ODD: Zoning = Zoning { tail: 3, transfer: 3, fault_ppm: 0, spare: 10 };

impl Zoning {
    pub fn geometry(self) -> Geometry {
        let sectors = 44 + self.tail;
        Geometry { groups: 2, units_per_group: 1, chunks: 18, sectors, write_unit: 1, oob_bytes: 0, open_max: OPEN_MAX }
    }

    fn layout(self) -> ZoneLayout {
        ZoneLayout { write_unit: UNIT, chunks_min: 4, ..ZoneLayout::default() }
    }

    /// The zones of a model that power comes to.
    async fn namespace(self, nand: &Rc<Nand>) -> Result<Between, FlashError> {
        let zones = Zones::open(nand.power_on()).await?;
        let rng = RefCell::new(SplitMix(nand.counts().programs ^ 0x0dd));
        Ok(Between { zones: Rc::new(zones), zoning: self, rng, script: Rc::default(), is_looked_at: false })
    }

    pub async fn device(self, nand: &Rc<Nand>) -> Result<Rc<dyn FlashDevice>, ManagerError> {
        let device = OverZones::open(self.namespace(nand).await?, self.layout()).await;
        let device = device.map_err(|error| ManagerError::Device(FlashError::Medium(error.to_string())))?;
        assert_eq!(device.geometry().units(), 2, "zone by zone as the model has them");
        Ok(Rc::new(device))
    }

    /// Where the model has a sector of the device: chunks have the same numbers, and may be longer.
    pub fn on_nand(self, sector: Sector) -> Sector {
        self.geometry().sector(Chunk(sector.0 / 44), sector.0 % 44)
    }
}

/// What a write does that fails.
#[derive(Clone, Copy)]
struct Failure {
    /// Blocks of it that are written.
    written: usize,
}

/// What is to go wrong, and what has.
#[derive(Default)]
struct Script {
    /// What the next writes do.
    next: VecDeque<Failure>,
    /// Where writes were that have failed by it.
    failed: Vec<Lba>,
    /// Zones that are neither reset nor finished.
    stuck: Vec<Lba>,
}

/// The zones, with the transfers and the failures that are wanted.
struct Between {
    zones: Rc<Zones>,
    zoning: Zoning,
    rng: RefCell<SplitMix>,
    script: Rc<RefCell<Script>>,
    /// It takes no writes.
    is_looked_at: bool,
}

impl Between {
    fn failure(&self, lba: Lba, blocks: usize) -> Option<Failure> {
        let mut rng = self.rng.borrow_mut();
        let is_due = rng.below(1_000_000) < u64::from(self.zoning.fault_ppm);
        let mut script = self.script.borrow_mut();
        let wanted = script.next.pop_front();
        script.failed.extend(wanted.map(|_| lba));
        wanted.or_else(|| is_due.then(|| Failure { written: rng.index(blocks + 1) }))
    }
}

impl Namespace for Between {
    device::delegate_namespace!(this => { _ => this.zones }; read, flush, compare, compare_and_write, write_zeroes, deallocate,
        verify, write_uncorrectable, hint_lifetime, used_blocks, link, attribute, set_attribute);

    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { transfer_blocks_max: self.zoning.transfer, ..self.zones.info() }
    }

    fn writability(&self) -> Writability {
        if self.is_looked_at { Writability::ReadOnly } else { self.zones.writability() }
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        assert!(!self.is_looked_at && data.len() <= self.zoning.transfer as usize * SECTOR_BYTES);
        let Some(failure) = self.failure(lba, data.len() / SECTOR_BYTES) else {
            return self.zones.write(lba, data, durability).await;
        };
        if failure.written > 0 {
            self.zones.write(lba, data.slice(..failure.written * SECTOR_BYTES), durability).await?;
        }
        Err(Error::WriteFault("on purpose".into()))
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        self.zones.zoned()
    }

    async fn zones(&self, from: Lba, max: usize) -> Result<Vec<Zone>, Error> {
        self.zones.zones(from, max).await
    }

    async fn change_zone(&self, zone: Option<Lba>, action: ZoneAction) -> Result<(), Error> {
        if zone.is_some_and(|zone| self.script.borrow().stuck.contains(&zone)) {
            return Err(Error::WriteFault("on purpose".into()));
        }
        self.zones.change_zone(zone, action).await
    }

    async fn append(&self, zone: Lba, data: View, durability: Durability) -> Result<Lba, Error> {
        self.zones.append(zone, data, durability).await
    }
}

fn on_zones(zoning: Zoning) -> Kind {
    Kind { oob_bytes: 0, below: Below::Zones(zoning), ..PLAIN }
}

#[test]
fn power_is_lost_at_every_operation_on_zones() {
    at_every_operation(on_zones(SMOOTH), 0..1);
}

#[test]
fn power_is_lost_on_zones_and_within_units() {
    at_operations(on_zones(ODD), 1..2, 3);
}

#[test]
fn power_is_lost_at_every_operation_on_zones_that_fail() {
    // A unit is four programs of the model.
    let kind = Kind { bad_ppm: 60_000, program_ppm: 1_500, erase_ppm: 3_000, ..on_zones(FAILING) };
    at_every_operation(Kind { policy: Policy::CostBenefit, ..kind }, 2..3);
}

/// Writes that fail on their way cost no zone for good, however many of them there are.
#[test]
fn power_is_lost_where_writes_fail_on_their_way() {
    at_operations(on_zones(Zoning { fault_ppm: 4_000, ..FAILING }), 4..5, 3);
}

fn unit(byte: u8) -> View {
    let mut unit = Buf::zeroed(UNIT as usize * SECTOR_BYTES);
    unit.fill(byte);
    unit.freeze()
}

/// Where the zone begins that is this chunk.
fn start_of(zones: &Zones, chunk: Chunk) -> Lba {
    Lba(u64::from(chunk.0 % 18 * 2 + chunk.0 / 18) * zones.zoned().expect("zones").zone_blocks)
}

async fn state(device: &dyn FlashDevice, chunk: Chunk) -> (ChunkState, u32) {
    let report = device.report().await.expect("chunks are told")[chunk.0 as usize];
    (report.state, report.write_pointer)
}

#[test]
fn a_zone_is_used_again_unless_its_namespace_says_that_it_is_bad() {
    let config = crash::config(on_zones(SMOOTH), 7);
    simulated(7, async move {
        let nand = Nand::in_memory(config).expect("a geometry that works");
        let between = SMOOTH.namespace(&nand).await.expect("zones");
        let (script, zones) = (between.script.clone(), between.zones.clone());
        let device = OverZones::open(between, SMOOTH.layout()).await.expect("a device");
        let write = async |chunk: Chunk, at: u32, byte: u8| {
            device.write(device.geometry().sector(chunk, at), unit(byte), Buf::zeroed(0).freeze()).await
        };
        let chunk = Chunk(5);
        let first = device.geometry().sector(chunk, 0);
        for round in 1..=3 {
            assert_eq!(write(chunk, 0, round).await, Ok(()));
            script.borrow_mut().next.push_back(Failure { written: 2 });
            assert_eq!(write(chunk, UNIT, 9).await, Err(FlashError::ProgramFailed(chunk)));
            let (found, written) = state(&device, chunk).await;
            assert_eq!((found, written), (ChunkState::ReadOnly, UNIT + 2), "in round {round}");
            let again = write(chunk, UNIT, 9).await;
            assert!(matches!(again, Err(FlashError::State { .. })), "nothing is written behind it: {again:?}");
            let (read, found, _) = device.read(first, Buf::zeroed(unit(0).len()), Buf::zeroed(0)).await;
            assert_eq!((read, *found == *unit(round)), (Ok(()), true), "what was acknowledged is there");
            assert_eq!(device.give_up(chunk).await, Ok(round < 3), "in round {round}");
        }
        assert_eq!(state(&device, chunk).await, (ChunkState::Offline, 0), "three times are enough");
        let chunk = Chunk(7);
        assert_eq!(write(chunk, 0, 1).await, Ok(()));
        script.borrow_mut().next.push_back(Failure { written: 0 });
        assert_eq!(write(chunk, UNIT, 9).await, Err(FlashError::ProgramFailed(chunk)));
        let told = zones.zones(start_of(&zones, chunk), 1).await.expect("zones are told")[0];
        assert_eq!(told.state, ZoneState::Full, "with nothing of the write in it, it is active no more");
        assert_eq!(state(&device, chunk).await, (ChunkState::ReadOnly, UNIT));
        assert_eq!(device.give_up(chunk).await, Ok(true));
        let chunk = Chunk(6);
        assert_eq!(write(chunk, 0, 1).await, Ok(()));
        nand.arm(Fault::Program(chunk));
        assert_eq!(write(chunk, UNIT, 9).await, Err(FlashError::ProgramFailed(chunk)));
        assert_eq!(device.give_up(chunk).await, Ok(false), "its zone is read only");
        drop((device, zones));
        let device = SMOOTH.device(&nand).await.expect("opened again");
        let states = [state(&*device, Chunk(5)).await.0, state(&*device, chunk).await.0];
        assert_eq!(states, [ChunkState::Free, ChunkState::Offline], "the device itself says so");
    });
}

/// Zones that are left active without need, by who opens them and is killed, and by chunks that end before their zones do.
#[test]
fn no_zone_is_active_that_takes_nothing_more() {
    let config = crash::config(on_zones(ODD), 8);
    simulated(8, async move {
        let nand = Nand::in_memory(config).expect("a geometry that works");
        let between = ODD.namespace(&nand).await.expect("zones");
        let zones = between.zones.clone();
        let told = async || zones.zones(Lba(0), 2).await.expect("zones are told");
        let opened = told().await[1].start;
        assert_eq!(zones.change_zone(Some(opened), ZoneAction::Open).await, Ok(()));
        let states = async || told().await.into_iter().map(|zone| zone.state).collect::<Vec<_>>();
        let (zoning, script) = (ODD, Rc::default());
        let rng = RefCell::new(SplitMix(8));
        let looking = Between { zones: zones.clone(), zoning, rng, script, is_looked_at: true };
        let looked = OverZones::open(looking, ODD.layout()).await.expect("a device");
        assert_eq!(states().await, [ZoneState::Empty, ZoneState::ExplicitlyOpen], "who looks changes nothing");
        drop(looked);
        let device = OverZones::open(between, ODD.layout()).await.expect("a device");
        assert_eq!(states().await, [ZoneState::Empty, ZoneState::Empty]);
        let geometry = device.geometry();
        assert_eq!(u64::from(geometry.sectors), told().await[0].capacity - u64::from(ODD.tail));
        for at in (0..geometry.sectors).step_by(UNIT as usize) {
            assert_eq!(device.write(geometry.sector(Chunk(0), at), unit(1), Buf::zeroed(0).freeze()).await, Ok(()));
        }
        assert_eq!(state(&device, Chunk(0)).await, (ChunkState::Closed, geometry.sectors));
        assert_eq!(states().await, [ZoneState::Full, ZoneState::Empty]);
    });
}

/// What is between a manager and the zones of a model that it was just formatted on.
async fn managed(seed: u64) -> (Rc<Nand>, Between) {
    let nand = Nand::in_memory(crash::config(on_zones(FAILING), seed)).expect("a geometry that works");
    let options = FormatOptions { spare_percent: FAILING.spare, capacity: None };
    Manager::format(FAILING.device(&nand).await.expect("a device"), &options).await.expect("formatted");
    let between = FAILING.namespace(&nand).await.expect("zones");
    (nand, between)
}

async fn opened_on(between: Between) -> FlashNamespace {
    let device = OverZones::open(between, FAILING.layout()).await.expect("a device");
    FlashNamespace::new(Manager::open(Rc::new(device), ManagerOptions::default()).await.expect("opened"))
}

async fn written(namespace: &FlashNamespace, model: &mut Model, lba: u64) {
    namespace.write(Lba(lba), model.write(lba, 1), durability(true)).await.expect("written");
    model.stable(lba, 1);
}

/// Of two writes that had failed on their way a part was there, so that both zones stayed active: one more than is reckoned with,
/// and the manager stopped.
#[test]
fn two_zones_fail_in_part_at_once() {
    simulated(9, async {
        let nand = Nand::in_memory(crash::config(on_zones(SMOOTH), 9)).expect("a geometry that works");
        let between = SMOOTH.namespace(&nand).await.expect("zones");
        let script = between.script.clone();
        let device = OverZones::open(between, SMOOTH.layout()).await.expect("a device");
        let write = async |chunk: Chunk, at: u32, byte: u8| {
            device.write(device.geometry().sector(chunk, at), unit(byte), Buf::zeroed(0).freeze()).await
        };
        for chunk in [0, 1].map(Chunk) {
            assert_eq!(write(chunk, 0, 1).await, Ok(()));
            script.borrow_mut().next.push_back(Failure { written: 2 });
            assert_eq!(write(chunk, UNIT, 9).await, Err(FlashError::ProgramFailed(chunk)));
        }
        for chunk in 2..2 + OPEN_MAX {
            assert_eq!(write(Chunk(chunk), 0, 2).await, Ok(()), "chunk {chunk}");
        }
        let next = Chunk(2 + OPEN_MAX);
        assert_eq!(write(next, 0, 2).await, Err(FlashError::OpenLimit { chunk: next, open_max: OPEN_MAX }));
        for chunk in [0, 1].map(Chunk) {
            assert_eq!(state(&device, chunk).await, (ChunkState::ReadOnly, UNIT + 2));
            let first = device.geometry().sector(chunk, 0);
            let (read, found, _) = device.read(first, Buf::zeroed(unit(0).len()), Buf::zeroed(0)).await;
            assert_eq!((read, *found == *unit(1)), (Ok(()), true), "what was acknowledged is there");
            assert_eq!(device.give_up(chunk).await, Ok(true));
        }
        assert_eq!(write(Chunk(0), 0, 3).await, Err(FlashError::OpenLimit { chunk: Chunk(0), open_max: OPEN_MAX }));
    });
}

/// A zone that was not finished, or not reset, kept the whole device shut.
#[test]
fn a_zone_that_can_not_be_finished_costs_itself_alone() {
    simulated(10, async {
        let (nand, between) = managed(10).await;
        let namespace = opened_on(between).await;
        let mut model = Model::default();
        for lba in 0..30 {
            written(&namespace, &mut model, lba).await;
        }
        let Sector(last) = namespace.manager().place_of(29).expect("it is on flash");
        drop(namespace);
        let between = FAILING.namespace(&nand).await.expect("zones");
        let (script, zones) = (between.script.clone(), between.zones.clone());
        // A crash leaves a part of a unit, and somebody else's zone that is open, and empty.
        let torn = start_of(&zones, Chunk(last / 44));
        let part = unit(9).slice(..SECTOR_BYTES);
        zones.append(torn, part, Durability::Stable).await.expect("it is open");
        let told = zones.zones(Lba(0), 36).await.expect("zones are told");
        let empty = told.iter().find(|zone| zone.state == ZoneState::Empty).expect("there is one").start;
        zones.change_zone(Some(empty), ZoneAction::Open).await.expect("it is opened");
        script.borrow_mut().stuck = vec![torn, empty];
        let namespace = opened_on(between).await;
        model.verify(&namespace, "with two zones that take no command").await;
        for lba in (0..namespace.info().blocks).chain(0..30) {
            written(&namespace, &mut model, lba).await;
        }
        model.verify(&namespace, "written on").await;
        assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new());
    });
}

/// Two writes of it had failed with all of it written, and then could not be read; the second one said that the first had ended.
#[test]
fn what_was_flushed_is_read_where_newer_versions_have_failed() {
    for seed in 0..6 {
        simulated(seed, async move {
            let (nand, between) = managed(seed).await;
            let (script, zone_blocks) = (between.script.clone(), between.zones.zoned().expect("zones").zone_blocks);
            let namespace = opened_on(between).await;
            let mut model = Model::default();
            written(&namespace, &mut model, 5).await;
            script.borrow_mut().next = [Failure { written: UNIT as usize }; 2].into();
            nand.cut_at(Some(3));
            assert!(namespace.write(Lba(5), model.write(5, 1), durability(true)).await.is_err(), "power is lost");
            drop(namespace);
            let failed = std::mem::take(&mut script.borrow_mut().failed);
            assert_eq!(failed.len(), 2);
            for Lba(lba) in failed {
                let (zone, at) = ((lba / zone_blocks) as u32, (lba % zone_blocks) as u32);
                let geometry = nand.config().geometry;
                // Behind the sector of tags is the one that was written.
                nand.arm(Fault::Read(geometry.sector(geometry.chunk(zone % 2, zone / 2), at + 1)));
            }
            let namespace = opened_on(FAILING.namespace(&nand).await.expect("zones")).await;
            model.verify(&namespace, &format!("seed {seed}")).await;
        });
    }
}

/// A zone that was finished behind a write of which nothing is there has room that reads as zeroes: it was taken for the unit whose
/// sequences are missing.
#[test]
fn a_write_of_which_nothing_is_there_is_no_loss() {
    simulated(11, async {
        let (nand, between) = managed(11).await;
        let script = between.script.clone();
        let namespace = opened_on(between).await;
        let mut model = Model::default();
        for lba in 0..20 {
            if lba == 7 {
                script.borrow_mut().next.push_back(Failure { written: 0 });
            }
            written(&namespace, &mut model, lba).await;
        }
        drop(namespace);
        let namespace = opened_on(FAILING.namespace(&nand).await.expect("zones")).await;
        model.verify(&namespace, "opened").await;
        assert_eq!(namespace.manager().figures().unknown_sectors, 0);
    });
}

/// Each life has zones of its own kind; writes fail in some, at most so often that the zones that may be active are enough.
fn kind(seed: u64) -> Kind {
    let mut rng = SplitMix(seed ^ 0x20e5);
    let zoning = Zoning {
        tail: rng.below(u64::from(UNIT)) as u32,
        transfer: [1, 3, 4, 256][rng.index(4)],
        fault_ppm: [0, 500][rng.index(2)],
        spare: 15,
    };
    let program_ppm = [0, 800][rng.index(2)];
    let policy = [Policy::Greedy, Policy::CostBenefit][rng.index(2)];
    Kind { program_ppm, erase_ppm: program_ppm, policy, ..on_zones(zoning) }
}

#[test]
fn lives_on_zones() {
    let losses: u64 = (0..8).map(|seed| survived(kind(seed), seed)).sum();
    assert!(losses > 100, "{losses} losses of power in eight lives");
}

#[test]
fn a_namespace_on_zones_is_one_like_any_other() {
    for seed in 0..2 {
        let mut config = Preset::Small.config(seed);
        config.geometry = Geometry { oob_bytes: 0, write_unit: 1, open_max: 21, ..config.geometry };
        simulated(seed, async move {
            let nand = Nand::in_memory(config).expect("a geometry that works");
            let device = async || {
                let zones = Zones::open(nand.power_on()).await.expect("zones");
                Rc::new(OverZones::open(zones, ODD.layout()).await.expect("a device"))
            };
            Manager::format(device().await, &FormatOptions::default()).await.expect("formatted");
            let manager = Manager::open(device().await, ManagerOptions::default()).await.expect("opened");
            let namespace = Rc::new(FlashNamespace::new(manager));
            device::conformance::check_all(namespace.clone(), seed).await;
            assert_eq!(namespace.manager().check().await.faults, Vec::<String>::new(), "seed {seed}");
        });
    }
}
