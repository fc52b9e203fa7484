//! Files and pipes beside the reactor.
//!
//! Invariant: nothing that can block is done on the reactor's thread. Its timers give the target its signs of life; were they to
//! wait for a pipe that stalls, the target would drop the association. Nor is it left to the threads that compute: one that
//! waits for a pipe would keep a host from authenticating itself anew.

use std::io::{Read, Write};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use engine::sync::mailbox;

use crate::exit::Failure;

type Job = Box<dyn FnOnce() + Send>;

/// A file, and a thread that does one thing at a time with it. One that is stuck ends with the program.
struct Beside<F> {
    jobs: Sender<Job>,
    /// `None`: it is not open yet, or the thread has it.
    file: Option<F>,
}

impl<F: Send + 'static> Beside<F> {
    fn new() -> Result<Beside<F>, Failure> {
        let (jobs, waiting) = channel::<Job>();
        thread::Builder::new().name("files".to_owned()).spawn(move || waiting.iter().for_each(|job| job()))?;
        Ok(Beside { jobs, file: None })
    }

    /// What `work` makes of the file, done by the thread.
    async fn run<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(Option<F>) -> Result<(F, T), Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, receiver) = mailbox(1);
        let file = self.file.take();
        let job = move || {
            // Whoever asked may have gone.
            let _ = sender.try_send(work(file));
        };
        let gone = || Failure::refused("the thread that reads and writes files has ended");
        self.jobs.send(Box::new(job)).map_err(|_| gone())?;
        let (file, done) = receiver.recv().await.ok_or_else(gone)??;
        self.file = Some(file);
        Ok(done)
    }
}

/// Where bytes come from.
pub struct Source(Beside<Box<dyn Read + Send>>);

impl Source {
    /// `open` may block too, as that of a pipe without another end does.
    pub async fn open<R: Read + Send + 'static>(
        open: impl FnOnce() -> Result<R, Failure> + Send + 'static,
    ) -> Result<Source, Failure> {
        let mut beside = Beside::new()?;
        beside.run(move |_| Ok((Box::new(open()?) as Box<dyn Read + Send>, ()))).await?;
        Ok(Source(beside))
    }

    /// The next `bytes`, fewer only at the end.
    pub async fn read(&mut self, bytes: usize) -> Result<Vec<u8>, Failure> {
        let read = move |file: Option<Box<dyn Read + Send>>| {
            let mut file = file.ok_or_else(|| Failure::refused("a read that failed is not followed by another"))?;
            let mut read = Vec::with_capacity(bytes);
            file.by_ref().take(bytes as u64).read_to_end(&mut read)?;
            Ok((file, read))
        };
        self.0.run(read).await
    }
}

/// Where bytes go.
pub struct Sink(Beside<Box<dyn Write + Send>>);

impl Sink {
    /// `open` may block too.
    pub async fn open<W: Write + Send + 'static>(
        open: impl FnOnce() -> Result<W, Failure> + Send + 'static,
    ) -> Result<Sink, Failure> {
        let mut beside = Beside::new()?;
        beside.run(move |_| Ok((Box::new(open()?) as Box<dyn Write + Send>, ()))).await?;
        Ok(Sink(beside))
    }

    /// Writes all of it, and flushes.
    pub async fn write(&mut self, bytes: Vec<u8>) -> Result<(), Failure> {
        let write = move |file: Option<Box<dyn Write + Send>>| {
            let mut file = file.ok_or_else(|| Failure::refused("a write that failed is not followed by another"))?;
            file.write_all(&bytes)?;
            file.flush()?;
            Ok((file, ()))
        };
        self.0.run(write).await
    }
}
