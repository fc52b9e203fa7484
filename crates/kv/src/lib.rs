//! Crate `kv`.
