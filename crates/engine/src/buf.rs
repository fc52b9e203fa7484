//! Aligned, pooled buffers that are passed by ownership.
//!
//! A [`Buf`] has one owner who may write; [`Buf::freeze`] turns it into a [`View`] that may be cloned, sliced and sent,
//! and that returns the memory to the pool of the thread that drops the last of them. Memory is zeroed when it is first
//! obtained from the system and is initialised ever after, so exposing a recycled buffer's old bytes is never undefined
//! behaviour; whoever sends a buffer must have written all of it.
//!
//! Bounds: the pool keeps at most [`POOL_BYTES_MAX`] per thread and frees the rest. How much may be *in use* is bounded by
//! the owners (queue depth x transfer size), not here.

/// Address and length granularity of every buffer: what O_DIRECT needs on any medium.
pub const ALIGN: usize = 4096;
/// The largest buffer: a 1 MiB payload and one block of headers.
pub const BUF_BYTES_MAX: usize = (1 << 20) + ALIGN;
/// What one thread's pool keeps for reuse. Guessed: 64 commands of 1 MiB.
pub const POOL_BYTES_MAX: usize = 64 << 20;

// PUBLIC FACE (to be kept):
//   impl Buf {
//     pub fn with_capacity(capacity: usize) -> Buf      // len 0
//     pub fn with_len(len: usize) -> Buf                // len bytes of unspecified (but initialised) content
//     pub fn zeroed(len: usize) -> Buf
//     pub fn copy_from(bytes: &[u8]) -> Buf
//     pub fn capacity(&self) -> usize; pub fn len; pub fn is_empty
//     pub fn set_len(&mut self, len: usize)             // panics over capacity
//     pub fn extend_from_slice(&mut self, bytes: &[u8]) // panics over capacity
//     pub fn spare_mut(&mut self) -> &mut [u8]          // [len..capacity]
//     pub fn freeze(self) -> View
//   }  Deref/DerefMut<Target=[u8]> over [..len], Send, Debug, Default (an empty buffer that owns no memory)
//   impl View {
//     pub fn slice(&self, range: impl RangeBounds<usize>) -> View; pub fn len; is_empty
//     pub fn try_into_buf(self) -> Result<Buf, View>    // when this is the only view of the whole buffer
//   }  Deref<Target=[u8]>, Clone, Send + Sync, Debug, Default, From<Buf>
