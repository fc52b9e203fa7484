//! Crate `pool`.
