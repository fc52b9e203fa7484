//! Changes of allocation pages, put into force. All that tasks of this host want changed in one page while a compare-and-write of
//! it is under way goes into the next one: a hundred writers of large values cost a few compare-and-writes, not a hundred in a row.

use std::cell::RefCell;
use std::rc::Rc;

use engine::View;
use pool::HeapGroup;

use super::locks::Guard;
use super::slots::{Answer, Change, Request};
use super::{ATTEMPTS_MAX, Table, TableError, bump, uncertain};
use crate::page::{AllocationPage, SLOTS};

/// Unit of a slot's stamp, in seconds.
const STAMP_SECONDS: u64 = 600;

impl Table {
    /// Has `change` stored, with whatever else is to be changed in the group.
    pub(super) async fn change_group(&self, group: HeapGroup, change: Change) -> Result<Answer, TableError> {
        let request = Rc::new(Request { change, answer: RefCell::new(None) });
        self.requests.push(group, &request);
        let lock = self.group_locks.lock(u64::from(group.0)).await;
        if let Some(answer) = request.answer.take() {
            return answer;
        }
        let mut batch = self.requests.take(group);
        // Whoever took it may have been dropped in the middle of its turn.
        if !batch.iter().any(|other| Rc::ptr_eq(other, &request)) {
            batch.push(request.clone());
        }
        let changes: Vec<Change> = batch.iter().map(|request| request.change).collect();
        let answers = self.change_at_once(group, &lock, &changes).await;
        for (index, request) in batch.iter().enumerate() {
            let answer = answers.as_ref().map(|answers| answers[index]).map_err(Clone::clone);
            *request.answer.borrow_mut() = Some(answer);
        }
        request.answer.take().unwrap_or(Err(TableError::Contended))
    }

    /// Applies `changes`, again on every newer image, until they are stored or change nothing.
    async fn change_at_once(
        &self,
        group: HeapGroup,
        lock: &Guard<'_>,
        changes: &[Change],
    ) -> Result<Vec<Answer>, TableError> {
        let lba = self.layout.allocation(group);
        let mut in_doubt = false;
        let mut known =
            lock.image().or_else(|| self.last_group.borrow().clone().filter(|last| last.0 == group).map(|l| l.1));
        for _ in 0..ATTEMPTS_MAX {
            let fresh = known.is_none();
            let expected: View = match known.take() {
                Some(image) => image,
                None => self.read_at(lba, self.layout.page_bytes()).await?,
            };
            let decoded = AllocationPage::decode(&expected, group.0, self.incarnation);
            let mut page = decoded.map_err(|error| TableError::Allocation { group: group.0, error })?;
            let stamp = stamp_now();
            let applied: Vec<(Answer, bool)> = changes.iter().map(|change| change.apply(&mut page, stamp)).collect();
            let answers: Vec<Answer> = applied.iter().map(|(answer, _)| *answer).collect();
            // What an older image does not have may be there by now.
            if !fresh && answers.contains(&Answer::Nothing) {
                continue;
            }
            if !applied.iter().any(|(_, changed)| *changed) {
                return Ok(answers);
            }
            let new = page.encode_next(self.layout.page_bytes()).freeze();
            lock.set_image(None);
            match self.replace(lba, expected, new.clone()).await {
                Ok(()) => {
                    lock.set_image(Some(new.clone()));
                    *self.last_group.borrow_mut() = Some((group, new));
                    return Ok(answers);
                }
                Err(device::Error::CompareFailure) => bump(&self.stats.misses),
                Err(error) if uncertain(&error) && !in_doubt => in_doubt = true,
                Err(error) => return Err(error.into()),
            }
        }
        Err(TableError::Contended)
    }
}

/// The stamp of what is claimed now, by this host's calendar: for people, and for versions before, who went by it.
pub(super) fn stamp_now() -> u16 {
    (engine::time::unix_time().as_secs() / STAMP_SECONDS) as u16
}

/// The place of `slot` in its group.
pub(super) fn place(group: HeapGroup, slot: usize) -> pool::HeapPage {
    debug_assert!(slot < SLOTS);
    pool::HeapPage::new(group, slot as u32)
}
