//! Memory for values that is the caller's to give.
//!
//! The store bounds what it reads and writes at once. What a caller keeps of it afterwards, and what it makes of it, only the
//! caller can bound, and only before it is there.

use engine::task::LocalFuture;

/// Who is asked before a value of an operation is read, or made from what was read.
pub trait Reserve {
    /// Has room for a value of `length` bytes and what becomes of it, in place of what it has given for an earlier look of the same
    /// operation. A future where it has to be waited for: it counts against the operation's time.
    fn reserve(&self, length: usize) -> Option<LocalFuture<'_, ()>>;
}
