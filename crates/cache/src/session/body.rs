//! Long values, received straight into the chunks in which they will be kept.

use engine::{Buf, View};

use super::{Context, Data, Flow, Server, Session, State, Step};
use crate::slot::{Slots, frozen};

/// A long value that comes, and its command.
#[derive(Debug)]
pub(super) struct Body {
    /// The command's line, or its header, extras and key.
    head: Vec<u8>,
    /// Its chunks: those before `filled` are full.
    chunks: Vec<Buf>,
    filled: usize,
    /// Bytes of the line's end behind the value.
    line_end: usize,
    /// The value, whole, and whether the line's end was behind it.
    value: Option<(Vec<View>, bool)>,
}

impl Body {
    /// A value into these chunks.
    pub fn new(head: &[u8], chunks: Vec<Buf>, line_end: usize) -> Body {
        Body { head: head.to_vec(), chunks, filled: 0, line_end, value: None }
    }

    /// Some chunk is not full yet.
    pub fn is_filling(&self) -> bool {
        self.filled < self.chunks.len()
    }

    /// The chunk to receive into.
    pub fn lend(&mut self) -> Buf {
        self.chunks.get_mut(self.filled).map(std::mem::take).unwrap_or_default()
    }

    /// Takes it back.
    pub fn receive(&mut self, buf: Buf) {
        if let Some(chunk) = self.chunks.get_mut(self.filled) {
            *chunk = buf;
        }
        self.pass_full();
    }

    /// Takes what there is of `bytes`; tells how many.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(chunk) = self.chunks.get_mut(self.filled)
            && taken < bytes.len()
        {
            let count = (chunk.capacity() - chunk.len()).min(bytes.len() - taken);
            chunk.extend_from_slice(&bytes[taken..taken + count]);
            taken += count;
            self.pass_full();
        }
        taken
    }

    fn pass_full(&mut self) {
        while self.chunks.get(self.filled).is_some_and(|chunk| chunk.len() == chunk.capacity()) {
            self.filled += 1;
        }
    }
}

impl<S: Slots> Session<S> {
    /// Goes on with a long value.
    pub(super) fn body<V: Server>(&mut self, context: Context<'_, S, V>) -> Option<Step<S::Place>> {
        let State::Body(mut body) = std::mem::replace(&mut self.state, State::Command) else { return None };
        if body.value.is_none() {
            let taken = body.fill(self.input.bytes());
            self.input.consume(taken);
            let rest = self.input.bytes();
            if body.is_filling() || rest.len() < body.line_end {
                self.wanted = body.line_end;
                self.state = State::Body(body);
                return Some(Step::Receive);
            }
            let is_valid = body.line_end == 0 || rest.starts_with(b"\r\n");
            self.input.consume(body.line_end);
            self.wanted = 0;
            body.value = Some((frozen(std::mem::take(&mut body.chunks)), is_valid));
            body.filled = 0;
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
}
