//! Volumes made of clones of a snapshot.

use std::rc::Rc;

use device::{Durability, Lba, Namespace};
use engine::Buf;
use engine::sim::World;
use volume::{AdoptOptions, Error, Reach, Set, SnapshotName, Volume};

use crate::basics::{get, put};
use crate::cluster::{BLOCK, Cluster, attach, format, options, run, whole};
use crate::shelf::Kept;

/// What a control plane does by the target's own command: the spare node's namespace gets the bytes of the snapshot at a node.
pub async fn clone_of(cluster: &Cluster, volume: u128, (name, node): (SnapshotName, usize), spare: usize) {
    let tag = name.tag(volume).expect("it fits");
    let kept = cluster.places.shelf.of(node).into_iter().find(|kept| kept.tag == tag);
    let Kept { label, head, data, .. } = kept.expect("it is named");
    cluster.places.release(spare).await;
    let namespace = cluster.places.reach(spare, "control").look().await.expect("it is up");
    for (lba, bytes) in [(label.data_first, data), (0, head)] {
        for (index, block) in bytes.chunks(BLOCK).enumerate() {
            let view = Buf::copy_from(block).freeze();
            namespace.write(Lba(lba + index as u64), view, Durability::Stable).await.expect("nobody has it");
        }
    }
}

/// A volume with a snapshot in which block 5 has 1; it has 2 by now. Its identifier.
pub async fn source(cluster: &Cluster, replicas: u8) -> (Volume, SnapshotName) {
    format(&cluster.places, replicas).await;
    let volume = attach(&cluster.places, "a").await;
    put(&volume, 5, 1).await.expect("all is well");
    volume.grow(200 * BLOCK as u64).await.expect("there is room");
    put(&volume, 199, 3).await.expect("all is well");
    let name = volume.snapshot().await.expect("all is well");
    put(&volume, 5, 2).await.expect("all is well");
    (volume, name)
}

pub fn reaches(cluster: &Cluster, nodes: &[usize]) -> Vec<Rc<dyn Reach>> {
    nodes.iter().map(|&node| cluster.places.reach(node, "operator")).collect()
}

pub fn of(volume: &Volume, clones: Set) -> AdoptOptions {
    AdoptOptions { of: volume.shape().volume, clones, volume: Some(77), force: false }
}

pub async fn is_clone(world: &World, cluster: &Cluster, nodes: &[usize], replicas: u8) {
    let volume = volume::attach(reaches(cluster, nodes), options()).await.expect("it is a volume");
    assert_eq!((volume.shape().volume, volume.info().blocks), (77, 200));
    assert!(volume.snapshots().is_empty());
    assert_eq!((get(&volume, 5).await, get(&volume, 199).await, get(&volume, 6).await), (Ok(1), Ok(3), Ok(0)));
    put(&volume, 5, 9).await.expect("all is well");
    whole(&volume).await;
    assert!(volume.verify(None).await.is_ok_and(|report| report.is_clean()));
    volume.detach().await.expect("it is attached");
    let at = |node: usize| {
        let label = volume::Label::decode(&world.peek(cluster.nodes[node], crate::cluster::DISK, 0, BLOCK));
        let data_first = label.expect("a holder has a label").data_first;
        world.peek(cluster.nodes[node], crate::cluster::DISK, data_first * BLOCK as u64, 200 * BLOCK)
    };
    let replicas = &nodes[..usize::from(replicas)];
    replicas.iter().for_each(|&node| assert!(at(node) == at(replicas[0]), "node {node} differs"));
}

#[test]
fn clones_become_a_volume_of_their_own() {
    for (replicas, clones) in [(1, 0b1), (2, 0b11), (3, 0b111), (3, 0b101), (2, 0b10)] {
        let holders = crate::cluster::holders(replicas);
        run(51, replicas, 3, async |world, cluster| {
            let (source, name) = source(cluster, replicas).await;
            let nodes: Vec<usize> = (holders..2 * holders).collect();
            for slot in Set(clones).iter() {
                clone_of(cluster, source.shape().volume, (name, slot), nodes[slot]).await;
            }
            let shape = volume::adopt(reaches(cluster, &nodes), of(&source, Set(clones))).await.expect("all is well");
            let again = volume::adopt(reaches(cluster, &nodes), of(&source, Set(clones))).await;
            assert_eq!(again.ok(), Some(shape), "it is made already");
            is_clone(world, cluster, &nodes, replicas).await;
            assert_eq!((get(&source, 5).await, source.info().blocks), (Ok(2), 200), "the source goes on");
        });
    }
}

#[test]
fn what_is_no_clone_is_left_alone() {
    run(52, 3, 3, async |_, cluster| {
        let (source, name) = source(cluster, 3).await;
        let id = source.shape().volume;
        clone_of(cluster, id, (name, 0), 3).await;
        clone_of(cluster, id, (name, 0), 4).await;
        // The source's own holder, in use or detached.
        let named = async |nodes: [usize; 3], clones: u8| {
            volume::adopt(reaches(cluster, &nodes), of(&source, Set(clones))).await.map(drop)
        };
        assert!(matches!(named([3, 1, 5], 0b11).await, Err(Error::InUse { .. })));
        assert!(matches!(named([3, 4, 5], 0b11).await, Err(Error::OtherVolume { slot: 0, .. })), "of slot 0");
        assert!(matches!(named([3, 4, 5], 0b1).await, Err(Error::InUse { .. })), "what is beside it is not blank");
        assert!(matches!(named([3, 3, 5], 0b1).await, Err(Error::InUse { .. } | Error::Impossible(_))));
        let wrong = AdoptOptions { of: 5, ..of(&source, Set(1)) };
        assert!(matches!(volume::adopt(reaches(cluster, &[3, 4, 5]), wrong).await, Err(Error::OtherVolume { .. })));
        for none in [AdoptOptions { clones: Set(0), ..wrong }, AdoptOptions { volume: Some(5), ..wrong }] {
            assert!(matches!(volume::adopt(reaches(cluster, &[3, 4, 5]), none).await, Err(Error::Impossible(_))));
        }
        // As large as the other one, and of another moment.
        let next = source.snapshot().await.expect("all is well");
        clone_of(cluster, id, (next, 1), 4).await;
        assert!(matches!(named([3, 4, 5], 0b11).await, Err(Error::Impossible(_))), "of two snapshots");
        source.detach().await.expect("it is attached");
        assert!(matches!(named([0, 1, 2], 0b111).await, Err(Error::InUse { .. })));
        assert_eq!(get(&attach(&cluster.places, "b").await, 5).await, Ok(2));
    });
}
