//! Where writes go on a medium that places data by the host's word (NVMe Base 2.1 §8.1.10).

use device::{Error, Lba};
use engine::Buf;
use engine::file::Lifetime;

use super::RemoteNamespace;
use super::error::{Target, judged};
use super::queue::Payload;

/// Bytes asked for: a page has room for 127 handles, where there are few lifetimes to tell apart.
const STATUS_BYTES: u32 = 4096;

impl RemoteNamespace {
    /// From now on writes say that they stay for so long; false where the namespace's data are not placed.
    ///
    /// The first handle is everybody's who says nothing; each lifetime has one of the others, as far as there are.
    pub(super) async fn place_by(&self, lifetime: Lifetime) -> Result<bool, Error> {
        self.attached.placement.set(None);
        let placements = self.placements().await?;
        let others = placements.get(1..).unwrap_or_default();
        let wanted = match lifetime {
            Lifetime::Short => 0,
            Lifetime::Medium => 1,
            Lifetime::Long => 2,
        };
        let placement = others.get(wanted).or(others.last()).copied();
        self.attached.placement.set(placement);
        Ok(placement.is_some())
    }

    async fn placements(&self) -> Result<Vec<u16>, Error> {
        let up = self.up()?;
        let command = nvme::placement::handle_status(self.attached.nsid, STATUS_BYTES);
        let payload = Payload::In(Buf::with_len(STATUS_BYTES as usize));
        let (lba, end) = (Lba(0), self.attached.info.borrow().blocks);
        match up.association.queue().execute(command, payload).await {
            Ok((ended, payload)) => {
                judged(ended, Target { name: &self.attached.name, lba, blocks: 0, end })?;
                let Payload::In(status) = payload else {
                    return Err(Error::ReadFault("the status did not come".into()));
                };
                Ok(nvme::placement::placements(&status))
            }
            Err(_) => Err(Error::NotConnected(self.attached.name.clone())),
        }
    }
}
