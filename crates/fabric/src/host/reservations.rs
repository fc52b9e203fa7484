//! Reservations of a remote namespace (NVMe Base 2.0 §8.19): the four commands as they are. Who holds what, and for how long,
//! is for the caller to decide; the host is known by [`HostIdentity::id`](super::HostIdentity), which must then outlive it.

use device::{Error, Lba};
use engine::Buf;
use nvme::reservation::{RegisteredController, ReservationCommand, ReservationStatus};
use zerocopy::FromBytes;

use super::RemoteNamespace;
use super::error::{Target, judged};
use super::queue::Payload;

/// Bytes asked for by a report. Chosen: two pages, which have room for 127 registrants; our target takes 64.
const REPORT_BYTES: usize = 8192;

impl RemoteNamespace {
    /// Registers, acquires, preempts, releases or clears. `keys`: the data of the command
    /// ([`RegisterKeys`](nvme::reservation::RegisterKeys) and its kin), byte for byte.
    ///
    /// # Errors
    /// [`Error::Reserved`] (Reservation Conflict), or [`Error::Status`] with what else the target says. After
    /// [`Error::Disconnected`] or [`Error::Aborted`] ask for a report: the command may have taken effect.
    pub async fn reserve(&self, command: ReservationCommand, keys: &[u8]) -> Result<(), Error> {
        self.send_reservation(command, Payload::Out(Buf::copy_from(keys).freeze())).await.map(drop)
    }

    /// Who is registered, and who holds the reservation: the head of the report and its registrants, as far as it had room.
    ///
    /// # Errors
    /// What the target says, or that there is no connection to it.
    pub async fn reservation_report(&self) -> Result<(ReservationStatus, Vec<RegisteredController>), Error> {
        let command = ReservationCommand::Report { bytes: REPORT_BYTES as u64, extended: true };
        let payload = self.send_reservation(command, Payload::In(Buf::with_len(REPORT_BYTES))).await?;
        let Payload::In(page) = payload else { return Err(Error::ReadFault("the report did not come".into())) };
        let read = ReservationStatus::read_from_prefix(&page);
        let (head, rest) = read.map_err(|_| Error::ReadFault("the report is shorter than its head".into()))?;
        let (entries, _) = rest.as_chunks::<{ size_of::<RegisteredController>() }>();
        let entries = entries.iter().take(head.controllers.get().into());
        let entries = entries.map(|entry| RegisteredController::read_from_bytes(entry));
        let entries = entries.collect::<Result<_, _>>();
        entries.map(|entries| (head, entries)).map_err(|_| Error::ReadFault("the report is cut short".into()))
    }

    async fn send_reservation(&self, command: ReservationCommand, payload: Payload) -> Result<Payload, Error> {
        let up = self.up()?;
        let submission = command.to_submission(self.attached.nsid);
        let (lba, end) = (Lba(0), self.attached.info.borrow().blocks);
        match up.association.queue().execute(submission, payload).await {
            Ok((ended, payload)) => {
                judged(ended, Target { name: &self.attached.name, lba, blocks: 0, end })?;
                Ok(payload)
            }
            Err(_) => Err(Error::NotConnected(self.attached.name.clone())),
        }
    }
}
