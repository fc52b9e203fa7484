//! The control plane: what is decided seldom and must be right, off every data path. The [`catalogue`] keeps what is known, and
//! [`provision`] makes volumes by name.

pub mod catalogue;
pub mod provision;
