//! What the machine can do at best with many exchanges under way on one connection: bare polled sockets, as in [`floor`].
//!
//! Both sides take whatever has come with one call, and answer (or ask anew) for all of it with one call. There is no
//! protocol, and the bytes are always the same, so they come from the cache: a target that reads a namespace can only be slower.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};

use crate::figures::{Sample, histogram, record};
use crate::floor::{Exchange, send_exactly};
use crate::machine;

/// A 4 KiB write: a command capsule with its data in it, a response back.
pub const WRITE_4K: Exchange = Exchange { request: 72 + 4096, reply: 24 };

/// How long both sides wait for bytes before the run is given up.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// One round of `depth` exchanges under way, answered on `answer_core`, asked on `ask_core`, for `time`.
pub fn round(
    exchange: Exchange,
    depth: usize,
    ask_core: usize,
    answer_core: usize,
    time: Duration,
) -> anyhow::Result<Sample> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        let answerer = scope.spawn(move || {
            machine::pin(answer_core)?;
            let (stream, _) = listener.accept()?;
            answer(&polled(stream)?, exchange, depth)
        });
        let asked = machine::pinned(ask_core, || {
            ask(
                &polled(TcpStream::connect(address).context("cannot connect to the answering side")?)?,
                exchange,
                depth,
                time,
            )
        });
        answerer.join().map_err(|_| anyhow!("the answering thread panicked"))??;
        asked?
    })
}

fn polled(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

/// Answers until the other side closes.
fn answer(stream: &TcpStream, exchange: Exchange, depth: usize) -> anyhow::Result<()> {
    let mut requests = vec![0u8; depth * exchange.request];
    let replies = vec![0u8; depth * exchange.reply];
    let mut received = 0;
    while let Some(bytes) = wait(stream, &mut requests)? {
        received += bytes;
        let whole = received / exchange.request;
        received %= exchange.request;
        send_exactly(stream, &replies[..whole * exchange.reply])?;
    }
    Ok(())
}

fn ask(stream: &TcpStream, exchange: Exchange, depth: usize, time: Duration) -> anyhow::Result<Sample> {
    let requests = vec![0u8; depth * exchange.request];
    let mut replies = vec![0u8; depth * exchange.reply];
    let mut latencies = histogram();
    let mut asked_at: VecDeque<Instant> = VecDeque::with_capacity(depth);
    let cpu = machine::own_cpu_time();
    let begin = Instant::now();
    let (mut now, mut received) = (begin, 0);
    // Nothing is asked after the time is over, and everything that was asked is waited for.
    while now - begin < time || !asked_at.is_empty() {
        let more = if now - begin < time { depth - asked_at.len() } else { 0 };
        asked_at.extend(std::iter::repeat_n(now, more));
        send_exactly(stream, &requests[..more * exchange.request])?;
        received += wait(stream, &mut replies)?.context("the answering side closed the connection")?;
        let whole = received / exchange.reply;
        received %= exchange.reply;
        now = Instant::now();
        asked_at.drain(..whole).for_each(|asked| record(&mut latencies, now - asked));
    }
    // Asking and answering threads live in this process: their sum is given as the client's.
    let used = machine::own_cpu_time().saturating_sub(cpu);
    Ok(Sample::new(&latencies, now - begin, used, None))
}

/// Takes what comes next, polling; `None`: the peer has closed.
fn wait(mut stream: &TcpStream, buffer: &mut [u8]) -> anyhow::Result<Option<usize>> {
    let mut deadline = None;
    loop {
        match stream.read(buffer) {
            Ok(0) => return Ok(None),
            Ok(bytes) => return Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + SILENCE_MAX);
                anyhow::ensure!(Instant::now() < deadline, "no bytes within {SILENCE_MAX:?}");
                std::hint::spin_loop();
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::READ_4K;

    #[test]
    fn as_many_are_answered_as_were_asked() {
        let core = machine::cores().unwrap();
        let (ask, answer) = (core[0], core[core.len() - 1]);
        for (exchange, depth) in [(READ_4K, 1), (READ_4K, 32), (WRITE_4K, 128)] {
            let sample = round(exchange, depth, ask, answer, Duration::from_millis(50)).unwrap();
            assert!(sample.operations >= depth as u64 && sample.p50_us > 0.0, "{exchange:?}, {depth}: {sample:?}");
        }
    }
}
