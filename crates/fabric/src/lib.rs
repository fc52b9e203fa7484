//! Crate `fabric`.
