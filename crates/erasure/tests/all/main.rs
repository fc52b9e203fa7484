//! Codes from outside: all losses, updates, checks, refusals, and the parity of another implementation.

mod isal;
mod losses;
mod refusals;
mod stripe;
mod updates;
