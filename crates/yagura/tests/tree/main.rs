//! What the tree says of itself is true.

mod conformance;
mod layers;
