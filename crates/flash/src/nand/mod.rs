//! A model of NAND flash: a device with the rules, the timing and the failures of one.
//!
//! [`Nand`] is the medium, which is there without power too; [`Powered`] is the device while it has power, and what a media
//! manager is given. All that happens by chance follows from the seed of the medium and from the order of the commands.

mod chunks;
mod content;
mod faults;
mod model;
mod timing;

#[cfg(any(test, feature = "testing"))]
pub(crate) use content::{bytes_on_namespace, decode_head, encode_head};
pub use faults::{Chances, Fault};
pub use model::{Counts, Nand, NandConfig, NandError, Powered};
pub(crate) use timing::Lanes;
pub use timing::{Port, PortKind, Timing};
