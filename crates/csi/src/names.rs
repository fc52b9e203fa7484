//! From the name that an orchestrator gives a volume to the name that the volume has among its tenant's.
//!
//! The same name always becomes the same, and two names never become one: a claim that found another claim's volume by its name
//! would be given that volume's data.

use control::provision::Name;

/// What the names begin with that were derived.
const DERIVED: &str = "csi-";
/// Hexadecimal digits behind it. Derived: 160 bits, so that nobody finds two names that become the same.
const DIGITS: usize = 40;

/// The volume's name. One that could itself be derived is derived, too: else it would be somebody's name already.
pub fn volume_name(name: &str) -> String {
    match Name::new(name) {
        Ok(legal) if !is_derived(name) => legal.as_str().to_owned(),
        _ => derived(name),
    }
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

    #[test]
    fn names_become_names_of_volumes_and_two_never_one() {
        let legal = "pvc-3f0c7d2e-5b4f-4a53-9d87-0f2f6a1f7b11";
        assert_eq!(volume_name(legal), legal);
        let long = "a".repeat(128);
        let taken = volume_name("Sanity-Volume");
        let names = [legal, "Sanity-Volume", "sanity-volume", "a/b", "ä", &long, &long[..64], &long[..63], "-", &taken];
        let mut found = std::collections::BTreeSet::new();
        for name in names {
            let volume = volume_name(name);
            assert!(Name::new(volume.as_str()).is_ok(), "{name} becomes {volume}");
            assert_eq!(volume, volume_name(name));
            assert!(found.insert(volume), "{name} becomes what another name became");
        }
    }
}
