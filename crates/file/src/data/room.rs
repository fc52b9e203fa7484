//! How much room there is, by what members' records say.

use super::member::Layout;
use super::space::Space;
use crate::error::Error;

impl Space {
    /// Bytes of data that fit on all members, and that fit besides what is there, about: rows that are free in chunks do not count.
    pub async fn usage(&self) -> Result<(u64, u64), Error> {
        let Layout { shape, region_bytes, .. } = *self.layout();
        let (all, free) = self.chunks.regions.count().await?;
        let data = |regions: u64| regions / shape.columns() as u64 * shape.data() as u64 * u64::from(region_bytes);
        Ok((data(all), data(free)))
    }

    /// Bytes of each member's regions, and of those of them that no chunk has, about.
    pub async fn room(&self) -> Result<Vec<(u64, u64)>, Error> {
        let bytes = u64::from(self.layout().region_bytes);
        let counts = self.chunks.regions.count_each().await?;
        Ok(counts.into_iter().map(|(all, free)| (all * bytes, free * bytes)).collect())
    }
}
