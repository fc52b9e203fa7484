//! What can go wrong with a catalogue, in words that say what is known of the outcome, and what to do.

use super::limits::{LEASE_KEYS_MAX, LimitError};
use super::types::{LeaseId, Revision};

/// What to do where there is no room.
pub(super) const MAKE_ROOM: &str = "compact and defragment it (`etcdctl compact`, `etcdctl defrag`, `etcdctl alarm disarm`), or \
                                    make room on its disk";

/// Where an engine's own words are kept.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why the catalogue did not do what was asked. Only [`Error::OutcomeUnknown`] leaves open whether something was changed; all
/// others say that nothing was.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for is beyond a limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The change was sent, and whether it was applied is not known; it may even be applied later. It must not be sent again
    /// blindly: a second copy may miss its own first one, or count twice. What settles it: let the transaction write a key of its
    /// own (an id that nobody else uses) on the condition that the key is absent. Then the same transaction may be sent until it
    /// is committed or misses that condition, which says that an earlier copy was applied; two of them never are. A condition that
    /// an entry is unchanged which the transaction writes does the same.
    #[error(
        "whether the change was applied is not known ({why}), and it may be applied yet: send it again only with a condition that its first \
         copy would break, and read what it has written"
    )]
    OutcomeUnknown {
        /// What happened.
        why: String,
    },
    /// Nobody answered in time. Nothing was changed.
    #[error("no answer from the catalogue at {place} ({why}): nothing was changed, see that it runs and ask again")]
    NoAnswer {
        /// Its members, or its file.
        place: String,
        /// What the last of them said.
        why: String,
    },
    /// History does not go back that far. A watcher has missed changes, and must read anew.
    #[error(
        "the catalogue's history does not go back to revision {asked} any more, but to {oldest}: read all entries anew, and watch \
         after the revision of that reading"
    )]
    Compacted {
        /// From where on it was asked for.
        asked: Revision,
        /// A revision that it surely goes back to.
        oldest: Revision,
    },
    /// That revision has not been. The catalogue is another one, or was put back to an older state.
    #[error(
        "revision {asked} has not been, the catalogue stands at {present}: the catalogue was put back to an older copy, or is \
         another one. Read all entries anew"
    )]
    NotYet {
        /// What was asked for.
        asked: Revision,
        /// Where it stands.
        present: Revision,
    },
    /// The catalogue was put back to an older copy, and has gone on from there to where the watcher stands, or past it.
    #[error(
        "the catalogue at {place} was put back to an older copy and has gone on from there: its revision {after} is not the one that \
         was seen. Read all entries anew, and watch after the revision of that reading"
    )]
    PutBack {
        /// Its members.
        place: String,
        /// Where the watcher stands.
        after: Revision,
    },
    /// All members belong to another etcd than they did before.
    #[error(
        "the members {place} belong to the etcd {found:016x}, and belonged to {known:016x} before: name the members of the one that is \
         meant, open the catalogue anew, and read all entries anew"
    )]
    AnotherCluster {
        /// Its members.
        place: String,
        /// Which one it was.
        known: u64,
        /// Which one it is.
        found: u64,
    },
    /// The lease has ended, and the keys bound to it are gone.
    #[error("the lease {id} has ended, with all keys bound to it: ask for a new lease, and write them anew")]
    LeaseGone {
        /// Which one.
        id: LeaseId,
    },
    /// The lease would have too many keys.
    #[error(
        "the lease {id} would have more than {LEASE_KEYS_MAX} keys: nothing was changed, ask for another lease and bind the others to it"
    )]
    LeaseFull {
        /// Which one.
        id: LeaseId,
    },
    /// The file is open in another process.
    #[error(
        "the catalogue {path} is open already, by {owner}: ask that process, a catalogue of one file has one owner at a time"
    )]
    InUse {
        /// Which file.
        path: String,
        /// Who has it.
        owner: String,
    },
    /// The catalogue says no.
    #[error("the catalogue at {place} refuses it ({why}): see to the user's rights, password and certificates")]
    Refused {
        /// Its members.
        place: String,
        /// Its words.
        why: String,
    },
    /// There is no room. An etcd that is full may have made the change that it refuses: of such a change the outcome is unknown.
    #[error("the catalogue at {place} is full ({why}): nothing was changed, {MAKE_ROOM}")]
    Full {
        /// Its members, or its file.
        place: String,
        /// Its words.
        why: String,
    },
    /// The file or what lies on it failed.
    #[error("the catalogue {place} failed: {source}. See to the medium, then open it again")]
    Storage {
        /// Which file.
        place: String,
        /// What it said.
        source: Cause,
    },
    /// What is stored or said is not what this version understands.
    #[error(
        "what the catalogue at {place} holds or says is not understood ({what}): use the version of Yagura that wrote it"
    )]
    Foreign {
        /// Its members, or its file.
        place: String,
        /// What was found.
        what: String,
    },
    /// How the catalogue is to be reached is wrong.
    #[error("the catalogue cannot be reached as told: {what}")]
    Options {
        /// What is wrong, and what to do.
        what: String,
    },
    /// The catalogue was closed while somebody waited for it.
    #[error("the catalogue was closed: open it again to go on")]
    Closed,
}
