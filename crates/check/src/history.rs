//! What was asked and answered, in which order.
//!
//! Invariant: an operation's interval contains the moment at which it took effect, if it did. So `invoked` is stamped
//! before the request is made and `returned` after the answer is there, never the other way round: a narrower interval
//! would accuse an innocent store.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

/// What an operation does. What its answer said stands in [`Operation::value`] and [`Operation::done`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Writes the value.
    Put,
    /// Removes the key.
    Delete,
    /// Tells whether there is a value.
    Look,
    /// Returns the value.
    Get,
    /// Removes the key and returns the value that was there.
    Take,
    /// Writes the value if there is none.
    Add,
    /// Writes the value if there is one.
    Replace,
    /// Writes the value if the key holds `expected`.
    CompareAndSet {
        /// Identity of the value that must be there; `None`: none.
        expected: Option<u64>,
    },
    /// Adds to the number that the key holds (none counts as 0; wraps) and returns the sum.
    Increment {
        /// What is added.
        by: u64,
    },
    /// The value `of` ends by the clock: if the key holds it, it does no longer. Nobody asks for it and nobody is told, so it is
    /// invoked when it may first happen, and never returns.
    Expire {
        /// Identity of the value.
        of: u64,
    },
    /// Puts a piece behind what the key holds, and returns the identity of the whole ([`appended`]), or says only that it has.
    Append {
        /// Identity of the piece.
        piece: u64,
    },
}

/// Identity of a value after a piece was put behind it: a value and its history of pieces are one. A value of pieces that is
/// read is named by folding its pieces with this, from `None` on.
pub fn appended(before: Option<u64>, piece: u64) -> u64 {
    // A multiplicative hash; it only has to tell the few values of a test apart.
    let mixed =
        (before.map_or(0, |before| before.wrapping_add(1)) ^ piece.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

impl Action {
    /// Whether only puts, deletes and gets of a plain register are meant.
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Action::Put | Action::Delete | Action::Get | Action::Look)
    }

    /// Whether the answer brings the value.
    fn returns_value(self) -> bool {
        matches!(self, Action::Get | Action::Take | Action::Increment { .. } | Action::Append { .. })
    }

    /// Whether the operation writes [`Operation::value`].
    pub(crate) fn writes_value(self) -> bool {
        matches!(self, Action::Put | Action::Add | Action::Replace | Action::CompareAndSet { .. })
    }
}

/// One operation on one key. Stamps are of any unit, comparable over the whole history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Who asked; only for the reader of a report.
    pub client: u32,
    /// The key.
    pub key: String,
    /// What was asked.
    pub action: Action,
    /// Identity of the value written or returned, unique to each write (but on keys that are incremented, whose values are
    /// numbers); `None`: absent.
    pub value: Option<u64>,
    /// Whether the condition of an add, replace or compare-and-set held, or a look saw a value; of others, and without an answer,
    /// true.
    #[serde(default = "done")]
    pub done: bool,
    /// Stamp of the request.
    pub invoked: u64,
    /// Stamp of the answer; `None`: the outcome is unknown, the operation may take effect at any time or never.
    pub returned: Option<u64>,
}

fn done() -> bool {
    true
}

/// Operations in any order.
#[derive(Clone, Default, Debug)]
pub struct History {
    /// The operations.
    pub operations: Vec<Operation>,
}

/// Why a recorded history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("the history cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line is no operation.
    #[error("line {line} of the history is no operation: {source}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl History {
    /// Reads one operation per line; empty lines are skipped.
    pub fn read(from: impl BufRead) -> Result<History, ReadError> {
        let mut history = History::default();
        for (index, line) in from.lines().enumerate() {
            let line = line?;
            if !line.trim().is_empty() {
                let operation = serde_json::from_str(&line);
                history.operations.push(operation.map_err(|source| ReadError::Line { line: index + 1, source })?);
            }
        }
        Ok(history)
    }

    /// Writes one operation per line.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        for operation in &self.operations {
            serde_json::to_writer(&mut to, operation)?;
            to.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Takes in the operations of another history with comparable stamps.
    pub fn merge(&mut self, other: History) {
        self.operations.extend(other.operations);
    }
}

/// Records a history on one thread, stamped by a counter: the order of events is exact even where clocks stand still.
#[derive(Clone, Default)]
pub struct Recorder(Rc<RefCell<Recording>>);

#[derive(Default)]
struct Recording {
    stamp: u64,
    history: History,
    failed: BTreeSet<usize>,
}

/// An operation under way; dropped without [`Recorder::returned`] (its host crashed), its outcome stays unknown.
#[derive(Debug)]
pub struct Token(usize);

impl Recorder {
    /// An empty recording.
    pub fn new() -> Recorder {
        Recorder::default()
    }

    /// The operation is about to be requested; `value` is what it writes.
    pub fn invoked(&self, client: u32, key: &str, action: Action, value: Option<u64>) -> Token {
        let mut recording = self.0.borrow_mut();
        recording.stamp += 1;
        let invoked = recording.stamp;
        let operations = &mut recording.history.operations;
        operations.push(Operation { client, key: key.to_owned(), action, value, done: true, invoked, returned: None });
        Token(operations.len() - 1)
    }

    /// The answer is there, with the value if it brings one (get, take, increment, append).
    pub fn returned(&self, token: Token, result: Option<u64>) {
        self.answered(token, result, true);
    }

    /// The answer of an add, replace or compare-and-set is there: whether it was done.
    pub fn decided(&self, token: Token, done: bool) {
        self.answered(token, None, done);
    }

    fn answered(&self, token: Token, result: Option<u64>, done: bool) {
        let mut recording = self.0.borrow_mut();
        recording.stamp += 1;
        let returned = recording.stamp;
        let operation = &mut recording.history.operations[token.0];
        operation.returned = Some(returned);
        operation.done = done;
        if operation.action.returns_value() {
            operation.value = result;
        }
    }

    /// The operation failed, and certainly had no effect: should its value ever be seen, nobody has written it.
    pub fn failed(&self, token: Token) {
        self.0.borrow_mut().failed.insert(token.0);
    }

    /// Operations that failed so.
    pub fn failures(&self) -> usize {
        self.0.borrow().failed.len()
    }

    /// What was recorded so far.
    pub fn history(&self) -> History {
        let recording = self.0.borrow();
        let all = recording.history.operations.iter().enumerate();
        let kept = all.filter(|(index, _)| !recording.failed.contains(index)).map(|(_, operation)| operation.clone());
        History { operations: kept.collect() }
    }
}
