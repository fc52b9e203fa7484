//! Two control planes on one etcd.

use std::sync::Arc;

use control::provision::{Error, Provisioner, Request, Worker, WorkerOptions};
use tokio::task::JoinSet;

use super::drives::{GIB, HEAD};
use super::world::*;
use crate::cluster::Cluster;
use crate::etcd::open;

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_promise_the_last_room_once_and_share_the_work() {
    let cluster = Cluster::start().await;
    let catalogue = async || Arc::new(open(cluster.endpoints(), "p/").await);
    let world = World::on(catalogue().await, &[42, 42, 42]).await;
    let other = Provisioner::new(catalogue().await, world.drives.clone());
    let both = [world.provisioner.clone(), other];
    let workers = both.each_ref().map(|one| tokio::spawn(Worker::new(one, WorkerOptions::default()).run()));
    let mut asked = JoinSet::new();
    for index in 0..10 {
        let one = both[index % 2].clone();
        asked.spawn(async move {
            let new = new_volume(&format!("v{index}"), 10, 3);
            (one.create_volume(&Request::unnamed(), &owner(), &new).await, format!("v{index}"))
        });
    }
    let mut begun = Vec::new();
    for (answer, volume) in asked.join_all().await {
        match answer {
            Ok(id) => begun.push((id, volume)),
            Err(error) => assert!(matches!(error, Error::NoRoom(_)), "{error}"),
        }
    }
    assert_eq!(begun.len(), 4);
    let ids: Vec<_> = begun.iter().map(|(id, _)| *id).collect();
    world.end_all(&ids, 0).await.iter().for_each(done);
    world.at_rest().await;
    let drives = world.provisioner.drives(None).await.expect("a list").items;
    assert!(drives.iter().all(|drive| drive.promised == 4 * (10 * GIB + HEAD)));
    let mut ids = Vec::new();
    for (index, (_, volume)) in begun.iter().enumerate() {
        let deleted = both[index % 2].delete_volume(&Request::unnamed(), &owner(), &name(volume), false).await;
        ids.push(deleted.expect("begun"));
    }
    world.end_all(&ids, 0).await.iter().for_each(done);
    world.at_rest().await;
    workers.iter().for_each(tokio::task::JoinHandle::abort);
}
