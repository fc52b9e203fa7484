//! Crate `kv`.

pub mod fuzz;
pub mod resp;
