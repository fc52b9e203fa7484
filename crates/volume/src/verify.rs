//! Compares the replicas in sync, region by region, and looks at the checksums of what the holders keep beside the data. Writes of
//! a region wait while it is read. (The checksums of the data are those of the drives, which say by a read fault what is wrong.)

use std::rc::Rc;

use device::{Error, Mode};
use engine::Buf;

use crate::conn::Lost;
use crate::label::Shape;
use crate::record::{HOLDERS_MAX, Set};
use crate::shared::Shared;

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Regions that were compared at two replicas or more.
    pub regions: u64,
    /// Of each slot, the regions that were read there as a whole.
    pub compared: [u64; HOLDERS_MAX],
    /// Regions of which copies differ: bytes were lost or damaged behind the volume's back.
    pub differing: Vec<u64>,
    /// Slot and region of what could not be read.
    pub unreadable: Vec<(usize, u64)>,
    /// Slots whose label, record or log has a wrong checksum.
    pub damaged: Vec<usize>,
}

impl Report {
    /// Whether nothing is amiss.
    pub fn is_clean(&self) -> bool {
        self.differing.is_empty() && self.unreadable.is_empty() && self.damaged.is_empty()
    }
}

/// See [`Volume::verify`](crate::Volume::verify).
pub(crate) async fn verify(shared: &Rc<Shared>, bytes_per_second: Option<u64>) -> Result<Report, Error> {
    let job = shared.figures.jobs().begin("verify", bytes_per_second, None);
    let mut report = Report::default();
    let shape = Shape { blocks: shared.blocks(), ..shared.shape };
    let regions = shape.regions();
    for region in 0..regions {
        shared.check()?;
        shared.settled((region, region)).await?;
        let (first, blocks) = shape.region(region);
        job.take(blocks * u64::from(shared.shape.block_size)).await;
        let _guard = shared.lock(first, blocks, Mode::Shared).await?;
        let mut compared = shared.mirror.borrow().everybody();
        for piece in shared.cut(first, blocks) {
            compared = compared.and(compare(shared, region, piece, &mut report).await);
        }
        report.regions += u64::from(compared.len() > 1);
        compared.iter().for_each(|slot| report.compared[slot] += 1);
        job.reached((region + 1) as f64 / regions as f64);
    }
    report.differing.dedup();
    report.unreadable.sort_unstable();
    report.unreadable.dedup();
    for conn in (0..shared.shape.holders()).filter_map(|slot| shared.conn(slot)) {
        if conn.is_sound().await == Ok(false) {
            report.damaged.push(conn.slot);
        }
    }
    Ok(report)
}

/// Returns whose copies there were. Who is lost meanwhile has none, which says nothing of what is there.
async fn compare(shared: &Rc<Shared>, region: u64, (lba, blocks): (u64, u64), report: &mut Report) -> Set {
    let bytes = (blocks * u64::from(shared.shape.block_size)) as usize;
    let readable = shared.mirror.borrow().readable();
    let mut first: Option<Buf> = None;
    let mut copies = Set::default();
    for conn in readable.iter().filter_map(|slot| shared.usable(slot)) {
        match (conn.read(lba, Buf::with_len(bytes)).await, &first) {
            (Ok(copy), None) => first = Some(copy),
            (Ok(copy), Some(first)) if copy[..] != first[..] => report.differing.push(region),
            (Ok(_), Some(_)) => {}
            (Err(Lost::Ended), _) => {
                shared.sweep();
                continue;
            }
            (Err(Lost::Refused(_)), _) => {
                report.unreadable.push((conn.slot, region));
                continue;
            }
        }
        copies = copies.with(Set::one(conn.slot));
    }
    copies
}
