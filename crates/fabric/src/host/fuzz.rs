//! A fuzz target: whatever a target sends, the host's queue answers with outcomes or one error, and never panics.

use std::task::Waker;

use engine::net::SendBatch;
use engine::{Buf, View};
use nvme::Submission;
use nvme::opcode::NvmOpcode;
use nvme::tcp::IcResp;
use zerocopy::IntoBytes;

use super::queue::{Aftermath, Payload, Queue, QueueConfig};

/// Feeds `bytes` to a queue with commands of every kind under way. The first byte chooses digests and whether a sound ICResp
/// comes first (otherwise few inputs would get past the start); the second in what pieces the rest arrives. Bit 3 of the
/// first: the rest is no stream but a log page.
pub fn session(bytes: &[u8]) {
    let [mode, step, rest @ ..] = bytes else { return };
    if mode & 8 != 0 {
        return pages(rest);
    }
    let (header_digest, data_digest) = (mode & 1 != 0, mode & 2 != 0);
    let mut queue = Queue::new(QueueConfig {
        depth: 8,
        in_capsule_bytes_max: 8192,
        header_digest,
        data_digest,
        read_bytes_max: 1 << 20,
    });
    let mut batch = SendBatch::new();
    let mut slots = Vec::new();
    let write = |bytes: usize| Payload::Out(View::from(Buf::zeroed(bytes)));
    slots.extend(queue.submit(nvm(NvmOpcode::READ), Payload::In(Buf::zeroed(4096)), 1));
    slots.extend(queue.submit(nvm(NvmOpcode::READ), Payload::In(Buf::zeroed(65_536)), 1));
    slots.extend(queue.submit(nvm(NvmOpcode::WRITE), write(4096), 1));
    slots.extend(queue.submit(nvm(NvmOpcode::WRITE), write(65_536), 2));
    let halves = ((nvm(NvmOpcode::COMPARE), write(4096)), (nvm(NvmOpcode::WRITE), write(4096)));
    slots.extend(queue.submit_fused(halves.0, halves.1, 2).map(|(first, _)| first));
    queue.fill(&mut batch);
    let mut alive = true;
    if mode & 4 != 0 {
        alive = queue.input(&ic_resp(header_digest, data_digest)).is_ok();
    }
    for piece in rest.chunks(usize::from(*step) + 1) {
        batch.clear();
        queue.fill(&mut batch);
        if !alive {
            break;
        }
        if let Err(error) = queue.input(piece) {
            // It must be possible to say so, too.
            let _ = queue.term_req(&error);
            alive = false;
        }
    }
    queue.close(1);
    for slot in slots {
        assert!(queue.poll_outcome(slot, Waker::noop()).is_some(), "every command ends when its queue does");
    }
    queue.take_aftermath(&mut Aftermath::default());
}

/// The pages that a target gives: a discovery log, the ANA log and the lists are parsed within their bounds, whatever they say.
fn pages(bytes: &[u8]) {
    use super::ana::AnaStates;
    use super::discovery::parse_log;
    use super::extension::{read_copies, read_differences};

    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 4420));
    if let Ok(log) = parse_log(address, bytes) {
        assert!(log.entries.len() <= bytes.len() / 1024, "more entries than there are bytes for");
        let reachable = log.entries.iter().filter_map(super::Discovered::socket_address).count();
        assert!(reachable <= log.entries.len());
    }
    let states = AnaStates::parse(bytes);
    let group = bytes.first().copied().unwrap_or_default().into();
    // What the page does not name is not served.
    assert!(bytes.len() >= 48 || states.of(group) == nvme::AnaState::Inaccessible);
    if let Ok((copies, more)) = read_copies(bytes, group) {
        assert!(
            copies.is_sorted_by_key(|copy| copy.nsid) && (!more || copies.last().is_some_and(|last| last.nsid > group))
        );
    }
    let zoned = device::ZonedInfo { zone_blocks: 8, open_max: None, active_max: None, append_blocks_max: 1 };
    if let Ok(zones) = super::zns::parse_report(bytes, &zoned, group.into(), 1 << 20) {
        assert!(zones.len() <= bytes.len() / 64, "more zones than there are bytes for");
        assert!(zones.iter().all(|zone| zone.start.0 < 1 << 20 && zone.capacity <= 8));
    }
    let mut found = Vec::new();
    if let Ok(next) = read_differences(bytes, (group.into(), 1 << 20), &mut found) {
        assert!(next.is_none_or(|next| next > group.into()), "each page goes on behind the one before");
        assert!(found.iter().all(|range| range.start < range.end && range.end <= 1 << 20));
    }
}

fn nvm(opcode: NvmOpcode) -> Submission {
    Submission::nvm(opcode, 0, 1)
}

fn ic_resp(header_digest: bool, data_digest: bool) -> Vec<u8> {
    use crate::tcp::Encoder;
    let response = crate::tcp::IcResp { alignment_code: 0, header_digest, data_digest, maxh2cdata: 8192 };
    let header = Encoder::ic_resp(&response);
    debug_assert_eq!(header.len(), std::mem::size_of::<IcResp>());
    header.as_bytes().to_vec()
}
