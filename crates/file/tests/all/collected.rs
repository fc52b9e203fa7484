//! Clients that are no more are collected by those that live, by themselves.

use std::rc::Rc;
use std::time::Duration;

use engine::time;
use file::data::{Audit, Auditor};
use file::{Error, Files, ROOT};

use crate::opened::{Place, make};
use crate::world::{kind_of, run_long};

const MINUTE: Duration = Duration::from_secs(60);

/// Clients that have a record.
fn clients(place: &Place) -> usize {
    place.meta.dump().iter().filter(|(key, _)| !key.contains(&b'=') && kind_of(key) == Some(&b'c')).count()
}

async fn space(place: &Place, files: &Files) -> Audit {
    Auditor::new(place.meta.client(), Rc::clone(files.members())).audit(&[]).await.unwrap()
}

/// It had a file without a name, and a chunk with rows that it had marked.
#[test]
fn a_client_that_was_silent_for_an_hour_is_collected_by_those_that_live() {
    run_long(1, async {
        let place = Place::new().await;
        let dead = place.client().await;
        let (kept, lost) = (make(&dead, "kept").await, make(&dead, "lost").await);
        for file in [&kept, &lost] {
            file.write(0, &vec![7; 300_000]).await.unwrap();
            file.flush().await.unwrap();
        }
        dead.close_file(&kept).await.unwrap();
        dead.names().unlink(ROOT, b"lost").await.unwrap();
        let (number, kept, lost) = (dead.names().client(), kept.ino(), lost.ino());
        drop(dead);
        let living = [place.client().await, place.client().await];
        let _alive: Vec<_> = living.iter().map(Files::keep_alive).collect();
        time::sleep(55 * MINUTE).await;
        assert_eq!(clients(&place), 3, "it is early");
        assert!(living[0].getattr(lost).await.is_ok());
        assert!(space(&place, &living[0]).await.chunks.iter().any(|chunk| chunk.owner == Some(number)));
        time::sleep(30 * MINUTE).await;
        assert_eq!(clients(&place), 2);
        assert_eq!(living[0].getattr(lost).await.map(drop), Err(Error::Stale));
        assert!(space(&place, &living[0]).await.chunks.iter().all(|chunk| chunk.owner.is_none()));
        let kept = living[0].open_file(kept).await.unwrap();
        assert_eq!(kept.read(0, 400_000).await.unwrap().to_vec(), vec![7; 300_000]);
        // Those that live stay, however long that is.
        time::sleep(400 * MINUTE).await;
        assert_eq!(clients(&place), 2);
    });
}
