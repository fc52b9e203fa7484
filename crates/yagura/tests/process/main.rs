//! Process-level tests: outside view only.

mod nodes;
mod support;
mod up;
mod usage;
