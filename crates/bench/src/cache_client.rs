//! Closed and paced loops of look-aside clients: a GET, and after a miss a SET of what was missing, as users of a cache do.
//! memcached's text protocol (`doc/protocol.txt` of 1.6), one request at a time on a connection, but for items that are stored
//! beforehand; every hit is verified.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use engine::net::{SendBatch, TcpStream};
use engine::rng::SplitMix;
use engine::{Buf, View};

use crate::etc::{GETS_PER_SET, Items, gap};
use crate::figures::record;
use crate::load::Outcome;
use crate::progress::Stop;
use crate::workload::Zipfian;

/// A reply with the longest value and the lines around it.
const REPLY_BYTES_MAX: usize = engine::buf::BUF_BYTES_MAX;
/// Items that are stored beforehand with one request. Chosen: the system calls are then few beside the copying.
const LOADED_AT_ONCE: u64 = 16;
/// The longest value that fits there: what the reply's other lines take is below a block.
pub const VALUE_BYTES_MAX: usize = REPLY_BYTES_MAX - engine::buf::ALIGN;

/// Which items are asked for.
pub enum Popularity {
    /// By Zipf's law.
    Zipfian(Rc<Zipfian>),
    /// All of so many alike.
    Uniform(u64),
}

impl Popularity {
    fn key(&self, random: &mut SplitMix) -> u64 {
        match self {
            Popularity::Zipfian(zipfian) => zipfian.key(random),
            Popularity::Uniform(items) => random.below(*items),
        }
    }
}

/// What clients do.
#[derive(Clone)]
pub struct Work {
    /// The items.
    pub items: Items,
    /// Which of them are asked for.
    pub popularity: Rc<Popularity>,
    /// Where the sequence of requests begins.
    pub seed: u64,
}

/// What a run saw, beside its latencies.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// GETs answered with a value.
    pub hits: u64,
    /// GETs answered with none.
    pub misses: u64,
    /// SETs answered by something else than `STORED`: out of memory, say.
    pub refused: u64,
}

/// Latencies of a run: GETs are kind 0, SETs that were asked for kind 1, those after a miss kind 2.
pub struct Run {
    /// Latencies and wall time.
    pub outcome: Outcome,
    /// What was answered.
    pub counts: Counts,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
pub enum Arrivals {
    /// As soon as the last one on the connection was answered.
    Closed,
    /// At times set beforehand, so many a second over all connections, with the ETC model's gaps; latencies count from them.
    Open(f64),
}

/// `connections` clients at work for `time`, on the current reactor.
pub async fn run(
    address: SocketAddr,
    connections: usize,
    work: &Work,
    arrivals: Arrivals,
    time: Duration,
) -> anyhow::Result<Run> {
    let by_kind = Rc::new(RefCell::new((0..3).map(|_| crate::figures::histogram()).collect::<Vec<_>>()));
    let counts = Rc::new(Cell::new(Counts::default()));
    let mut clients = Vec::with_capacity(connections);
    for number in 0..connections {
        let random = SplitMix(work.seed.wrapping_mul(connections as u64).wrapping_add(number as u64));
        let client = Client::connect(address).await?;
        clients.push(Loop { client, work: work.clone(), random, counts: counts.clone(), by_kind: by_kind.clone() });
    }
    let begin = engine::time::now();
    let interval = match arrivals {
        Arrivals::Closed => None,
        Arrivals::Open(rate) => Some(Duration::from_secs_f64(connections as f64 / rate)),
    };
    let tasks: Vec<_> =
        clients.into_iter().map(|client| engine::task::spawn(client.work(begin, interval, time))).collect();
    for task in tasks {
        task.await?;
    }
    let wall = engine::time::now().duration_since(begin);
    let by_kind = by_kind.take();
    Ok(Run { outcome: Outcome { by_kind, wall }, counts: counts.get() })
}

/// In which order items are stored.
#[derive(Clone)]
pub enum Order {
    /// Every item once.
    All,
    /// As many as are said, the most popular ones, the most popular last: as memory has them after long use.
    Popular(Rc<Zipfian>, u64),
}

impl Order {
    fn count(&self, items: &Items) -> u64 {
        match self {
            Order::All => items.count,
            Order::Popular(_, count) => items.count.min(*count),
        }
    }

    /// The number of the item that is stored in this place.
    fn number(&self, items: &Items, place: u64) -> u64 {
        match self {
            Order::All => place,
            Order::Popular(zipfian, _) => zipfian.key_of(self.count(items) - 1 - place),
        }
    }
}

/// Stores items over `connections` connections; at most `rate` a second. Returns how many were refused. An error once `stop` is
/// set.
pub async fn load(
    address: SocketAddr,
    connections: usize,
    items: &Items,
    order: &Order,
    rate: Option<f64>,
    stop: &Stop,
) -> anyhow::Result<u64> {
    let (next, refused) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let (begin, count) = (engine::time::now(), order.count(items));
    let mut tasks = Vec::with_capacity(connections);
    for _ in 0..connections {
        let mut client = Client::connect(address).await?;
        let (items, order) = (items.clone(), order.clone());
        let (next, refused, stop) = (next.clone(), refused.clone(), stop.clone());
        tasks.push(engine::task::spawn(async move {
            loop {
                let first = next.replace(next.get() + LOADED_AT_ONCE);
                if first >= count {
                    break anyhow::Ok(());
                }
                stop.check()?;
                if let Some(rate) = rate {
                    engine::time::sleep_until(begin + Duration::from_secs_f64(first as f64 / rate)).await;
                }
                let places = first..count.min(first + LOADED_AT_ONCE);
                let numbers: Vec<u64> = places.map(|place| order.number(&items, place)).collect();
                refused.set(refused.get() + client.set(&items, &numbers).await?);
            }
        }));
    }
    for task in tasks {
        task.await?;
    }
    Ok(refused.get())
}

/// Stores every item once, as fast as it goes; an error if one of them is refused.
pub async fn load_all(address: SocketAddr, connections: usize, items: &Items, stop: &Stop) -> anyhow::Result<()> {
    let refused = load(address, connections, items, &Order::All, None, stop).await?;
    anyhow::ensure!(refused == 0, "{refused} of {} items were refused", items.count);
    Ok(())
}

/// One connection's loop.
struct Loop {
    client: Client,
    work: Work,
    random: SplitMix,
    counts: Rc<Cell<Counts>>,
    by_kind: Rc<RefCell<Vec<hdrhistogram::Histogram<u64>>>>,
}

impl Loop {
    async fn work(
        mut self,
        begin: engine::time::Instant,
        interval: Option<Duration>,
        time: Duration,
    ) -> anyhow::Result<()> {
        let mut when = begin;
        while when.duration_since(begin) < time {
            if interval.is_some() {
                engine::time::sleep_until(when).await;
            }
            let number = self.work.popularity.key(&mut self.random);
            if self.random.below(GETS_PER_SET + 1) == 0 {
                self.set(number, when, 1).await?;
            } else {
                let found = self.client.get(&self.work.items, number).await?;
                self.took(0, when);
                self.count(|counts| if found { counts.hits += 1 } else { counts.misses += 1 });
                if !found {
                    self.set(number, engine::time::now(), 2).await?;
                }
            }
            when = match interval {
                None => engine::time::now(),
                Some(interval) => when + interval.mul_f64(gap(&mut self.random)),
            };
        }
        Ok(())
    }

    async fn set(&mut self, number: u64, since: engine::time::Instant, kind: usize) -> anyhow::Result<()> {
        let refused = self.client.set(&self.work.items, &[number]).await?;
        self.took(kind, since);
        self.count(|counts| counts.refused += refused);
        Ok(())
    }

    fn took(&self, kind: usize, since: engine::time::Instant) {
        let latency = engine::time::now().duration_since(since);
        record(&mut self.by_kind.borrow_mut()[kind], latency);
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }
}

/// One connection.
struct Client {
    stream: TcpStream,
    reply: Buf,
    batch: SendBatch,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Client {
    async fn connect(address: SocketAddr) -> anyhow::Result<Client> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        let reply = Buf::with_capacity(REPLY_BYTES_MAX);
        Ok(Client { stream, reply, batch: SendBatch::new(), key: Vec::new(), value: Vec::new() })
    }

    /// Whether the item was found, as it was stored.
    async fn get(&mut self, items: &Items, number: u64) -> anyhow::Result<bool> {
        items.key(number, &mut self.key);
        [b"get ".as_slice(), &self.key, b"\r\n"].iter().for_each(|part| self.batch.head(part));
        self.send().await?;
        loop {
            match answer(&self.reply) {
                Answer::Short => self.receive().await?,
                Answer::Miss => return Ok(false),
                Answer::Value(value) => {
                    let right = items.is_value(number, value);
                    anyhow::ensure!(right, "item {number} came back as {} bytes that were not stored", value.len());
                    return Ok(true);
                }
                Answer::Other => {
                    let head = &self.reply[..self.reply.len().min(80)];
                    anyhow::bail!("the answer to get was {:?}", String::from_utf8_lossy(head))
                }
            }
        }
    }

    /// Stores items, all of them under way at once; how many were refused.
    async fn set(&mut self, items: &Items, numbers: &[u64]) -> anyhow::Result<u64> {
        for &number in numbers {
            items.key(number, &mut self.key);
            items.value(number, &mut self.value);
            let length = self.value.len().to_string();
            let line = [b"set ".as_slice(), &self.key, b" 0 0 ", length.as_bytes(), b"\r\n"];
            line.iter().for_each(|part| self.batch.head(part));
            self.batch.view(View::from(Buf::copy_from(&self.value)));
            self.batch.head(b"\r\n");
        }
        self.send().await?;
        while self.reply.iter().filter(|&&byte| byte == b'\n').count() < numbers.len() {
            self.receive().await?;
        }
        let mut refused = 0;
        for line in self.reply.split_inclusive(|&byte| byte == b'\n') {
            match line {
                b"STORED\r\n" => {}
                _ if line.starts_with(b"SERVER_ERROR") => refused += 1,
                _ => anyhow::bail!("the answer to set was {:?}", String::from_utf8_lossy(line)),
            }
        }
        Ok(refused)
    }

    async fn send(&mut self) -> anyhow::Result<()> {
        let (result, batch) = self.stream.send(std::mem::take(&mut self.batch)).await;
        self.batch = batch;
        self.reply.set_len(0);
        result.context("cannot send to the cache")
    }

    async fn receive(&mut self) -> anyhow::Result<()> {
        let (result, reply) = self.stream.recv(std::mem::take(&mut self.reply)).await;
        self.reply = reply;
        anyhow::ensure!(result.context("cannot receive from the cache")? > 0, "the cache closed the connection");
        Ok(())
    }
}

/// An answer to `get` of one key, as far as it is there.
#[derive(PartialEq, Eq, Debug)]
enum Answer<'a> {
    Short,
    Miss,
    Value(&'a [u8]),
    Other,
}

fn answer(reply: &[u8]) -> Answer<'_> {
    let Some(line) = reply.iter().position(|&byte| byte == b'\n') else { return Answer::Short };
    if &reply[..=line] == b"END\r\n" {
        return Answer::Miss;
    }
    let head = std::str::from_utf8(&reply[..line]).unwrap_or_default();
    let mut words = head.split_whitespace();
    let length = words.next().filter(|word| *word == "VALUE").and_then(|_| words.nth(2)).and_then(|n| n.parse().ok());
    let Some(length) = length else { return Answer::Other };
    let rest: &[u8] = &reply[line + 1..];
    match rest.split_at_checked(length) {
        Some((value, b"\r\nEND\r\n")) => Answer::Value(value),
        Some((_, end)) if b"\r\nEND\r\n".starts_with(end) => Answer::Short,
        Some(_) => Answer::Other,
        None => Answer::Short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_known_when_it_is_whole() {
        let whole = b"VALUE k 0 3\r\na\r\n\r\nEND\r\n";
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end]), Answer::Short, "{end} bytes");
        }
        assert_eq!(answer(whole), Answer::Value(b"a\r\n"));
        assert_eq!(answer(b"END\r\n"), Answer::Miss);
        for other in [&b"ERROR\r\n"[..], b"VALUE k 0\r\n", b"VALUE k 0 1\r\nabcdefghij", b"SERVER_ERROR busy\r\n"] {
            assert_eq!(answer(other), Answer::Other, "{:?}", String::from_utf8_lossy(other));
        }
    }
}
