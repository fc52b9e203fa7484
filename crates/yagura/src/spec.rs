//! `key=value,key=value`: how a flag says something with parts.

use fabric::subsystem::ANA_GROUPS_MAX;
use nvme::Nqn;

use crate::config::nearest;

/// The parts of `text`: each a known key and its value, in order.
pub fn pairs<'a>(
    text: &'a str,
    known: &'a [&'a str],
) -> impl Iterator<Item = Result<(&'a str, &'a str), String>> + use<'a> {
    text.split(',').map(move |part| pair(part, known))
}

/// One part.
pub fn pair<'a>(part: &'a str, known: &[&str]) -> Result<(&'a str, &'a str), String> {
    match part.split_once('=') {
        Some((key, value)) if known.contains(&key) => Ok((key, value)),
        Some((key, _)) => Err(format!("unknown key `{key}`{}", nearest(key, known))),
        None if known.contains(&part) => Err(format!("`{part}` needs a value: {part}=…")),
        None => Err(format!("`{part}` is no key=value{}", nearest(part, known))),
    }
}

/// Notes a value that may be given once.
pub fn once<T>(place: &mut Option<T>, key: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{key} is given twice")),
    }
}

/// An NQN from the value of a key.
pub fn parse_nqn(text: &str) -> Result<Nqn, String> {
    text.parse().map_err(|error: nvme::nqn::NqnError| error.to_string())
}

/// An ANA group.
pub fn parse_group(text: &str) -> Result<u32, String> {
    let group = text.parse().ok().filter(|group| (1..=ANA_GROUPS_MAX).contains(group));
    group.ok_or_else(|| format!("ANA group `{text}`: must be a number from 1 to {ANA_GROUPS_MAX}"))
}

/// Fields of a request that are written as their text.
pub mod text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    /// As serde asks for it.
    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// As serde asks for it.
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }

    /// The same of fields that may be absent.
    pub mod optional {
        use super::{Deserialize, Deserializer, Display, Error, FromStr, Serializer};

        /// As serde asks for it.
        pub fn serialize<T: Display, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
            match value {
                Some(value) => serializer.collect_str(value),
                None => serializer.serialize_none(),
            }
        }

        /// As serde asks for it.
        pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<T>, D::Error> {
            let text = Option::<String>::deserialize(deserializer)?;
            text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_known_keys_with_values() {
        let known = ["nqn", "id"];
        let all = |text| pairs(text, &known).map(|part| part.map(|(key, value)| format!("{key}:{value}"))).collect();
        assert_eq!(all("nqn=a=b,id=2"), Ok(vec!["nqn:a=b".to_string(), "id:2".to_string()]));
        let error = |text| -> Result<Vec<String>, String> { all(text) };
        assert!(error("nqm=a").expect_err("refused").contains("did you mean `nqn`?"));
        assert!(error("nqn").expect_err("refused").contains("`nqn` needs a value: nqn=…"));
        assert_eq!(error("x,id=2"), Err("`x` is no key=value: known are id, nqn".into()));
        let mut place = None;
        assert_eq!(once(&mut place, "id", 1), Ok(()));
        assert_eq!(once(&mut place, "id", 2), Err("id is given twice".into()));
    }
}
