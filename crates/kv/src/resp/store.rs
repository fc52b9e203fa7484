//! The product's [`Backend`]: a [`Store`].

use super::backend::{Backend, Change, Entry, Failure, Look, Room, ScanKey, ScanPage};
use super::reply::Reply;
use super::strings::string;
use crate::store::{self, PutOptions, Store, StoreError, Versioned};
use crate::types::FILES_PREFIX;
use crate::value::Value;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let code = match &error {
            error if error.outcome_unknown() => Failure::UNKNOWN,
            StoreError::Key { .. } | StoreError::Value { .. } => "ERR",
            StoreError::OutOfSpace { .. } => Failure::OUT_OF_SPACE,
            StoreError::Unavailable { .. }
            | StoreError::MapChanged { .. }
            | StoreError::Contended { .. }
            | StoreError::OutOfReach { .. }
            | StoreError::OutcomeUnknown => Failure::TRY_AGAIN,
        };
        let is_full = matches!(error, StoreError::OutOfSpace { .. });
        Failure { is_full, ..Failure::new(code, error) }
    }
}

/// What the store says of a key, in the gateway's terms.
impl From<Versioned> for Entry {
    fn from(found: Versioned) -> Entry {
        Entry { value: found.value, expiry: found.expiry, tag: found.tag }
    }
}

/// A key of a gateway's clients.
///
/// # Errors
/// It is one of files.
fn check(key: &[u8]) -> Result<(), Failure> {
    match key.starts_with(FILES_PREFIX) {
        false => Ok(()),
        true => Err(Failure::new("ERR", "keys that begin with `yagura-file:` are those of files: use `yagura file`")),
    }
}

impl Backend for Store {
    async fn entry(&self, key: &[u8], room: Room) -> Result<Option<Entry>, Failure> {
        check(key)?;
        Ok(self.get_reserving(key, room).await?.map(Entry::from))
    }

    async fn look(&self, key: &[u8]) -> Result<Option<Look>, Failure> {
        check(key)?;
        let shown = Store::look(self, key).await?;
        Ok(shown.map(|shown| Look { length: shown.length, expiry: shown.expiry, tag: shown.tag }))
    }

    async fn put_entry(&self, key: &[u8], entry: Entry) -> Result<(), Failure> {
        check(key)?;
        let options = PutOptions { expiry: entry.expiry, tag: entry.tag };
        Ok(self.put_with(key, entry.value, options).await?)
    }

    async fn put_entries(&self, puts: Vec<(&[u8], Entry)>) -> Vec<Result<(), Failure>> {
        if let Some(refused) = puts.iter().find_map(|(key, _)| check(key).err()) {
            return puts.iter().map(|_| Err(refused.clone())).collect();
        }
        let options = |entry: &Entry| PutOptions { expiry: entry.expiry, tag: entry.tag };
        let puts: Vec<_> = puts.into_iter().map(|(key, entry)| (key, entry.value.clone(), options(&entry))).collect();
        self.put_many(&puts).await.into_iter().map(|result| Ok(result?)).collect()
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, Failure> {
        check(key)?;
        Ok(Store::delete(self, key).await?)
    }

    async fn update(
        &self,
        key: &[u8],
        room: Room,
        mut decide: impl FnMut(Option<&Entry>) -> Change,
    ) -> Result<Reply, Failure> {
        check(key)?;
        let decide = |found: Option<&Versioned>| match decide(found.cloned().map(Entry::from).as_ref()) {
            Change::Keep(reply) => store::Change::Keep(reply),
            Change::Put(Entry { value, expiry, tag }, result) => {
                store::Change::Put { value, options: PutOptions { expiry, tag }, result }
            }
            Change::Delete(reply) => store::Change::Delete(reply),
        };
        Ok(self.update_reserving(key, room, Reply::memory_bytes, decide).await?)
    }

    async fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure> {
        Ok(self.entry(key, None).await?.map(|entry| entry.value))
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.put_entry(key, string(value)).await
    }

    async fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Failure> {
        let step = Store::scan(self, cursor, count).await?;
        let shown = step.entries.into_iter().filter(|entry| check(&entry.key).is_ok());
        let keys = shown.map(|entry| ScanKey { key: entry.key, tag: entry.tag }).collect();
        Ok(ScanPage { keys, next: step.next })
    }

    fn random_cursor(&self) -> u64 {
        engine::task::random_u64() >> (64 - store::CURSOR_BITS)
    }

    async fn estimate_keys(&self) -> Result<u64, Failure> {
        Ok(self.estimate().await.keys)
    }

    fn further_copies(&self) -> u64 {
        self.map().replicas as u64 / 2
    }

    fn info(&self) -> Vec<(String, String)> {
        let (map, members) = (self.map(), self.members());
        let count =
            |is: &dyn Fn(&crate::store::MemberStatus) -> bool| members.iter().filter(|m| is(m)).count().to_string();
        vec![
            ("pool".into(), map.pool.to_string()),
            ("pool_epoch".into(), map.epoch.to_string()),
            ("replicas".into(), map.replicas.to_string()),
            ("members".into(), members.len().to_string()),
            ("members_connected".into(), count(&|member| member.connected)),
            ("members_voting".into(), count(&|member| member.votes)),
            ("members_stale".into(), count(&|member| member.stale)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Watch, Watched};
    use crate::testing::{create, memories, run};

    struct Nobody;

    impl Watch for Nobody {}

    #[test]
    fn keys_of_files_are_neither_seen_nor_changed() {
        run(1, async {
            let members = memories(3, 16 << 20);
            let map = create(&members, 3, 500).await;
            let store = Store::new(map, members.into_iter().map(Some).collect());
            let kept = b"yagura-file:=tree";
            let value = |bytes: &[u8]| Value::from(engine::Buf::copy_from(bytes).freeze());
            for key in [&kept[..], b"mine"] {
                store.put(key, value(b"value")).await.expect("put");
            }
            let is_refused = |error: Option<Failure>| error.is_some_and(|error| error.code == "ERR");
            let entry = || Entry { value: value(b"x"), ..Entry::default() };
            assert!(is_refused(store.entry(kept, None).await.err()));
            assert!(is_refused(Backend::look(&store, kept).await.err()));
            assert!(is_refused(store.put_entry(kept, entry()).await.err()));
            let puts = store.put_entries(vec![(b"other", entry()), (kept, entry())]).await;
            assert!(puts.into_iter().all(|put| is_refused(put.err())), "none of them, or nobody knows which");
            // Who is watched does what he does alone.
            let watched = Watched { inner: store.clone(), watch: Nobody };
            let puts = watched.put_entries(vec![(b"other", entry()), (kept, entry())]).await;
            assert!(puts.into_iter().all(|put| is_refused(put.err())), "one by one");
            assert!(is_refused(Backend::delete(&store, kept).await.err()));
            let decide = |_: Option<&Entry>| Change::Delete(Reply::Null);
            assert!(is_refused(Backend::update(&store, kept, None, decide).await.err()));
            let (mut seen, mut cursor) = (Vec::new(), 0);
            loop {
                let page = Backend::scan(&store, cursor, 100).await.expect("scanned");
                seen.extend(page.keys.into_iter().map(|found| found.key));
                cursor = page.next;
                if cursor == 0 {
                    break;
                }
            }
            assert_eq!(seen, [b"mine"]);
            assert!(store.get(kept).await.expect("got").is_some_and(|value| value.to_vec() == b"value"));
        });
    }
}
