//! What a host has said of a replacement: how old that may be, and what is changed while it says so.

use std::sync::Arc;
use std::time::Duration;

use control::catalogue::{Change, Key, Outcome, Transaction, Value};
use control::provision::{Assigned, Progress, Provisioner, Report, Wish, Work, Working};
use serde_json::Value as Json;
use tokio::time::sleep;
use uuid::Uuid;

use super::crash::used;
use super::faults::Faulty;
use super::hosts::Host;
use super::replacing::{keep, replace, uid, volume};
use super::world::*;

/// What the operation asks of the host, and was told.
async fn asked(world: &World, id: Uuid) -> Json {
    let found = world.keys_and_values(&format!("/wanted/{id}")).await;
    serde_json::from_str(&found.first().expect("it is asked").1).expect("a record")
}

fn put(id: Uuid, asked: &Json) -> Transaction {
    let key = Key::new(format!("/wanted/{id}")).unwrap();
    Transaction::new(Vec::new(), vec![Change::put(key, Value::new(asked.to_string()).unwrap())]).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_a_host_has_said_long_ago_deletes_no_former_holder_and_the_same_said_again_does() {
    let world = used().await;
    let old = keep(&world, "old").await;
    let former = uid(&old.holders[0]);
    let mut host = Host::new(&world).await;
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    let worker = world.worker();
    while !world.drives.mirrors.lock().unwrap()[&old.id].had.contains_key(&former) {
        host.ask().await.expect("it has the volume");
        sleep(Duration::from_millis(500)).await;
    }
    worker.abort();
    // It is in sync, which the host says while nobody goes on with the operation.
    for _ in 0..10 {
        host.ask().await.expect("it has the volume");
    }
    let mut wanted = asked(&world, id).await;
    assert_eq!(
        (&wanted["heard"]["progress"]["in_sync"], &wanted["heard"]["progress"]["is_taken"]),
        (&7.into(), &true.into())
    );
    let at = wanted["heard"]["at"].as_u64().expect("it is said") - 11;
    wanted["heard"]["at"] = at.into();
    let outcome = world.catalogue.commit(put(id, &wanted)).await;
    assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
    let worker = world.worker();
    sleep(Duration::from_secs(30)).await;
    assert!(world.drives.namespaces().contains_key(&former), "by a word of long ago it was deleted");
    assert!(world.provisioner.operation(None, id).await.expect("there").ended.is_none());
    // The same again, which is new for that.
    host.ask().await.expect("it has the volume");
    host.ask().await.expect("it has the volume");
    assert!(asked(&world, id).await["heard"]["at"].as_u64() > Some(at), "it is written down anew");
    sleep(Duration::from_secs(30)).await;
    worker.abort();
    done(&world.provisioner.operation(None, id).await.expect("there"));
    assert!(!world.drives.namespaces().contains_key(&former));
    world.at_rest().await;
}

/// The operation wants something else by the time at which what the host says is to be written down, or has ended.
#[tokio::test(start_paused = true)]
async fn a_host_is_told_what_is_wanted_after_its_word_and_not_before() {
    let world = used().await;
    let old = keep(&world, "old").await;
    let _host = Host::new(&world).await;
    let attachment = volume(&world, "old").await.attachment.expect("attached").id;
    let id = replace(&world, "old", old.holders[0].drive.as_str()).await.expect("begun");
    let worker = world.worker();
    let ask = async |asked: &Provisioner, report: &Report| asked.ask(&owner(), &name("old"), attachment, report).await;
    let replacement = loop {
        let wish = ask(&world.provisioner, &Report::default()).await.expect("it has the volume");
        if let Some(Assigned { work: Work::Replace(replacement), .. }) = wish.work {
            break replacement;
        }
        sleep(Duration::from_millis(500)).await;
    };
    worker.abort();
    assert!(!replacement.go, "it is only asked how far it is");
    let said = async |meanwhile: Transaction, left: u64| -> Wish {
        let late = Faulty::new(&world.catalogue, &world.faults);
        *late.before.lock().unwrap() = Some(meanwhile);
        let late = Provisioner::new(Arc::new(late), world.drives.clone());
        let progress = Progress { in_sync: 7, holding: 7, is_taken: false, left };
        let working = Some(Working { operation: id, progress });
        ask(&late, &Report { working, ..Report::default() }).await.expect("it has the volume")
    };
    let mut wanted = asked(&world, id).await;
    wanted["work"]["replace"]["go"] = true.into();
    let wish = said(put(id, &wanted), 1).await;
    let is_go = matches!(&wish.work, Some(Assigned { work: Work::Replace(replacement), .. }) if replacement.go);
    assert!(is_go, "it is told what was wanted before: {wish:?}");
    let gone = Change::delete(Key::new(format!("/wanted/{id}")).unwrap());
    let wish = said(Transaction::new(Vec::new(), vec![gone]).unwrap(), 2).await;
    assert_eq!(wish.work, None, "it is told of an operation that has ended");
}
