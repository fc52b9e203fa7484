//! A connection that asks a server of memcached's protocols, however that listens.
//!
//! Invariants:
//! - A name and a password are sent to a server only once it has refused to answer without, or said that it knows SASL: to another
//!   one they would be a value, stored for everybody to read.
//! - What a server sends is bounded, in time and in length.

mod binary;

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tls::Secret;
use tls::{AskingContext, AskingStream, TlsError};

use crate::cli::{CacheAddress, CacheServer};
use crate::exit::Failure;

/// How long a server may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Lines of an answer at most: more is not one server's. Guessed.
const LINES_MAX: usize = 100_000;
/// Bytes of a line. Chosen: many times those of a key, or of a path.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What a server that asks for a password says to everything else.
const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";

/// Whatever a server is reached by.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A connection that asks.
pub struct Asker {
    server: String,
    reader: BufReader<Box<dyn Stream>>,
    auth_file: Option<PathBuf>,
    speaks_binary: bool,
}

/// Names and values, in the server's order.
pub type Lines = Vec<(String, String)>;

impl Asker {
    /// Connects as the flags say.
    pub fn connect(flags: &CacheServer) -> Result<Asker, Failure> {
        let server = flags.address.to_string();
        let stream: Box<dyn Stream> = match &flags.address {
            CacheAddress::Path(_) if flags.tls => {
                return Err(Failure::usage("--tls goes with a host: at a path a cache server does not serve TLS"));
            }
            CacheAddress::Path(path) => Box::new(connect_unix(path).map_err(|error| unreachable(&server, &error))?),
            CacheAddress::Host(listen) => {
                let addresses = listen.addresses(CacheAddress::PORT);
                let stream = addresses.and_then(|addresses| connect_tcp(&addresses));
                let stream = stream.map_err(|error| unreachable(&server, &error))?;
                if flags.tls { Box::new(secure(flags, stream, &listen.host)?) } else { Box::new(stream) }
            }
        };
        let (auth_file, speaks_binary) = (flags.auth_file.clone(), flags.binary);
        let mut asker = Asker { server, reader: BufReader::new(stream), auth_file, speaks_binary };
        // Whoever refuses a request of the binary protocol ends the connection.
        if asker.speaks_binary && asker.auth_file.is_some() && asker.wants_sasl()? {
            asker.log_in()?;
        }
        Ok(asker)
    }

    /// The statistics of this name; of none: the general ones.
    pub fn ask(&mut self, name: &str) -> Result<Lines, Failure> {
        if let Some(lines) = self.try_ask(name)? {
            return Ok(lines);
        }
        self.log_in()?;
        self.try_ask(name)?.ok_or_else(|| self.wrong("asks for a name and a password again and again"))
    }

    /// `None`: it wants to know first who asks.
    fn try_ask(&mut self, name: &str) -> Result<Option<Lines>, Failure> {
        if self.speaks_binary { self.try_ask_binary(name) } else { self.try_ask_text(name) }
    }

    fn try_ask_text(&mut self, name: &str) -> Result<Option<Lines>, Failure> {
        // With blanks as long as a header of the binary protocol: whoever speaks that alone waits for one before it hangs up.
        self.send(format!("stats {name:16}\r\n").as_bytes())?;
        let mut lines = Vec::new();
        while lines.len() < LINES_MAX {
            let line = self.line()?;
            match &line[..] {
                "END" | "RESET" | "OK" => return Ok(Some(lines)),
                UNAUTHENTICATED => return Ok(None),
                _ => {}
            }
            // A statistic; an item of `cachedump`; a prefix of `detail dump`.
            let rest = ["STAT ", "ITEM ", "PREFIX "].iter().find_map(|kind| line.strip_prefix(kind));
            let Some(rest) = rest else { return Err(self.refused(&line)) };
            let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
            lines.push((name.to_owned(), value.to_owned()));
        }
        Err(self.wrong("tells statistics without an end"))
    }

    /// Says who asks.
    fn log_in(&mut self) -> Result<(), Failure> {
        let Some(path) = self.auth_file.clone() else {
            return Err(self.wrong("asks for a name and a password: give --auth-file FILE, with a line name:password"));
        };
        let secret = Secret::from_file(&path).map_err(|error| Failure::refused(format!("--auth-file {error}")))?;
        let wrong = |what: &str| Failure::refused(format!("--auth-file {}: {what}", path.display()));
        let first = secret.expose().split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
        let colon = first.iter().position(|&byte| byte == b':').ok_or_else(|| wrong("line 1 is no name:password"))?;
        let (name, password) = (&first[..colon], &first[colon + 1..]);
        let is_known =
            if self.speaks_binary { self.log_in_binary(name, password) } else { self.log_in_text(name, password) };
        match is_known {
            Ok(false) => Err(self.wrong(&format!("does not know the name and the password of {}", path.display()))),
            known => known.map(drop),
        }
    }

    /// False: it knows nobody of that name and password.
    fn log_in_text(&mut self, name: &[u8], password: &[u8]) -> Result<bool, Failure> {
        let length = (name.len() + 1 + password.len()).to_string();
        self.send_secret([b"set auth 0 0 ", length.as_bytes(), b"\r\n", name, b" ", password, b"\r\n"].concat())?;
        match &self.line()?[..] {
            "STORED" => Ok(true),
            "CLIENT_ERROR authentication failure" => Ok(false),
            line => Err(self.wrong(&format!("answered `{line}` to a name and a password"))),
        }
    }

    fn send_secret(&mut self, bytes: Vec<u8>) -> Result<(), Failure> {
        self.send(Secret::new(bytes).expose())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let stream = self.reader.get_mut();
        stream.write_all(bytes).and_then(|()| stream.flush()).map_err(|error| self.failed(&error))
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = Vec::new();
        let read = (&mut self.reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        read.map_err(|error| self.failed(&error))?;
        match line.strip_suffix(b"\n") {
            Some(line) => Ok(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()),
            None if line.len() as u64 == LINE_BYTES_MAX => Err(self.wrong("sends a line without an end")),
            None => Err(self.failed(&ErrorKind::UnexpectedEof.into())),
        }
    }

    fn wrong(&self, what: &str) -> Failure {
        Failure::refused(format!("the server at {} {what}", self.server))
    }

    fn refused(&self, line: &str) -> Failure {
        let why = if line == "ERROR" { ": there are no statistics of that name" } else { "" };
        self.wrong(&format!("answered `{line}`{why}"))
    }

    /// Why nothing more came, or could be sent.
    fn failed(&self, error: &io::Error) -> Failure {
        let what = match error.kind() {
            // The socket's own time is over.
            ErrorKind::WouldBlock | ErrorKind::TimedOut => format!("gave no answer within {ANSWER_TIME_MAX:?}"),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                let binary = if self.speaks_binary { "" } else { ", or the binary protocol alone (--binary)" };
                format!("closed the connection; does it speak TLS alone (--tls){binary}?")
            }
            _ if error.to_string().contains("certificate required") => {
                "wants a certificate: give --tls-cert FILE and --tls-key FILE".to_owned()
            }
            _ => format!("does not answer: {error}"),
        };
        Failure::unavailable(format!("the server at {} {what}", self.server))
    }
}

fn unreachable(server: &str, error: &io::Error) -> Failure {
    Failure::unavailable(format!(
        "cannot reach a cache server at {server}: {error}; is `yagura cache serve` running there?"
    ))
}

fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
    Ok(stream)
}

/// The first of a name's addresses that answers.
fn connect_tcp(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(address, ANSWER_TIME_MAX) {
            Ok(stream) => {
                stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
                stream.set_write_timeout(Some(ANSWER_TIME_MAX))?;
                return Ok(stream);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn secure(flags: &CacheServer, stream: TcpStream, host: &str) -> Result<AskingStream, Failure> {
    let own = flags.tls_cert.as_deref().zip(flags.tls_key.as_deref());
    let context = AskingContext::new(flags.tls_ca.as_deref(), own).map_err(Failure::refused)?;
    let name = flags.tls_name.as_deref().unwrap_or(host);
    context.connect(stream, name).map_err(|error| match error {
        TlsError::NotTrusted { .. } => Failure::refused(format!(
            "{error}: --tls-ca says whose certificates are, --tls-name what name they have to be of"
        )),
        TlsError::Timeout => Failure::unavailable(format!("{}: no TLS within {ANSWER_TIME_MAX:?}", flags.address)),
        error => Failure::unavailable(format!("{}: {error}; does it serve TLS?", flags.address)),
    })
}
