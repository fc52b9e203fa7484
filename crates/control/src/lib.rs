//! The control plane: what is decided seldom and must be right, off every data path. The [`catalogue`] keeps what is known,
//! [`provision`] makes volumes by name, [`rest`] offers that to programs, and
//! [`client`] asks for it.

pub mod catalogue;
pub mod client;
pub mod provision;
pub mod rest;
