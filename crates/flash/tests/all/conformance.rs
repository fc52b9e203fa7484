//! A namespace on flash, through the checks of every kind of namespace.

use std::rc::Rc;

use flash::nand::{Nand, NandConfig};
use flash::presets::Preset;
use flash::{FlashNamespace, FormatOptions, Geometry, Manager, ManagerOptions};

use crate::crash::simulated;

async fn namespace(config: NandConfig) -> FlashNamespace {
    let nand = Nand::in_memory(config).expect("a geometry that works");
    Manager::format(nand.power_on(), &FormatOptions::default()).await.expect("formatted");
    let manager = Manager::open(nand.power_on(), ManagerOptions::default()).await.expect("opened");
    FlashNamespace::new(manager)
}

#[test]
fn a_namespace_on_flash_is_one_like_any_other() {
    for oob_bytes in [0, 16] {
        for seed in 0..4 {
            let mut config = Preset::Small.config(seed);
            config.geometry = Geometry { oob_bytes, ..config.geometry };
            simulated(seed, async move {
                let namespace = Rc::new(namespace(config).await);
                device::conformance::check_all(namespace.clone(), seed).await;
                let report = namespace.manager().check().await;
                assert_eq!(report.faults, Vec::<String>::new(), "seed {seed}");
            });
        }
    }
}
