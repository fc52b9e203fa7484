//! Which extents the scrubs under way have seen.
//!
//! Invariant: a mark is of what the extent holds, not of its number. It goes in the step that maps an extent which nobody had:
//! kept, it would pass over what a copy has moved there out of another extent, one that no scrub has seen, damage and all.

/// The marks of every scrub under way: a byte for each extent of the drive, so that nothing grows while it goes on.
#[derive(Debug, Default)]
pub(super) struct Seen {
    scrubs: Vec<(u64, Vec<bool>)>,
    begun: u64,
}

impl Seen {
    /// An extent is mapped that nobody had.
    pub(super) fn taken(&mut self, extent: u32) {
        self.scrubs.iter_mut().for_each(|(_, marks)| marks[extent as usize] = false);
    }

    /// A scrub begins on a drive of so many extents, and has seen nothing: its number here.
    pub(super) fn begin(&mut self, extents: usize) -> u64 {
        self.begun += 1;
        self.scrubs.push((self.begun, vec![false; extents]));
        self.begun
    }

    /// It is over.
    pub(super) fn end(&mut self, scrub: u64) {
        self.scrubs.retain(|(number, _)| *number != scrub);
    }

    /// A scrub's mark on an extent.
    pub(super) fn mark(&mut self, scrub: u64, extent: u32) -> &mut bool {
        let found = self.scrubs.iter_mut().find(|(number, _)| *number == scrub);
        // There from its beginning to its end, a mark for each extent that the drive has.
        &mut found.expect("a scrub under way has its marks").1[extent as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use engine::Buf;
    use engine::job::Job;
    use engine::sim::{DiskConfig, SimConfig, World};
    use engine::{task, time};

    use crate::{Drive, Durability, FormatOptions, Lba, Namespace, NamespaceSpec};

    /// What is kept of a scrub that is over, or was dropped, is a byte for each extent of the drive, and one more to clear whenever
    /// an extent is taken.
    #[test]
    fn marks_end_with_their_scrub() {
        let world = World::new(1, SimConfig::default());
        let node = world.node("n");
        world.disk(node, "/drive", 8 << 20, DiskConfig::default());
        let task = world.spawn_on(node, async {
            let options =
                FormatOptions { extent_bytes: 64 << 10, journal_bytes: Some(512 << 10), ..FormatOptions::default() };
            let drive = Drive::format(Path::new("/drive"), &options).await.expect("formatted");
            let spec = NamespaceSpec { name: "a".into(), bytes: 1 << 20, block_size: 4096 };
            let namespace = drive.create(&spec).await.expect("created");
            namespace.write(Lba(0), Buf::zeroed(256 << 10).freeze(), Durability::Stable).await.expect("written");
            let under_way = || drive.inner.with(|core| core.state.seen.scrubs.len());
            let begun = |rate| {
                let drive = drive.clone();
                task::spawn(async move { drive.scrub(&Job::unlisted(rate, None)).await.map(drop) })
            };
            let [first, second] = [(); 2].map(|()| begun(Some(1)));
            time::sleep(Duration::from_secs(1)).await;
            assert_eq!(under_way(), 2);
            assert!(first.cancel().await.is_none(), "it is not through");
            assert_eq!(under_way(), 1);
            assert!(second.cancel().await.is_none(), "it is not through");
            assert_eq!(under_way(), 0);
            begun(None).await.expect("scrubbed");
            assert_eq!(under_way(), 0);
        });
        world.run_until(task).unwrap_or_else(|stalled| panic!("{stalled}"));
    }
}
