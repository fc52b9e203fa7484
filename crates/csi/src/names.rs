//! From the name that an orchestrator gives a volume or a snapshot to the name at the control plane.
//!
//! The same name always becomes the same, and two names never become one: a claim that found another claim's volume by its name
//! would be given that volume's data.

use control::provision::{Name, Source};

/// What the names begin with that were derived.
const DERIVED: &str = "csi-";
/// What the names of snapshots begin with that the driver takes for itself, and deletes again.
const PASSING: &str = "csi-clone-";
/// Hexadecimal digits behind it. Derived: 160 bits, so that nobody finds two names that become the same.
const DIGITS: usize = 40;

/// The volume's name. One that could itself be derived is derived, too: else it would be somebody's name already.
pub fn volume_name(name: &str) -> String {
    match Name::new(name) {
        Ok(legal) if !is_made(DERIVED, name) => legal.as_str().to_owned(),
        _ => made(DERIVED, name),
    }
}

/// The snapshot's name among those of its volume. It is none that the driver takes for itself.
pub fn snapshot_name(name: &str) -> String {
    if is_passing(name) { made(DERIVED, name) } else { volume_name(name) }
}

/// The name of the snapshot of a volume of which the driver makes another volume, of that name.
pub fn passing_name(volume: &str) -> Name {
    Name::new(made(PASSING, volume)).expect("fifty small letters, digits and '-', none of which '-' ends")
}

/// Whether the snapshot of that name is the driver's own.
pub fn is_passing(snapshot: &str) -> bool {
    is_made(PASSING, snapshot)
}

/// A snapshot's id: no name has this character, so that it says one volume and one snapshot.
pub fn snapshot_id(volume: &str, snapshot: &str) -> String {
    format!("{volume}@{snapshot}")
}

/// The snapshot of that id; none: no snapshot of an orchestrator has such an id.
pub fn snapshot_of(id: &str) -> Option<Source> {
    let (volume, snapshot) = id.split_once('@')?;
    let source = Source { volume: Name::new(volume).ok()?, snapshot: Name::new(snapshot).ok()? };
    Some(source).filter(|_| !is_passing(snapshot))
}

fn is_made(prefix: &str, name: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn made(prefix: &str, name: &str) -> String {
    let digest = openssl::sha::sha256(name.as_bytes());
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{prefix}{}", &digits[..DIGITS])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asked::NAME_BYTES_MAX;

    #[test]
    fn names_become_names_of_volumes_and_two_never_one() {
        let legal = "pvc-3f0c7d2e-5b4f-4a53-9d87-0f2f6a1f7b11";
        let long = "a".repeat(128);
        let (taken, passing) = (volume_name("Sanity-Volume"), passing_name("a").to_string());
        let names = [
            legal,
            "Sanity-Volume",
            "sanity-volume",
            "a/b",
            "ä",
            &long,
            &long[..64],
            &long[..63],
            "-",
            &taken,
            &passing,
        ];
        for to in [volume_name, snapshot_name] {
            assert_eq!(to(legal), legal);
            let mut found = std::collections::BTreeSet::new();
            for name in names {
                let given = to(name);
                assert!(Name::new(given.as_str()).is_ok(), "{name} becomes {given}");
                assert_eq!(given, to(name));
                assert!(found.insert(given), "{name} becomes what another name became");
            }
        }
    }

    #[test]
    fn what_the_driver_takes_for_itself_nobody_names() {
        let passing = passing_name("pvc-1");
        assert_ne!(passing, passing_name("pvc-2"), "two volumes are made of snapshots of their own");
        let passing = passing.as_str();
        assert!(is_passing(passing) && !is_passing(&snapshot_name(passing)));
        assert_eq!(snapshot_of(&snapshot_id("a", passing)), None);
    }

    #[test]
    fn an_id_says_one_volume_and_one_snapshot() {
        let long = "a".repeat(63);
        for (volume, snapshot) in [("a", "b"), (&long, &long)] {
            let id = snapshot_id(volume, snapshot);
            assert!(id.len() <= NAME_BYTES_MAX);
            let found = snapshot_of(&id).expect("an id");
            assert_eq!((found.volume.as_str(), found.snapshot.as_str()), (volume, snapshot));
        }
        for none in ["", "@", "a", "a@", "@a", "a@b@c", "A@b", "a@../b"] {
            assert_eq!(snapshot_of(none), None, "{none}");
        }
    }
}
