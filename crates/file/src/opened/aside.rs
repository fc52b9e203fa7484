//! Room in a quota, set aside for bytes before anybody is told that they are written. What lies in stripes later takes from that;
//! what needs more is written all the same.

use std::cell::Cell;
use std::mem;

use super::OpenFile;
use crate::data::{Content, Inode as _, ROW_BYTES, SPAN_BYTES, State, counted};
use crate::error::Error;
use crate::record::inode::INLINE_BYTES_MAX;

const ROW: u64 = ROW_BYTES as u64;

/// What was set aside beside what is gathered, until it is dropped: for bytes that go past that, or are about to be gathered.
pub(super) struct Aside<'a> {
    file: &'a OpenFile,
    bytes: u64,
}

impl Aside<'_> {
    /// The bytes are gathered, and count with what is.
    pub(super) fn gathered(self) {
        self.end();
        // Nothing is to go back: that is looked at when a block arrives, and not with each write.
        mem::forget(self);
    }

    fn end(&self) {
        let through: &Cell<u64> = &self.file.through;
        through.set(through.get().saturating_sub(self.bytes));
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.end();
        self.file.trim_aside();
    }
}

/// What bytes that lie in the inode count when the file goes up to `end`; `None`: they stay there.
fn moved(state: &State, end: u64) -> Option<u64> {
    match &state.content {
        Content::Inline(_) if state.size.max(end) <= INLINE_BYTES_MAX as u64 => None,
        Content::Inline(bytes) => Some(counted(bytes.len() as u64)),
        _ => Some(0),
    }
}

impl OpenFile {
    /// Before bytes of one block are gathered.
    ///
    /// # Errors
    /// [`Error::Quota`]; what the store says.
    pub(super) async fn set_aside(&self, at: u64, length: usize) -> Result<Aside<'_>, Error> {
        let funds = self.inode.funds();
        if !funds.counts() {
            return self.aside(0, 0).await;
        }
        let (state, _) = self.inode.load(false).await?;
        let end = self.dirty.borrow().end().unwrap_or(0).max(at + length as u64);
        let Some(moved) = moved(&state, end) else { return self.aside(0, 0).await };
        let (growth, held) = {
            let dirty = self.dirty.borrow();
            let is_short = matches!(state.content, Content::Inline(_)) && !dirty.has_leaving();
            (dirty.growth(at, length), is_short.then(|| dirty.counted()))
        };
        // Of a file that lay in its inode up to now nothing was set aside before.
        let lacking = match held {
            Some(held) => (held + moved).saturating_add_signed(growth).saturating_sub(funds.left()),
            None => 0.max(growth) as u64,
        };
        self.aside(moved.saturating_add_signed(growth), lacking).await
    }

    /// Before bytes are written past what is gathered; `None`: at the end of the file.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn set_aside_through(&self, at: Option<u64>, length: usize) -> Result<Aside<'_>, Error> {
        if !self.inode.funds().counts() || length == 0 {
            return self.aside(0, 0).await;
        }
        let (state, _) = self.inode.load(false).await?;
        let at = at.unwrap_or(state.size);
        let end = at + length as u64;
        // No stripe lies in two spans, and of one that is cut there neither part is of whole rows.
        let cuts = if at.is_multiple_of(ROW) { 0 } else { (end - 1) / SPAN_BYTES - at / SPAN_BYTES };
        let wanted = moved(&state, end).map_or(0, |moved| counted(length as u64) + cuts * ROW + moved);
        self.aside(wanted, wanted).await
    }

    /// Before the file is made so long: where that is more than an inode has, what lies there goes into a stripe.
    ///
    /// # Errors
    /// The same.
    pub(super) async fn set_aside_for_end(&self, end: u64) -> Result<Aside<'_>, Error> {
        if !self.inode.funds().counts() {
            return self.aside(0, 0).await;
        }
        let (state, _) = self.inode.load(false).await?;
        let wanted = moved(&state, end).unwrap_or(0);
        self.aside(wanted, wanted).await
    }

    /// Keeps so many bytes beside what is gathered, of which some are lacking yet.
    pub(super) async fn aside(&self, bytes: u64, lacking: u64) -> Result<Aside<'_>, Error> {
        // First: what arrives meanwhile must not give it back.
        self.through.set(self.through.get() + bytes);
        let aside = Aside { file: self, bytes };
        self.inode.funds().raise(lacking).await?;
        Ok(aside)
    }

    /// What is not wanted any more of what was set aside goes back.
    pub(super) fn trim_aside(&self) {
        let funds = self.inode.funds();
        if funds.counts() {
            let dirty = self.dirty.borrow();
            let gathered = if dirty.is_clean() { 0 } else { dirty.counted() + ROW };
            funds.trim(gathered + self.through.get());
        }
    }
}
