//! Process-level tests: outside view only.

mod authentication;
mod drive;
mod host;
mod hostile;
mod nodes;
mod reservations;
mod secured;
mod support;
mod target;
mod up;
mod usage;
