//! A memcached client on our engine, so that both sides of a row wait for their sockets in the same way.
//! Text protocol, one request at a time on a connection (`doc/protocol.txt` of memcached 1.6).

use std::cell::RefCell;
use std::net::SocketAddr;

use anyhow::Context as _;
use engine::net::{SendBatch, TcpStream};
use engine::{Buf, View};

/// A value and the lines around it: 1 MiB is memcached's default item limit, the buffer's limit is the engine's.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// One connection.
pub struct Client {
    stream: TcpStream,
    state: RefCell<Option<(Buf, SendBatch)>>,
}

impl Client {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> anyhow::Result<Client> {
        let stream = TcpStream::connect(address).await.context("cannot connect to memcached")?;
        let state = RefCell::new(Some((Buf::with_capacity(REPLY_BYTES_MAX), SendBatch::new())));
        Ok(Client { stream, state })
    }

    /// Whether the key has a value; the value is received whole.
    pub async fn get(&self, key: &[u8]) -> anyhow::Result<bool> {
        let (mut buffer, mut batch) = self.take()?;
        for part in [b"get ".as_slice(), key, b"\r\n"] {
            batch.head(part);
        }
        batch = self.send(batch).await?;
        buffer.set_len(0);
        let found = loop {
            buffer = self.receive(buffer).await?;
            if buffer[..] == *b"END\r\n" {
                break false;
            }
            if buffer.ends_with(b"\r\nEND\r\n") {
                break true;
            }
            anyhow::ensure!(buffer.starts_with(b"V"), "memcached answered {:?}", String::from_utf8_lossy(&buffer));
        };
        self.state.replace(Some((buffer, batch)));
        Ok(found)
    }

    /// Stores a value.
    pub async fn set(&self, key: &[u8], value: &View) -> anyhow::Result<()> {
        let (mut buffer, mut batch) = self.take()?;
        batch.head(b"set ");
        batch.head(key);
        let mut digits = [0u8; 20];
        for part in [b" 0 0 ".as_slice(), decimal(value.len(), &mut digits), b"\r\n"] {
            batch.head(part);
        }
        batch.view(value.clone());
        batch.head(b"\r\n");
        batch = self.send(batch).await?;
        buffer.set_len(0);
        while !buffer.ends_with(b"\r\n") {
            buffer = self.receive(buffer).await?;
        }
        anyhow::ensure!(buffer[..] == *b"STORED\r\n", "memcached answered {:?}", String::from_utf8_lossy(&buffer));
        self.state.replace(Some((buffer, batch)));
        Ok(())
    }

    fn take(&self) -> anyhow::Result<(Buf, SendBatch)> {
        self.state.take().context("one request at a time, and none after an error")
    }

    async fn send(&self, batch: SendBatch) -> anyhow::Result<SendBatch> {
        let (result, batch) = self.stream.send(batch).await;
        result.context("cannot send to memcached")?;
        Ok(batch)
    }

    async fn receive(&self, buffer: Buf) -> anyhow::Result<Buf> {
        let (result, buffer) = self.stream.recv(buffer).await;
        anyhow::ensure!(result.context("cannot receive from memcached")? > 0, "memcached closed the connection");
        Ok(buffer)
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
    fn decimal_is_what_format_gives() {
        for number in [0, 7, 10, 4096, usize::MAX] {
            assert_eq!(decimal(number, &mut [0; 20]), number.to_string().as_bytes());
        }
    }
}
