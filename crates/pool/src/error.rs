//! What can be wrong with a pool, in words that name the member and the way out.

use crate::domain::Level;
use crate::map::{Map, MapError, MemberId};
use crate::plan::PlanError;
use crate::superblock::SuperblockError;

/// Why a pool could not be created or opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A member's namespace failed.
    #[error("{member}: {source}")]
    Device {
        /// Which member, as the caller named it.
        member: String,
        /// What its namespace said.
        source: device::Error,
    },
    /// A namespace cannot be a member.
    #[error("{member} cannot be a member: {reason}")]
    Unfit {
        /// Which namespace.
        member: String,
        /// What it lacks.
        reason: String,
    },
    /// The namespace holds a superblock already, or something else that would be destroyed.
    #[error(
        "{member} is in use ({found}), and was left as it is: take it out of what uses it first; or, if what it holds may be \
         destroyed, `yagura pool create`, `add` and `replace` take it by --force"
    )]
    InUse {
        /// Which namespace.
        member: String,
        /// What was found on it.
        found: String,
    },
    /// The namespace is a member of this pool already: nobody takes it as a new one, by force neither.
    #[error(
        "{member} is a member of this pool already ({id}, number {index} in `yagura pool status`), and was left as it is: leave it \
         out. `yagura pool set-weight` gives it another weight, `yagura kv repair` begins it anew where it has lost what it held"
    )]
    IsMember {
        /// Which namespace.
        member: String,
        /// Its globally unique id.
        id: MemberId,
        /// Its number.
        index: usize,
    },
    /// One namespace was given twice.
    #[error("the namespace {id} was given twice ({first} and {second})")]
    Duplicate {
        /// Its globally unique id.
        id: MemberId,
        /// First name it was given by.
        first: String,
        /// Second name.
        second: String,
    },
    /// Fewer failure domains than replicas.
    #[error(
        "{replicas} replicas need {replicas} different {level}s, but the members lie in {domains}: \
         add members or lower the replica count"
    )]
    TooFewDomains {
        /// The level at which replicas must differ.
        level: Level,
        /// Different domains there are.
        domains: usize,
        /// Different domains needed.
        replicas: usize,
    },
    /// An option is outside its range.
    #[error("{what} is {value}, but must be {allowed}")]
    Option {
        /// Which option.
        what: &'static str,
        /// Its value.
        value: String,
        /// The range.
        allowed: &'static str,
    },
    /// The map's body is not usable.
    #[error("{member}: {source}")]
    Map {
        /// Which member it was read from.
        member: String,
        /// What is wrong with it.
        source: MapError,
    },
    /// The change that it is wanted for can't be.
    #[error("{member}: {source}")]
    Plan {
        /// Which member.
        member: String,
        /// Why.
        source: PlanError,
    },
    /// A member's superblock was refused.
    #[error("{member}: {source}")]
    Superblock {
        /// Which member.
        member: String,
        /// Why.
        source: SuperblockError,
    },
    /// Members of different pools were given.
    #[error("{member} belongs to pool {found}, not to {expected}; leave it out or open the other pool")]
    OtherPool {
        /// Which member.
        member: String,
        /// The pool in its superblock.
        found: uuid::Uuid,
        /// The pool expected.
        expected: uuid::Uuid,
    },
    /// Not enough voters carry the same map.
    #[error(
        "no majority: {agreeing} of {voters} voters agree on the map of epoch {epoch}, {needed} are needed ({reasons})"
    )]
    NoQuorum {
        /// Voters with the newest map seen.
        agreeing: usize,
        /// Voters of that map.
        voters: usize,
        /// Voters needed.
        needed: usize,
        /// Epoch of the newest map seen.
        epoch: u64,
        /// Why the others do not count, by name.
        reasons: String,
        /// The newest map seen: who else to ask.
        map: Box<Map>,
        /// So many voters are claimed only ([`Error::Claimed`]) that the others are no majority.
        half_made: bool,
    },
    /// The namespace was claimed for a new pool, and is no member of it yet.
    #[error(
        "{member} is claimed for pool {pool}, which is being made, or was not made to its end: if no `yagura pool create` is at it \
         any more, run that again with --force"
    )]
    Claimed {
        /// Which namespace.
        member: String,
        /// The pool.
        pool: uuid::Uuid,
    },
    /// No namespace given holds a readable superblock.
    #[error("no member of a pool among the namespaces given ({reasons}); create one first, or check the addresses")]
    NoMembers {
        /// What each namespace said, by name.
        reasons: String,
    },
}

impl Error {
    /// What the namespace of `member` said.
    pub(crate) fn device(member: impl Into<String>, source: device::Error) -> Error {
        Error::Device { member: member.into(), source }
    }
}
