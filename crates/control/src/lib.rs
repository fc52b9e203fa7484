//! The control plane: what is decided seldom and must be right, off every data path. Its first part is the [`catalogue`].

pub mod catalogue;
