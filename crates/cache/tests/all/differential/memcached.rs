//! memcached as a process, and both sides of a comparison.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cache::item::Seconds;
use cache::protocol::Now;
use cache::session::Rules;
use cache::slot::Slots;
use cache::testing::{PlainServer, PlainSlots, Wire};
use engine::rng::SplitMix;

use crate::port::Port;

const PROGRAM: &str = "/usr/bin/memcached";
/// An answer takes far less; a test that waits longer has failed.
const ANSWER_SECONDS_MAX: u64 = 60;
/// How long nothing has to come before we believe that nothing will.
const SILENCE: Duration = Duration::from_millis(60);

/// memcached, until this is dropped.
pub struct Memcached {
    child: Child,
    kept: Port,
}

impl Memcached {
    /// Starts it with these arguments and variables.
    pub fn start(arguments: &[&str], environment: &[(&str, &Path)]) -> Memcached {
        // It cannot tell which port it was given, so it is told one.
        let kept = Port::keep();
        let mut command = Command::new(PROGRAM);
        command.args(["-p", &kept.address.port().to_string(), "-U", "0", "-l", "127.0.0.1", "-u", "nobody"]);
        command.args(arguments).envs(environment.iter().copied());
        let child = command.stderr(Stdio::null()).spawn().unwrap_or_else(|error| {
            panic!("{PROGRAM} cannot be started ({error}): run `scripts/deps.sh test`, or `apt-get install memcached`")
        });
        let mut server = Memcached { child, kept };
        let begun = Instant::now();
        while TcpStream::connect(server.kept.address).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(ANSWER_SECONDS_MAX), "memcached does not listen");
            let ended = server.child.try_wait().expect("it is our child");
            assert!(ended.is_none(), "memcached has ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// memcached and ours, which see the same.
pub struct Pair<S = PlainSlots> {
    memcached: Memcached,
    rules: Arc<Rules>,
    pub slots: S,
    pub server: PlainServer,
    begun: Instant,
    began: u64,
    random: SplitMix,
}

/// A connection to each.
pub struct Connection<S: Slots> {
    stream: TcpStream,
    wire: Wire<S>,
}

/// What each answered.
pub struct Answers {
    pub theirs: Vec<u8>,
    pub ours: Vec<u8>,
    pub their_end: bool,
    pub our_end: bool,
}

impl Pair {
    pub fn usual() -> Pair {
        Pair::at_rest(PlainSlots::default())
    }
}

impl<S: Slots> Pair<S> {
    pub fn new(arguments: &[&str], rules: Rules, slots: S) -> Pair<S> {
        Pair::of(Memcached::start(arguments, &[]), rules, slots)
    }

    pub fn of(memcached: Memcached, rules: Rules, slots: S) -> Pair<S> {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
        Pair {
            memcached,
            rules: Arc::new(rules),
            slots,
            server: PlainServer::default(),
            begun: Instant::now(),
            began: unix - 100,
            random: SplitMix(1),
        }
    }

    /// Without memcached's thread that moves items in the background: while it holds an item, `incr` makes a new item instead of
    /// writing over the number, so that blanks behind a shorter number and the mark of an earlier hit are gone.
    pub fn at_rest(slots: S) -> Pair<S> {
        Pair::new(&["-o", "no_lru_maintainer"], Rules::default(), slots)
    }

    pub fn connect(&mut self) -> Connection<S> {
        let stream = TcpStream::connect(self.memcached.kept.address).expect("memcached listens");
        stream.set_nodelay(true).expect("a TCP socket");
        let mut wire = Wire::new(self.rules.clone());
        wire.pieces = (0..7).map(|_| 1 + self.random(40) as usize * self.random(60) as usize).collect();
        Connection { stream, wire }
    }

    /// A number below `bound`.
    pub fn random(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// Gives both these bytes. `last` ends the answer of a server that still listens.
    pub async fn exchange(&mut self, connection: &mut Connection<S>, bytes: &[u8], last: &[u8]) -> Answers {
        self.exchange_filled(connection, bytes, last, b"").await
    }

    /// As [`Pair::exchange`]; while a value is not whole, it is filled with `filler`: memcached holds its answers back meanwhile.
    pub async fn exchange_filled(
        &mut self,
        connection: &mut Connection<S>,
        bytes: &[u8],
        last: &[u8],
        filler: &[u8],
    ) -> Answers {
        let at = Seconds(100 + self.begun.elapsed().as_secs() as u32);
        let now = Now { at, began: self.began };
        let mut ours = connection.wire.talk(&self.slots, &self.server, now, bytes).await;
        let mut bytes = bytes.to_vec();
        while !filler.is_empty() && !connection.wire.is_closed && !ours.ends_with(last) {
            ours.extend(connection.wire.talk(&self.slots, &self.server, now, filler).await);
            bytes.extend_from_slice(filler);
        }
        let (bytes, our_end) = (&bytes[..], connection.wire.is_closed);
        let (theirs, their_end) = talk(&mut connection.stream, bytes, &ours, our_end, last);
        Answers { theirs, ours, their_end, our_end }
    }
}

/// Sends, and receives until there is as much as we answered, and more if that does not settle it.
fn talk(stream: &mut TcpStream, bytes: &[u8], ours: &[u8], our_end: bool, last: &[u8]) -> (Vec<u8>, bool) {
    let mut writer = stream.try_clone().expect("sockets can be cloned");
    let bytes = bytes.to_vec();
    // A server that has ended need not take the rest.
    let sender = std::thread::spawn(move || writer.write_all(&bytes));
    let mut theirs = Vec::new();
    let mut is_over = false;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(ANSWER_SECONDS_MAX) {
        let is_settled = !our_end && theirs.len() == ours.len() && theirs.ends_with(last);
        if is_settled {
            break;
        }
        let is_enough = theirs.len() >= ours.len() && !our_end;
        let patience = if is_enough { SILENCE } else { Duration::from_secs(ANSWER_SECONDS_MAX) };
        stream.set_read_timeout(Some(patience)).expect("not zero");
        let mut buffer = [0; 1 << 16];
        match stream.read(&mut buffer) {
            Ok(0) => {
                is_over = true;
                break;
            }
            Ok(count) => theirs.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(_) => {
                is_over = true;
                break;
            }
        }
    }
    if is_over || theirs.len() >= ours.len() {
        let _ = sender.join().expect("the sender does not panic");
    }
    (theirs, is_over)
}

/// Equal, but for the class of an item, when it was last looked at (see `docs/cache.md`), and the tick of a clock.
pub fn are_same(theirs: &[u8], ours: &[u8]) -> bool {
    if theirs == ours {
        return true;
    }
    let split =
        |bytes: &[u8]| -> Vec<Vec<u8>> { bytes.split_inclusive(|b| b" \n".contains(b)).map(<[u8]>::to_vec).collect() };
    let (theirs, ours) = (split(theirs), split(ours));
    theirs.len() == ours.len() && theirs.iter().zip(&ours).all(|(a, b)| a == b || is_close(a, b))
}

fn is_close(a: &[u8], b: &[u8]) -> bool {
    let (Ok(a), Ok(b)) = (std::str::from_utf8(a), std::str::from_utf8(b)) else { return false };
    ["cls=", "exp=", "la=", "t", "l"].iter().any(|name| {
        let number = |text: &str| text.trim_end().strip_prefix(name)?.parse::<i64>().ok();
        let off = number(a).zip(number(b)).map(|(a, b)| (a - b).abs());
        off.is_some_and(|off| matches!(*name, "cls=" | "l" | "la=") || off <= 2)
    })
}

/// Bytes for people.
pub fn shown(bytes: &[u8]) -> String {
    let text = bytes.escape_ascii().to_string().replace("\\n", "\\n\n    ");
    if text.len() > 6000 { format!("{}… {} bytes", &text[..3000], bytes.len()) } else { text }
}

impl Answers {
    /// Fails with both answers where they differ.
    pub fn check(&self, what: &str, bytes: &[u8]) {
        if let Some(difference) = self.difference() {
            panic!("{what}: {difference}\nsent:\n    {}", shown(bytes));
        }
    }

    /// Both closed the connection over a line without an end, and memcached did not send the answers before it.
    pub fn are_cut(&self) -> bool {
        self.their_end && self.our_end && self.ours.starts_with(&self.theirs)
    }

    pub fn difference(&self) -> Option<String> {
        let is_same = are_same(&self.theirs, &self.ours) && self.their_end == self.our_end;
        (!is_same).then(|| {
            format!(
                "the answers differ\nmemcached{}:\n    {}\nours{}:\n    {}",
                if self.their_end { " (closed)" } else { "" },
                shown(&self.theirs),
                if self.our_end { " (closed)" } else { "" },
                shown(&self.ours)
            )
        })
    }
}
