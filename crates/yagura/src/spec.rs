//! `key=value,key=value`: how a flag says something with parts.

use crate::config::nearest;

/// The parts of `text`: each a known key and its value, in order.
pub fn pairs<'a>(
    text: &'a str,
    known: &'a [&'a str],
) -> impl Iterator<Item = Result<(&'a str, &'a str), String>> + use<'a> {
    text.split(',').map(move |part| {
        let (key, value) = part.split_once('=').ok_or_else(|| format!("`{part}` is no key=value"))?;
        if known.contains(&key) { Ok((key, value)) } else { Err(format!("unknown key `{key}`{}", nearest(key, known))) }
    })
}

/// Notes a value that may be given once.
pub fn once<T>(place: &mut Option<T>, key: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{key} is given twice")),
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
        assert!(error("nqn").expect_err("refused").contains("`nqn` is no key=value"));
        let mut place = None;
        assert_eq!(once(&mut place, "id", 1), Ok(()));
        assert_eq!(once(&mut place, "id", 2), Err("id is given twice".into()));
    }
}
