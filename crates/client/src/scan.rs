//! Walking over keys.

use std::collections::VecDeque;

use kv::store::ListEntry;

use crate::client::Client;
use crate::error::Error;
use crate::pending::Pending;

/// Keys asked for at a time. Chosen: enough to hide the round trips, some tens of KiB.
const PAGE_ENTRIES: usize = 1000;

/// A walk over keys, from [`Client::scan`]: an iterator that blocks. After an error it goes on where it was.
pub struct Scan {
    client: Client,
    prefix: Vec<u8>,
    entries: VecDeque<ListEntry>,
    /// Where to go on; `None`: everything was read.
    cursor: Option<u64>,
}

impl Scan {
    pub(crate) fn new(client: Client, prefix: &[u8]) -> Scan {
        Scan { client, prefix: prefix.to_vec(), entries: VecDeque::new(), cursor: Some(0) }
    }

    /// The next key; `None`: that was all. Dropping the future loses no key.
    ///
    /// # Errors
    /// As [`Client::list`]; the walk may go on.
    pub async fn next_entry(&mut self) -> Result<Option<ListEntry>, Error> {
        while self.entries.is_empty()
            && let Some(cursor) = self.cursor
        {
            let page = self.ask(cursor).await?;
            self.entries.extend(page.entries);
            self.cursor = page.next;
        }
        Ok(self.entries.pop_front())
    }

    fn ask(&self, cursor: u64) -> Pending<kv::store::ListPage> {
        self.client.list(&self.prefix, cursor, PAGE_ENTRIES)
    }
}

impl Iterator for Scan {
    type Item = Result<ListEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.entries.is_empty()
            && let Some(cursor) = self.cursor
        {
            match self.ask(cursor).wait() {
                Ok(page) => {
                    self.entries.extend(page.entries);
                    self.cursor = page.next;
                }
                Err(error) => return Some(Err(error)),
            }
        }
        self.entries.pop_front().map(Ok)
    }
}
