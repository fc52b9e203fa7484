//! Quotas, beside what counts for them.
//!
//! **What is used is made to say what was counted only where nobody can be about to change it**: the record was at one version, and
//! had no share, from before all keys were listed until all maps were read. A client has a share from before it takes or frees
//! anything until none of that can come any more; one that died has its share until somebody who collects it takes it for used.

use std::collections::BTreeSet;

use super::fsck::Fsck;
use super::maps::Inodes;
use super::mend::done;
use super::quotas::{QuotasSeen, fold, record};
use super::report::{Left, Report};
use super::unless_damaged;
use crate::access::Held;
use crate::error::Error;
use crate::record::quota::QuotaRecord;
use crate::record::small::ClientRecord;
use crate::record::{Kind, Stamps};

impl Fsck {
    /// Compares, and mends: when all maps were read, and before anything else is mended.
    pub(crate) async fn check_quotas(
        &mut self,
        seen: &QuotasSeen,
        inodes: &Inodes,
        clients: &BTreeSet<u64>,
        report: &mut Report,
    ) -> Result<(), Error> {
        for (dir, why) in &seen.damaged {
            report.damage(
                format!("the quota of directory {dir} can't be read, nor files that count for it be made: {why}"),
                false,
            );
        }
        let has_quota = |dir: u64| inodes.all.get(&dir).is_some_and(|seen| seen.has_quota);
        let owners = inodes.all.iter().filter(|(_, seen)| seen.has_quota).map(|(dir, _)| *dir);
        let all: BTreeSet<u64> = seen.records.keys().chain(inodes.counted.keys()).copied().chain(owners).collect();
        for dir in all.into_iter().filter(|dir| !seen.damaged.contains_key(dir)) {
            let counted = inodes.counted.get(&dir).copied();
            let Some(held) = unless_damaged(record(&self.names, dir).await)? else { continue };
            let Some(held) = held else {
                // The directory may have got it, or be gone, since.
                if !seen.records.contains_key(&dir) && self.lacks_record(dir, counted.is_some()).await? {
                    self.give_record(dir, report).await?;
                }
                continue;
            };
            if !has_quota(dir) && counted.is_none() && held.record.shares.is_empty() && inodes.damaged.is_empty() {
                self.stray_quota(dir, &held, report).await?;
                continue;
            }
            if !self.old_shares(dir, &held, clients, report).await? {
                report.uncounted += 1;
                continue;
            }
            let is_quiet = held.record.shares.is_empty() && seen.records.get(&dir) == Some(&held.version());
            let counted = counted.unwrap_or_default();
            if !is_quiet || !inodes.is_whole() {
                report.uncounted += 1;
                continue;
            }
            if held.record.used != counted {
                let (names, new) = (&self.names, QuotaRecord { used: counted, ..held.record.clone() });
                let key = names.access.keys.quota(dir);
                let is_mended = self.repairs
                    && done(names.quotas.access().put(&key, Some(&held), new).await.map(|put| put.is_some()));
                report.leave(Left::Used, is_mended, false);
            }
        }
        Ok(())
    }

    /// Shares of clients that are not there: those that ended while something was in doubt, or took another number. Whether the
    /// record has none of these.
    async fn old_shares(
        &mut self,
        dir: u64,
        held: &Held<QuotaRecord>,
        clients: &BTreeSet<u64>,
        report: &mut Report,
    ) -> Result<bool, Error> {
        let mut is_without = true;
        for share in held.record.shares.iter().filter(|share| !clients.contains(&share.client)) {
            is_without = false;
            let key = self.names.access.keys.client(share.client);
            let client = self.names.access.get::<ClientRecord>(&key).await;
            // One that came since, or that does not parse, is there.
            let Some(None) = unless_damaged(client)? else { continue };
            let is_ripe = self.shares.note((dir, share.client), share.number, self.looked_at);
            let is_mended = is_ripe && self.repairs && {
                let now = unless_damaged(record(&self.names, dir).await)?.flatten();
                let now =
                    now.filter(|now| now.record.share(share.client).is_some_and(|now| now.number == share.number));
                match now {
                    Some(now) => done(fold(&self.names, &now, dir, share.client).await),
                    None => false,
                }
            };
            report.leave(Left::Share, is_mended, !is_ripe);
        }
        Ok(is_without)
    }

    /// A record of a directory that has no quota, for which nothing counts: whoever was about to give it one, or has removed it,
    /// may be gone.
    async fn stray_quota(&mut self, dir: u64, held: &Held<QuotaRecord>, report: &mut Report) -> Result<(), Error> {
        if unless_damaged(self.names.inode(dir).await)?
            .is_none_or(|held| held.is_some_and(|held| held.record.has_quota))
        {
            return Ok(());
        }
        let is_ripe = self.quotas.note(dir, held.version(), self.looked_at);
        let key = self.names.access.keys.quota(dir);
        let is_mended = is_ripe && self.repairs && done(self.names.quotas.access().remove(&key, held).await);
        report.leave(Left::Quota, is_mended, !is_ripe);
        Ok(())
    }

    /// Whether a quota is still without a record that a directory has, or for which something counts.
    async fn lacks_record(&self, dir: u64, counts: bool) -> Result<bool, Error> {
        let inode = unless_damaged(self.names.inode(dir).await)?;
        let has_quota =
            inode.flatten().is_some_and(|held| held.record.kind == Kind::Directory && held.record.has_quota);
        Ok((has_quota || counts) && record(&self.names, dir).await?.is_none())
    }

    /// Nothing can be made, nor written, that counts for a quota without a record. One without limits is put; what it says is used,
    /// the next look counts.
    async fn give_record(&self, dir: u64, report: &mut Report) -> Result<(), Error> {
        let new = QuotaRecord { stamps: Stamps::default(), ..QuotaRecord::default() };
        let key = self.names.access.keys.quota(dir);
        let is_mended =
            self.repairs && done(self.names.quotas.access().put(&key, None, new).await.map(|put| put.is_some()));
        let limits = if is_mended { ", and has no limits now" } else { "" };
        report.damage(format!("the quota of directory {dir} was not there{limits}"), is_mended);
        Ok(())
    }
}
