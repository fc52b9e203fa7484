//! What all verbs say in the same words.

use ::volume::Error;

use crate::exit::Failure;

/// A volume's error as an exit status.
pub fn failure(error: Error) -> Failure {
    match error {
        Error::Device { source: device::Error::OutOfSpace, .. } => Failure::out_of_space(error),
        Error::InUse { .. } | Error::Loses { .. } => {
            Failure::refused(error.to_string().replace("say so by `force`", "say so by --force"))
        }
        Error::Impossible(_) | Error::OtherVolume { .. } | Error::BlockSize { .. } | Error::TooSmall { .. } => {
            Failure::usage(error)
        }
        _ if error.may_pass() => Failure::unavailable(error),
        _ => Failure::refused(error),
    }
}

/// The volume's identifier, as everywhere.
pub fn name(volume: u128) -> String {
    format!("{volume:032x}")
}

/// The name of the subsystem that serves a volume, where nobody has said another one.
pub fn usual_name(volume: u128) -> String {
    format!("nqn.2026-11.io.yagura:volume:{}", name(volume))
}
