//! The product's [`Backend`]: a [`Store`].

use super::backend::{Backend, Failure, ScanPage};
use crate::store::{Link, Store, StoreError};
use crate::value::Value;

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let code = match error {
            StoreError::Key { .. } | StoreError::Value { .. } => "ERR",
            StoreError::OutOfSpace { .. } => Failure::OUT_OF_SPACE,
            StoreError::Unavailable { .. }
            | StoreError::MapChanged { .. }
            | StoreError::Contended { .. }
            | StoreError::OutcomeUnknown => Failure::UNAVAILABLE,
        };
        Failure::new(code, error)
    }
}

impl<N: Link> Backend for Store<N> {
    async fn get(&self, key: &[u8]) -> Result<Option<Value>, Failure> {
        Ok(Store::get(self, key).await?)
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        Ok(Store::put(self, key, Value::copy_from(value)).await?)
    }

    async fn delete(&self, key: &[u8]) -> Result<bool, Failure> {
        Ok(Store::delete(self, key).await?)
    }

    async fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Failure> {
        let step = Store::scan(self, cursor, count).await?;
        Ok(ScanPage { keys: step.entries.into_iter().map(|entry| entry.key).collect(), next: step.next })
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
