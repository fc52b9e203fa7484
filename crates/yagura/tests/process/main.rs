//! Process-level tests: outside view only.

mod support;
mod usage;
