//! Standard input and output as streams that block no reactor: a thread waits for whoever is at the other end.

use std::io::{ErrorKind, Read, Write, stdin, stdout};
use std::sync::mpsc;
use std::thread;

use engine::sync::{MailReceiver, mailbox};
use engine::{Buf, View};

use crate::exit::Failure;

/// Pieces on their way to or from the thread. Chosen: one is being written while others are fetched.
const PIECES_MAX: usize = 8;
/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Standard output.
pub struct Out {
    pieces: mpsc::Sender<View>,
    answers: MailReceiver<std::io::Result<()>>,
    under_way: usize,
}

impl Out {
    /// Begins to write.
    pub fn new() -> Result<Out, Failure> {
        let (pieces, waiting) = mpsc::channel::<View>();
        let (say, answers) = mailbox(PIECES_MAX + 1);
        thread::Builder::new().name("stdout".into()).spawn(move || {
            while let Ok(piece) = waiting.recv() {
                let written = stdout().write_all(&piece).and_then(|()| stdout().flush());
                let is_bad = written.is_err();
                // Who has gone does not want to know; there is room for all that are under way.
                let _ = say.try_send(written);
                if is_bad {
                    return;
                }
            }
        })?;
        Ok(Out { pieces, answers, under_way: 0 })
    }

    /// Writes some bytes, behind those before. False: the reader has gone (`| head`), and wants no more.
    pub async fn write(&mut self, bytes: View) -> Result<bool, Failure> {
        if self.under_way == PIECES_MAX && !self.answer().await? {
            return Ok(false);
        }
        self.under_way += 1;
        // The thread has ended after an error, which its answer tells.
        let _ = self.pieces.send(bytes);
        Ok(true)
    }

    /// The same of text.
    pub async fn text(&mut self, text: &[u8]) -> Result<bool, Failure> {
        for part in text.chunks(READ_BYTES) {
            if !self.write(Buf::copy_from(part).freeze()).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all is written.
    pub async fn finish(mut self) -> Result<(), Failure> {
        while self.under_way > 0 && self.answer().await? {}
        Ok(())
    }

    async fn answer(&mut self) -> Result<bool, Failure> {
        match self.answers.recv().await {
            Some(Ok(())) => {
                self.under_way -= 1;
                Ok(true)
            }
            Some(Err(error)) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::from(error).during("standard output"))
            }
            _ => Ok(false),
        }
    }
}

/// Standard input.
pub struct In {
    wants: mpsc::Sender<()>,
    pieces: MailReceiver<std::io::Result<View>>,
}

impl In {
    /// Begins to read.
    pub fn new() -> Result<In, Failure> {
        let (wants, wanted) = mpsc::channel();
        let (say, pieces) = mailbox(PIECES_MAX);
        // As many as there is room for: the thread reads no more than that ahead.
        for _ in 0..PIECES_MAX {
            // Its other end is here.
            let _ = wants.send(());
        }
        thread::Builder::new().name("stdin".into()).spawn(move || {
            let mut is_end = false;
            while !is_end && wanted.recv().is_ok() {
                let read = read_piece();
                is_end = read.as_ref().map_or(true, View::is_empty);
                // Who has gone does not want to know.
                let _ = say.try_send(read);
            }
        })?;
        Ok(In { wants, pieces })
    }

    /// Bytes that come next, about a MiB where there are so many; none: that was all.
    pub async fn read(&mut self) -> Result<View, Failure> {
        let read = self.pieces.recv().await.unwrap_or_else(|| Ok(View::default()));
        // The thread may have ended.
        let _ = self.wants.send(());
        read.map_err(|error| Failure::from(error).during("standard input"))
    }
}

fn read_piece() -> std::io::Result<View> {
    let (mut buf, mut filled) = (Buf::with_len(READ_BYTES), 0);
    while filled < READ_BYTES {
        match stdin().read(&mut buf[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buf.set_len(filled);
    Ok(buf.freeze())
}
