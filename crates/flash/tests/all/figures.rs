//! What a device and its media manager tell of themselves, for Prometheus.

use std::rc::Rc;

use device::{Durability, Lba, Namespace};
use engine::Buf;
use flash::nand::Fault;
use flash::presets::Preset;
use flash::{FlashDevice, FlashMetrics, FlashNamespace, Manager, ManagerOptions, Metered, SECTOR_BYTES, Seen};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::begun::formatted;
use crate::crash::simulated;

fn told(metrics: &FlashMetrics) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(metrics.clone()));
    let mut text = String::new();
    encode(&mut text, &registry).expect("told");
    text
}

/// The value of what one device alone tells.
fn value(text: &str, name: &str) -> u64 {
    let head = format!("yagura_flash_{name}{{device=\"/flash\"}} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&head)).unwrap_or_else(|| panic!("no {name}: {text}"));
    line.parse().expect("a number")
}

#[test]
fn what_hosts_write_what_it_costs_and_what_fails_is_told() {
    simulated(5, async {
        let nand = formatted(Preset::Small.config(5)).await;
        let metered = Rc::new(Metered::new(nand.power_on()));
        let manager = Manager::open(metered.clone(), ManagerOptions::default()).await.expect("opened");
        let namespace = FlashNamespace::new(manager);
        let chunks = nand.config().geometry.chunks_total().into();
        let blocks = namespace.info().blocks;
        let fill = async || {
            for lba in 0..blocks {
                let data = Buf::zeroed(SECTOR_BYTES).freeze();
                namespace.write(Lba(lba), data, Durability::Cached).await.expect("written");
            }
            namespace.flush().await.expect("flushed");
        };
        let metrics = FlashMetrics::default();
        assert!(!told(&metrics).contains("yagura_flash"), "nothing is served");
        let look = || {
            metrics.set(vec![Seen::of("/flash".into(), &metered, Some(namespace.manager()))]);
            told(&metrics)
        };
        fill().await;
        let text = look();
        let host = blocks * SECTOR_BYTES as u64;
        assert_eq!((value(&text, "host_written_bytes_total"), value(&text, "used_bytes")), (host, host));
        assert!(value(&text, "programmed_bytes_total") > host, "the map and roots, too: {text}");
        assert_eq!((value(&text, "chunks"), value(&text, "bad_chunks"), value(&text, "failed")), (chunks, 0, 0));

        // Over and over: lines are collected, and used again.
        for _ in 0..3 {
            fill().await;
        }
        let text = look();
        assert_eq!(value(&text, "host_written_bytes_total"), 4 * host);
        assert!(value(&text, "erases_total") > 0 && value(&text, "wear_most_erases") > 0, "{text}");
        assert!(value(&text, "lines_free") < value(&text, "lines"), "{text}");

        nand.arm(Fault::Read(namespace.manager().place_of(7).expect("it is on flash")));
        assert!(namespace.read(Lba(7), Buf::with_len(SECTOR_BYTES)).await.0.is_err());
        assert!(value(&look(), "reads_failed_total") > 0);
    });
}

/// Of zones that hosts manage nothing is told of a log.
#[test]
fn a_device_without_our_log_tells_of_commands_alone() {
    simulated(6, async {
        let nand = formatted(Preset::Small.config(6)).await;
        let metered = Metered::new(nand.power_on());
        let chunk = flash::Chunk(3);
        metered.report().await.expect("told");
        nand.arm(Fault::Erase(chunk));
        nand.arm(Fault::Program(flash::Chunk(4)));
        let unit = nand.config().geometry.write_unit as usize;
        let (data, oob) = (unit * SECTOR_BYTES, unit * nand.config().geometry.oob_bytes as usize);
        let write = |chunk| {
            let (data, oob) = (Buf::zeroed(data).freeze(), Buf::zeroed(oob).freeze());
            metered.write(nand.config().geometry.sector(chunk, 0), data, oob)
        };
        write(chunk).await.expect("written");
        assert!(write(flash::Chunk(4)).await.is_err());
        assert!(metered.reset(chunk).await.is_err());
        let metrics = FlashMetrics::default();
        metrics.set(vec![Seen::of("/flash".into(), &metered, None)]);
        let text = told(&metrics);
        assert_eq!(value(&text, "programmed_bytes_total"), data as u64);
        assert_eq!((value(&text, "erases_failed_total"), value(&text, "programs_failed_total")), (1, 1));
        assert_eq!(value(&text, "bad_chunks"), 1, "what was written in the other one can be read");
        assert!(!text.contains("yagura_flash_lines") && !text.contains("host_written"), "{text}");
    });
}
