//! A client of memcached and Redis on our engine, so that all sides of a row wait for their sockets in the same way.
//! One request at a time on a connection: memcached's text protocol (`doc/protocol.txt` of 1.6), Redis's RESP2.

use std::cell::RefCell;
use std::net::SocketAddr;

use anyhow::Context as _;
use engine::net::{SendBatch, TcpStream};
use engine::{Buf, View};

/// A value and the lines around it: 1 MiB is memcached's default item limit, the buffer's limit is the engine's.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// What the server speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// `get`, `set`, `delete`.
    Memcached,
    /// `GET`, `SET`, `DEL`.
    Redis,
}

/// One connection.
pub struct Client {
    protocol: Protocol,
    stream: TcpStream,
    state: RefCell<Option<(Buf, SendBatch)>>,
}

impl Client {
    /// Connects.
    pub async fn connect(protocol: Protocol, address: SocketAddr) -> anyhow::Result<Client> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {protocol:?}"))?;
        let state = RefCell::new(Some((Buf::with_capacity(REPLY_BYTES_MAX), SendBatch::new())));
        Ok(Client { protocol, stream, state })
    }

    /// Whether the key has a value; the value is received whole.
    pub async fn get(&self, key: &[u8]) -> anyhow::Result<bool> {
        let (mut buffer, mut batch) = self.take()?;
        self.ask_of(&mut batch, [b"get ", b"*2\r\n$3\r\nGET\r\n$"], key);
        batch = self.send(batch).await?;
        buffer.set_len(0);
        let found = loop {
            buffer = self.receive(buffer).await?;
            let found = match self.protocol {
                Protocol::Memcached => found_by_memcached(&buffer),
                Protocol::Redis => found_by_redis(&buffer),
            };
            match found {
                Some(Ok(found)) => break found,
                Some(Err(())) => {
                    anyhow::bail!("{:?} answered {:?}", self.protocol, String::from_utf8_lossy(&buffer))
                }
                None => {}
            }
        };
        self.state.replace(Some((buffer, batch)));
        Ok(found)
    }

    /// Stores a value.
    pub async fn set(&self, key: &[u8], value: &View) -> anyhow::Result<()> {
        let (buffer, mut batch) = self.take()?;
        let (mut digits, mut length) = ([0u8; 20], [0u8; 20]);
        let length = decimal(value.len(), &mut length);
        match self.protocol {
            Protocol::Memcached => {
                [b"set ".as_slice(), key, b" 0 0 ", length, b"\r\n"].iter().for_each(|part| batch.head(part));
            }
            Protocol::Redis => {
                let parts =
                    [b"*3\r\n$3\r\nSET\r\n$".as_slice(), decimal(key.len(), &mut digits), b"\r\n", key, b"\r\n$"];
                parts.iter().chain(&[length, b"\r\n"]).for_each(|part| batch.head(part));
            }
        }
        batch.view(value.clone());
        batch.head(b"\r\n");
        self.command(buffer, batch, &[b"STORED\r\n", b"+OK\r\n"]).await
    }

    /// Deletes a value, which has to be there.
    pub async fn delete(&self, key: &[u8]) -> anyhow::Result<()> {
        let (buffer, mut batch) = self.take()?;
        self.ask_of(&mut batch, [b"delete ", b"*2\r\n$3\r\nDEL\r\n$"], key);
        self.command(buffer, batch, &[b"DELETED\r\n", b":1\r\n"]).await
    }

    /// A request with nothing but a key, which begins as memcached and as Redis have it.
    fn ask_of(&self, batch: &mut SendBatch, [memcached, redis]: [&[u8]; 2], key: &[u8]) {
        let mut digits = [0u8; 20];
        match self.protocol {
            Protocol::Memcached => batch.head(memcached),
            Protocol::Redis => {
                [redis, decimal(key.len(), &mut digits), b"\r\n"].iter().for_each(|part| batch.head(part));
            }
        }
        [key, b"\r\n"].iter().for_each(|part| batch.head(part));
    }

    /// Sends a request whose answer is one line, one of `good`.
    async fn command(&self, mut buffer: Buf, batch: SendBatch, good: &[&[u8]]) -> anyhow::Result<()> {
        let batch = self.send(batch).await?;
        buffer.set_len(0);
        while !buffer.ends_with(b"\r\n") {
            buffer = self.receive(buffer).await?;
        }
        anyhow::ensure!(
            good.contains(&&buffer[..]),
            "{:?} answered {:?}",
            self.protocol,
            String::from_utf8_lossy(&buffer)
        );
        self.state.replace(Some((buffer, batch)));
        Ok(())
    }

    fn take(&self) -> anyhow::Result<(Buf, SendBatch)> {
        self.state.take().context("one request at a time, and none after an error")
    }

    async fn send(&self, batch: SendBatch) -> anyhow::Result<SendBatch> {
        let (result, batch) = self.stream.send(batch).await;
        result.with_context(|| format!("cannot send to {:?}", self.protocol))?;
        Ok(batch)
    }

    async fn receive(&self, buffer: Buf) -> anyhow::Result<Buf> {
        let (result, buffer) = self.stream.recv(buffer).await;
        let received = result.with_context(|| format!("cannot receive from {:?}", self.protocol))?;
        anyhow::ensure!(received > 0, "{:?} closed the connection", self.protocol);
        Ok(buffer)
    }
}

/// Whether an answer to `get` is whole, and has a value.
fn found_by_memcached(answer: &[u8]) -> Option<Result<bool, ()>> {
    match answer {
        b"END\r\n" => Some(Ok(false)),
        _ if answer.ends_with(b"\r\nEND\r\n") => Some(Ok(true)),
        _ if !b"VALUE ".starts_with(&answer[..answer.len().min(6)]) && !b"END\r\n".starts_with(answer) => Some(Err(())),
        _ => None,
    }
}

/// Whether an answer to `GET` is whole, and has a value.
fn found_by_redis(answer: &[u8]) -> Option<Result<bool, ()>> {
    let line = answer.iter().position(|&byte| byte == b'\n')?;
    let length = answer.first().filter(|&&kind| kind == b'$').and(std::str::from_utf8(&answer[1..line]).ok());
    match length.and_then(|text| text.trim_end().parse::<i64>().ok()) {
        Some(-1) => Some(Ok(false)),
        Some(length) => (answer.len() as i64 == line as i64 + 1 + length + 2).then_some(Ok(true)),
        None => Some(Err(())),
    }
}

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_known_when_they_are_whole() {
        for (answer, found) in [(&b"EN"[..], None), (b"END\r\n", Some(Ok(false))), (b"ERROR\r\n", Some(Err(())))] {
            assert_eq!(found_by_memcached(answer), found, "{answer:?}");
        }
        assert_eq!(found_by_memcached(b"VALUE k 0 1\r\nx\r\n"), None);
        assert_eq!(found_by_memcached(b"VALUE k 0 1\r\nx\r\nEND\r\n"), Some(Ok(true)));
        for (answer, found) in [(&b"$-1"[..], None), (b"$-1\r\n", Some(Ok(false))), (b"-ERR\r\n", Some(Err(())))] {
            assert_eq!(found_by_redis(answer), found, "{answer:?}");
        }
        assert_eq!(found_by_redis(b"$3\r\nabc\r"), None);
        assert_eq!(found_by_redis(b"$3\r\nabc\r\n"), Some(Ok(true)));
    }

    #[test]
    fn decimal_is_what_format_gives() {
        for number in [0, 7, 10, 4096, usize::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
