//! Renaming.

use engine::task::LocalFuture;

use super::shown;
use crate::access::Tries;
use crate::across::Outcome;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::name::Step;
use crate::record::intent::{Intent, Side};
use crate::record::node::{Entry, Gone, Target, check_name};
use crate::record::{Kind, Time};

/// What may become of a name that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameFlags {
    /// It is refused (RENAME_NOREPLACE).
    pub no_replace: bool,
    /// It must be there, and the two names change places (RENAME_EXCHANGE).
    pub exchange: bool,
}

/// A name by its directory.
type Place<'a> = (u64, &'a [u8]);

impl FileSystem {
    /// Gives what one name leads to another name, at once; what that led to is removed.
    pub fn rename<'a>(
        &'a self,
        (dir, name): Place<'a>,
        (new_dir, new_name): Place<'a>,
        flags: RenameFlags,
    ) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_name(name)?;
            check_name(new_name)?;
            if flags.no_replace && flags.exchange {
                return Err(Error::Invalid("a rename that may not replace can't exchange"));
            }
            let mut tries = Tries::new();
            let mut guess = self.guess_targets((dir, name), (new_dir, new_name), flags);
            loop {
                let (target, other) = match guess.take() {
                    Some(guess) => guess,
                    None => (self.found(dir, name).await?, self.find(new_dir, new_name).await?),
                };
                match check_targets(target, other, (dir, name), (new_dir, new_name), flags) {
                    Ok(true) => {}
                    // The names were read one after the other: what they seem to be together holds if the first is still so.
                    _ if self.find(dir, name).await? != Some(target) => {
                        tries.again("other clients change the names").await?;
                        continue;
                    }
                    refused => return refused.map(drop),
                }
                if let Some(other) = other.filter(|other| other.kind == Kind::Directory && !flags.exchange) {
                    self.look_empty(other, (new_dir, new_name)).await?;
                }
                self.check_quotas(dir, new_dir, name).await?;
                let replaced = other.filter(|other| !flags.exchange && other.kind != Kind::Directory);
                let turn = match replaced {
                    Some(replaced) => Some(self.turns.alone(replaced.ino).await),
                    None => None,
                };
                if let Some(turn) = &turn {
                    self.keep(turn).await?;
                }
                let sides = vec![
                    Side { dir, name: name.to_vec(), before: Some(target), after: other.filter(|_| flags.exchange) },
                    Side { dir: new_dir, name: new_name.to_vec(), before: other, after: Some(target) },
                ];
                let intent = Intent::new(sides);
                let is_done = match self.rename_in_leaf(&intent.sides).await? {
                    Some(true) => {
                        let exchanged = other.filter(|_| flags.exchange);
                        for target in [Some(target), exchanged].into_iter().flatten() {
                            self.note_rename(target.ino).await;
                        }
                        true
                    }
                    Some(false) => false,
                    // Whoever finishes it notes the times.
                    None => match self.carry_out(intent).await {
                        Ok(outcome) => matches!(outcome, Outcome::Done),
                        Err(Error::NotEmpty(_)) => return Err(Error::NotEmpty(shown(new_name))),
                        Err(error) => return Err(error),
                    },
                };
                if is_done {
                    return Ok(());
                }
                drop(turn);
                tries.again("other clients change the names").await?;
            }
        })
    }

    /// What counts for one quota does not come into a directory in which other things count for another. Asked before what would be
    /// replaced is kept: a refusal leaves nothing behind.
    async fn check_quotas(&self, dir: u64, new_dir: u64, name: &[u8]) -> Result<(), Error> {
        match dir == new_dir || self.quota_within(dir).await? == self.quota_within(new_dir).await? {
            true => Ok(()),
            false => Err(Error::Across(shown(name))),
        }
    }

    /// What the two names led to a moment ago, where that lets them be renamed: the rename finds out whether it is so still.
    fn guess_targets(&self, place: Place<'_>, new: Place<'_>, flags: RenameFlags) -> Option<(Target, Option<Target>)> {
        let guess = self.recall(place.0, place.1).flatten().zip(self.recall(new.0, new.1));
        guess.filter(|(target, other)| check_targets(*target, *other, place, new, flags) == Ok(true))
    }

    /// An inode that has another name now was changed then. That the rename took place is sure, whatever comes of this.
    async fn note_rename(&self, ino: u64) {
        let now = Time::now();
        let noted = self.change_inode(ino, |inode| {
            inode.changed = now;
            Ok(())
        });
        if let Err(error) = noted.await {
            tracing::debug!(%error, ino, "the time of a rename is not noted");
        }
    }

    /// A rename within a leaf is one change of it. `None`: it is not within one, or removes a directory.
    async fn rename_in_leaf(&self, sides: &[Side]) -> Result<Option<bool>, Error> {
        let [source, goal] = sides else { return Ok(None) };
        let replaced = goal.before.filter(|_| source.after.is_none());
        if source.dir != goal.dir || replaced.is_some_and(|replaced| replaced.kind == Kind::Directory) {
            return Ok(None);
        }
        let gone = replaced.map(|replaced| Gone { ino: replaced.ino, link: replaced.link });
        let hash = self.hash(goal.dir, &goal.name);
        let is_done = self.change_leaf(source.dir, &source.name, |leaf, path| {
            if !(path.first()..=path.last()).contains(&hash) {
                return Ok(Step::Keep(None)); // the other name belongs to another leaf, though this one would take it
            }
            for side in [source, goal] {
                match leaf.get(&side.name) {
                    Some(Entry { intent: Some(_), .. }) => return Ok(Step::Keep(None)),
                    entry if entry.and_then(|entry| entry.target) != side.before => return Ok(Step::Keep(Some(false))),
                    _ => {}
                }
            }
            leaf.set(&source.name, source.after, None);
            leaf.set(&goal.name, goal.after, None);
            leaf.gone.extend(gone);
            Ok(Step::Put(Some(true), true))
        });
        let is_done = is_done.await?;
        if is_done == Some(true)
            && let Some(gone) = gone
        {
            self.finish_gone(&[gone]).await;
        }
        Ok(is_done)
    }
}

/// Whether there is something to do, or why it can't be.
fn check_targets(
    target: Target,
    other: Option<Target>,
    place: Place<'_>,
    new_place: Place<'_>,
    flags: RenameFlags,
) -> Result<bool, Error> {
    let (name, new_name) = (shown(place.1), shown(new_place.1));
    if target.kind == Kind::Directory && target.ino == new_place.0 {
        return Err(Error::Invalid("a directory can't be moved into itself"));
    }
    let Some(other) = other else {
        return if flags.exchange { Err(Error::NotFound(new_name)) } else { Ok(true) };
    };
    if flags.no_replace {
        return Err(Error::Exists(new_name));
    }
    if place == new_place || target.ino == other.ino {
        return Ok(false);
    }
    if flags.exchange && other.kind == Kind::Directory && other.ino == place.0 {
        return Err(Error::Invalid("a directory can't be moved into itself"));
    }
    match (target.kind == Kind::Directory, other.kind == Kind::Directory) {
        _ if flags.exchange => Ok(true),
        (true, false) => Err(Error::NotDirectory(new_name)),
        (false, true) => Err(Error::IsDirectory(new_name)),
        // The directory that the name is in has it, so it is not empty.
        (true, true) if other.ino == place.0 => Err(Error::NotEmpty(format!("{new_name}, which has {name}"))),
        _ => Ok(true),
    }
}
