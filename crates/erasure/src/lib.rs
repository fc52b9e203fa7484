//! Erasure codes: units of data, and units of parity from which lost units are made again.
//!
//! - [`Code`]: what is offered: encode, decode, update, check.
//! - [`Error`]: what was wrong with what was given.
//! - [`Kernel`]: the loops over the bytes, by what the processor has.
//! - `field`, `matrix`: the arithmetic, and which factors make which unit.
//!
//! The code, its invariants and its costs are in the README of this crate.

mod code;
mod error;
mod field;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod kernel;
mod matrix;

pub use code::Code;
pub use error::Error;
pub use kernel::Kernel;
pub use matrix::{PARITY_MAX, UNITS_MAX};
