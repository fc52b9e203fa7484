//! Which snapshots a volume has, and taking them where no control plane does.

use std::rc::Rc;

use ::volume::{Error, Inspected, Options, Reach, Record, Snapshot, SnapshotName, SnapshotView};
use device::Error::Reserved;
use serde::Serialize;

use super::words::{failure, name};
use super::work::snapshot_of;
use super::{named, reach};
use crate::cli::{SnapshotsOf, VolumeSnapshotArgs};
use crate::exit::Failure;
use crate::output;

/// The snapshots of a volume, as whoever knows them says.
pub struct Snapshots {
    reaches: Vec<Rc<dyn Reach>>,
    volume: u128,
    known: Known,
}

enum Known {
    /// The control plane: what each is called.
    Noted(Vec<(String, Snapshot)>),
    /// The holders: the newest record first. What any of them names is there, or was.
    Recorded(Vec<Record>),
}

impl Snapshots {
    /// Asks the control plane, or the holders.
    pub async fn of(args: &SnapshotsOf) -> Result<Snapshots, Failure> {
        let (found, volume) = named::holders(&args.of)?;
        let reaches = reach::named(&found.holders, &found.uids)?;
        if let (Some(called), Some(volume)) = (&args.of.name, volume) {
            let noted = named::snapshots(&args.of, called)?;
            let noted = noted.into_iter().map(|(name, moment)| (name, snapshot_of(&moment))).collect();
            return Ok(Snapshots { reaches, volume, known: Known::Noted(noted) });
        }
        let mut inspected: Vec<Inspected> = Vec::new();
        let mut last = None;
        for reach in &reaches {
            match ::volume::inspect(&**reach, args.take).await {
                Ok(found) => inspected.push(found),
                Err(error) => last = Some((reach.name(), error)),
            }
        }
        let Some(first) = inspected.first() else {
            return Err(match last {
                Some((holder, Error::Device { source: Reserved(_), .. })) => {
                    let what = "a host has the volume attached, or had it last";
                    Failure::refused(format!("{holder}: {what}; --take reads which snapshots there are"))
                }
                Some((_, error)) => failure(error),
                None => Failure::usage("a volume has one, two or three replicas"),
            });
        };
        let volume = first.label.shape.volume;
        if inspected.iter().any(|found| found.label.shape.volume != volume) {
            return Err(Failure::usage("the holders are of different volumes"));
        }
        let mut records: Vec<Record> = inspected.into_iter().map(|found| found.record.accepted).collect();
        records.sort_by_key(|record| std::cmp::Reverse(record.order()));
        Ok(Snapshots { reaches, volume, known: Known::Recorded(records) })
    }

    /// Opens the one that is called so.
    pub async fn open(&self, called: &str) -> Result<SnapshotView, Failure> {
        let name: Option<SnapshotName> = called.parse().ok();
        let opened = match &self.known {
            Known::Noted(all) => {
                let is_it = |(word, snapshot): &&(String, Snapshot)| word == called || Some(snapshot.name) == name;
                let (_, snapshot) = all.iter().find(is_it).ok_or_else(|| self.missing(called))?;
                SnapshotView::noted(self.reaches.clone(), self.volume, *snapshot).await
            }
            Known::Recorded(records) => {
                let name = name.ok_or_else(|| Failure::usage(format!("`{called}`: {}", ::volume::NotAName)))?;
                let record = records.iter().find(|record| !record.snapshot(name).is_empty());
                let record = record.ok_or_else(|| self.missing(called))?;
                SnapshotView::open(self.reaches.clone(), self.volume, record, name).await
            }
        };
        opened.map_err(failure)
    }

    fn missing(&self, called: &str) -> Failure {
        let all: Vec<String> = match &self.known {
            Known::Noted(all) => all.iter().map(|(name, _)| name.clone()).collect(),
            Known::Recorded(records) => {
                let newest = records.first().map_or_else(Vec::new, |record| record.snapshots.clone());
                newest.iter().map(|snapshot| snapshot.name.to_string()).collect()
            }
        };
        let has = if all.is_empty() { "none".to_owned() } else { all.join(", ") };
        Failure::refused(format!("volume {} has no snapshot {called}; it has {has}", name(self.volume)))
    }
}

#[derive(Serialize, Debug)]
struct Taken {
    volume: String,
    /// The one that was taken.
    snapshot: Option<String>,
    /// The one that was deleted.
    deleted: Option<String>,
}

/// `yagura volume snapshot`
pub async fn take(args: &VolumeSnapshotArgs) -> Result<(), Failure> {
    let reaches = reach::reaches(&args.holders)?;
    if !args.take {
        reach::check_untaken(&reaches).await?;
    }
    let volume = ::volume::attach(reaches, Options::default()).await.map_err(failure)?;
    let done = match args.delete {
        Some(name) if volume.snapshots().iter().all(|snapshot| snapshot.name != name) => {
            Err(Error::NoSuchSnapshot { holder: format!("volume {:032x}", volume.shape().volume) })
        }
        Some(name) => volume.delete_snapshot(name).await.map(|()| None),
        None => volume.snapshot().await.map(Some),
    };
    let detached = volume.detach().await;
    let (snapshot, deleted) = (done.map_err(failure)?.map(|name| name.to_string()), args.delete);
    detached.map_err(failure)?;
    let deleted = deleted.map(|name| name.to_string());
    let taken = Taken { volume: name(volume.shape().volume), snapshot, deleted };
    output::report(args.common.json, &taken, |taken| match (&taken.snapshot, &taken.deleted) {
        (Some(snapshot), _) => format!("{snapshot}\n"),
        (None, deleted) => format!("snapshot {} is deleted\n", deleted.as_deref().unwrap_or_default()),
    })
}
