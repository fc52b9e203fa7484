//! Which members a new chunk lies on: each in a failure domain of its own, and not always the same ones.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::error::Error;

/// What a member that can get a chunk has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fit {
    /// Regions that nothing has.
    pub(crate) free: u64,
    /// What is under way there.
    pub(crate) load: Duration,
}

/// A member, and whether it can get a chunk; if not, which rule is against it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    pub(crate) index: u16,
    pub(crate) domain: String,
    pub(crate) fit: Result<Fit, &'static str>,
}

/// Members in so many domains, in the order of columns. A member is drawn with a chance by its free regions, less where much is
/// under way: clients that place at once do not meet, and members fill up together.
pub(crate) fn place(candidates: &[Candidate], count: usize, mut draw: impl FnMut() -> u64) -> Result<Vec<u16>, Error> {
    // The smaller its key, the sooner a member is chosen: as if each came at its time, at a rate that is its weight.
    let mut key = |fit: Fit| {
        let unit = ((draw() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        -unit.ln() * (1.0 + fit.load.as_secs_f64() * 1000.0) / fit.free.max(1) as f64
    };
    let mut best: BTreeMap<&str, (f64, u16)> = BTreeMap::new();
    for candidate in candidates {
        let Ok(fit) = candidate.fit else { continue };
        let key = (key(fit), candidate.index);
        best.entry(&candidate.domain).and_modify(|old| *old = if key.0 < old.0 { key } else { *old }).or_insert(key);
    }
    if best.len() < count {
        return Err(refusal(candidates, count, best.len()));
    }
    let mut chosen: Vec<(f64, u16)> = best.into_values().collect();
    chosen.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
    chosen.truncate(count);
    Ok(chosen.into_iter().map(|(_, index)| index).collect())
}

fn refusal(candidates: &[Candidate], count: usize, found: usize) -> Error {
    let against = |candidate: &Candidate| {
        let why = candidate.fit.err()?;
        Some(format!("member {} (domain {}) {why}", candidate.index, candidate.domain))
    };
    let reasons: Vec<String> = candidates.iter().filter_map(against).collect();
    let mut text = format!("a chunk needs members in {count} failure domains, and {found} have one for it");
    if !reasons.is_empty() {
        text += &format!(": {}", reasons.join(", "));
    }
    Error::NoSpace(text)
}

#[cfg(test)]
mod tests {
    use engine::rng::SplitMix;

    use super::*;

    fn candidate(index: u16, domain: &str, free: u64) -> Candidate {
        let fit = if free == 0 { Err("has no free region") } else { Ok(Fit { free, load: Duration::ZERO }) };
        Candidate { index, domain: domain.into(), fit }
    }

    #[test]
    fn domains_differ_and_members_fill_up_together() {
        let candidates = [("a", 10), ("a", 10), ("b", 10), ("c", 30), ("d", 10)];
        let candidates: Vec<Candidate> = candidates
            .iter()
            .enumerate()
            .map(|(index, (domain, free))| candidate(index as u16, domain, *free))
            .collect();
        let (mut rng, mut counts, mut first) = (SplitMix(1), [0u32; 5], [0u32; 5]);
        for _ in 0..3000 {
            let chosen = place(&candidates, 3, || rng.draw()).unwrap();
            let mut domains: Vec<&str> = chosen.iter().map(|index| &*candidates[usize::from(*index)].domain).collect();
            domains.sort_unstable();
            domains.dedup();
            assert_eq!(domains.len(), 3, "two columns in one domain would be lost together");
            first[usize::from(chosen[0])] += 1;
            chosen.iter().for_each(|index| counts[usize::from(*index)] += 1);
        }
        assert!(counts[3] > counts[2] && counts[3] > counts[4], "{counts:?}");
        assert!(counts[0].abs_diff(counts[1]) < 300, "{counts:?}");
        assert!(first.iter().all(|count| *count > 100), "each has data and parity: {first:?}");
    }

    #[test]
    fn a_refusal_says_which_rule_failed_on_which_member() {
        let mut candidates = vec![candidate(0, "a", 5), candidate(1, "b", 0), candidate(2, "a", 5)];
        candidates[2].fit = Err("is out");
        let told = place(&candidates, 2, || 1).unwrap_err().to_string();
        assert_eq!(
            told,
            "out of space: a chunk needs members in 2 failure domains, and 1 have one for it: \
             member 1 (domain b) has no free region, member 2 (domain a) is out"
        );
    }
}
