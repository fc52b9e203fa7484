//! From the name that an orchestrator gives a volume or a snapshot to the name at the control plane.
//!
//! The same name always becomes the same, and two names never become one: a claim that found another claim's volume by its name
//! would be given that volume's data.

use control::provision::Name;

/// What the names begin with that were derived.
const DERIVED: &str = "csi-";
/// Hexadecimal digits behind it. Derived: 160 bits, so that nobody finds two names that become the same.
const DIGITS: usize = 40;

/// The name of a volume, or of a snapshot among those of its volume. One that could itself be derived is derived, too: else it
/// would be somebody's name already.
pub fn volume_name(name: &str) -> String {
    match Name::new(name) {
        Ok(legal) if !is_derived(name) => legal.as_str().to_owned(),
        _ => derived(name),
    }
}

/// A snapshot's id: no name has this character, so that it says one volume and one snapshot.
pub fn snapshot_id(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}

/// The snapshot of that id; none: no snapshot of an orchestrator has such an id.
pub fn snapshot_of(id: &str) -> Option<(Name, Name)> {
    let (volume, snapshot) = id.split_once('@')?;
    Some((Name::new(volume).ok()?, Name::new(snapshot).ok()?))
}

fn is_derived(name: &str) -> bool {
    name.strip_prefix(DERIVED).is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn derived(name: &str) -> String {
    let digest = openssl::sha::sha256(name.as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{DERIVED}{}", &digits[..DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asked::NAME_BYTES_MAX;

    #[test]
    fn names_become_names_of_volumes_and_two_never_one() {
        let legal = "pvc-3f0c7d2e-5b4f-4a53-9d87-0f2f6a1f7b11";
        let long = "a".repeat(128);
        let taken = volume_name("Sanity-Volume");
        let names = [legal, "Sanity-Volume", "sanity-volume", "a/b", "ä", &long, &long[..64], &long[..63], "-", &taken];
        assert_eq!(volume_name(legal), legal);
        let mut found = std::collections::BTreeSet::new();
        for name in names {
            let given = volume_name(name);
            assert!(Name::new(given.as_str()).is_ok(), "{name} becomes {given}");
            assert_eq!(given, volume_name(name));
            assert!(found.insert(given), "{name} becomes what another name became");
        }
    }

    #[test]
    fn an_id_says_one_volume_and_one_snapshot() {
        let long = "a".repeat(63);
        for (volume, snapshot) in [("a", "b"), (&long, &long)] {
            let id = snapshot_id(volume, snapshot);
            assert!(id.len() <= NAME_BYTES_MAX);
            let (of, found) = snapshot_of(&id).expect("an id");
            assert_eq!((of.as_str(), found.as_str()), (volume, snapshot));
        }
        for none in ["", "@", "a", "a@", "@a", "a@b@c", "A@b", "a@../b"] {
            assert_eq!(snapshot_of(none), None, "{none}");
        }
    }
}
