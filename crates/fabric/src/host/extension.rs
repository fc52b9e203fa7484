//! Snapshots, clones, growth and differences of a target's namespaces, over the commands of [`nvme::extension`]. A target that
//! does not say that it has them is sent none: its vendor's commands of those numbers may do anything.
//!
//! Invariant: a command is sent once. After an answer that was lost a copy with the tag asked for may be there, or the snapshot
//! be gone. Asking for the same copy again is harmless, and so is asking for the same deletion: a deletion names its snapshot by
//! the NGUID, which no other namespace is given.

use std::ops::Range;
use std::time::Duration;

use device::{Error, Lba};
use engine::Buf;
use engine::task::LocalFuture;
use nvme::extension::{
    CopyEntry, CopyKind, CopyRequest, DIFFERENCES_END, DifferenceRange, DifferencesHead, Extension, ExtensionCommand,
};
use nvme::identify::{Cns, IdentifyController, IdentifyNamespace};
use nvme::opcode::AdminOpcode;
use nvme::{NSID_ALL, Status, Submission};
use zerocopy::{FromBytes, IntoBytes};

use super::admin::{Admin, buffer, read_page};
use super::any_remote::AnyRemote;
use super::error::{ConnectError, Target, from_status};
use super::manager::Manager;
use super::queue::Payload;
use super::remote::RemoteNamespace;
use super::shape::{NAMESPACES_MAX, format_of};

/// What a host calls a copy of a namespace; of one source and kind each tag once. Random bytes, or anything else that is not used
/// twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CopyTag(pub [u8; 32]);

/// A snapshot or a clone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceCopy {
    /// Its identifier.
    pub nsid: u32,
    /// A clone; a snapshot is read only.
    pub writable: bool,
    /// NGUID of the namespace that it was made from, which may be gone.
    pub source: [u8; 16],
    /// Its own NGUID.
    pub nguid: [u8; 16],
    /// Its size, bytes.
    pub bytes: u64,
    /// What its host calls it.
    pub tag: CopyTag,
}

/// Ranges that [`Manager::differences`] tells apart, at most. Guessed: 16 MiB of them. All behind the last one counts as different.
pub const DIFFERENCES_MAX: usize = 1 << 20;

/// How long one of the commands may take, where others may take less: a snapshot waits for the commands of others, and for a cache
/// that is made stable. One that was slow would end the association, with whatever goes on over it. Guessed.
const PATIENCE: Duration = Duration::from_secs(60);

impl Admin<'_> {
    /// Sends the command with its data; returns the completion's first dword, and the page that it gives.
    async fn extended(
        &self,
        asked: ExtensionCommand,
        nsid: u32,
        request: Option<CopyRequest>,
    ) -> Result<(u32, Buf), ConnectError> {
        let mut command = Submission::admin(AdminOpcode::IDENTIFY, 0, nsid);
        asked.fill(&mut command);
        let payload = match (request, asked.page_bytes() as usize) {
            (Some(request), _) => Payload::Out(Buf::copy_from(request.as_bytes()).freeze()),
            (None, 0) => Payload::None,
            (None, bytes) => Payload::In(Buf::zeroed(bytes)),
        };
        let (completion, payload) = self.run_within(asked.name(), command, payload, PATIENCE).await?;
        Ok((completion.result.get() as u32, buffer(payload)))
    }

    async fn copy(&self, nsid: u32, kind: CopyKind, tag: CopyTag) -> Result<u32, ConnectError> {
        let request = CopyRequest { tag: tag.0, reserved: [0; 32] };
        self.extended(ExtensionCommand::Copy(kind), nsid, Some(request)).await.map(|(made, _)| made)
    }

    async fn copies(&self, nsid: u32) -> Result<Vec<NamespaceCopy>, ConnectError> {
        let mut found: Vec<NamespaceCopy> = Vec::new();
        loop {
            let after = found.last().map_or(0, |last| last.nsid);
            let (_, page) = self.extended(ExtensionCommand::Copies { after }, nsid, None).await?;
            let (copies, more) = read_copies(&page, after).map_err(|reason| unusable(nsid, reason))?;
            if found.len() + copies.len() > NAMESPACES_MAX {
                return Err(unusable(nsid, "the target lists more copies than there are namespaces"));
            }
            found.extend(copies);
            if !more {
                return Ok(found);
            }
        }
    }

    /// Ranges of blocks of `newer`, which has so many.
    async fn differences(&self, newer: u32, base: u32, blocks: u64) -> Result<Vec<Range<u64>>, ConnectError> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut next = Some(0);
        while let Some(lba) = next {
            let (_, page) = self.extended(ExtensionCommand::Differences { base, lba }, newer, None).await?;
            next = read_differences(&page, (lba, blocks), &mut found).map_err(|reason| unusable(newer, reason))?;
            if found.len() > DIFFERENCES_MAX {
                found.truncate(DIFFERENCES_MAX);
                found.iter_mut().last().expect("invariant: it has just been cut to more than none").end = blocks;
                break;
            }
        }
        Ok(found)
    }

    /// One that is gone already is no error.
    async fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> Result<(), ConnectError> {
        match self.extended(ExtensionCommand::DeleteCopy { nguid }, nsid, None).await {
            Err(ConnectError::Refused { status, .. }) if status.kind() == Status::INVALID_NAMESPACE => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

fn unusable(nsid: u32, reason: &str) -> ConnectError {
    ConnectError::Unusable { nsid, reason: reason.to_owned() }
}

fn none_offered(command: ExtensionCommand) -> ConnectError {
    ConnectError::Refused { step: command.name(), status: Status::INVALID_OPCODE.do_not_retry() }
}

/// The copies of a page, and whether another page may follow.
pub(super) fn read_copies(page: &[u8], after: u32) -> Result<(Vec<NamespaceCopy>, bool), &'static str> {
    let (entries, _) = page.as_chunks::<{ size_of::<CopyEntry>() }>();
    let mut copies: Vec<NamespaceCopy> = Vec::new();
    for entry in entries {
        let entry: CopyEntry = read_page(entry);
        let nsid = entry.nsid.get();
        if nsid == 0 {
            return Ok((copies, false));
        }
        // A list that does not rise would be read for ever.
        if nsid <= copies.last().map_or(after, |last| last.nsid) {
            return Err("the target's list of copies does not rise");
        }
        let kind = CopyKind::from_code(entry.kind.get()).ok_or("the target has a copy of an unknown kind")?;
        copies.push(NamespaceCopy {
            nsid,
            writable: kind == CopyKind::Clone,
            source: entry.source,
            nguid: entry.nguid,
            bytes: entry.bytes.get(),
            tag: CopyTag(entry.tag),
        });
    }
    let more = !copies.is_empty();
    Ok((copies, more))
}

/// Adds the ranges of a page, in blocks, to those before, merging what adjoins; returns where the next page begins. The page was
/// asked for from `from` on, of a namespace of `blocks`.
pub(super) fn read_differences(
    page: &[u8],
    (from, blocks): (u64, u64),
    found: &mut Vec<Range<u64>>,
) -> Result<Option<u64>, &'static str> {
    let (head, rest) = DifferencesHead::read_from_prefix(page).map_err(|_| "the page of differences is too short")?;
    let (ranges, _) = rest.as_chunks::<{ size_of::<DifferenceRange>() }>();
    let count = head.count.get() as usize;
    let ranges = ranges.get(..count).ok_or("the page of differences is shorter than it says")?;
    let next = Some(head.next.get()).filter(|&next| next != DIFFERENCES_END);
    if next.is_some_and(|next| next <= from) {
        return Err("the target's differences do not come to an end");
    }
    let until = next.unwrap_or(u64::MAX);
    let mut at = from;
    for range in ranges {
        let range: DifferenceRange = read_page(range);
        let (start, nlb) = (range.slba.get(), range.nlb.get());
        let end = start.checked_add(nlb).filter(|&end| nlb > 0 && start >= at && end <= until);
        at = end.ok_or("the target's differences overlap or do not rise")?;
        let (start, end) = (start.min(blocks), at.min(blocks));
        match found.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ if start < end => found.push(start..end),
            _ => {}
        }
    }
    // What was grown meanwhile is not looked at.
    Ok(next.filter(|&next| next < blocks))
}

impl RemoteNamespace {
    /// What the target offers here; nothing without a connection, or where the admin queue is another reactor's.
    pub fn extension(&self) -> Extension {
        let up = self.attached.up().filter(|up| up.association.admin().is_some());
        up.map_or_else(Extension::default, |up| Extension::of(&up.association.controller.page))
    }

    /// Takes a snapshot: what the namespace holds at one moment between call and answer. The snapshot is a namespace of the same
    /// subsystem, for the same hosts; returns its identifier. One with this tag is returned as it is.
    ///
    /// # Errors
    /// [`Error::Reserved`]: another host has the namespace. [`Error::Disconnected`]: the snapshot may have been taken. Others:
    /// it was not.
    pub fn snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<u32, Error>> {
        Box::pin(async move {
            let asked = ExtensionCommand::Copy(CopyKind::Snapshot);
            self.ask(asked, async |admin| admin.copy(self.attached.nsid, CopyKind::Snapshot, tag).await).await
        })
    }

    /// The copies of this namespace, identifiers ascending.
    ///
    /// # Errors
    /// What the target says, or that there is no connection to it.
    pub fn copies(&self) -> LocalFuture<'_, Result<Vec<NamespaceCopy>, Error>> {
        Box::pin(async move {
            let asked = ExtensionCommand::Copies { after: 0 };
            self.ask(asked, async |admin| admin.copies(self.attached.nsid).await).await
        })
    }

    /// Deletes a snapshot of a namespace that this host may write: the one with this identifier and this NGUID. A snapshot that
    /// is gone already is no error, whatever has its identifier since.
    ///
    /// # Errors
    /// [`Error::Disconnected`]: it may be gone. Others: it is as it was.
    pub fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            let asked = ExtensionCommand::DeleteCopy { nguid };
            self.ask(asked, async |admin| admin.delete_copy(nsid, nguid).await).await
        })
    }

    /// Ranges of blocks in which this namespace may differ from `base`, a namespace of the same target that this one was made from,
    /// or both were made from the same (`None`: from zeroes); ascending. Elsewhere both are the same. Of more ranges than
    /// [`DIFFERENCES_MAX`] the last one goes on to the end.
    ///
    /// # Errors
    /// What the target says, or that there is no connection to it.
    pub fn differences(&self, base: Option<u32>) -> LocalFuture<'_, Result<Vec<Range<u64>>, Error>> {
        Box::pin(async move {
            let (base, blocks) = (base.unwrap_or(0), self.attached.info.borrow().blocks);
            let asked = ExtensionCommand::Differences { base, lba: 0 };
            self.ask(asked, async |admin| admin.differences(self.attached.nsid, base, blocks).await).await
        })
    }

    async fn ask<T>(
        &self,
        asked: ExtensionCommand,
        ask: impl AsyncFnOnce(Admin<'_>) -> Result<T, ConnectError>,
    ) -> Result<T, Error> {
        let up = self.up()?;
        let offered = Extension::of(&up.association.controller.page).has(asked.opcode());
        let Some(admin) = up.association.admin().filter(|_| offered) else {
            return Err(Error::Unsupported("snapshots over this connection"));
        };
        ask(admin).await.map_err(|error| match error {
            ConnectError::Refused { status, .. } => {
                let end = self.attached.info.borrow().blocks;
                from_status(status, Target { name: &self.attached.name, lba: Lba(0), blocks: 0, end })
            }
            ConnectError::Unusable { reason, .. } => Error::ReadFault(reason),
            _ => Error::Disconnected(self.attached.name.clone()),
        })
    }
}

impl AnyRemote {
    fn remote(&self) -> Result<&RemoteNamespace, Error> {
        match self {
            AnyRemote::Remote(remote) => Ok(remote),
            AnyRemote::Other(_) => Err(Error::Unsupported("snapshots of what is no single remote namespace")),
        }
    }

    /// As [`RemoteNamespace::extension`]; other kinds offer nothing.
    pub fn extension(&self) -> Extension {
        self.remote().map_or_else(|_| Extension::default(), RemoteNamespace::extension)
    }

    /// As [`RemoteNamespace::snapshot`].
    ///
    /// # Errors
    /// The same; [`Error::Unsupported`] of other kinds.
    pub fn snapshot(&self, tag: CopyTag) -> LocalFuture<'_, Result<u32, Error>> {
        Box::pin(async move { self.remote()?.snapshot(tag).await })
    }

    /// As [`RemoteNamespace::copies`].
    ///
    /// # Errors
    /// As [`AnyRemote::snapshot`].
    pub fn copies(&self) -> LocalFuture<'_, Result<Vec<NamespaceCopy>, Error>> {
        Box::pin(async move { self.remote()?.copies().await })
    }

    /// As [`RemoteNamespace::delete_copy`].
    ///
    /// # Errors
    /// As [`AnyRemote::snapshot`].
    pub fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> LocalFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.remote()?.delete_copy(nsid, nguid).await })
    }

    /// As [`RemoteNamespace::differences`] from another namespace that is reached.
    ///
    /// # Errors
    /// As [`AnyRemote::snapshot`].
    pub fn differences<'a>(&'a self, base: Option<&'a AnyRemote>) -> LocalFuture<'a, Result<Vec<Range<u64>>, Error>> {
        Box::pin(async move {
            let base = base.map(AnyRemote::remote).transpose()?.map(RemoteNamespace::nsid);
            self.remote()?.differences(base).await
        })
    }
}

impl Manager {
    /// What the target offers.
    ///
    /// # Errors
    /// The connection is lost, or the controller refuses.
    pub async fn extension(&self) -> Result<Extension, ConnectError> {
        if let Some(known) = self.offered().get() {
            return Ok(*known);
        }
        let page: IdentifyController = read_page(&self.admin().identify(Cns::CONTROLLER, 0).await?);
        Ok(*self.offered().get_or_init(|| Extension::of(&page)))
    }

    /// The admin queue, where the target has such commands.
    async fn extended(&self, asked: ExtensionCommand) -> Result<Admin<'_>, ConnectError> {
        let offered = self.extension().await?.has(asked.opcode());
        offered.then(|| self.admin()).ok_or_else(|| none_offered(asked))
    }

    /// Takes a snapshot of a namespace that this host has and may write; see [`RemoteNamespace::snapshot`].
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: it was not taken. Any other: it may have been.
    pub async fn snapshot(&self, nsid: u32, tag: CopyTag) -> Result<u32, ConnectError> {
        let admin = self.extended(ExtensionCommand::Copy(CopyKind::Snapshot)).await?;
        admin.copy(nsid, CopyKind::Snapshot, tag).await
    }

    /// Makes a namespace that begins with what `nsid` (a snapshot, or another namespace) holds; returns its identifier. It is
    /// attached to none. One with this tag is returned as it is.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: it was not made. Any other: it may have been.
    pub async fn clone_of(&self, nsid: u32, tag: CopyTag) -> Result<u32, ConnectError> {
        let admin = self.extended(ExtensionCommand::Copy(CopyKind::Clone)).await?;
        admin.copy(nsid, CopyKind::Clone, tag).await
    }

    /// The copies of a namespace, or of all, identifiers ascending. Those whose source is gone are only among all.
    ///
    /// # Errors
    /// The connection is lost, or the controller refuses.
    pub async fn copies(&self, nsid: Option<u32>) -> Result<Vec<NamespaceCopy>, ConnectError> {
        let admin = self.extended(ExtensionCommand::Copies { after: 0 }).await?;
        admin.copies(nsid.unwrap_or(NSID_ALL)).await
    }

    /// Deletes a snapshot; see [`RemoteNamespace::delete_copy`]. A clone is deleted as every namespace: [`Manager::delete`].
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: it is as it was. Any other: it may be gone.
    pub async fn delete_copy(&self, nsid: u32, nguid: [u8; 16]) -> Result<(), ConnectError> {
        self.extended(ExtensionCommand::DeleteCopy { nguid }).await?.delete_copy(nsid, nguid).await
    }

    /// Makes a namespace larger: `bytes` in all, rounded up to whole blocks. One that has this size already is left as it is.
    ///
    /// # Errors
    /// [`ConnectError::Refused`]: it has its size of before. Any other: it may be larger.
    pub async fn grow(&self, nsid: u32, bytes: u64) -> Result<(), ConnectError> {
        let admin = self.extended(ExtensionCommand::Grow { blocks: 0 }).await?;
        let (_, block) = self.geometry(nsid).await?;
        let asked = ExtensionCommand::Grow { blocks: bytes.div_ceil(block) };
        admin.extended(asked, nsid, None).await.map(drop)
    }

    /// Ranges of bytes in which `newer` may differ from `base` (`None`: from zeroes), ascending; elsewhere they are the same.
    /// `base` is a namespace that `newer` was made from, or both were made from the same. Of more ranges than
    /// [`DIFFERENCES_MAX`] the last one goes on to the end.
    ///
    /// # Errors
    /// The connection is lost, or the controller refuses.
    pub async fn differences(&self, newer: u32, base: Option<u32>) -> Result<Vec<Range<u64>>, ConnectError> {
        let base = base.unwrap_or(0);
        let admin = self.extended(ExtensionCommand::Differences { base, lba: 0 }).await?;
        let (blocks, block) = self.geometry(newer).await?;
        let found = admin.differences(newer, base, blocks).await?;
        Ok(found.into_iter().map(|range| range.start * block..range.end * block).collect())
    }

    /// Blocks of a namespace, attached or not, and bytes of a block.
    async fn geometry(&self, nsid: u32) -> Result<(u64, u64), ConnectError> {
        let page: IdentifyNamespace = read_page(&self.admin().identify(Cns::ALLOCATED_NAMESPACE, nsid).await?);
        let block = 1u64.checked_shl(format_of(&page).lbads.into()).unwrap_or(0);
        let blocks = page.nsze.get();
        if blocks == 0 || block < 512 || blocks.checked_mul(block).is_none() {
            return Err(unusable(nsid, "it is not there, or has no size that can be"));
        }
        Ok((blocks, block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(next: u64, ranges: &[(u64, u64)]) -> Vec<u8> {
        let head = DifferencesHead { next: next.into(), count: (ranges.len() as u32).into(), reserved: 0.into() };
        let ranges = ranges.iter().map(|&(slba, nlb)| DifferenceRange { slba: slba.into(), nlb: nlb.into() });
        let mut page = head.as_bytes().to_vec();
        ranges.for_each(|range| page.extend(range.as_bytes()));
        page
    }

    #[test]
    fn differences_ascend_come_to_an_end_and_are_merged() {
        let mut found = Vec::new();
        assert_eq!(read_differences(&page(20, &[(2, 3), (5, 1), (18, 2)]), (0, 30), &mut found), Ok(Some(20)));
        assert_eq!(read_differences(&page(DIFFERENCES_END, &[(20, 1), (29, 9)]), (20, 30), &mut found), Ok(None));
        assert_eq!(found, [2..6, 18..21, 29..30], "what has grown meanwhile is another question");
        let refused: [(u64, &[(u64, u64)]); 6] =
            [(4, &[]), (9, &[(3, 1)]), (9, &[(5, 0)]), (9, &[(5, 2), (6, 1)]), (9, &[(8, 2)]), (9, &[(u64::MAX, 2)])];
        for (next, ranges) in refused {
            let read = read_differences(&page(next, ranges), (4, 30), &mut Vec::new());
            assert!(read.is_err(), "{next} {ranges:?}: {read:?}");
        }
        let cut = &page(9, &[(5, 1), (7, 1)])[..40];
        assert!(read_differences(cut, (4, 30), &mut Vec::new()).is_err());
        assert_eq!(read_differences(&page(30, &[]), (4, 30), &mut Vec::new()), Ok(None), "the end, said in blocks");
    }

    #[test]
    fn lists_of_copies_rise() {
        let entry = |nsid: u32, kind: u32| {
            let mut entry = [0; 128];
            entry[..4].copy_from_slice(&nsid.to_le_bytes());
            entry[4..8].copy_from_slice(&kind.to_le_bytes());
            entry
        };
        let (copies, more) = read_copies(&[entry(3, 0), entry(9, 1), entry(0, 7)].concat(), 2).unwrap();
        assert_eq!(copies.iter().map(|copy| (copy.nsid, copy.writable)).collect::<Vec<_>>(), [(3, false), (9, true)]);
        assert!(!more && read_copies(&[entry(3, 0), entry(9, 0)].concat(), 2).unwrap().1);
        for bad in [[entry(2, 0), entry(3, 0)], [entry(3, 0), entry(3, 0)], [entry(3, 2), entry(4, 0)]] {
            assert!(read_copies(&bad.concat(), 2).is_err());
        }
    }
}
