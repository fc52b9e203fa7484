//! When an association has surely ended on the controller's side too.
//!
//! A command that was sent over a connection that is gone may still wait in a socket, a switch or a queue of the target, and
//! take effect at any time until the controller has ended the association. Two things make that end sure:
//!
//! - **Reset acknowledged, and the quiesce time.** Over the association's own admin queue, CC.EN was cleared and CSTS.RDY read as
//!   0: the controller then processes no command of its I/O queues (NVMe Base 2.0 §3.7.2). Linux's target says so at once and
//!   waits for nothing: from then on it begins no command, yet one that it had begun runs on, also one whose data is still on
//!   its way (`nvmet_clear_ctrl` clears CSTS.RDY; `nvmet_check_ctrl_status` looks at new commands only). So before the reset the
//!   I/O queues' connections are reset too: what our sockets held is dropped, and with it the data that such a write would wait
//!   for without any bound. What is left lies in the network and in the target, ahead of these resets; it comes to rest within
//!   the quiesce time that follows the acknowledgement.
//! - **Keep alive expired.** The controller ends the association when no Keep Alive came for KATO (NVMe Base 2.0 §3.9). The host
//!   has one Keep Alive under way at a time and sends none after it gave the association up, at T. The last that was answered
//!   restarted the timer before T; one more may be on its way. If it arrives after T + KATO it finds the association ended;
//!   if before, the timer expires before T + 2 KATO. Where any command restarts the timer (CTRATT.TBKAS) the controller looks
//!   whether there was traffic at the end of each interval: one KATO more. Then what it had begun comes to rest within the
//!   quiesce time. No bound on how long the network may hold a packet is needed for this, only clocks that run about alike.
//!
//! A shutdown in order (the host leaves) resets nothing: nothing is under way then that anybody would send again.

use std::time::Duration;

use engine::time::Instant;
use nvme::identify::IdentifyController;

/// How long a controller may take to bring to rest what it had begun when its association ended, and by how much the clocks
/// may differ over a keep alive timeout. Guessed, high: NVMe Base 2.0 has no field for it (CQT came with 2.1), and a medium
/// that takes longer holds later commands to the same blocks back behind the earlier one in any target that locks ranges.
pub const QUIESCE_TIME: Duration = Duration::from_secs(1);
/// CTRATT: Traffic Based Keep Alive (NVMe Base 2.0 figure 275).
const TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;

/// Where an association stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fence {
    /// It has not ended, or it is not known yet when it surely will have.
    Alive,
    /// From then on no command of it takes effect.
    Ends(Instant),
    /// Nothing bounds it: there was no keep alive timeout.
    Never,
}

/// How long after the host gave an association up it has surely ended. `None`: nothing says so.
pub(super) fn bound(keep_alive: Duration, controller: &IdentifyController) -> Option<Duration> {
    let granularity = Duration::from_millis(100) * u32::from(controller.kas.get());
    if keep_alive.is_zero() || granularity.is_zero() {
        return None;
    }
    // The controller rounds the timeout up (NVMe Base 2.0 §5.27.1.12).
    let steps = keep_alive.as_nanos().div_ceil(granularity.as_nanos());
    let timeout = granularity * u32::try_from(steps).ok()?;
    let intervals = if controller.ctratt.get() & TRAFFIC_BASED_KEEP_ALIVE != 0 { 3 } else { 2 };
    Some(timeout * intervals + QUIESCE_TIME)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn the_bound_follows_what_the_controller_says() {
        let mut page = IdentifyController::new_zeroed();
        let second = Duration::from_secs(1);
        assert_eq!(bound(second, &page), None, "keep alive is not supported");
        page.kas = 4.into();
        assert_eq!(bound(Duration::ZERO, &page), None, "keep alive is not used");
        assert_eq!(bound(second, &page), Some(Duration::from_millis(2400) + QUIESCE_TIME));
        page.ctratt = TRAFFIC_BASED_KEEP_ALIVE.into();
        assert_eq!(bound(second, &page), Some(Duration::from_millis(3600) + QUIESCE_TIME));
    }
}
