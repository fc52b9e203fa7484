//! Entry points for fuzzing: any bytes may come in, and nothing may panic.

pub use crate::resp::fuzz::{resp_hash, resp_session};

use crate::page::{AllocationPage, Draft, HEADER_BYTES, TablePageView, decode_bundle, encode_bundle};
use crate::types::Timestamp;

const INCARNATION: u64 = 0x0123_4567_89ab_cdef;

/// A page as read from a medium. So that mutation gets past the checksum, the first byte chooses whether the header's
/// fixed fields and checksum are put right first.
pub fn page_decode(bytes: &[u8]) {
    let Some((&mode, bytes)) = bytes.split_first() else { return };
    if let Ok(entries) = decode_bundle(bytes) {
        assert_eq!(&encode_bundle(&entries)[..], bytes, "a bundle has one form");
    }
    let mut page = bytes.to_vec();
    if mode != 0 && page.len() >= HEADER_BYTES {
        page[0..8].copy_from_slice(&[b'Y', b'G', b'P', b'G', 1, 0, 1 + mode % 2, 0]);
        page[24..32].copy_from_slice(&INCARNATION.to_le_bytes());
        page[48..52].fill(0);
        let checksum = pool::superblock::crc64(&page[16..]);
        page[8..16].copy_from_slice(&checksum.to_le_bytes());
    }
    if let Ok(view) = TablePageView::decode(&page, 0, INCARNATION) {
        rewrite(&view);
    }
    if let Ok(allocation) = AllocationPage::decode(&page, 0, INCARNATION) {
        let next = allocation.encode_next(4096);
        let again = AllocationPage::decode(&next, 0, INCARNATION).expect("invariant: what was encoded decodes");
        assert_eq!(again.slots(), allocation.slots());
    }
}

/// What decodes must encode to a page that says the same.
fn rewrite(view: &TablePageView<'_>) {
    let next = Draft::new(view).encode().expect("invariant: a page's own records fit it");
    let again = TablePageView::decode(&next, 0, INCARNATION).expect("invariant: what was encoded decodes");
    assert!(again.entries().eq(view.entries()) && again.guests().eq(view.guests()));
    assert!(again.forwards().eq(view.forwards()));
    for forward in view.forwards() {
        // Whatever becomes of the keys of a bundle, the page has room for it.
        let mut draft = Draft::new(view);
        for index in 0..forward.len() {
            draft.delete_bundled(forward.reference.copy, index, &Timestamp::ZERO);
        }
        let deleted = draft.encode().expect("invariant: room is kept for deletions");
        TablePageView::decode(&deleted, 0, INCARNATION).expect("invariant: what was encoded decodes");
        let gone = (0..forward.len()).filter_map(|index| draft.take_back(forward.reference.copy, index)).count();
        assert_eq!(gone, 1);
    }
    for entry in view.entries() {
        assert_eq!(view.entry(entry.key), Some(entry));
        entry.ops.iter().for_each(drop);
    }
}
