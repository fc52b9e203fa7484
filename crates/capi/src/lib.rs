//! The store, and block devices, for C: the functions of `include/yagura.h`, which is where they are documented.
//!
//! Invariants:
//! - No panic crosses into C: every function runs inside [`fault::guard`] or can't panic.
//! - What C holds is a pointer from `Box::into_raw`, given back once; functions borrow it shared, so any thread may call.
//! - A pointer from C is looked at only inside the call it came with; what outlives the call is a copy.
//! - A completion is called exactly once, or the function that took it has returned an error.

mod device;
mod fault;
mod foreign;
mod handle;
mod operation;
mod request;
mod scan;
mod update;
mod value;
