//! What is done about what the dead have left, in this order: marks first, as what comes then changes chunks; clients last, as
//! their records are what others find them by.

use std::time::Duration;

use engine::time;

use super::HOUR;
use super::clients::Client;
use super::found::Found;
use super::fsck::Fsck;
use super::names::Loose;
use super::report::{Left, Report};
use super::unless_damaged;
use crate::data::{Content, Marks, Run, SpanId, UNOWNED_MAX};
use crate::error::Error;
use crate::meta::Version;
use crate::record::inode::Inode;
use crate::record::intent::State;
use crate::record::lock::LockRecord;
use crate::record::node::Node;
use crate::record::small::ClientRecord;
use crate::record::{Kind, Path, Record as _, Time};
use crate::stored::content_of;

/// For how long an intent is left to its author. Chosen: many seconds are what the removal of a very wide directory takes.
const INTENT_PATIENCE: Duration = Duration::from_secs(10);

impl Fsck {
    /// Judges what the dead have left, and mends it.
    pub(crate) async fn judge_and_mend(&mut self, met: Found, report: &mut Report) -> Result<(), Error> {
        self.job().begin(if self.repairs { "mend" } else { "judge" });
        self.rows(&met, report).await?;
        self.chunk_lists(&met, report).await?;
        for (region, chunk) in &met.regions {
            let is_mended = self.repairs && done(self.auditor.give_back(*region, *chunk).await.map(|()| true));
            report.leave(Left::Region, is_mended, false);
        }
        self.directories(&met, report).await?;
        self.intents(&met, report).await?;
        self.claim(report).await?;
        for ino in met.inodes.all.iter().filter(|(_, seen)| seen.is_going).map(|(ino, _)| *ino) {
            let is_mended = self.repairs && done(self.names.remove_going(ino).await);
            report.leave(Left::Going, is_mended, false);
        }
        self.keepers(&met, report).await?;
        self.nameless(&met, report).await?;
        self.locks(&met, report).await?;
        self.spans(&met, report).await?;
        self.loose_nodes(&met, report).await?;
        self.clients(met.clients, report).await?;
        if self.repairs {
            self.contents.space().settle().await;
        }
        Ok(())
    }

    /// Whether a client is no more: its record is not there, or has said nothing for an hour.
    async fn is_gone(&self, client: u64) -> Result<bool, Error> {
        let key = self.names.access.keys.client(client);
        Ok(match unless_damaged(self.names.access.get::<ClientRecord>(&key).await)? {
            None => false,
            Some(None) => true,
            Some(Some(held)) => client != self.names.client() && self.collector.watch.is_silent(client, held.version()),
        })
    }

    /// Marks that no map names.
    async fn rows(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        for (number, at) in &met.survey.chunks {
            // Noted in any case: also what has no such marks now.
            let ripe = self.chunks.note(*number, at.version, &at.free(), met.begun);
            let unnamed: Vec<Run> = at.unnamed();
            let owner_gone = match at.owner() {
                Some(owner) => self.is_gone(owner).await?,
                None => false,
            };
            // A client that lives has rows in its memory, and gives them back.
            if at.is_dying() || (at.owner().is_some() && !owner_gone) || (unnamed.is_empty() && !owner_gone) {
                continue;
            }
            let rows = ripe.as_ref().map(Marks::marked_runs).unwrap_or_default();
            // What is named by nothing only since then waits for another hour.
            let waits = ripe.is_none() || rows != unnamed;
            if ripe.is_none() || (rows.is_empty() && !owner_gone) || !met.inodes.is_whole() || at.is_contradicted {
                report.leave(Left::Rows, false, waits);
                continue;
            }
            let is_mended = self.repairs && done(self.auditor.clear_at(*number, at.version, &rows, owner_gone).await);
            report.leave(Left::Rows, is_mended && !waits, waits);
        }
        Ok(())
    }

    /// Chunks that give their regions back; the list of those without an owner.
    async fn chunk_lists(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        for number in met.survey.chunks.iter().filter(|(_, at)| at.is_dying()).map(|(number, _)| *number) {
            let is_mended = self.repairs && done(self.auditor.bury(number).await.map(|()| true));
            report.leave(Left::Dying, is_mended, false);
        }
        let list = match self.auditor.unowned().await {
            Err(Error::Damaged(why)) => {
                report.damage(format!("the list of chunks without an owner can't be read: {why}"), false);
                return Ok(());
            }
            list => list?,
        };
        let unlisted = met.survey.chunks.iter().filter(|(number, at)| at.chunk.is_listed() && !list.contains(number));
        for (number, _) in unlisted {
            let now = unless_damaged(self.auditor.chunk(*number).await)?.flatten();
            if list.len() < UNOWNED_MAX && now.is_some_and(|chunk| chunk.is_listed()) {
                let is_mended = self.repairs && done(self.auditor.set_unowned(*number, true).await.map(|()| true));
                report.leave(Left::Unlisted, is_mended, false);
            }
        }
        for number in list.iter().filter(|number| !met.survey.damaged.contains_key(number)) {
            if unless_damaged(self.auditor.chunk(*number).await)?.flatten().is_none() {
                let is_mended = self.repairs && done(self.auditor.set_unowned(*number, false).await.map(|()| true));
                report.leave(Left::Unlisted, is_mended, false);
            }
        }
        Ok(())
    }

    /// What whoever changes a directory next would finish.
    async fn directories(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        let mut is_tidy = self.repairs;
        if self.repairs {
            for &dir in &met.found.untidy {
                match self.names.tidy(dir).await {
                    Ok(()) | Err(Error::NotFound(_)) => {}
                    Err(error) => {
                        is_tidy = false;
                        tracing::warn!(dir, %error, "what others have left in a directory can't be finished");
                    }
                }
            }
        }
        for &(dir, number) in &met.found.dying {
            if self.names.intent(number).await.is_ok_and(|held| held.is_some()) {
                continue; // it is one of those that are not finished
            }
            let is_mended = self.repairs && done(self.names.resolve_on_root(number, dir).await.map(|()| true));
            report.leave(Left::Intent, is_mended, false);
        }
        for (kind, count) in [(Left::Gone, met.found.gone), (Left::Splitting, met.found.splitting)] {
            (0..count).for_each(|_| report.leave(kind, is_tidy, false));
        }
        Ok(())
    }

    async fn intents(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        for &number in &met.listed.intents {
            let held = match self.names.intent(number).await {
                Err(Error::Damaged(why)) => {
                    report.damage(format!("change {number} of names can't be read, nor be finished: {why}"), false);
                    continue;
                }
                held => held?,
            };
            let Some(held) = held else { continue };
            if !self.repairs {
                report.leave(Left::Intent, false, false);
                continue;
            }
            if held.record.state == State::Pending {
                time::sleep_until(met.begun + INTENT_PATIENCE).await;
            }
            match self.names.resolve(number).await {
                Ok(()) => report.leave(Left::Intent, true, false),
                Err(Error::Damaged(why)) => {
                    report.damage(format!("change {number} of names can't be finished: {why}"), false);
                }
                Err(error) => {
                    tracing::warn!(number, %error, "a change of names can't be finished");
                    report.leave(Left::Intent, false, false);
                }
            }
        }
        Ok(())
    }

    /// The claim of moves whose intent is not there: no move that has it can be committed any more.
    async fn claim(&mut self, report: &mut Report) -> Result<(), Error> {
        let moves = match self.names.moves().await {
            Err(Error::Damaged(why)) => {
                report.damage(format!("the moves of directories can't be read: none can be moved: {why}"), false);
                return Ok(());
            }
            moves => moves?,
        };
        let Some(current) = moves.and_then(|held| held.record.current) else { return Ok(()) };
        if unless_damaged(self.names.intent(current).await)?.is_some_and(|held| held.is_none()) {
            let is_mended = self.repairs && done(self.names.release_moves(current).await.map(|()| true));
            report.leave(Left::Claim, is_mended, false);
        }
        Ok(())
    }

    /// Keepers that do not list what they keep: a client lists an inode before it is its keeper, and until it is none.
    async fn keepers(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        let all = met.inodes.all.iter().flat_map(|(ino, seen)| seen.keepers.iter().map(|keeper| (*ino, *keeper)));
        let lists = |client: u64, ino: u64| {
            let client = met.clients.iter().find(|other| other.number == client);
            client.is_some_and(|client| client.record.orphans.contains(&ino))
        };
        for (ino, keeper) in all.filter(|(ino, keeper)| !lists(*keeper, *ino)) {
            let held = unless_damaged(self.names.inode(ino).await)?.flatten();
            let Some(held) = held.filter(|held| held.record.keepers.contains(&keeper)) else { continue };
            // After the inode: it is its keeper as long as that is at this version, and lists it all the time.
            let key = self.names.access.keys.client(keeper);
            let Some(client) = unless_damaged(self.names.access.get::<ClientRecord>(&key).await)? else { continue };
            if client.is_some_and(|client| client.record.orphans.contains(&ino)) {
                continue;
            }
            let is_mended = self.repairs && done(self.names.take_out_at(ino, held.version(), &[], Some(keeper)).await);
            report.leave(Left::Keeper, is_mended, false);
        }
        Ok(())
    }

    /// Locks of files that are not there: nobody takes one any more, and whoever has one has it of nothing.
    async fn locks(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        for &ino in met.listed.locks.iter().filter(|ino| !met.inodes.all.contains_key(ino)) {
            let Some(None) = unless_damaged(self.names.inode(ino).await)? else { continue };
            let key = self.names.access.keys.locks(ino);
            let held = unless_damaged(self.names.access.get::<LockRecord>(&key).await)?.flatten();
            let Some(held) = held else { continue };
            let is_mended = self.repairs && done(self.names.access.remove(&key, &held).await);
            report.leave(Left::Locks, is_mended, false);
        }
        Ok(())
    }

    /// Inodes, and links of inodes, that no name has.
    async fn nameless(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        for (&ino, seen) in met.inodes.all.iter().filter(|(ino, seen)| **ino != crate::fs::ROOT && !seen.is_going) {
            let links: Vec<u64> = seen.links.iter().filter(|(_, named)| !named).map(|(link, _)| *link).collect();
            let lone = met.found.lone.get(&ino);
            // What is below it has no other way in.
            let is_full = lone.is_some_and(|lone| lone.entries > 0);
            if links.is_empty() || is_full || met.spared.contains(&ino) {
                continue;
            }
            let kind = if links.len() == seen.links.len() { Left::Inode } else { Left::Link };
            // It was condemned an hour before names were read; and it is removed as it was then, or not.
            let is_ripe = self.nameless.note(ino, seen.version, met.inodes.read_at);
            if !is_ripe || !met.is_whole || !self.repairs {
                report.leave(kind, false, !is_ripe);
                continue;
            }
            let is_mended = done(self.names.take_out_at(ino, seen.version, &links, None).await);
            if is_mended && seen.kind == Kind::Directory && kind == Left::Inode {
                // A name that came into it meanwhile has changed its root, which then stays.
                let root = lone.and_then(|lone| lone.root);
                done(self.remove_node((ino, Path::ROOT), root).await);
            }
            report.leave(kind, is_mended, false);
        }
        Ok(())
    }

    async fn remove_node(&self, (dir, path): (u64, Path), version: Option<Version>) -> Result<bool, Error> {
        let key = self.names.access.keys.node(dir, path);
        let held = unless_damaged(self.names.access.get::<Node>(&key).await)?.flatten();
        match held.filter(|held| Some(held.version()) == version) {
            Some(held) => self.names.access.remove(&key, &held).await,
            None => Ok(false),
        }
    }

    /// Spans of maps that no inode has.
    async fn spans(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        for &id in &met.inodes.stray {
            let stood = match self.contents.spans.load(id).await {
                Err(Error::Damaged(why)) => {
                    report.damage(format!("a part of a map that no file has can't be read: {why}"), false);
                    continue;
                }
                stood => stood?,
            };
            let Some(version) = stood.1 else { continue };
            if !self.spans.note(id, version, met.begun) {
                report.leave(Left::Span, false, true);
                continue;
            }
            let is_mended =
                self.repairs && done(self.bar_map(id).await) && done(self.contents.spans.remove_at(id, version).await);
            report.leave(Left::Span, is_mended, false);
        }
        Ok(())
    }

    /// Changes an inode that does not have a map, so that whoever is about to give it that finds it changed. False: it has it.
    async fn bar_map(&self, id: SpanId) -> Result<bool, Error> {
        let key = self.names.access.keys.inode(id.inode);
        let shape = self.contents.members().layout().shape;
        let Some(held) = unless_damaged(self.names.access.get::<Inode>(&key).await)? else { return Ok(false) };
        let Some(held) = held.filter(|held| !held.record.is_going()) else { return Ok(true) };
        match content_of(&held.record, shape) {
            Ok(Content::Spans(spans)) if spans.map == id.map => return Ok(false),
            Err(_) => return Ok(false),
            Ok(_) => {}
        }
        Ok(self.names.access.put(&key, Some(&held), held.record.clone()).await?.is_some())
    }

    /// Nodes of directories that are not there.
    async fn loose_nodes(&mut self, met: &Found, report: &mut Report) -> Result<(), Error> {
        for Loose { place, version } in &met.loose {
            let is_ripe = self.nodes.note(*place, *version, met.begun);
            if !is_ripe || !met.is_whole || !self.repairs {
                report.leave(Left::Node, false, !is_ripe);
                continue;
            }
            // An inode that comes now finds out: its author changes the root after it, or finds that gone.
            let is_there = unless_damaged(self.names.inode(place.0).await)?.is_none_or(|held| held.is_some());
            let is_mended = !is_there && done(self.remove_node(*place, Some(*version)).await);
            report.leave(Left::Node, is_mended, false);
        }
        Ok(())
    }

    /// Clients that are no more, or seem to be.
    async fn clients(&mut self, clients: Vec<Client>, report: &mut Report) -> Result<(), Error> {
        let hour = i64::try_from(HOUR.as_secs()).unwrap_or(i64::MAX);
        for client in clients.into_iter().filter(|client| client.number != self.names.client()) {
            let (watch, said) = (&self.collector.watch, client.record.renewed.seconds);
            // By the calendars of two hosts: so much is worth telling, and nothing is done by it.
            let is_old = Time::now().seconds.saturating_sub(said) > hour;
            if !is_old && !watch.is_quiet(client.number) {
                continue;
            }
            let is_silent = watch.is_silent(client.number, client.version);
            let is_mended = is_silent && self.repairs && done(self.collector.collect(&client).await);
            report.leave(Left::Client, is_mended, !is_silent);
        }
        Ok(())
    }
}

/// Whether it was done: what could not be, as others were in the way or nobody knows what became of it, is found again.
pub(super) fn done(mended: Result<bool, Error>) -> bool {
    mended.unwrap_or_else(|error| {
        tracing::warn!(%error, "what is left over could not be removed now");
        false
    })
}
