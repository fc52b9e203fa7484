//! By a seed: files are written, members fail, rot and return, are drained and joined, and are mended; beside a plain model.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use engine::rng::SplitMix;
use engine::time;
use file::Files;
use file::meta::Faults;

use super::yard::{Yard, in_world, inodes, mender, put, rebuild};
use crate::data::bed::drawn;

/// What a stripe may lack now, one thing at a time: with one column of parity nothing else may fail before that is mended.
enum Trouble {
    None,
    Down(u16),
    /// It was away, or has rotten bytes.
    Stale,
}

struct Story {
    yard: Yard,
    rng: SplitMix,
    model: BTreeMap<String, Vec<u8>>,
    members: Vec<u16>,
    trouble: Trouble,
}

impl Story {
    async fn write(&mut self, files: &Rc<Files>) {
        let name = format!("f{}", self.rng.index(8));
        let (at, length) = (self.rng.index(600_000), 1 + self.rng.index(500_000));
        let bytes = drawn(&mut self.rng, length);
        put(files, &name, at as u64, &bytes).await.unwrap();
        let old = self.model.entry(name).or_default();
        old.resize(old.len().max(at + length), 0);
        old[at..at + length].copy_from_slice(&bytes);
    }

    /// A bit of one member's, in as many stripes as there are.
    async fn rot(&mut self, files: &Files) {
        let victim = self.members[self.rng.index(self.members.len())];
        let space = file::data::Space::new(self.yard.meta.client(), Rc::clone(files.members()), 1);
        for ino in inodes(files).await.into_values() {
            for (_, stripe) in files.stripes_of(ino).await.unwrap() {
                let place = space.place(stripe.id.chunk).await.unwrap().unwrap();
                let column = place.columns.iter().position(|region| region.member == victim);
                if let Some(column) = column.filter(|_| self.rng.index(2) == 0) {
                    self.yard.flip(files, &stripe, column).await;
                }
            }
        }
    }

    async fn mend(&mut self, files: &Rc<Files>) {
        if let Trouble::Down(member) = self.trouble {
            self.yard.set_down(member, false);
            time::sleep(Duration::from_secs(6)).await;
        }
        let scrubbed = mender(files).scrub(true).await.unwrap().report;
        assert_eq!((scrubbed.failed, scrubbed.lost_bytes), (0, 0), "{scrubbed:?}");
        self.trouble = Trouble::None;
    }

    /// A member goes, dead or not, and another comes.
    async fn replace(&mut self, files: &Rc<Files>) {
        let old = match self.trouble {
            Trouble::Down(member) => member,
            Trouble::Stale => return,
            Trouble::None => self.members[self.rng.index(self.members.len())],
        };
        // Rows of stripes that lacked a column rest for half an hour, and hold the regions that they are in.
        time::sleep(Duration::from_secs(32 * 60)).await;
        let new = self.yard.add(files).await;
        files.roster().drain(old, matches!(self.trouble, Trouble::Down(_))).await.unwrap();
        let rebuilt = rebuild(&self.yard).await;
        assert_eq!((rebuilt.left.failed, rebuilt.taken), (0, vec![]), "member {old}");
        files.roster().remove(old).await.unwrap();
        self.yard.set_down(old, true);
        self.members.retain(|member| *member != old);
        self.members.push(new);
        self.trouble = Trouble::None;
    }
}

async fn story(seed: u64) {
    let yard = Yard::new(2, 1, 4).await;
    let faults = Faults { delay: Duration::from_millis(1), ..Faults::default() };
    yard.meta.set_faults(faults);
    let members = vec![0, 1, 2, 3];
    let mut story = Story { yard, rng: SplitMix(seed), model: BTreeMap::new(), members, trouble: Trouble::None };
    let files = story.yard.client().await;
    let _alive = files.keep_alive();
    for step in 0..60 {
        match story.rng.index(14) {
            0 => story.yard.verify(&story.model, &format!("seed {seed}, step {step}")).await,
            1 | 2 => match story.trouble {
                Trouble::None => {
                    let victim = story.members[story.rng.index(story.members.len())];
                    story.yard.set_down(victim, true);
                    story.trouble = Trouble::Down(victim);
                }
                _ => story.mend(&files).await,
            },
            3 if matches!(story.trouble, Trouble::None) => {
                story.rot(&files).await;
                story.trouble = Trouble::Stale;
            }
            4 => story.replace(&files).await,
            _ => story.write(&files).await,
        }
    }
    story.mend(&files).await;
    files.close().await.unwrap();
    for member in story.members.clone() {
        story.yard.set_down(member, true);
        story.yard.verify(&story.model, &format!("seed {seed}, without {member}")).await;
        story.yard.set_down(member, false);
    }
    story.yard.audit().await;
}

#[test]
fn members_fail_rot_and_are_replaced() {
    for seed in 0..16 {
        in_world(seed, story(seed));
    }
}
