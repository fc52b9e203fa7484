//! Why a connection ended, and what ends with it.

use nvme::auth::Failure;

use super::connection::Connection;
use crate::tcp::{FatalError, TermReq};

/// The reason, for the log line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum End {
    #[error("{0}")]
    Protocol(FatalError),
    #[error("the host ended the connection: {} (FEI {:#x})", .0.status, .0.information)]
    HostTerminated(TermReq),
    #[error("no ICReq and Connect within the time allowed")]
    HandshakeTimeout,
    #[error("the host did not authenticate itself: {0}")]
    AuthenticationFailed(Failure),
    #[error("the host did not authenticate itself within the time allowed")]
    AuthenticationTimeout,
    #[error("too many authentications at a time: this one was given up")]
    AuthenticationsBusy,
    #[error("the host's keep alive did not come in time")]
    KeepAliveExpired,
    #[error("the controller was not enabled within two minutes of its Connect, reset or shutdown")]
    NotEnabled,
    #[error("the host did not send data that it owed within two minutes")]
    DataWithheld,
    #[error("its association has ended")]
    AssociationEnded,
    #[error("its controller was reset")]
    ControllerReset,
    #[error("the host disconnected the queue")]
    Disconnected,
}

impl End {
    /// Whether the answers given before are sent first.
    pub(super) fn answers_first(&self) -> bool {
        matches!(self, End::Disconnected | End::AuthenticationFailed(_))
    }

    /// Whether an operator should hear of it: the peer or the network did something wrong.
    pub(super) fn is_fault(&self) -> bool {
        !matches!(self, End::AssociationEnded | End::ControllerReset | End::Disconnected)
    }
}

/// The end of an admin connection ends the association; that of an I/O connection frees its queue identifier.
impl Drop for Connection {
    fn drop(&mut self) {
        let Some(controller) = self.controller.take() else { return };
        if self.queue.qid == 0 {
            controller.end();
            self.shared.remove_controller(controller.id());
        } else {
            controller.remove_queue(self.queue.qid);
        }
    }
}
