//! What a client tells of itself, for Prometheus.

use std::time::Duration;

use engine::time;
use file::meta::Faults;
use file::{FileMetrics, OpenFile};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::locks::{two, whole};
use crate::opened::{Place, bytes, make};
use crate::world::run;

/// What is told once it was looked again.
async fn told(metrics: &FileMetrics) -> String {
    time::sleep(Duration::from_secs(2)).await;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics.clone()));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

async fn expect(metrics: &FileMetrics, figures: &[(&str, u64)]) {
    let text = told(metrics).await;
    for (name, value) in figures {
        assert!(text.contains(&format!("yagura_file_{name} {value}\n")), "{name} is not {value}: {text}");
    }
}

/// Of a file of one stripe.
async fn reads(place: &Place, file: &OpenFile, change: impl Fn(usize, bool)) {
    for shelf in 0..place.shelves.len() {
        change(shelf, true);
        assert_eq!(bytes(file).await.len(), 100_000);
        change(shelf, false);
    }
}

#[test]
fn what_was_read_and_written_is_told_and_how() {
    run(1, async {
        let place = Place::new().await;
        let files = place.client().await;
        let metrics = FileMetrics::default();
        let _watching = metrics.watch(&files);
        let file = make(&files, "a").await;
        file.write(0, &[7; 100_000]).await.unwrap();
        let waits = [
            ("written_bytes_total", 100_000),
            ("dirty_bytes", 1 << 20),
            ("dirty_bytes_max", 256 << 20),
            ("open_files", 1),
        ];
        expect(&metrics, &waits).await;
        file.flush().await.unwrap();
        let _plain = bytes(&file).await;
        let way = |way: &str| format!("stripe_reads_total{{way=\"{way}\"}}");
        let stored = [
            ("dirty_bytes", 0),
            ("stripes_written_total", 1),
            ("read_bytes_total", 100_000),
            ("members", 3),
            ("members_reachable", 3),
            (&way("plain"), 1),
            (&way("degraded"), 0),
        ];
        expect(&metrics, &stored).await;
        // Without the member that has the parity it is the plain way.
        reads(&place, &file, |shelf, is_down| place.shelves[shelf].is_down.set(is_down)).await;
        expect(&metrics, &[(&way("plain"), 2), (&way("degraded"), 2), (&way("failed"), 0)]).await;
        reads(&place, &file, |shelf, hangs| place.shelves[shelf].hangs.set(hangs)).await;
        let text = told(&metrics).await;
        assert!(!text.contains(&format!("{} 0\n", way("hedged"))), "{text}");
        place.set_down(true);
        assert!(file.read(0, 10).await.is_err());
        file.write(0, &[8; 100_000]).await.unwrap();
        assert!(file.flush().await.is_err());
        expect(&metrics, &[("blocks_failed_total", 1), ("blocks_dropped_total", 0)]).await;
        // A read is tried again, by what the map says then.
        assert!(!told(&metrics).await.contains(&format!("{} 0\n", way("failed"))));
        assert!(files.close_file(&file).await.is_err());
        drop(file);
        expect(&metrics, &[("blocks_dropped_total", 1), ("dirty_bytes", 0), ("open_files", 0)]).await;
    });
}

#[test]
fn locks_are_told_as_long_as_they_are_held_and_when_they_are_lost() {
    run(1, async {
        let (place, files, open) = two().await;
        let metrics = FileMetrics::default();
        let _tasks = (files[0].keep_alive(), metrics.watch(&files[0]));
        files[0].lock(&open[0], &whole(1), None).await.unwrap();
        expect(&metrics, &[("locked_files", 1), ("locks_lost", 0), ("renewals_failed_total", 0)]).await;
        open[0].write(0, &[7; 10]).await.unwrap();
        place.meta.set_faults(Faults { refused_ppm: 1_000_000, ..Faults::default() });
        time::sleep(Duration::from_secs(60)).await;
        let text = told(&metrics).await;
        assert!(text.contains("yagura_file_locks_lost 1\n") && text.contains("yagura_file_locked_files 0\n"), "{text}");
        assert!(text.contains("yagura_file_blocks_dropped_total 1\n"), "{text}");
        assert!(!text.contains("yagura_file_renewals_failed_total 0\n"), "{text}");
    });
}
