//! Random access to a namespace in closed loops: what every row that measures blocks puts on them.

use std::cell::RefCell;
use std::time::Duration;

use device::{Durability, Lba, Namespace};
use engine::rng::SplitMix;
use engine::{Buf, View};

use crate::load::{Outcome, closed_loops};

/// One access pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    StableWrite,
    CompareAndWrite,
}

impl Access {
    pub(crate) fn read_or_write(write: bool) -> Access {
        if write { Access::Write } else { Access::Read }
    }
}

/// Random accesses of `bytes` with `depth` under way, for `time`.
pub(crate) async fn random_access<N: Namespace>(
    namespace: N,
    access: Access,
    bytes: usize,
    depth: usize,
    time: Duration,
) -> anyhow::Result<Outcome> {
    let info = namespace.info();
    let blocks = (bytes / info.block_size as usize) as u64;
    let places = info.blocks / blocks;
    let random = RefCell::new(SplitMix(depth as u64));
    let buffers: Vec<RefCell<Buf>> = (0..depth).map(|_| RefCell::new(Buf::zeroed(bytes))).collect();
    let data: View = Buf::zeroed(bytes).freeze();
    closed_loops(depth, 1, time, async move |client| {
        let lba = Lba(random.borrow_mut().below(places) * blocks);
        match access {
            Access::Read => {
                let (result, buffer) = namespace.read(lba, buffers[client].take()).await;
                buffers[client].replace(buffer);
                result?;
            }
            Access::Write => namespace.write(lba, data.clone(), Durability::Cached).await?,
            Access::StableWrite => namespace.write(lba, data.clone(), Durability::Stable).await?,
            // A namespace that is all zeroes stays so: every compare is equal, every write is done.
            Access::CompareAndWrite => {
                namespace.compare_and_write(lba, data.clone(), data.clone(), Durability::Cached).await?;
            }
        }
        Ok(0)
    })
    .await
}
