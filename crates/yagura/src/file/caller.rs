//! Who runs this: whose what he makes is, and who may use it.

use rustix::fs::Mode;

/// User and group of the caller.
pub fn own() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// What permissions the caller takes away from what he makes.
pub fn umask() -> u16 {
    // It can only be read by setting it. Nothing else of this process makes files meanwhile.
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    (mask.bits() & 0o777) as u16
}
