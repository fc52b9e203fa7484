//! Long values, received straight into the chunks in which they will be kept.

use engine::{Buf, View};

use super::{Context, Data, Ending, Flow, Server, Session, State, Step};
use crate::slot::{Slots, chunk_lengths, frozen};

/// A long value that comes, and its command.
///
/// Invariant: a chunk is begun when those before it are full, so that memory is taken for what has come.
#[derive(Debug)]
pub(super) struct Body {
    /// The command's line, or its header, extras and key.
    head: Vec<u8>,
    /// Bytes of the value.
    length: usize,
    /// Those of its chunks that were begun: all but the last are full.
    chunks: Vec<Buf>,
    /// Bytes of the line's end behind the value.
    line_end: usize,
    /// The last chunk is with who receives into it.
    is_lent: bool,
    /// The value, whole, and whether the line's end was behind it.
    value: Option<(Vec<View>, bool)>,
}

impl Body {
    /// A value of `length` bytes, of which none is taken yet.
    pub fn new(head: &[u8], length: usize, line_end: usize) -> Body {
        Body { head: head.to_vec(), length, chunks: Vec::new(), line_end, is_lent: false, value: None }
    }

    /// What comes next comes into a chunk.
    pub fn lends(&self) -> bool {
        self.is_lent || self.filling().is_some()
    }

    /// The chunk that takes more.
    fn filling(&self) -> Option<&Buf> {
        self.chunks.last().filter(|chunk| chunk.len() < chunk.capacity())
    }

    /// The chunk to receive into.
    pub fn lend(&mut self) -> Buf {
        self.is_lent = true;
        self.chunks.pop().unwrap_or_default()
    }

    /// Takes it back.
    pub fn receive(&mut self, buf: Buf) {
        self.is_lent = false;
        self.chunks.push(buf);
    }

    /// Takes what the last chunk has room for of `bytes`; tells how many.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let Some(chunk) = self.chunks.last_mut() else { return 0 };
        let count = (chunk.capacity() - chunk.len()).min(bytes.len());
        chunk.extend_from_slice(&bytes[..count]);
        count
    }

    /// Bytes of the chunk that is to be begun now.
    fn lacks(&self) -> Option<usize> {
        if self.filling().is_some() { None } else { chunk_lengths(self.length - self.received()).next() }
    }

    /// Bytes that have come.
    fn received(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len()).sum()
    }
}

impl<S: Slots> Session<S> {
    /// Goes on with a long value.
    pub(super) fn body<V: Server>(&mut self, context: Context<'_, S, V>) -> Option<Step<S::Place>> {
        let State::Body(mut body) = std::mem::replace(&mut self.state, State::Command) else { return None };
        if body.value.is_none() {
            let taken = body.fill(self.input.bytes());
            self.input.consume(taken);
            if let Some(length) = body.lacks() {
                return self.begin_chunk(context, body, length);
            }
            let rest = self.input.bytes();
            if body.filling().is_some() || rest.len() < body.line_end {
                self.wanted = body.line_end;
                self.state = State::Body(body);
                return Some(Step::Receive);
            }
            let is_valid = body.line_end == 0 || rest.starts_with(b"\r\n");
            self.input.consume(body.line_end);
            self.wanted = 0;
            body.value = Some((frozen(std::mem::take(&mut body.chunks)), is_valid));
        }
        let (chunks, is_valid) = body.value.as_ref()?;
        let heard = self.listen(context.server);
        let flow = self.run(context, &body.head, Data::Long(chunks, *is_valid));
        heard.into_iter().for_each(|heard| self.tell_command(context, heard, &body.head, &flow));
        match flow {
            Flow::Fetch(places) => {
                self.state = State::Body(body);
                Some(Step::Fetch(places))
            }
            Flow::Room(no_room) => {
                self.state = State::Body(body);
                Some(Step::MakeRoom(no_room))
            }
            // The value was received, whatever became of it.
            _ => {
                self.end_command();
                None
            }
        }
    }

    /// Begins the next chunk of a value, or refuses the value.
    fn begin_chunk<V: Server>(
        &mut self,
        context: Context<'_, S, V>,
        mut body: Body,
        length: usize,
    ) -> Option<Step<S::Place>> {
        match context.slots.chunk(length, body.length) {
            Ok(chunk) => {
                body.chunks.push(chunk);
                // Each has its tries: a long value has many chunks.
                self.tries = 0;
                self.state = State::Body(body);
                None
            }
            Err(no_room) if !self.is_out_of_room() => {
                self.state = State::Body(body);
                Some(Step::MakeRoom(no_room))
            }
            Err(_) => {
                let received = body.received();
                let heard = self.listen(context.server);
                let flow = self.run(context, &body.head, Data::Here(&[]));
                heard.into_iter().for_each(|heard| self.tell_command(context, heard, &body.head, &flow));
                // What has come of it is passed over already.
                self.state = match flow {
                    Flow::Swallow(bytes) if bytes >= received => State::Swallow(bytes - received),
                    _ => State::Closing(Ending::Error),
                };
                self.end_command();
                None
            }
        }
    }
}
