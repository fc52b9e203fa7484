//! The control plane: what is decided seldom and must be right, off every data path. The [`catalogue`] keeps what is known,
//! [`provision`] makes volumes by name, and [`rest`] offers that to programs.

pub mod catalogue;
pub mod provision;
pub mod rest;
