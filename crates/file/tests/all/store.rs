//! A short run over the real store, with three members in memory.

use std::rc::Rc;
use std::sync::Arc;

use device::Memory;
use file::meta::StoreMeta;
use file::{FileSystem, ROOT, RenameFlags};
use pool::{CreateOptions, NewMember};

use crate::world::{create, mkdir, names, options, run};

#[test]
fn files_are_named_in_the_store() {
    run(1, async {
        let members: Vec<Arc<Memory>> =
            (1..=3).map(|index| Arc::new(Memory::new(16 << 20, 4096, [index; 16]).unwrap())).collect();
        let new: Vec<_> = members
            .iter()
            .map(|member| NewMember::at(member.clone(), "nqn.2026-01.example:test", 1, vec!["127.0.0.1:1".into()]))
            .collect();
        let create_options = CreateOptions { replicas: 3, table_share: 50, force: true, ..CreateOptions::default() };
        let map = pool::create(&new, &create_options, |_| ()).await.unwrap();
        let store = || Rc::new(kv::Store::new(map.clone(), members.iter().cloned().map(Some).collect()));
        FileSystem::create_root(Rc::new(StoreMeta::new(store())), "test", &options()).await.unwrap();
        let open = async || FileSystem::open(Rc::new(StoreMeta::new(store())), "test", "here").await.unwrap();
        let (one, two) = (open().await, open().await);

        let (a, b) = (mkdir(&one, ROOT, "a").await, mkdir(&two, ROOT, "b").await);
        let long = |number: u32| format!("{number:0>200}");
        for number in 0..40 {
            create(if number % 2 == 0 { &one } else { &two }, a, &long(number)).await;
        }
        for number in 0..20 {
            let flags = RenameFlags::default();
            two.rename((a, long(number).as_bytes()), (b, long(number).as_bytes()), flags).await.unwrap();
        }
        two.rename((ROOT, b"b"), (a, b"b"), RenameFlags::default()).await.unwrap();
        assert_eq!(one.lookup(b, b"..").await.unwrap().ino, a);
        for number in 0..20 {
            one.unlink(b, long(number).as_bytes()).await.unwrap();
        }
        one.rmdir(a, b"b").await.unwrap();
        let mut left: Vec<String> = names(&two, a, 3).await.unwrap().into_iter().map(|(name, _)| name).collect();
        left.sort();
        assert_eq!(left, (20..40).map(long).collect::<Vec<_>>());
        one.close().await.unwrap();
        two.close().await.unwrap();
    });
}
