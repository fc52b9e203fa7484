//! A set of regions.

/// See the module. It has room for as many as are put in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
    count: u64,
}

impl Bitmap {
    /// None of so many.
    pub(crate) fn new(regions: u64) -> Bitmap {
        Bitmap { words: vec![0; regions.div_ceil(64) as usize], count: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    pub(crate) fn has(&self, region: u64) -> bool {
        self.words.get((region / 64) as usize).is_some_and(|word| word >> (region % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, region: u64) {
        if self.words.len() as u64 <= region / 64 {
            self.words.resize((region / 64 + 1) as usize, 0);
        }
        let word = &mut self.words[(region / 64) as usize];
        self.count += u64::from(*word >> (region % 64) & 1 == 0);
        *word |= 1 << (region % 64);
    }

    pub(crate) fn remove(&mut self, region: u64) {
        let Some(word) = self.words.get_mut((region / 64) as usize) else { return };
        self.count -= *word >> (region % 64) & 1;
        *word &= !(1 << (region % 64));
    }

    /// The first one from `from` on.
    pub(crate) fn next(&self, from: u64) -> Option<u64> {
        let mut index = (from / 64) as usize;
        let mut word = self.words.get(index)? & (u64::MAX << (from % 64));
        while word == 0 {
            index += 1;
            word = *self.words.get(index)?;
        }
        Some(index as u64 * 64 + u64::from(word.trailing_zeros()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_set() {
        let mut map = Bitmap::new(130);
        for region in [0, 63, 64, 129, 129] {
            map.insert(region);
        }
        let all = |map: &Bitmap| std::iter::successors(map.next(0), |last| map.next(last + 1)).collect::<Vec<_>>();
        assert_eq!((all(&map), map.len()), (vec![0, 63, 64, 129], 4));
        map.remove(63);
        map.remove(63);
        assert_eq!((all(&map), map.len(), map.has(64), map.has(65)), (vec![0, 64, 129], 3, true, false));
        [0, 64, 129].into_iter().for_each(|region| map.remove(region));
        assert!(map.is_empty() && map.next(0).is_none());
        map.insert(200);
        map.remove(500);
        assert_eq!((all(&map), map.has(500)), (vec![200], false), "the volume has grown");
    }
}
