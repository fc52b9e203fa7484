//! Entry points for fuzzing: any bytes may come in, and nothing may panic.

use std::sync::Arc;

use crate::item::Seconds;
use crate::protocol::{LINE_BYTES_MAX, Now};
use crate::session::{Authentication, Protocols, Rules, Users};
use crate::testing::{PlainServer, PlainSlots, Wire};

/// Far above what 16 KiB of input can ask for, but for numbers of commands: answers are bounded by what is sent.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A connection that sends these bytes: the first one chooses the server's rules and faults, the second how the rest arrives.
/// However it arrives, the answers are the same.
pub fn session(bytes: &[u8]) {
    let Some((&[kind, pieces], bytes)) = bytes.split_first_chunk::<2>() else { return };
    let whole = answers(kind, &[usize::MAX], bytes);
    let split = answers(kind, &[1 + usize::from(pieces & 15), 1 + usize::from(pieces >> 4) * 9], bytes);
    // A line without an end is judged by what has come of it.
    if longest_line(bytes) <= LINE_BYTES_MAX {
        assert_eq!(whole, split, "answers depend on how the bytes arrive");
    }
}

fn longest_line(bytes: &[u8]) -> usize {
    bytes.split(|&byte| byte == b'\n').map(<[u8]>::len).max().unwrap_or(0)
}

fn answers(kind: u8, pieces: &[usize], bytes: &[u8]) -> (Vec<u8>, bool) {
    let users = || Users::parse("user:pass").unwrap_or_default();
    let (protocols, authentication) = match kind & 7 {
        0..=3 => (Protocols::Both, Authentication::None),
        4 => (Protocols::Text, Authentication::None),
        5 => (Protocols::Binary, Authentication::None),
        6 => (Protocols::Both, Authentication::Text(users())),
        _ => (Protocols::Both, Authentication::Sasl(users())),
    };
    let rules = Rules {
        protocols,
        authentication,
        item_bytes_max: if kind & 8 == 0 { 1 << 20 } else { 200 },
        serves_shutdown: kind & 16 == 0,
        ..Rules::default()
    };
    let slots = match kind >> 5 {
        0..=2 => PlainSlots::default(),
        3..=5 => PlainSlots::with_flash(),
        _ => PlainSlots::with_limit(1000),
    };
    let mut wire = Wire::new(Arc::new(rules));
    wire.pieces = pieces.to_vec();
    let now = Now { at: Seconds(1000), began: 1_700_000_000 };
    let answer = wire.feed(&slots, &PlainServer::default(), now, bytes);
    assert!(answer.len() <= ANSWER_BYTES_MAX, "{} bytes answered", answer.len());
    (answer, wire.is_closed)
}

#[cfg(test)]
mod tests {
    use engine::rng::SplitMix;

    use super::*;

    /// A short run of the fuzz target in every build: the seeds, cut, joined and changed at random.
    #[test]
    fn changed_seeds_do_not_panic() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/cache_session");
        let files = std::fs::read_dir(folder).expect("the seeds are in the tree");
        let mut files: Vec<_> = files.map(|file| file.expect("the folder can be read").path()).collect();
        files.sort();
        let seeds: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("a seed can be read")).collect();
        assert!(seeds.len() >= 9, "{} seeds", seeds.len());
        seeds.iter().for_each(|seed| session(seed));
        let mut random = SplitMix(1);
        let mut below = |bound: usize| random.index(bound.max(1));
        for _ in 0..2000 {
            let mut bytes = seeds[below(seeds.len())].clone();
            bytes.truncate(3000);
            for _ in 0..1 + below(6) {
                let at = below(bytes.len());
                match below(5) {
                    0 => bytes[at] = below(256) as u8,
                    1 => bytes.insert(at, b" \r\n\0 0129v"[below(10)]),
                    2 => drop(bytes.drain(at..(at + below(20)).min(bytes.len()))),
                    3 => {
                        let other = &seeds[below(seeds.len())];
                        let from = below(other.len().min(3000));
                        bytes.splice(at..at, other[from..(from + 40).min(other.len())].iter().copied());
                    }
                    _ => bytes[at] ^= 1 << below(8),
                }
                if bytes.len() < 4 {
                    break;
                }
            }
            session(&bytes);
        }
    }
}
