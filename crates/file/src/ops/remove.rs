//! Removing names.

use engine::task::LocalFuture;

use super::shown;
use crate::access::Tries;
use crate::across::Outcome;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::name::Step;
use crate::record::Kind;
use crate::record::intent::{Intent, Side};
use crate::record::node::{Gone, Target, check_name};

impl FileSystem {
    /// Removes a name of what is no directory. The inode goes with its last name; if this client has it open, at its last close.
    pub fn unlink<'a>(&'a self, dir: u64, name: &'a [u8]) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_name(name)?;
            let mut tries = Tries::new();
            let mut guess = self.recall(dir, name).flatten().filter(|target| target.kind != Kind::Directory);
            loop {
                let target = match guess.take() {
                    Some(target) => target,
                    None => self.found(dir, name).await?,
                };
                if target.kind == Kind::Directory {
                    return Err(Error::IsDirectory(shown(name)));
                }
                let turn = self.turns.alone(target.ino).await;
                self.keep(&turn).await?;
                let gone = Gone { ino: target.ino, link: target.link };
                let is_removed = self.change_leaf(dir, name, |leaf, _| {
                    match leaf.get(name).map(|entry| (entry.target, entry.intent)) {
                        Some((_, Some(intent))) => return Ok(Step::Resolve(intent)),
                        Some((Some(there), None)) if there == target => {}
                        _ => return Ok(Step::Keep(false)),
                    }
                    leaf.set(name, None, None);
                    leaf.gone.push(gone);
                    Ok(Step::Put(true, true))
                });
                if is_removed.await? {
                    // The name is gone whatever comes of this: who changes the leaf next does it if it fails.
                    self.finish_gone(&[gone]).await;
                    return Ok(());
                }
                drop(turn);
                tries.again("other clients change the name").await?;
            }
        })
    }

    /// Removes an empty directory.
    pub fn rmdir<'a>(&'a self, dir: u64, name: &'a [u8]) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_name(name)?;
            let mut tries = Tries::new();
            loop {
                let target = self.found(dir, name).await?;
                if target.kind != Kind::Directory {
                    return Err(Error::NotDirectory(shown(name)));
                }
                self.look_empty(target, (dir, name)).await?;
                let sides = vec![Side { dir, name: name.to_vec(), before: Some(target), after: None }];
                match self.carry_out(Intent::new(sides)).await {
                    Ok(Outcome::Done) => return Ok(()),
                    Ok(Outcome::Again) => {}
                    Err(Error::NotEmpty(_)) => return Err(Error::NotEmpty(shown(name))),
                    Err(error) => return Err(error),
                }
                tries.again("other clients change the name").await?;
            }
        })
    }

    /// Says at little cost that a directory has names; that it has none is found out when it is removed.
    pub(super) async fn look_empty(&self, target: Target, (dir, name): (u64, &[u8])) -> Result<(), Error> {
        let seen = match self.see(target.ino, 0).await {
            Ok(seen) => seen,
            Err(Error::NotFound(_)) => return Ok(()), // going: whoever tries to hold its name finds out
            Err(error) => return Err(error),
        };
        let has_names = seen.entries.iter().any(|entry| entry.intent.is_none());
        // Only as long as the name leads there.
        if has_names && self.find(dir, name).await? == Some(target) {
            return Err(Error::NotEmpty(shown(name)));
        }
        Ok(())
    }
}
