//! Programs that a row starts from outside: ours and the peers; ended by their process id when the row is done.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::machine;

/// How long a program may take until it answers.
const START_TIME_MAX: Duration = Duration::from_secs(20);

/// A running program; killed and reaped when dropped.
pub struct Server {
    name: String,
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// CPU time it has used so far.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        machine::cpu_time(self.child.id()).with_context(|| format!("{} has ended", self.name))
    }

    /// Its resident memory.
    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        machine::resident_bytes(self.child.id()).with_context(|| format!("{} has ended", self.name))
    }
}

impl Server {
    /// Asks it to end and waits until it has.
    pub fn end(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        let pid = pid.with_context(|| format!("{} has no process id", self.name))?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = self.child.wait()?;
        anyhow::ensure!(status.success(), "{} ended with {status}", self.name);
        Ok(())
    }

    /// A figure of `stats`, from a cache server.
    pub fn figure(&self, name: &str) -> anyhow::Result<f64> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"stats\r\nquit\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let value = text.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        let value = value.with_context(|| format!("{} tells no {name}", self.name))?;
        value.parse().with_context(|| format!("{} tells {name} {value}", self.name))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A kill fails only where the process has ended by itself; the wait reaps it in both cases.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The binary that is running, which is the product (or, in tests, the one that the environment names).
pub fn product() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the running binary")
}

/// Starts `yagura target` on `core` with the given namespace argument, and waits until it says where it listens.
pub fn target(core: usize, nqn: &str, namespace: &str) -> anyhow::Result<Server> {
    targets(Some(core), &[(nqn.to_owned(), namespace.to_owned())])
}

/// A program that ends by itself, and is killed with all that it has started when it has not after `limit`. A ^C at the terminal
/// does not reach it.
pub(crate) fn bounded(program: &str, limit: Duration) -> Command {
    let mut command = Command::new("timeout");
    command.arg("--signal=KILL").arg(format!("{:.1}", limit.as_secs_f64())).arg(program).stdin(Stdio::null());
    command
}

/// Has the product do something that ends by itself.
pub fn once(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(product()?).args(arguments).stdin(Stdio::null()).output()?;
    anyhow::ensure!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Starts one `yagura target`, on `core` if there is one, that offers subsystems, each a name and its namespace argument, at one
/// address.
pub fn targets(core: Option<usize>, subsystems: &[(String, String)]) -> anyhow::Result<Server> {
    let one = |(nqn, namespace): &(String, String)| {
        [format!("--subsystem=nqn={nqn}"), format!("--namespace={namespace},subsystem={nqn}")]
    };
    serve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), core, subsystems.iter().flat_map(one))
}

/// Starts `yagura target` for all namespaces of a drive, at an address that is known if it comes back there.
pub fn drive(at: SocketAddr, core: usize, nqn: &str, drive: &str) -> anyhow::Result<Server> {
    serve(at, Some(core), [format!("--subsystem=nqn={nqn}"), format!("--drive={drive},subsystem={nqn}")])
}

fn serve(at: SocketAddr, core: Option<usize>, offers: impl IntoIterator<Item = String>) -> anyhow::Result<Server> {
    let mut command = Command::new(product()?);
    command.args(["target", "--listen", &at.to_string(), "--json"]).args(offers);
    command.env("RUST_LOG", "error"); // what hostile peers provoke is not the row's report
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    // A ^C at the terminal is for the row, which ends its servers when its clients are done with them.
    command.process_group(0);
    let child = match core {
        Some(core) => machine::pinned(core, || command.spawn())?,
        None => command.spawn(),
    };
    let child = child.context("cannot start a target")?;
    listening("target", child)
}

/// A server of ours that says on its standard output, in JSON, where it listens.
fn listening(name: &str, mut child: Child) -> anyhow::Result<Server> {
    let stdout = child.stdout.take().with_context(|| format!("the {name} has no standard output"))?;
    // It lives from here on: an early return must end it too.
    let mut server = Server { name: name.to_owned(), child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)) };
    let ready = serde_json::Deserializer::from_reader(stdout).into_iter::<serde_json::Value>().next();
    let ready = ready.with_context(|| format!("the {name} ended before it served"))?;
    let ready = ready.with_context(|| format!("the {name} did not say where it listens"))?;
    let address = ready["listening"].as_str().and_then(|a| a.parse().ok());
    server.address = address.with_context(|| format!("no address in the {name}'s report: {ready}"))?;
    Ok(server)
}

/// Starts `yagura cache serve` with `threads` and a memory limit, and a file of so many mebibytes for what memory does not hold.
pub fn cache(threads: usize, memory_mib: u64, flash: Option<(&Path, u64)>) -> anyhow::Result<Server> {
    let mut command = Command::new(product()?);
    command.args(["cache", "serve", "-l", "127.0.0.1", "-p", "0", "-c", "4096", "--json"]);
    command.args(["-t", &threads.to_string(), "-m", &memory_mib.to_string()]);
    if let Some((file, mebibytes)) = flash {
        command.args(["--flash", &format!("file={},size={mebibytes}MiB", file.display())]);
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start a cache")?;
    listening("cache", child)
}

/// Starts Debian's Redis on `core` as shipped, but on loopback and without files.
pub fn redis(core: usize) -> anyhow::Result<Server> {
    let port = free_port()?;
    let port_text = port.to_string();
    let arguments = ["--bind", "127.0.0.1", "--port", &port_text, "--save", "", "--appendonly", "no"];
    peer("redis-server", "redis-server", core, port, &arguments)
}

/// Starts Debian's memcached on `core` as shipped (one listening socket on loopback, memory as asked for).
pub fn memcached(core: usize, megabytes: usize) -> anyhow::Result<Server> {
    let port = free_port()?;
    let (port_text, megabytes) = (port.to_string(), megabytes.to_string());
    let arguments = ["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-p", &port_text, "-m", &megabytes];
    peer("memcached", "memcached", core, port, &arguments)
}

/// Starts Debian's memcached with further arguments and no core of its own, in the cgroup whose list of processes is `group`.
pub fn memcached_in(group: Option<PathBuf>, megabytes: u64, arguments: &[String]) -> anyhow::Result<Server> {
    let port = free_port()?;
    let mut command = match group {
        None => Command::new("memcached"),
        // A process joins before it becomes memcached, so that all of its memory counts.
        Some(group) => {
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$ > \"$0\" && exec memcached \"$@\""]).arg(group);
            command
        }
    };
    // Its files are ours.
    command.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-p", &port.to_string(), "-m", &megabytes.to_string()]);
    command.args(arguments);
    started("memcached", "memcached", &mut command, port, |command| Ok(command.spawn()))
}

/// Starts a program of Debian's `package` on `core`, and waits until it answers at `port`.
fn peer(name: &str, package: &str, core: usize, port: u16, arguments: &[&str]) -> anyhow::Result<Server> {
    let mut command = Command::new(name);
    command.args(arguments);
    started(name, package, &mut command, port, |command| machine::pinned(core, || command.spawn()))
}

fn started(
    name: &str,
    package: &str,
    command: &mut Command,
    port: u16,
    spawn: impl FnOnce(&mut Command) -> anyhow::Result<std::io::Result<Child>>,
) -> anyhow::Result<Server> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child =
        spawn(command)?.with_context(|| format!("cannot start {name}; install it with: apt-get install {package}"))?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let server = Server { name: name.to_owned(), child, address };
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        anyhow::ensure!(begin.elapsed() < START_TIME_MAX, "{name} does not answer on {address}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(server)
}

/// A port that was free a moment ago: for programs that cannot bind port 0 and tell.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
