//! Why a remote namespace could not be had, and what a command's end means in the words of [`device::Error`].

use device::{Error, Lba, ZoneError};
use nvme::status::code_type;
use nvme::{AnaState, Nqn, Status};

use super::link::LinkError;
use super::slot::Ended;

/// Why an association with a target could not be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connection could not be made or was lost.
    #[error("{address}: {error}")]
    Link {
        /// The target.
        address: std::net::SocketAddr,
        /// What happened.
        error: LinkError,
    },
    /// One end did not authenticate itself to the other.
    #[error("{address}: {error}")]
    Authentication {
        /// The target.
        address: std::net::SocketAddr,
        /// Why not.
        error: crate::auth::AuthError,
    },
    /// The key for TLS can't be used.
    #[error("the TLS key: {0}")]
    Key(#[from] crate::psk::PskError),
    /// The target refused a step.
    #[error("{step}: the target answered {status}{}", hint(*.status))]
    Refused {
        /// What was asked.
        step: &'static str,
        /// Its answer.
        status: Status,
    },
    /// A step ended without an answer that can be used.
    #[error("{step}: {ended}")]
    NoAnswer {
        /// What was asked.
        step: &'static str,
        /// What happened instead.
        ended: &'static str,
    },
    /// The controller did not become ready.
    #[error("the controller did not become ready within {0:?} (its status: {1:#x})")]
    NotReady(std::time::Duration, u32),
    /// The controller has failed.
    #[error("the controller says that it has failed (fatal status, CSTS {0:#x}): it has to be reset at its own end")]
    Fatal(u32),
    /// The subsystem has no such namespace.
    #[error("subsystem {subsystem} has no namespace {nsid}")]
    NoNamespace {
        /// The subsystem.
        subsystem: Nqn,
        /// The namespace identifier asked for.
        nsid: u32,
    },
    /// The namespace is of a kind that can't be used.
    #[error("namespace {nsid}: {reason}")]
    Unusable {
        /// The namespace.
        nsid: u32,
        /// What is in the way.
        reason: String,
    },
    /// The namespace is not the one that was there before.
    #[error("another namespace answers at this address: {found} where {expected} was; remove the member or restore it")]
    OtherNamespace {
        /// What was there: NGUID and geometry.
        expected: String,
        /// What is there now.
        found: String,
    },
}

impl ConnectError {
    /// Whether the target has refused for a reason that may pass by itself: it has not said that trying again is of no use, and
    /// does not complain of what we are or ask for.
    pub(super) fn may_pass(&self) -> bool {
        let ConnectError::Refused { status, .. } = self else { return false };
        let ours = [
            Status::CONNECT_INVALID_HOST,
            Status::CONNECT_INVALID_PARAMETERS,
            Status::CONNECT_INCOMPATIBLE_FORMAT,
            Status::AUTHENTICATION_REQUIRED,
            Status::INVALID_FIELD,
            Status::INVALID_OPCODE,
        ];
        !status.is_do_not_retry() && !ours.contains(&status.kind())
    }

    /// Whether the target does not want us, or has said that trying again is of no use. A controller that has gone between the
    /// Connects of its queues, with a target that restarts, say, is no denial: that command makes no sense any more, and the
    /// next association will be taken.
    pub(super) fn is_denial(&self) -> bool {
        match self {
            ConnectError::Refused { status, .. } => match status.kind() {
                Status::CONNECT_INVALID_HOST => true,
                Status::SEQUENCE_ERROR | Status::CONNECT_INVALID_PARAMETERS => false,
                _ => status.is_do_not_retry(),
            },
            ConnectError::Authentication { .. } => true,
            _ => false,
        }
    }
}

fn hint(status: Status) -> &'static str {
    match status.kind() {
        Status::CONNECT_INVALID_PARAMETERS => "; is the subsystem's NQN right?",
        Status::CONNECT_INVALID_HOST => "; the target does not let this host's NQN in",
        Status::AUTHENTICATION_REQUIRED => "; it wants authentication",
        _ => "",
    }
}

/// A command's range, for errors that name it.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    /// The target's name in errors.
    pub(super) name: &'a str,
    pub(super) lba: Lba,
    pub(super) blocks: u64,
    /// Size of the namespace, in blocks.
    pub(super) end: u64,
}

/// How a command failed, and what that means for sending it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CommandError {
    /// For the caller.
    pub(super) error: Error,
    pub(super) fate: Fate,
}

/// What has become, and may yet become, of a command that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// It was not executed and never will be, for a reason that lies in this path: another one may do better.
    NotExecuted,
    /// The path's ANA state stood in the way, likewise.
    Ana(AnaState),
    /// The controller has answered; another path would answer the same.
    Answered,
    /// It has ended, and how far it came is not known.
    Interrupted,
    /// The same, for a reason that may last: worth another try, and not worth many.
    Faulty,
    /// It may take effect until its association has surely ended.
    InDoubt,
}

impl From<CommandError> for Error {
    fn from(failed: CommandError) -> Error {
        failed.error
    }
}

impl From<Error> for CommandError {
    /// Of a command that was not sent.
    fn from(error: Error) -> CommandError {
        let fate = if matches!(error, Error::NotConnected(_)) { Fate::NotExecuted } else { Fate::Answered };
        CommandError { error, fate }
    }
}

/// What a status says of a command's fate. Path related ones (SCT 3h) up to 6Fh: the controller did not execute it (NVMe Base
/// 2.0 §8.1.1.6 to §8.1.1.8, figure 98); one that the controller no longer has, or not yet, others may have.
fn fate_of(status: Status) -> Fate {
    match status.kind() {
        Status::ANA_INACCESSIBLE => Fate::Ana(AnaState::Inaccessible),
        Status::ANA_PERSISTENT_LOSS => Fate::Ana(AnaState::PersistentLoss),
        Status::ANA_TRANSITION => Fate::Ana(AnaState::Change),
        Status::INVALID_NAMESPACE | Status::CONTROLLER_PATHING_ERROR => Fate::NotExecuted,
        Status::NAMESPACE_NOT_READY if !status.is_do_not_retry() => Fate::NotExecuted,
        Status::ABORT_REQUESTED
        | Status::ABORTED_SQ_DELETION
        | Status::INTERRUPTED
        | Status::TRANSIENT_TRANSPORT_ERROR
        | Status::DATA_TRANSFER_ERROR
        | Status::INTERNAL_PATH_ERROR => Fate::Interrupted,
        _ if status.is_do_not_retry() => Fate::Answered,
        Status::INTERNAL_ERROR => Fate::Faulty,
        // Codes that we do not know, or that came later.
        _ if status.code_type() == code_type::PATH => Fate::Faulty,
        _ => Fate::Answered,
    }
}

fn fate(ended: Ended) -> Fate {
    match ended {
        Ended::Completed(completion) => fate_of(completion.status()),
        // Of a read: what the wire has spoilt was not the target's answer.
        Ended::WrongDigest => Fate::Interrupted,
        Ended::ShortData => Fate::Faulty,
        Ended::Lost | Ended::TimedOut => Fate::InDoubt,
    }
}

/// The end of a command, with its fate.
pub(super) fn judged(ended: Ended, target: Target<'_>) -> Result<(), CommandError> {
    outcome(ended, target).map_err(|error| CommandError { error, fate: fate(ended) })
}

/// The ends of the halves of a fused command, with their fate: as long as one has no answer it may take effect, unless the
/// other's answer settles both.
pub(super) fn fused_judged(compare: Ended, write: Ended, target: Target<'_>) -> Result<(), CommandError> {
    let fate = match (compare, write) {
        (Ended::Completed(compared), _) if is_fault(compared.status()) => fate_of(compared.status()),
        (Ended::Lost | Ended::TimedOut, _) => Fate::InDoubt,
        (_, write) => fate(write),
    };
    fused_outcome(compare, write, target).map_err(|error| CommandError { error, fate })
}

/// What the end of a command means.
pub(super) fn outcome(ended: Ended, target: Target<'_>) -> Result<(), Error> {
    match ended {
        Ended::Completed(completion) if completion.status().is_success() => Ok(()),
        Ended::Completed(completion) => Err(from_status(completion.status(), target)),
        Ended::WrongDigest => Err(Error::ReadFault(format!("wrong data digest in what {} sent", target.name))),
        Ended::ShortData => Err(Error::ReadFault(format!("{} sent less data than was asked for", target.name))),
        Ended::Lost => Err(Error::Disconnected(target.name.to_owned())),
        Ended::TimedOut => Err(Error::Aborted),
    }
}

/// What a status other than success means.
pub(super) fn from_status(status: Status, target: Target<'_>) -> Error {
    match status.kind() {
        Status::COMPARE_FAILURE => Error::CompareFailure,
        Status::LBA_OUT_OF_RANGE => Error::OutOfRange { lba: target.lba, blocks: target.blocks, end: target.end },
        Status::CAPACITY_EXCEEDED => Error::OutOfSpace,
        Status::UNRECOVERED_READ_ERROR => Error::ReadFault(format!("reported by {}", target.name)),
        Status::WRITE_FAULT => Error::WriteFault(format!("reported by {}", target.name)),
        Status::WRITE_PROTECTED => Error::ReadOnly("its target says that it is write protected"),
        Status::INVALID_OPCODE => Error::Unsupported("this command (the target does not know its opcode)"),
        Status::ZONE_BOUNDARY_ERROR => Error::Zone(ZoneError::Boundary),
        Status::ZONE_IS_FULL => Error::Zone(ZoneError::Full),
        Status::ZONE_IS_READ_ONLY => Error::Zone(ZoneError::ReadOnly),
        Status::ZONE_IS_OFFLINE => Error::Zone(ZoneError::Offline),
        Status::ZONE_INVALID_WRITE => Error::Zone(ZoneError::InvalidWrite),
        Status::TOO_MANY_ACTIVE_ZONES => Error::Zone(ZoneError::TooManyActive),
        Status::TOO_MANY_OPEN_ZONES => Error::Zone(ZoneError::TooManyOpen),
        Status::INVALID_ZONE_TRANSITION => Error::Zone(ZoneError::InvalidTransition),
        Status::ABORT_REQUESTED | Status::ABORTED_SQ_DELETION | Status::INTERRUPTED => Error::Aborted,
        Status::ABORTED_BY_HOST | Status::ABORTED_PREEMPT => Error::Aborted,
        Status::RESERVATION_CONFLICT => Error::Reserved(target.name.to_owned()),
        // How far the command came before these struck is not said.
        Status::INTERNAL_ERROR
        | Status::DATA_TRANSFER_ERROR
        | Status::TRANSIENT_TRANSPORT_ERROR
        | Status::INTERNAL_PATH_ERROR => {
            tracing::warn!(target = target.name, lba = target.lba.0, %status, "a command ended in an unknown state");
            Error::Aborted
        }
        _ => Error::Status(status.to_string()),
    }
}

/// What the ends of the halves of a fused command mean together: the half at fault tells it, the other only says that it was
/// aborted for that (NVMe Base 2.0 §3.4.2).
pub(super) fn fused_outcome(compare: Ended, write: Ended, target: Target<'_>) -> Result<(), Error> {
    match (compare, write) {
        // The write was done, so the compare was equal, even if its own answer was lost.
        (_, Ended::Completed(written)) if written.status().is_success() => Ok(()),
        // The compare was at fault, so nothing was written, even if that answer was lost.
        (Ended::Completed(compared), _) if is_fault(compared.status()) => Err(from_status(compared.status(), target)),
        (_, write) => outcome(write, target),
    }
}

fn is_fault(status: Status) -> bool {
    !status.is_success() && status.kind() != Status::FAILED_FUSED
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::Completion;

    const TARGET: Target<'static> = Target { name: "t", lba: Lba(3), blocks: 1, end: 9 };

    fn ended(status: Status) -> Ended {
        Ended::Completed(Completion::new(1, status, 0, 0))
    }

    #[test]
    fn the_half_at_fault_speaks() {
        let (good, aborted) = (ended(Status::SUCCESS), ended(Status::FAILED_FUSED.do_not_retry()));
        let unequal = ended(Status::COMPARE_FAILURE.do_not_retry());
        let fault = ended(Status::WRITE_FAULT);
        let lost = Error::Disconnected("t".into());
        let cases = [
            (good, good, Ok(())),
            (Ended::Lost, good, Ok(())),
            (unequal, aborted, Err(Error::CompareFailure)),
            (unequal, Ended::Lost, Err(Error::CompareFailure)),
            (aborted, ended(Status::CAPACITY_EXCEEDED), Err(Error::OutOfSpace)),
            (good, Ended::Lost, Err(lost.clone())),
            (Ended::Lost, Ended::Lost, Err(lost)),
            (Ended::TimedOut, Ended::TimedOut, Err(Error::Aborted)),
        ];
        for (compare, write, expected) in cases {
            assert_eq!(fused_outcome(compare, write, TARGET), expected, "{compare:?}, {write:?}");
        }
        assert!(fused_outcome(aborted, fault, TARGET).is_err_and(|error| error.outcome_unknown()));
    }

    #[test]
    fn an_error_whose_reach_is_not_said_leaves_the_outcome_open() {
        for status in [Status::INTERNAL_ERROR, Status::DATA_TRANSFER_ERROR, Status::INTERNAL_PATH_ERROR] {
            assert!(outcome(ended(status), TARGET).is_err_and(|error| error.outcome_unknown()), "{status}");
        }
        let refused = outcome(ended(Status::LBA_OUT_OF_RANGE), TARGET);
        assert_eq!(refused, Err(Error::OutOfRange { lba: Lba(3), blocks: 1, end: 9 }));
    }
}
