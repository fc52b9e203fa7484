//! The register that a member is for each key: what it answers to the three requests that may change it, given what its
//! page holds. Pure; `store` turns the verdict into one compare-and-write of the page.
//!
//! The rules are those that `kv/model` searched, to the letter:
//! ```text
//!  STORE(e)      if e.ts > ts: store; always OK          ignores the promise and keeps it
//!  PREPARE(b)    if b > promise: promise := b, OK with the entry; else REFUSED
//!  ACCEPT(b, e)  if e.ts = ts: OK                         it is here already
//!                elif promise > b: REFUSED                before "superseded": else an operation whose base was replaced
//!                                                         under it counts itself as done
//!                else promise := next; store if e.ts > ts; OK
//! ```
//! `next` is `b`, or a higher ballot that the same host reserves for its next operation on the key.
//!
//! A request whose reply was lost is judged anew on the page as it is: its own timestamp, or its own promise, is then there.

use super::Record;
use super::plan::Change;
use crate::page::Entry;
use crate::types::{Ballot, Timestamp, Version};

/// What a member is asked to do for a key.
#[derive(Clone, Debug)]
pub enum Request {
    /// Store this unless there is something newer.
    Store(Record),
    /// Promise to accept nothing under a lower ballot, and show what is there.
    Prepare(Ballot),
    /// Store this, written or confirmed under `ballot`, unless a higher one was promised.
    Accept {
        /// The ballot.
        ballot: Ballot,
        /// The promise that the member makes with it: `ballot` or a higher one.
        next: Ballot,
        /// The entry.
        record: Record,
    },
}

impl Request {
    /// What is to be stored, if anything.
    pub fn record(&self) -> Option<&Record> {
        match self {
            Request::Store(record) | Request::Accept { record, .. } => Some(record),
            Request::Prepare(_) => None,
        }
    }

    /// What makes a member hold `record` that holds something older, whoever wrote it. A conditional operation's entry goes
    /// by its ballot: a member that has promised a higher one may already have shown its older entry for that.
    pub fn write_back(record: Record) -> Request {
        match record.timestamp.ballot {
            Ballot::NONE => Request::Store(record),
            ballot => Request::Accept { ballot, next: ballot, record },
        }
    }
}

/// What came of a request. All but a refusal count towards a quorum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The record is in force.
    Stored,
    /// A newer one is, and stays.
    Superseded,
    /// The promise is made.
    Promised,
    /// This higher ballot was promised before.
    Refused(Ballot),
}

/// What a member is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing: this is the answer.
    Is(Outcome),
    /// Change the entry so and raise its promise to this; then this is the answer.
    Becomes(Change, Ballot, Outcome),
}

/// Judges a request by the entry that the page has for its key. `damaged`: the value that the entry refers to does not
/// verify, and the caller brings it anew.
pub(super) fn judge(request: &Request, entry: Option<&Entry<'_>>, damaged: bool) -> Verdict {
    let held = entry.map_or(Timestamp::ZERO, |entry| entry.timestamp);
    let promise = entry.map_or(Ballot::NONE, |entry| entry.promise);
    match request {
        Request::Store(record) if record.timestamp < held => Verdict::Is(Outcome::Superseded),
        Request::Store(record) | Request::Accept { record, .. } if record.timestamp == held && !damaged => {
            Verdict::Is(Outcome::Stored)
        }
        Request::Store(_) => Verdict::Becomes(Change::Replace, Ballot::NONE, Outcome::Stored),
        Request::Accept { record, .. } if record.timestamp == held => {
            Verdict::Becomes(Change::Replace, Ballot::NONE, Outcome::Stored)
        }
        // The same ballot: this request's own promise, whose reply was lost.
        Request::Prepare(ballot) if promise == *ballot => Verdict::Is(Outcome::Promised),
        Request::Prepare(ballot) if promise > *ballot => Verdict::Is(Outcome::Refused(promise)),
        Request::Prepare(ballot) => Verdict::Becomes(Change::Promise, *ballot, Outcome::Promised),
        Request::Accept { ballot, .. } if promise > *ballot => Verdict::Is(Outcome::Refused(promise)),
        Request::Accept { next, record, .. } if record.timestamp < held => match promise >= *next {
            true => Verdict::Is(Outcome::Superseded),
            false => Verdict::Becomes(Change::Promise, *next, Outcome::Superseded),
        },
        Request::Accept { next, record, .. } => {
            let change = if damaged || !same_value(entry, record) { Change::Replace } else { Change::Confirm };
            Verdict::Becomes(change, *next, Outcome::Stored)
        }
    }
}

/// Whether the entry holds the record's value already, under another ballot: a value that lies outside the page, up to 64
/// MiB of it, is then not written again.
fn same_value(entry: Option<&Entry<'_>>, record: &Record) -> bool {
    entry.is_some_and(|entry| {
        let ops: Vec<_> = entry.ops.iter().collect();
        Version::new(entry.timestamp, &ops) == Version::new(record.timestamp, &record.ops)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{AppliedOps, Stored};
    use crate::types::{Applied, OpId};
    use crate::value::Value;

    fn op(sequence: u64) -> OpId {
        OpId { host: 1, sequence }
    }

    fn ballot(round: u64) -> Ballot {
        Ballot { round, op: op(round) }
    }

    fn ts(counter: u64, round: u64) -> Timestamp {
        let ballot = if round == 0 { Ballot::NONE } else { ballot(round) };
        Timestamp { counter, op: op(100 + counter), ballot }
    }

    fn record(timestamp: Timestamp, applied: &[u64]) -> Record {
        let ops = applied.iter().map(|&round| Applied { op: op(round), round }).collect();
        Record { timestamp, value: Some(Value::copy_from(b"v")), ops, ..Record::default() }
    }

    /// What a member that holds `held` and has promised round `promise` does.
    fn judged(held: &Record, promise: u64, request: Request) -> Verdict {
        let ops = AppliedOps::encode(&held.ops);
        let entry = Entry {
            key: b"k",
            timestamp: held.timestamp,
            promise: if promise == 0 { Ballot::NONE } else { ballot(promise) },
            ops: AppliedOps::new(&ops),
            expiry: 0,
            tag: 0,
            stored: Stored::Inline(b"v"),
        };
        judge(&request, Some(&entry), false)
    }

    fn accept(round: u64, next: u64, record: Record) -> Request {
        Request::Accept { ballot: ballot(round), next: ballot(next), record }
    }

    #[test]
    fn a_put_goes_by_its_timestamp_alone() {
        let held = record(ts(5, 0), &[]);
        let replaces = Verdict::Becomes(Change::Replace, Ballot::NONE, Outcome::Stored);
        assert_eq!(judged(&held, 9, Request::Store(record(ts(6, 0), &[]))), replaces);
        assert_eq!(judged(&held, 0, Request::Store(record(ts(5, 0), &[]))), Verdict::Is(Outcome::Stored));
        assert_eq!(judged(&held, 0, Request::Store(record(ts(4, 0), &[]))), Verdict::Is(Outcome::Superseded));
        assert_eq!(judge(&Request::Store(record(ts(1, 0), &[])), None, false), replaces);
    }

    #[test]
    fn a_promise_is_kept_against_lower_ballots_and_found_again_by_its_own() {
        let held = record(ts(5, 0), &[]);
        let promises = Verdict::Becomes(Change::Promise, ballot(4), Outcome::Promised);
        assert_eq!(judged(&held, 3, Request::Prepare(ballot(4))), promises);
        assert_eq!(judged(&held, 4, Request::Prepare(ballot(4))), Verdict::Is(Outcome::Promised));
        assert_eq!(judged(&held, 5, Request::Prepare(ballot(4))), Verdict::Is(Outcome::Refused(ballot(5))));
        assert_eq!(judge(&Request::Prepare(ballot(4)), None, false), promises);
    }

    /// The disaster: two increments prepared on the same entry, the second of which finds the first one's newer entry here,
    /// takes itself for superseded by a put, and returns the same number.
    #[test]
    fn a_broken_promise_is_refused_before_anything_is_called_superseded() {
        let held = record(ts(5, 7), &[7]);
        let refused = Verdict::Is(Outcome::Refused(ballot(7)));
        assert_eq!(judged(&held, 7, accept(6, 6, record(ts(5, 6), &[6]))), refused);
        assert_eq!(judged(&held, 7, accept(6, 6, record(ts(6, 6), &[6]))), refused);
        // The promise is the same or lower: a put came between, and has the last word.
        let raises = Verdict::Becomes(Change::Promise, ballot(9), Outcome::Superseded);
        assert_eq!(judged(&record(ts(6, 0), &[]), 8, accept(8, 9, record(ts(5, 8), &[8]))), raises);
        let done = Verdict::Is(Outcome::Superseded);
        assert_eq!(judged(&record(ts(6, 0), &[]), 8, accept(8, 8, record(ts(5, 8), &[8]))), done);
    }

    /// The disaster: a reader that has seen one of two compare-and-sets, which excluded each other, brings it back behind the
    /// other's success.
    #[test]
    fn what_a_conditional_operation_left_is_brought_elsewhere_by_its_ballot() {
        let held = record(ts(5, 0), &[]);
        let refused = Verdict::Is(Outcome::Refused(ballot(8)));
        assert_eq!(judged(&held, 8, Request::write_back(record(ts(5, 7), &[7]))), refused);
        let stores = |verdict| matches!(verdict, Verdict::Becomes(Change::Replace, _, Outcome::Stored));
        assert!(stores(judged(&held, 7, Request::write_back(record(ts(5, 7), &[7])))));
        assert!(stores(judged(&held, 8, Request::write_back(record(ts(6, 0), &[])))), "a put meets no promise");
    }

    #[test]
    fn what_is_here_already_counts_whatever_was_promised_since() {
        let held = record(ts(5, 7), &[7]);
        assert_eq!(judged(&held, 9, accept(7, 8, held.clone())), Verdict::Is(Outcome::Stored));
    }

    #[test]
    fn a_confirmation_leaves_the_value_where_it_lies() {
        let held = record(ts(5, 7), &[7]);
        let confirms = |request| matches!(judged(&held, 8, request), Verdict::Becomes(Change::Confirm, ..));
        assert!(confirms(accept(8, 8, record(ts(5, 8), &[7]))));
        assert!(!confirms(accept(8, 8, record(ts(5, 8), &[7, 8]))), "another change");
        assert!(!confirms(accept(8, 8, record(ts(6, 8), &[7]))), "another era");
    }
}
