//! Judges recorded histories of a key-value store from outside: is each key a linearizable register, conditional
//! operations included?
//!
//! Shares no code with what it judges. A history ([`History`]) is recorded by a test, in one process or in many (as JSON
//! lines), and checked key by key ([`check`]): linearizability is local, a history is linearizable if and only if that
//! of each key is (Herlihy and Wing 1990, §3.3).
//!
//! The protocols' models share its [`explore`]r, which visits every state of one.

pub mod explore;
mod fault;
mod history;
mod reduce;
mod search;

pub use fault::Fault;
pub use history::{Action, History, Operation, ReadError, Recorder, Token, appended};
pub use search::{STEPS_MAX, Summary, check};
