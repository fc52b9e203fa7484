//! The one primitive: an array of blocks with an atomic compare-and-write, and its local kinds.

pub mod namespace;

pub use namespace::{Durability, Error, Lba, Namespace, NamespaceInfo};
