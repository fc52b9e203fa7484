//! What a client of a file system tells of itself, for Prometheus. It belongs to one thread and counts in cells, which that thread
//! looks at each second: whoever scrapes sees what was last seen.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::figures::{by_labels, counters, gauge};
use engine::{task, time};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use crate::data::{Figures, Way};
use crate::files::{DIRTY_BYTES_MAX, Files};

/// How old what is told may be. Chosen: scrapes are further apart.
const LOOK: Duration = Duration::from_secs(1);

/// Name, help, value.
type Figure = (&'static str, &'static str, u64);

/// What was last seen.
#[derive(Default, Debug)]
struct Seen {
    counters: Vec<Figure>,
    gauges: Vec<Figure>,
    reads: [u64; Way::LABELS.len()],
}

/// The figures of one client; a clone is the same ones, on any thread.
#[derive(Clone, Default, Debug)]
pub struct FileMetrics(Arc<Mutex<Seen>>);

impl FileMetrics {
    /// Looks at a client from now on, as long as the task is kept.
    pub fn watch(&self, files: &Rc<Files>) -> task::Task<()> {
        // At once: whoever asks next is told.
        self.look(files);
        let (metrics, files) = (self.clone(), Rc::downgrade(files));
        task::spawn(async move {
            loop {
                time::sleep(LOOK).await;
                let Some(files) = files.upgrade() else { return };
                metrics.look(&files);
            }
        })
    }

    fn look(&self, files: &Files) {
        let contents = files.contents();
        let seen = Seen {
            counters: counters_of(contents.figures(), files.names().standing.failed.get()),
            gauges: gauges_of(files),
            reads: contents.reads(),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

fn counters_of(figures: &Figures, renewals_failed: u64) -> Vec<Figure> {
    let Figures { stripes_written, stripes_short, compactions, .. } = figures;
    let Figures { bytes_read, bytes_written, blocks_failed, blocks_dropped, .. } = figures;
    let of = Cell::get;
    vec![
        (
            "read_bytes",
            "Bytes that users have read of files; what the kernel has in its pages is not asked for.",
            of(bytes_read),
        ),
        ("written_bytes", "Bytes that users have written to files.", of(bytes_written)),
        ("stripes_written", "Stripes written.", of(stripes_written)),
        ("stripes_written_short", "Those of them of which a member did not take its column.", of(stripes_short)),
        ("compactions", "Parts of maps that were put together out of many pieces.", of(compactions)),
        ("blocks_failed", "Blocks that could not be stored yet: they are kept, and tried again.", of(blocks_failed)),
        ("blocks_dropped", "Blocks that never will be stored: their users are told by an error.", of(blocks_dropped)),
        ("renewals_failed", "Times that this client could not say that it lives.", renewals_failed),
    ]
}

fn gauges_of(files: &Files) -> Vec<Figure> {
    let (dirty, open) = files.held();
    let (locked, lost) = files.names().locks.counts();
    let (chunks, late) = files.contents().space().counts();
    let members = files.members().all();
    let reachable = members.iter().filter(|member| member.is_reachable()).count();
    let count = |name, help, count: usize| (name, help, count as u64);
    vec![
        count("dirty_bytes", "Memory of what was written and is in no stripe yet, in blocks.", dirty),
        count("dirty_bytes_max", "As much of that as there may be.", DIRTY_BYTES_MAX),
        count("open_files", "Files that are open.", open),
        count("locked_files", "Files of which users here have locks, or wait for one.", locked),
        count("locks_lost", "Files whose locks were lost, until all here have closed them.", lost),
        count("chunks", "Chunks that this client alone takes room of.", chunks),
        count(
            "late_writes",
            "Writes given up that may yet come: what they would write to is left alone until then.",
            late,
        ),
        count("members", "Members of the file system.", members.len()),
        count("members_reachable", "Those of them that can be reached.", reachable),
    ]
}

impl Collector for FileMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let e = &mut encoder;
        counters(e, "yagura_file_", &seen.counters)?;
        for (name, help, value) in &seen.gauges {
            gauge(e, &format!("yagura_file_{name}"), help, *value)?;
        }
        let help = "Reads of stripes, by what they took: the plain way; others in the place of slow members (balanced) or of late \
                    ones (hedged); parity, as columns were missing or damaged (degraded); each try in vain (failed).";
        let reads = Way::LABELS.iter().zip(seen.reads).map(|(way, count)| ([("way", *way)], count));
        by_labels(e, ("yagura_file_stripe_reads", help), reads)
    }
}
