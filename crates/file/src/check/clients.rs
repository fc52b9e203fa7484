//! Clients that are no more: found by [`Watch`], collected by [`Collector`].
//!
//! **A client is no more when its record has not changed for an hour by the clock of whoever looks**, who compares what it has read
//! with what it reads: never two calendars, never the times that records say. Of the time between two looks no more than a
//! quarter of an hour counts: a store that was away, or a looker that was suspended, is no silence of others; they are given the
//! time to say that they live before they are looked at again.
//!
//! What it kept is let go, its chunks become nobody's, and its record goes last, as it stood: whoever dies between leaves a record
//! that others find. All of it may be done twice, and by several at once.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::backoff::jittered;
use engine::time::{self, Instant};

use super::{HOUR, unless_damaged};
use crate::access::{Held, Tries};
use crate::data::Auditor;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::meta::Version;
use crate::record::Record as _;
use crate::record::small::ClientRecord;

/// How often clients look at others, at the longest. Chosen: seldom beside what they do all the time, often beside the hour.
pub(crate) const LOOKS_EVERY: Duration = Duration::from_secs(10 * 60);
/// Of the time between two looks so much counts. Chosen: a look that is late by half still counts.
const GAP_MAX: Duration = Duration::from_secs(15 * 60);
/// A client that lives renews its record each minute.
pub(crate) const QUIET: Duration = Duration::from_secs(3 * 60);
/// Keys that are listed at once.
const LISTED: usize = 1024;

/// A client's record as it stood since some time.
#[derive(Clone, Copy)]
struct Seen {
    version: Version,
    silent: Duration,
    at: Instant,
}

/// What one process has seen of clients' records, in its memory alone.
#[derive(Default)]
pub(crate) struct Watch(BTreeMap<u64, Seen>);

/// A client's record as it was read.
pub(crate) struct Client {
    pub(crate) number: u64,
    pub(crate) version: Version,
    pub(crate) record: ClientRecord,
}

impl Watch {
    /// Takes note of a record as it was read since `sent`; whether it was as it is for an hour.
    fn note(&mut self, number: u64, version: Version, sent: Instant) -> bool {
        let seen = self.0.entry(number).or_insert(Seen { version, silent: Duration::ZERO, at: time::now() });
        // Up to when this was sent: it was read at no time before that.
        let gap = sent.duration_since(seen.at).min(GAP_MAX);
        let silent = if seen.version == version { seen.silent + gap } else { Duration::ZERO };
        *seen = Seen { version, silent, at: time::now() };
        silent >= HOUR
    }

    /// Whether it was silent for an hour when it was last looked at, and its record was at this version then.
    pub(crate) fn is_silent(&self, number: u64, version: Version) -> bool {
        self.0.get(&number).is_some_and(|seen| seen.silent >= HOUR && seen.version == version)
    }

    /// Whether it has said nothing for some minutes.
    pub(crate) fn is_quiet(&self, number: u64) -> bool {
        self.0.get(&number).is_some_and(|seen| seen.silent >= QUIET)
    }

    /// How long until those that say nothing will have been silent for an hour, at most.
    pub(crate) fn left(&self, numbers: &[u64]) -> Duration {
        let left = |number| HOUR.saturating_sub(self.0.get(number).map_or(Duration::ZERO, |seen| seen.silent));
        numbers.iter().map(left).max().unwrap_or_default()
    }
}

/// Looks at clients, and collects.
pub(crate) struct Collector {
    names: Rc<FileSystem>,
    auditor: Auditor,
    pub(crate) watch: Watch,
}

impl Collector {
    pub(crate) fn new(names: Rc<FileSystem>, auditor: Auditor) -> Collector {
        Collector { names, auditor, watch: Watch::default() }
    }

    /// Reads all clients' records, and takes note. Those that do not parse are told by whoever reads everything.
    pub(crate) async fn look(&mut self) -> Result<Vec<Client>, Error> {
        let (prefix, mut cursor, mut found) = (self.names.access.keys.of(b'c', &[]), 0, BTreeMap::new());
        loop {
            let (keys, next) = self.names.access.meta.list(&prefix, cursor, LISTED).await?;
            for key in keys {
                let number = key.strip_prefix(&*prefix).and_then(|rest| rest.try_into().ok()).map(u64::from_be_bytes);
                let Some(number) = number else { continue };
                let sent = time::now();
                let Some(seen) = self.names.access.meta.get(&key).await? else { continue };
                self.watch.note(number, seen.version, sent);
                if let Ok(record) = ClientRecord::decode(&seen.value) {
                    found.insert(number, Client { number, version: seen.version, record });
                }
            }
            if next == 0 {
                break;
            }
            cursor = next;
        }
        self.watch.0.retain(|number, _| found.contains_key(number));
        Ok(found.into_values().collect())
    }

    /// Those of what a look has found that are no more.
    pub(crate) fn silent(&self, clients: Vec<Client>) -> Vec<Client> {
        let is_silent = |client: &Client| self.watch.is_silent(client.number, client.version);
        let others = clients.into_iter().filter(|client| client.number != self.names.client());
        others.filter(is_silent).collect()
    }

    /// A client's record, if it is as it was looked at: read anew before each change, and after what that is to change.
    async fn still(&self, client: &Client) -> Result<Option<Held<ClientRecord>>, Error> {
        let held = self.names.access.get::<ClientRecord>(&self.names.access.keys.client(client.number)).await?;
        Ok(held.filter(|held| held.version() == client.version))
    }

    /// Takes a client that is no more out of the keepers of an inode. False: it is back.
    async fn let_go(&self, client: &Client, ino: u64) -> Result<bool, Error> {
        let mut tries = Tries::new();
        loop {
            let held = unless_damaged(self.names.inode(ino).await)?.flatten();
            let Some(held) = held.filter(|held| held.record.keepers.contains(&client.number)) else { return Ok(true) };
            if self.still(client).await?.is_none() {
                return Ok(false);
            }
            if self.names.take_out_at(ino, held.version(), &[], Some(client.number)).await? {
                return Ok(true);
            }
            tries.again("other clients change the inode").await?;
        }
    }

    /// Collects a client that is no more. False: its record has changed since it was looked at.
    pub(crate) async fn collect(&self, client: &Client) -> Result<bool, Error> {
        for &ino in &client.record.orphans {
            if !self.let_go(client, ino).await? {
                return Ok(false);
            }
        }
        let mut chunks = 0;
        for (number, version) in self.auditor.owned(client.number).await? {
            if self.still(client).await?.is_none() {
                return Ok(false);
            }
            chunks += usize::from(self.auditor.clear_at(number, version, &[], true).await?);
        }
        if self.still(client).await?.is_none() {
            return Ok(false);
        }
        self.names.fold_shares(client.number).await?;
        let Some(held) = self.still(client).await? else { return Ok(false) };
        let is_collected = self.names.access.remove(&self.names.access.keys.client(client.number), &held).await?;
        if is_collected {
            let (host, orphans) = (&client.record.host, client.record.orphans.len());
            tracing::info!(client = client.number, host, orphans, chunks, "a client that is no more was collected");
        }
        Ok(is_collected)
    }

    /// Looks once, and collects.
    async fn turn(&mut self) -> Result<(), Error> {
        let (clients, mut collected) = (self.look().await?, Ok(()));
        for client in self.silent(clients) {
            // One that can't be collected keeps nobody from the others.
            collected = self.collect(&client).await.map(drop).and(collected);
        }
        collected
    }

    /// Looks and collects now and then, for as long as it is let. Whoever mounts does that, so that nobody else has to.
    pub(crate) async fn run(mut self) {
        loop {
            time::sleep(jittered(LOOKS_EVERY)).await;
            if let Err(error) = self.turn().await {
                tracing::warn!(%error, "clients that are no more can't be collected now");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::sim::{SimConfig, World};
    use kv::Timestamp;

    use super::*;

    /// Whoever looks was suspended, or the store away: the others are given their time.
    #[test]
    fn an_hour_in_which_nobody_looked_is_no_silence() {
        let config = SimConfig { virtual_time_max: Duration::from_secs(24 * 3600), ..SimConfig::default() };
        let ended = World::new(1, config).run_until(async {
            let version = |counter| Version::new(Timestamp { counter, ..Timestamp::ZERO }, &[]);
            let (mut watch, minutes) =
                (Watch::default(), |minutes: u64| time::sleep(Duration::from_secs(60 * minutes)));
            assert!(!watch.note(7, version(1), time::now()));
            minutes(300).await;
            assert!(!watch.note(7, version(1), time::now()), "a quarter of an hour counts");
            for _ in 0..4 {
                assert!(!watch.is_silent(7, version(1)));
                minutes(12).await;
                watch.note(7, version(1), time::now());
            }
            assert!(watch.is_silent(7, version(1)), "five looks, 15 and four times 12 minutes");
            assert!(!watch.is_silent(7, version(2)), "it has said something since");
            assert!(!watch.note(7, version(2), time::now()), "it lives");
            assert_eq!(watch.left(&[7]), HOUR);
        });
        ended.expect("it ends");
    }
}
