//! [`Handout`]: things made before the threads that use them, one for each.

use std::sync::{Mutex, PoisonError};

/// Gives each item away once, by its index.
pub struct Handout<T>(Mutex<Vec<Option<T>>>);

impl<T> Handout<T> {
    /// Holds these items.
    pub fn new(items: impl IntoIterator<Item = T>) -> Handout<T> {
        Handout(Mutex::new(items.into_iter().map(Some).collect()))
    }

    /// Item `index`; `None` if there is none or it was taken.
    pub fn take(&self, index: usize) -> Option<T> {
        // A panic elsewhere leaves whole items behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index)?.take()
    }
}
