//! Flags of `yagura cache`. Short ones are memcached's.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Common, NvmeHost, ServingTls};
use crate::cache::FlashSpec;
use crate::size::Size;

/// `yagura cache …`
#[derive(Subcommand, Debug)]
pub enum CacheVerb {
    /// Serve memcached's protocols (text, meta, binary). UDP is left out: it can be abused to flood others.
    Serve(Box<CacheServeArgs>),
    /// Tell a server's statistics (any server of memcached's protocols).
    Stats(CacheStatsArgs),
    /// Tell what a server does, a line for each interval, until interrupted.
    Top(CacheTopArgs),
}

/// `yagura cache serve`
#[derive(Args, Debug)]
pub struct CacheServeArgs {
    #[command(flatten)]
    pub common: Common,
    /// Memory of the whole process, in mebibytes: items, their index, connections.
    #[arg(short = 'm', long, value_name = "MIB", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(32..=16_777_216))]
    pub memory_limit: u32,
    /// TCP port; 0 takes a free one, which is reported.
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = 11211)]
    pub port: u16,
    /// Addresses to listen at, or names that have some, each with a port of its own if it is not that of -p.
    #[arg(short = 'l', long, value_name = "ADDR", value_delimiter = ',', default_value = "127.0.0.1")]
    pub listen: Vec<Listen>,
    /// Listen at this path alone.
    #[arg(short = 's', long, value_name = "PATH")]
    pub unix_socket: Option<PathBuf>,
    /// Permissions of that path, octal.
    #[arg(short = 'a', long, value_name = "MODE", default_value = "700", requires = "unix_socket")]
    pub unix_mask: Octal,
    /// UDP port; only 0 (none) is accepted.
    #[arg(short = 'U', long, value_name = "PORT", default_value_t = 0, value_parser = no_udp)]
    pub udp_port: u16,
    /// Connections served at once.
    #[arg(short = 'c', long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub conn_limit: u32,
    /// Reactor threads; default: one per core, at most 4.
    #[arg(short = 't', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// The longest item, such as 1m or 128m.
    #[arg(short = 'I', long, value_name = "SIZE", default_value = "1m")]
    pub max_item_size: Size,
    /// Answer sets with an error when memory is full, in place of evicting.
    #[arg(short = 'M', long)]
    pub disable_evictions: bool,
    /// What to speak; default: binary with -S, ascii with -Y alone, else auto.
    #[arg(short = 'B', long, value_name = "PROTOCOL", value_enum)]
    pub protocol: Option<CacheProtocol>,
    /// Serve the command `shutdown`.
    #[arg(short = 'A', long)]
    pub enable_shutdown: bool,
    /// Do not serve the command `flush_all`.
    #[arg(short = 'F', long)]
    pub disable_flush_all: bool,
    /// Do not serve `stats cachedump` and `lru_crawler metadump`.
    #[arg(short = 'X', long)]
    pub disable_dumping: bool,
    /// Do not serve `watch`.
    #[arg(short = 'W', long)]
    pub disable_watch: bool,
    /// Ask clients of the text protocol for a name and a password of this file (lines of name:password), in a first `set`.
    #[arg(short = 'Y', long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Ask clients of the binary protocol for a name and a password of --auth-file, by SASL PLAIN.
    #[arg(short = 'S', long, requires = "auth_file")]
    pub enable_sasl: bool,
    /// End connections that have rested for so many seconds; 0: never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub idle_timeout: u32,
    #[command(flatten)]
    pub tls: ServingTls,
    #[command(flatten)]
    pub flash: FlashArgs,
    /// Serve Prometheus metrics (/metrics) and /healthz at this address.
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Say more on standard error: -v connections that end by an error; -vv each that begins and ends, and the line of each command
    /// and the first of its answer (no values, no passwords); -vvv what goes on within, such as collections of flash.
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Stop when standard input ends: a child process must not outlive its supervisor.
    #[arg(long, hide = true)]
    pub until_stdin_closes: bool,
}

/// The flash tier of a cache server.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Flash")]
pub struct FlashArgs {
    /// Keep what leaves memory in this namespace, over restarts too: file=PATH,size=SIZE, device=PATH, drive=PATH,name=NAME, or
    /// nvme=ADDRESS[,nqn=NQN][,nsid=N] over NVMe/TCP.
    #[arg(long, value_name = "NAMESPACE")]
    pub flash: Option<FlashSpec>,
    /// File that says which items there still count; on tmpfs it is gone with a restart of the machine, and they with it.
    /// Default for file=PATH: PATH.journal.
    #[arg(long, value_name = "FILE", requires = "flash")]
    pub flash_journal: Option<PathBuf>,
    /// Which items go there.
    #[arg(long, value_name = "RULE", value_enum, default_value_t = FlashAdmission::Frequent, requires = "flash")]
    pub flash_admission: FlashAdmission,
    /// Take the namespace even if it holds something else, which is lost.
    #[arg(long, requires = "flash")]
    pub flash_overwrite: bool,
    #[command(flatten)]
    pub host: NvmeHost,
}

/// Which items go to flash.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlashAdmission {
    /// Those asked for about as often as what they displace: fewer writes, and more hits.
    Frequent,
    /// All.
    All,
}

/// `yagura cache stats`
#[derive(Args, Debug)]
pub struct CacheStatsArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub server: CacheServer,
    /// Which: settings, items, slabs, sizes, conns; default: the general ones. Others do something: reset (counts anew), detail on,
    /// detail off, detail dump (counts by prefixes of keys), cachedump CLASS LIMIT (lists items; of yagura's the class is 1).
    #[arg(value_name = "NAME", value_parser = statistics_word)]
    pub name: Vec<String>,
}

/// `yagura cache top`
#[derive(Args, Debug)]
pub struct CacheTopArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub server: CacheServer,
    /// Seconds between two lines.
    #[arg(short = 'i', long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub interval: u32,
    /// Stop after so many lines; 0: never.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0)]
    pub count: u64,
}

/// How to reach a server that is asked.
#[derive(Args, Debug)]
pub struct CacheServer {
    /// The server: an address or a name, with a port if it is not 11211, or the path of its Unix socket, with a / in it.
    #[arg(value_name = "ADDR", default_value = "127.0.0.1")]
    pub address: CacheAddress,
    /// If the server asks for a name and a password, give those of this file's first line, name:password. Only its owner may
    /// read it; the file of the server's -Y will do.
    #[arg(short = 'Y', long, value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Ask by the binary protocol, with SASL where the server wants it: one with -S speaks no other. It has no cachedump.
    #[arg(long)]
    pub binary: bool,
    /// Use TLS. The server's certificate has to be of ADDR.
    #[arg(long)]
    pub tls: bool,
    /// Trust certificates of an authority of this PEM file, in place of the system's.
    #[arg(long, value_name = "FILE", requires = "tls")]
    pub tls_ca: Option<PathBuf>,
    /// The name that the certificate has to be of, in place of ADDR's.
    #[arg(long, value_name = "NAME", requires = "tls")]
    pub tls_name: Option<String>,
    /// Show the server the certificate chain of this PEM file, if it lets in only who has one.
    #[arg(long, value_name = "FILE", requires_all = ["tls", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

/// Where a server is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheAddress {
    /// Over TCP.
    Host(Listen),
    /// At a path of this machine.
    Path(PathBuf),
}

impl CacheAddress {
    /// The port where none is said.
    pub const PORT: u16 = 11211;
    /// First words of what may be asked, which are easily taken for an address's place.
    const NAMES: [&str; 8] = ["settings", "items", "slabs", "sizes", "conns", "reset", "detail", "cachedump"];
}

impl std::str::FromStr for CacheAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheAddress, String> {
        if text.contains('/') {
            return Ok(CacheAddress::Path(text.into()));
        }
        if CacheAddress::NAMES.contains(&text) {
            return Err(format!("the server comes first: 127.0.0.1 {text}"));
        }
        text.parse().map(CacheAddress::Host).map_err(|_| {
            format!(
                "`{text}` is no server: write one such as 127.0.0.1, localhost:11212, [::1]:11211 or /run/cache.sock"
            )
        })
    }
}

impl std::fmt::Display for CacheAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CacheAddress::Path(path) => path.display().fmt(f),
            CacheAddress::Host(Listen { host, port }) => {
                let port = port.unwrap_or(CacheAddress::PORT);
                if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
            }
        }
    }
}

/// A line's end in a name would begin another command.
fn statistics_word(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(|char: char| char.is_control()) {
        true => Err("a name of statistics has no line ends or other control characters, and is not empty".into()),
        false => Ok(text.to_owned()),
    }
}

/// UDP is not served; who turns it off explicitly, as most do, is content.
fn no_udp(text: &str) -> Result<u16, String> {
    match text {
        "0" => Ok(0),
        _ => Err("UDP is not served, since it can be abused to flood others: leave -U away, or say -U 0".into()),
    }
}

/// What a cache server speaks.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheProtocol {
    /// Text and meta.
    Ascii,
    /// Binary.
    Binary,
    /// What a connection's first byte says.
    Auto,
}

/// Where to listen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listen {
    /// An address, or a name.
    pub host: String,
    port: Option<u16>,
}

impl Listen {
    /// The addresses, one or those of the name; `port` where it says none.
    pub fn addresses(&self, port: u16) -> io::Result<Vec<SocketAddr>> {
        let mut addresses = Vec::new();
        for address in (&self.host[..], self.port.unwrap_or(port)).to_socket_addrs()? {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }
}

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Ok(Listen { host: socket.ip().to_string(), port: Some(socket.port()) });
        }
        if text.parse::<IpAddr>().is_ok() {
            return Ok(Listen { host: text.into(), port: None });
        }
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        let is_name =
            !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        let port = port.map(str::parse).transpose().ok().filter(|_| is_name);
        let port =
            port.ok_or_else(|| format!("`{text}` is no address: write one such as 0.0.0.0, ::1 or localhost:11212"))?;
        Ok(Listen { host: host.into(), port })
    }
}

/// Permissions in octal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Octal(pub u32);

impl std::str::FromStr for Octal {
    type Err = String;

    fn from_str(text: &str) -> Result<Octal, String> {
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
        mode.map(Octal).ok_or_else(|| format!("`{text}` are no permissions: write three octal digits, such as 770"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_addresses() {
        let addresses = |text: &str| {
            let listen: Listen = text.parse()?;
            let addresses = listen.addresses(11211).map_err(|error| error.to_string())?;
            Ok(addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(addresses("0.0.0.0"), Ok("0.0.0.0:11211".into()));
        assert_eq!(addresses("::1"), Ok("[::1]:11211".into()));
        assert_eq!(addresses("[::1]:7"), Ok("[::1]:7".into()));
        assert_eq!(addresses("10.0.0.1:7"), Ok("10.0.0.1:7".into()));
        let of_a_name: Result<String, String> = addresses("localhost:7");
        assert!(of_a_name.expect("every machine has it").split(' ').any(|address| address == "127.0.0.1:7"));
        for text in ["", "a b", "localhost:x", "localhost:70000", "::1:x", "notls:10.0.0.1"] {
            assert!(text.parse::<Listen>().expect_err("no address").contains(&format!("`{text}`")), "{text}");
        }
    }

    #[test]
    fn servers_that_are_asked() {
        let shown = |text: &str| text.parse().map(|address: CacheAddress| address.to_string());
        for (text, is) in [
            ("localhost", "localhost:11211"),
            ("cache-1.example:7", "cache-1.example:7"),
            ("10.0.0.1", "10.0.0.1:11211"),
            ("::1", "[::1]:11211"),
            ("[::1]:7", "[::1]:7"),
            ("/run/cache.sock", "/run/cache.sock"),
            ("./sock:et", "./sock:et"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(is));
        }
        assert!(shown("settings").expect_err("no server").contains("127.0.0.1 settings"));
        assert!(shown("a b").expect_err("no server").contains("/run/cache.sock"));
    }

    #[test]
    fn a_name_of_statistics_is_one_line() {
        assert_eq!(statistics_word("cachedump"), Ok("cachedump".into()));
        for text in ["", "a\r\nflush_all", "a\n", "a\r", "a\0"] {
            assert!(statistics_word(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn permissions() {
        assert_eq!("770".parse(), Ok(Octal(0o770)));
        assert!("779".parse::<Octal>().is_err() && "7777".parse::<Octal>().is_err());
    }
}
