//! How a test begins: a model that is formatted, and its namespace.

use std::rc::Rc;

use flash::nand::{Nand, NandConfig};
use flash::presets::Preset;
use flash::{FlashNamespace, FormatOptions, Geometry, Manager, ManagerOptions};

/// The small preset, with another geometry.
pub fn small(seed: u64, change: impl FnOnce(&mut Geometry)) -> NandConfig {
    let mut config = Preset::Small.config(seed);
    change(&mut config.geometry);
    config
}

pub async fn formatted(config: NandConfig) -> Rc<Nand> {
    let nand = Nand::in_memory(config).expect("it works");
    Manager::format(nand.power_on(), &FormatOptions::default()).await.expect("formatted");
    nand
}

pub async fn opened(nand: &Rc<Nand>) -> FlashNamespace {
    opened_by(nand, ManagerOptions::default()).await
}

pub async fn opened_by(nand: &Rc<Nand>, options: ManagerOptions) -> FlashNamespace {
    FlashNamespace::new(Manager::open(nand.power_on(), options).await.expect("opened"))
}
