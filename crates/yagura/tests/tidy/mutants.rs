//! Mutants as they stand: a patch that no longer applies, or names no test, would be noticed only by a run of all of them, which
//! takes hours.

use std::collections::BTreeMap;

/// What is wrong with a patch, in a sentence. `texts`: all files by path; `has_test`: whether a package has a function of that
/// name, if there is such a package.
pub fn fault_of(
    patch: &str,
    texts: &BTreeMap<String, String>,
    has_test: &dyn Fn(&str, &str) -> Option<bool>,
) -> Option<String> {
    let Some(first) = patch.find("diff --git ") else { return Some("it changes nothing".into()) };
    let (head, hunks) = patch.split_at(first);
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let Some(test) = field("Test").filter(|_| field("Guarantee").is_some_and(|text| !text.trim().is_empty())) else {
        return Some("its header lacks Guarantee or Test".into());
    };
    let words: Vec<&str> = test.split_whitespace().collect();
    let name = words.last().and_then(|word| word.rsplit("::").next()).unwrap_or_default();
    let package = words.get(1).filter(|_| words[0] == "-p");
    let Some(is_there) = package.and_then(|package| has_test(package, name)) else {
        return Some("its Test does not begin with -p and a package of this workspace".into());
    };
    if name.is_empty() || !is_there {
        return Some(format!("there is no test {name}"));
    }
    missing_hunk(hunks, texts)
}

/// The first hunk whose lines, as they were, stand nowhere in their file.
fn missing_hunk(hunks: &str, texts: &BTreeMap<String, String>) -> Option<String> {
    let (mut path, mut before, mut in_hunk) = ("", String::new(), false);
    let is_there = |path: &str, before: &str| {
        texts.get(path).is_some_and(|text| format!("\n{text}").contains(&format!("\n{before}")))
    };
    for line in hunks.lines().chain(["@@"]) {
        if line.starts_with("@@") || line.starts_with("diff --git ") {
            if !before.is_empty() && !is_there(path, &before) {
                return Some(format!("{path} is not as it was: mend the patch by hand, and see its test go red"));
            }
            before.clear();
        }
        match line.as_bytes().first() {
            Some(b'@') => in_hunk = true,
            _ if !in_hunk => path = line.strip_prefix("--- a/").unwrap_or(path),
            Some(b' ' | b'-') => before.extend([&line[1..], "\n"]),
            // Git leaves out the space of an empty line when it is told to.
            None => before.push('\n'),
            _ => {}
        }
        in_hunk &= !line.starts_with("diff --git ");
    }
    None
}
