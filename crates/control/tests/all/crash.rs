//! Power fails at each write and each sync of the embedded engine's medium, one after the other.
//!
//! The medium's faults: of what was written after the last sync, any part may be there and any part not, in units of 512 bytes;
//! what was synced is there. From the moment of the crash on, everything fails.

use std::collections::BTreeMap;
use std::io::{Error as IoError, Result as IoResult};
use std::sync::{Arc, Mutex};

use control::catalogue::{Catalogue, Embedded, EmbeddedOptions, Error, Outcome, Prefix, Range, Revision, Transaction};
use engine::rng::SplitMix;
use redb::StorageBackend;

use crate::words::*;

const SECTOR: usize = 512;

#[derive(Default, Debug)]
struct State {
    /// What a reader sees.
    seen: Vec<u8>,
    /// What is on the medium for certain.
    stable: Vec<u8>,
    /// Sectors written since the last sync.
    unsynced: Vec<(usize, Vec<u8>)>,
    /// Writes and syncs until the power fails.
    left: u64,
    done: u64,
}

/// A medium in memory; clones are the same one.
#[derive(Clone, Debug)]
struct Medium(Arc<Mutex<State>>);

fn failed() -> IoError {
    IoError::other("the power has failed")
}

impl Medium {
    fn holding(image: Vec<u8>, left: u64) -> Medium {
        Medium(Arc::new(Mutex::new(State { seen: image.clone(), stable: image, left, ..State::default() })))
    }

    /// What is there after the crash; `seed` chooses what of the unsynced.
    fn image(&self, seed: u64) -> Vec<u8> {
        let state = self.0.lock().unwrap();
        let mut image = state.stable.clone();
        image.resize(image.len().max(state.seen.len()), 0);
        let mut random = SplitMix(seed);
        for (at, sector) in &state.unsynced {
            if random.draw() >> 63 == 1 && at + sector.len() <= image.len() {
                image[*at..at + sector.len()].copy_from_slice(sector);
            }
        }
        image
    }

    fn effect(&self, effect: impl FnOnce(&mut State)) -> IoResult<()> {
        let mut state = self.0.lock().unwrap();
        state.left = state.left.checked_sub(1).ok_or_else(failed)?;
        state.done += 1;
        if state.left > 0 {
            effect(&mut state);
            return Ok(());
        }
        // The one it fails in may have been done, or a part of it.
        effect(&mut state);
        Err(failed())
    }
}

impl StorageBackend for Medium {
    fn len(&self) -> IoResult<u64> {
        Ok(self.0.lock().unwrap().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> IoResult<()> {
        let state = self.0.lock().unwrap();
        if state.left == 0 {
            return Err(failed());
        }
        let at = offset as usize;
        let seen = state.seen.get(at..at + out.len()).ok_or_else(|| IoError::other("beyond the end"))?;
        out.copy_from_slice(seen);
        Ok(())
    }

    fn set_len(&self, len: u64) -> IoResult<()> {
        self.effect(|state| state.seen.resize(len as usize, 0))
    }

    fn sync_data(&self) -> IoResult<()> {
        let sync = |state: &mut State| {
            if state.left > 0 {
                state.stable = state.seen.clone();
                state.unsynced.clear();
            }
        };
        self.effect(sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> IoResult<()> {
        let write = |state: &mut State| {
            let at = offset as usize;
            state.seen[at..at + data.len()].copy_from_slice(data);
            let mut start = at;
            while start < at + data.len() {
                let end = ((start / SECTOR + 1) * SECTOR).min(at + data.len());
                state.unsynced.push((start, state.seen[start..end].to_vec()));
                start = end;
            }
        };
        self.effect(write)
    }
}

type Entries = BTreeMap<String, String>;

/// Commits one after the other until the medium fails; the states after each, and how many were acknowledged.
async fn work(medium: Medium) -> (Vec<Entries>, usize) {
    let (mut states, mut entries) = (vec![Entries::new()], Entries::new());
    let options = EmbeddedOptions { history_changes: 12, ..EmbeddedOptions::default() };
    let Ok(catalogue) = Embedded::on(medium, options).await else { return (states, 0) };
    for count in 0..14 {
        let (name, old) = (format!("k{}", count % 5), format!("k{}", (count + 2) % 5));
        let text = format!("{count}").repeat(1 + 300 * (count % 3));
        entries.insert("count".to_owned(), count.to_string());
        entries.insert(name.clone(), text.clone());
        entries.remove(&old);
        states.push(entries.clone());
        let changes = vec![put("count", count.to_string()), put(name, text), delete(old)];
        match catalogue.commit(Transaction::new(Vec::new(), changes).unwrap()).await {
            Ok(Outcome::Committed(_)) => {}
            Err(Error::OutcomeUnknown { .. }) => return (states, count),
            // Nothing was done: the state after it may not be there.
            Err(Error::Storage { .. }) => {
                states.pop();
                return (states, count);
            }
            other => panic!("{other:?}"),
        }
    }
    let acknowledged = states.len() - 1;
    (states, acknowledged)
}

/// Opens what the crash has left, and compares it with every state that may be there.
async fn check(image: Vec<u8>, states: &[Entries], acknowledged: usize) {
    let medium = Medium::holding(image, u64::MAX);
    let catalogue = Embedded::on(medium, EmbeddedOptions::default()).await.expect("it opens");
    let (revision, entries) = read_all(&catalogue, Range::of(Prefix::all())).await.unwrap();
    let found: Entries = told(&entries).into_iter().collect();
    let commits = (revision.0 - 1) as usize;
    assert!(commits >= acknowledged && commits < states.len(), "{commits} commits, {acknowledged} acknowledged");
    assert_eq!(found, states[commits], "after {commits} commits");
    // History agrees: from where it begins, each commit leads from one state to the next.
    let start = (1..=revision.0).map(Revision);
    let mut at = None;
    for start in start {
        if let Ok((_, entries)) = read_all(&catalogue, Range::of(Prefix::all()).at(start)).await {
            let past: Entries = told(&entries).into_iter().collect();
            assert_eq!(past, states[start.0 as usize - 1], "at {start}");
            at = at.or(Some(start));
        }
    }
    let mut watch = catalogue.watch(Prefix::all(), at.expect("history has the present"));
    for expected in at.unwrap().0 + 1..=revision.0 {
        assert_eq!(next(&mut watch).await.revision, Revision(expected));
    }
    change(&catalogue, vec![put("after", "1")]).await;
}

#[tokio::test]
async fn power_that_fails_at_any_write_or_sync_loses_nothing_acknowledged() {
    let whole = Medium::holding(Vec::new(), u64::MAX);
    let (states, acknowledged) = work(whole.clone()).await;
    assert_eq!((states.len(), acknowledged), (15, 14));
    let effects = whole.0.lock().unwrap().done;
    assert!(effects > 40, "{effects} writes and syncs");
    let mut unfinished = 0;
    for left in 1..=effects {
        let medium = Medium::holding(Vec::new(), left);
        let (states, acknowledged) = work(medium.clone()).await;
        unfinished += usize::from(acknowledged < 14);
        for seed in [left, left + 1_000_000] {
            let image = medium.image(seed);
            if acknowledged == 0
                && Embedded::on(Medium::holding(image.clone(), u64::MAX), EmbeddedOptions::default()).await.is_err()
            {
                // The file itself was not made yet.
                continue;
            }
            check(image, &states, acknowledged).await;
        }
    }
    assert!(unfinished > 30, "{unfinished} crashes before the last commit");
}
