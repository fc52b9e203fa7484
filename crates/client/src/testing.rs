//! A pool, or a volume, in this process's memory, for the tests of programs that use one: real targets on loopback, no files, no
//! root. It is there with the crate's feature `testing`.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::thread::JoinHandle;

use device::{AnyNamespace, Memory, Namespace, NamespaceInfo};
use engine::sync::{MailSender, mailbox};
use engine::{Reactor, ReactorConfig, task};
use fabric::host::HostIdentity;
use fabric::subsystem::{Target, listen};
use nvme::Nqn;
use pool::{CreateOptions, NewMember};
use volume::{FormatOptions, NvmeReach, Reach};

use crate::error::Error;

/// Bytes of each member. Chosen: some ten thousand small entries; memory that is never written is never taken.
const MEMBER_BYTES: u64 = 64 << 20;
const BLOCK_SIZE: u32 = 4096;

/// Targets on loopback, each with a member in memory, and the pool of them. All is gone when it is dropped.
///
/// ```
/// let pool = client::testing::MemoryPool::start(3)?;
/// let client = client::Client::connect(pool.addresses(), client::Options::default()).wait()?;
/// assert_eq!(client.get("lantern").wait()?, None);
/// # Ok::<(), client::Error>(())
/// ```
pub struct MemoryPool(Targets);

/// Targets on loopback, each with a namespace in memory: the holders of a volume, or of nothing. All is gone when it is dropped.
pub struct MemoryNamespaces(Targets);

/// What the namespaces are made.
#[derive(Clone, Copy)]
enum Content {
    Pool,
    Volume,
    Nothing,
}

struct Targets {
    addresses: Vec<String>,
    stop: Option<MailSender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryPool {
    /// Starts `members` targets; every key has three replicas, or as many as there are members if they are fewer.
    ///
    /// # Errors
    /// No members or too many; this machine gives no reactor, or no port.
    pub fn start(members: usize) -> Result<MemoryPool, Error> {
        if !(1..=usize::from(u8::MAX)).contains(&members) {
            return Err(Error::Usage(format!("a pool of {members} members in memory: 1 to 255")));
        }
        Ok(MemoryPool(Targets::start(members, Content::Pool)?))
    }

    /// The members' addresses.
    pub fn addresses(&self) -> &[String] {
        &self.0.addresses
    }
}

impl MemoryNamespaces {
    /// Starts `count` targets with blank namespaces.
    ///
    /// # Errors
    /// This machine gives no reactor, or no port.
    pub fn blank(count: usize) -> Result<MemoryNamespaces, Error> {
        Ok(MemoryNamespaces(Targets::start(count, Content::Nothing)?))
    }

    /// Starts three targets and makes a volume of their namespaces.
    ///
    /// # Errors
    /// This machine gives no reactor, or no port.
    pub fn volume() -> Result<MemoryNamespaces, Error> {
        Ok(MemoryNamespaces(Targets::start(3, Content::Volume)?))
    }

    /// Where the targets are, by slot of the volume.
    pub fn addresses(&self) -> &[String] {
        &self.0.addresses
    }
}

impl Targets {
    fn start(count: usize, content: Content) -> Result<Targets, Error> {
        let (stop, stopped) = mailbox::<Infallible>(1);
        let (ready, told) = std::sync::mpsc::channel();
        let failed = ready.clone();
        let run = move || {
            let main = async move {
                match serve(count, content).await {
                    Ok((addresses, servers)) => {
                        // Whoever started us may have gone.
                        let _ = ready.send(Ok(addresses));
                        stopped.recv().await;
                        drop(servers);
                    }
                    // As above.
                    Err(error) => drop(ready.send(Err(error))),
                }
            };
            if let Err(error) = Reactor::run(ReactorConfig::default(), main) {
                let no_reactor = Error::Unavailable(format!("this machine gives no reactor (io_uring): {error}"));
                // As above.
                let _ = failed.send(Err(no_reactor));
            }
        };
        let thread = std::thread::Builder::new().name("yagura-memory-pool".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::Unavailable(format!("no thread for the pool: {error}")))?;
        let ended = || Err(Error::Unavailable("the pool's thread has ended".to_owned()));
        let addresses = told.recv().unwrap_or_else(|_| ended())?;
        Ok(Targets { addresses, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Targets {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was told by the hook.
            let _ = thread.join();
        }
    }
}

/// Memory that says that it keeps reservations over a loss of power, as holders of volumes must: here power is lost for good.
struct Kept(Memory);

impl Namespace for Kept {
    device::delegate_namespace!(this => { Kept(memory) => memory };
        read, write, flush, compare, compare_and_write, write_zeroes, deallocate, verify, write_uncorrectable,
        hint_lifetime, writability, used_blocks, link, attribute, set_attribute, zones);

    fn info(&self) -> NamespaceInfo {
        NamespaceInfo { persists_attributes: true, ..self.0.info() }
    }
}

type Servers = Vec<task::Task<Infallible>>;

/// Makes the namespaces and their content, and serves them until what is returned is dropped.
async fn serve(count: usize, content: Content) -> Result<(Vec<String>, Servers), Error> {
    let refused = |error: &dyn std::fmt::Display| Error::Refused(error.to_string());
    let (mut members, mut servers, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
    let (mut holders, host): (Vec<Rc<dyn Reach>>, _) = (Vec::new(), HostIdentity::random().nqn);
    for index in 0..count {
        let mut nguid = [0; 16];
        nguid[..8].copy_from_slice(&task::random_u64().to_le_bytes());
        nguid[8..].copy_from_slice(&task::random_u64().to_le_bytes());
        let memory = Memory::new(MEMBER_BYTES, BLOCK_SIZE, nguid).map_err(|error| refused(&error))?;
        let memory = AnyNamespace::other(Kept(memory));
        let nqn: Nqn = format!("nqn.2026-11.io.yagura:memory-{index}").parse().map_err(|error| refused(&error))?;
        let target: Target = Target::default();
        target.add_subsystem(nqn.clone(), "memory").map_err(|error| refused(&error))?;
        target.add_namespace(&nqn, 1, memory.clone()).map_err(|error| refused(&error))?;
        let listener = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.map_err(|error| refused(&error))?;
        holders.push(Rc::new(NvmeReach::at(listener.local_addr(), nqn.clone(), 1, host.clone())));
        let address = listener.local_addr().to_string();
        servers.push(task::spawn(async move { target.serve(listener, Vec::new()).await }));
        addresses.push(address.clone());
        members.push(NewMember::at(memory, nqn.to_string(), 1, vec![address]));
    }
    // At most three, so it fits.
    let replicas = count.min(3) as u8;
    match content {
        Content::Nothing => (),
        Content::Pool => {
            pool::create(&members, &CreateOptions { replicas, ..CreateOptions::default() }, |_| ()).await?;
        }
        Content::Volume => {
            volume::format(holders, FormatOptions { replicas, ..FormatOptions::default() }).await?;
        }
    }
    Ok((addresses, servers))
}
