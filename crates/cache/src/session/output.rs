//! Replies that wait to be sent: short ones gathered in a batch, long values as they are.

use std::collections::VecDeque;

use engine::net::SendBatch;
use engine::{Buf, View};

use super::OUTPUT_BYTES_MAX;
use crate::item::Value;

/// What waits to be sent, in order: the batch, then `later`.
#[derive(Debug, Default)]
pub struct Output {
    /// None before the first reply, and while it is being sent.
    batch: Option<SendBatch>,
    /// What no longer fits the batch.
    later: VecDeque<View>,
    later_bytes: usize,
    /// What is added first from now on, if that is wanted for the log.
    heard: Option<Vec<u8>>,
}

/// Bytes of an answer that are heard. Chosen: what stands before its first value, but for the longest keys.
pub(super) const HEARD_BYTES_MAX: usize = 128;

impl Output {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.batch.as_ref().map_or(0, SendBatch::len) + self.later_bytes
    }

    /// None waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing more is to be added before some of it was sent.
    pub fn is_full(&self) -> bool {
        self.batch.as_ref().is_some_and(SendBatch::is_full) || self.len() >= OUTPUT_BYTES_MAX
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        if let Some(heard) = &mut self.heard {
            heard.extend_from_slice(&bytes[..bytes.len().min(HEARD_BYTES_MAX - heard.len())]);
        }
        if self.later.is_empty() {
            self.batch.get_or_insert_default().head(bytes);
        } else if !bytes.is_empty() {
            for part in bytes.chunks(engine::buf::BUF_BYTES_MAX) {
                self.push_later(Buf::copy_from(part).freeze());
            }
        }
    }

    /// Appends `bytes` and the end of a line.
    pub fn line(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
        self.bytes(b"\r\n");
    }

    /// Appends a value: a long one without a copy.
    pub fn value(&mut self, value: Value<'_>) {
        match value {
            Value::Whole(bytes) => self.bytes(bytes),
            Value::Chunks(chunks) => chunks.iter().for_each(|chunk| self.view(chunk.clone())),
        }
    }

    /// Whether what is added from now on is heard, up to [`Output::heard`]. What was heard already stays.
    #[inline]
    pub(super) fn hear(&mut self, hears: bool) {
        match (hears, &self.heard) {
            (true, None) => self.heard = Some(Vec::new()),
            (false, Some(_)) => self.heard = None,
            _ => {}
        }
    }

    /// What was added first, and no more of it.
    pub(super) fn heard(&mut self) -> Vec<u8> {
        self.heard.take().unwrap_or_default()
    }

    fn view(&mut self, view: View) {
        let batch = self.batch.get_or_insert_default();
        if self.later.is_empty() && !batch.is_full() {
            batch.view(view);
        } else if !view.is_empty() {
            self.push_later(view);
        }
    }

    fn push_later(&mut self, view: View) {
        self.later_bytes += view.len();
        self.later.push_back(view);
    }

    /// Takes a batch to send, empty if nothing waits. It comes back by [`Output::give_back`].
    pub fn take(&mut self) -> SendBatch {
        let mut batch = self.batch.take().unwrap_or_default();
        while !batch.is_full()
            && let Some(view) = self.later.pop_front()
        {
            self.later_bytes -= view.len();
            batch.view(view);
        }
        batch
    }

    /// Takes back a batch that was sent and cleared, for its memory.
    pub fn give_back(&mut self, batch: SendBatch) {
        self.batch.get_or_insert(batch);
    }

    /// Takes out the memory that is kept for the next reply, some 20 KiB, for another connection: this one rests.
    pub fn spare(&mut self) -> Option<SendBatch> {
        if self.is_empty() { self.batch.take() } else { None }
    }
}
