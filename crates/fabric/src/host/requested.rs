//! Which bytes of a command's data R2Ts have asked for.

/// Gaps that a target may leave between what it has asked for. Guessed: targets ask in order, or split a transfer between a
/// few buffers; each range costs 8 bytes of every slot.
pub(super) const RANGES_MAX: usize = 8;

/// Why a range can't be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// Bytes of it were asked for before.
    Again,
    /// It is one more island than [`RANGES_MAX`].
    Scattered,
}

/// Ascending ranges `start..end` that neither touch nor overlap.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Requested {
    ranges: [(u32, u32); RANGES_MAX],
    count: usize,
}

impl Requested {
    /// Adds `bytes` bytes from `offset` on; the caller has checked that they lie within the data.
    pub(super) fn add(&mut self, offset: u32, bytes: u32) -> Result<(), Refused> {
        let (mut start, mut end) = (offset, offset + bytes);
        let known = &self.ranges[..self.count];
        let at = known.iter().take_while(|range| range.1 <= start).count();
        if known.get(at).is_some_and(|next| next.0 < end) {
            return Err(Refused::Again);
        }
        // The new range takes the place of the neighbours that it touches.
        let (mut first, mut last) = (at, at);
        if at > 0 && known[at - 1].1 == start {
            first -= 1;
            start = known[first].0;
        }
        if known.get(at).is_some_and(|next| next.0 == end) {
            end = known[at].1;
            last += 1;
        }
        if first == last && self.count == RANGES_MAX {
            return Err(Refused::Scattered);
        }
        let rest = last..self.count;
        self.count = self.count + 1 - (last - first);
        self.ranges.copy_within(rest, first + 1);
        self.ranges[first] = (start, end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(ranges: &[(u32, u32)]) -> Requested {
        let mut all = Requested::default();
        ranges.iter().for_each(|&(offset, bytes)| all.add(offset, bytes).expect("apart"));
        all
    }

    #[test]
    fn neighbours_become_one() {
        let mut all = requested(&[(0, 4), (8, 4), (4, 4)]);
        assert_eq!((all.count, all.ranges[0]), (1, (0, 12)));
        assert_eq!(all.add(11, 1), Err(Refused::Again));
        assert_eq!(all.add(12, 4), Ok(()));
    }

    #[test]
    fn islands_are_bounded() {
        let islands: Vec<_> = (0..RANGES_MAX as u32).map(|at| (at * 8, 4)).collect();
        let mut all = requested(&islands);
        assert_eq!(all.add(1000, 4), Err(Refused::Scattered));
        assert_eq!(all.add(4, 4), Ok(()), "this one joins two");
        assert_eq!(all.add(1000, 4), Ok(()));
    }

    proptest::proptest! {
        /// Against the plainest form: a flag per byte.
        #[test]
        fn nothing_is_asked_for_twice(asked in proptest::collection::vec((0u32..64, 1u32..16), 0..40)) {
            let (mut all, mut bytes) = (Requested::default(), [false; 80]);
            for (offset, length) in asked {
                let range = offset as usize..(offset + length) as usize;
                match all.add(offset, length) {
                    Ok(()) => {
                        assert!(!bytes[range.clone()].contains(&true));
                        bytes[range].fill(true);
                    }
                    Err(Refused::Again) => assert!(bytes[range].contains(&true)),
                    Err(Refused::Scattered) => assert!(all.count == RANGES_MAX),
                }
                assert!(all.ranges[..all.count].windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }
}
