//! From an address as people write it to one that can be connected to.
//!
//! The system's resolver blocks, for half a minute where no server answers it. So a name is looked up by a thread of its own, never
//! by a reactor, whose other members would stand still meanwhile.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::sync::mailbox;

use crate::error::Error;

/// Names looked up at once in this process. Guessed: a name that nobody answers for is asked for once in a while, and each takes
/// one of these for half a minute at most.
const LOOKUPS_MAX: usize = 32;
/// How long a name is waited for. Chosen: as a connection.
const LOOKUP_TIME: Duration = crate::way::CONNECT_TIME;

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

/// What an address can be, before anybody is asked.
///
/// # Errors
/// It is none: no host, or no port.
pub(crate) fn check(text: &str) -> Result<(), Error> {
    let named = |(host, port): (&str, &str)| !host.is_empty() && !host.contains(':') && port.parse::<u16>().is_ok();
    match text.parse::<SocketAddr>().is_ok() || text.rsplit_once(':').is_some_and(named) {
        true => Ok(()),
        false => Err(Error::Usage(format!("address `{text}`: write HOST:PORT"))),
    }
}

/// The socket address in `text`: HOST:PORT, where HOST may be a name.
///
/// # Errors
/// It is no address; the name in it is not known.
pub async fn resolve(text: &str) -> Result<SocketAddr, Error> {
    resolve_by(text, |text| text.to_socket_addrs()?.next().ok_or_else(|| std::io::Error::other("it has no IP address")))
        .await
}

async fn resolve_by(
    text: &str,
    look_up: impl FnOnce(&str) -> std::io::Result<SocketAddr> + Send + 'static,
) -> Result<SocketAddr, Error> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    check(text)?;
    let failed =
        |why: &dyn std::fmt::Display| Error::Unavailable(format!("the name in `{text}` can't be resolved: {why}"));
    let (sender, receiver) = mailbox(1);
    let more = |count: usize| (count < LOOKUPS_MAX).then_some(count + 1);
    if LOOKUPS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
        return Err(failed(&format!("{LOOKUPS_MAX} names are waited for already")));
    }
    let name = text.to_owned();
    let work = move || {
        let found = look_up(&name);
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
        // Whoever asked may have gone.
        let _ = sender.try_send(found);
    };
    if let Err(error) = std::thread::Builder::new().name("yagura-resolve".to_owned()).spawn(work) {
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
        return Err(failed(&error));
    }
    match engine::time::timeout(LOOKUP_TIME, receiver.recv()).await {
        Ok(Some(found)) => found.map_err(|error| failed(&error)),
        Ok(None) => Err(failed(&"the look-up has ended")),
        Err(_) => Err(failed(&format!("no answer within {} s", LOOKUP_TIME.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use engine::{Reactor, ReactorConfig};

    use super::*;

    #[test]
    fn what_is_no_address_is_told_from_a_name_that_nobody_knows() {
        for text in ["", "host", ":4420", "host:", "host:port", "host:70000", "::1:4420"] {
            assert!(matches!(check(text), Err(Error::Usage(_))), "{text}");
        }
        for text in ["host:4420", "127.0.0.1:1", "[::1]:4420"] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        let unknown = Reactor::run(ReactorConfig::default(), async {
            resolve_by("host:4420", |_| Err(std::io::Error::other("no such name"))).await
        });
        let said = unknown.expect("a reactor").expect_err("nobody knows it").to_string();
        assert_eq!(said, "the name in `host:4420` can't be resolved: no such name");
    }

    /// The reactor that asks is the one that lets the look-up go on: were it blocked, neither would end.
    #[test]
    fn a_name_is_looked_up_while_the_reactor_goes_on() {
        let found = Reactor::run(ReactorConfig::default(), async {
            let (go, wait) = channel::<()>();
            let asked = engine::task::spawn(async move {
                resolve_by("host:4420", move |_| match wait.recv_timeout(Duration::from_secs(4)) {
                    Ok(()) => Ok(SocketAddr::from(([127, 0, 0, 1], 4420))),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                        Err(std::io::Error::other("the reactor stands still"))
                    }
                })
                .await
            });
            engine::task::yield_now().await;
            go.send(()).expect("it waits");
            asked.await
        });
        assert_eq!(found.expect("a reactor"), Ok(SocketAddr::from(([127, 0, 0, 1], 4420))));
    }
}
