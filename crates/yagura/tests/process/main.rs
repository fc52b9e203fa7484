//! Process-level tests: outside view only.

mod authentication;
mod backup;
mod cache;
mod catalogue;
mod control;
mod csi;
mod dashboard;
mod drive;
mod file;
mod file_fsck;
mod file_locks;
mod file_mend;
mod file_verbs;
mod flash;
mod fuzz;
mod host;
mod hostile;
mod management;
mod membership;
mod nbd;
mod nodes;
mod operator;
#[path = "../../../cache/tests/all/port.rs"]
mod port;
mod redis;
mod replacing;
mod reservations;
mod secured;
mod support;
mod target;
mod tls;
mod two_members;
mod up;
mod up_files;
mod usage;
mod volume;
