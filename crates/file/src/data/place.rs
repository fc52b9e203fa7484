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
    pub(crate) reach: Reach,
}

/// Whether a member can be written now; the sooner it can, the better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Reach {
    Well,
    /// It can be reached, but has failed just now.
    Failed,
    Away,
}

/// Which members a chunk may lie on, where those that are well are too few.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resort {
    /// None.
    First,
    /// Also those that have failed, and so many that are away.
    Last(usize),
}

/// Members in so many domains, in the order of columns. A member is drawn with a chance by its free regions, less where much is
/// under way: clients that place at once do not meet, and members fill up together. Those that are not well are taken only where
/// too few are, and are the last columns.
pub(crate) fn place(
    candidates: &[Candidate],
    count: usize,
    resort: Resort,
    mut draw: impl FnMut() -> u64,
) -> Result<Vec<u16>, Error> {
    // The smaller its key, the sooner a member is chosen: as if each came at its time, at a rate that is its weight.
    let mut key = |fit: Fit| {
        let unit = ((draw() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        -unit.ln() * (1.0 + fit.load.as_secs_f64() * 1000.0) / fit.free.max(1) as f64
    };
    let mut best: BTreeMap<&str, (Reach, f64, u16)> = BTreeMap::new();
    for candidate in candidates {
        let Ok(fit) = candidate.fit else { continue };
        let new = (candidate.reach, key(fit), candidate.index);
        let better = |old: (Reach, f64, u16)| if (old.0, old.1) < (new.0, new.1) { old } else { new };
        best.entry(&candidate.domain).and_modify(|old| *old = better(*old)).or_insert(new);
    }
    let all = best.len();
    let mut chosen: Vec<(Reach, f64, u16)> = best.into_values().collect();
    chosen.sort_by(|left, right| left.0.cmp(&right.0).then(left.1.total_cmp(&right.1)).then(left.2.cmp(&right.2)));
    let within = |reach: Reach| chosen.iter().filter(|(other, ..)| *other <= reach).count();
    let usable = match resort {
        Resort::First => within(Reach::Well),
        Resort::Last(away_max) => all.min(within(Reach::Failed) + away_max),
    };
    if usable < count {
        return Err(refusal(candidates, count, usable, all));
    }
    chosen.truncate(count);
    Ok(chosen.into_iter().map(|(.., index)| index).collect())
}

/// Where members that are not well would do, there is room, and it can't be had now.
fn refusal(candidates: &[Candidate], count: usize, usable: usize, all: usize) -> Error {
    let against = |candidate: &Candidate| {
        let why = match (candidate.fit, candidate.reach) {
            (Err(why), _) => why,
            (Ok(_), Reach::Away) => "can't be reached",
            (Ok(_), Reach::Failed) => "failed just now",
            (Ok(_), Reach::Well) => return None,
        };
        Some(format!("member {} (domain {}) {why}", candidate.index, candidate.domain))
    };
    let reasons: Vec<String> = candidates.iter().filter_map(against).collect();
    let mut text = format!("a chunk needs members in {count} failure domains, and {usable} have one for it");
    if !reasons.is_empty() {
        text += &format!(": {}", reasons.join(", "));
    }
    if all < count { Error::NoSpace(text) } else { Error::Unavailable(text) }
}

#[cfg(test)]
mod tests {
    use engine::rng::SplitMix;

    use super::*;

    fn candidate(index: u16, domain: &str, free: u64) -> Candidate {
        let fit = if free == 0 { Err("has no free region") } else { Ok(Fit { free, load: Duration::ZERO }) };
        Candidate { index, domain: domain.into(), fit, reach: Reach::Well }
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
            let chosen = place(&candidates, 3, Resort::First, || rng.draw()).unwrap();
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
        let told = place(&candidates, 2, Resort::First, || 1).unwrap_err().to_string();
        assert_eq!(
            told,
            "out of space: a chunk needs members in 2 failure domains, and 1 have one for it: \
             member 1 (domain b) has no free region, member 2 (domain a) is out"
        );
    }
    #[test]
    fn a_member_that_is_away_is_chosen_last_and_is_no_lack_of_room() {
        let mut candidates: Vec<Candidate> =
            (0..4).map(|index| candidate(index, &index.to_string(), 1000u64.pow(4 - u32::from(index)))).collect();
        (candidates[0].reach, candidates[1].reach) = (Reach::Away, Reach::Failed);
        let mut rng = SplitMix(1);
        for _ in 0..100 {
            let chosen = place(&candidates, 3, Resort::Last(1), || rng.draw()).unwrap();
            assert_eq!(chosen[2], 1, "{chosen:?}");
        }
        let told = place(&candidates, 3, Resort::First, || 1).unwrap_err();
        assert!(matches!(&told, Error::Unavailable(told) if told.contains("member 0 (domain 0) can't be")), "{told}");
        assert_eq!(place(&candidates, 4, Resort::Last(1), || 1).map(|chosen| chosen[3]), Ok(0));
        candidates[1].reach = Reach::Away;
        assert!(matches!(place(&candidates, 4, Resort::Last(1), || 1), Err(Error::Unavailable(_))));
        assert!(matches!(place(&candidates, 5, Resort::Last(1), || 1), Err(Error::NoSpace(_))));
    }
}
