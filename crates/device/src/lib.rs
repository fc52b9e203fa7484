//! Crate `device`.
