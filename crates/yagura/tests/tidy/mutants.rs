//! Mutants as they stand: a patch that no longer applies, or names no test, would be noticed only by a run of all of them, which
//! takes hours.

use std::collections::{BTreeMap, BTreeSet};

/// What is wrong with a patch, in a sentence. `texts`: all files by path; `functions`: the names of all in them.
pub fn fault_of(
    patch: &str,
    texts: &BTreeMap<String, String>,
    functions: &BTreeSet<String>,
    packages: &BTreeSet<&str>,
) -> Option<String> {
    let Some(first) = patch.find("diff --git ") else { return Some("it changes nothing".into()) };
    let (head, hunks) = patch.split_at(first);
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let Some(test) = field("Test").filter(|_| field("Guarantee").is_some_and(|text| !text.trim().is_empty())) else {
        return Some("its header lacks Guarantee or Test".into());
    };
    let words: Vec<&str> = test.split_whitespace().collect();
    let name = words.last().and_then(|word| word.rsplit("::").next()).unwrap_or_default();
    if words.first() != Some(&"-p") || !words.get(1).is_some_and(|package| packages.contains(package)) {
        return Some("its Test does not begin with -p and a package of this workspace".into());
    }
    // Or by a macro's argument.
    let is_named = || texts.iter().any(|(path, text)| path.ends_with(".rs") && text.contains(name));
    if name.is_empty() || !functions.contains(name) && !is_named() {
        return Some(format!("there is no test {name}"));
    }
    missing_hunk(hunks, texts)
}

/// The first hunk whose lines, as they were, stand nowhere in their file.
fn missing_hunk(hunks: &str, texts: &BTreeMap<String, String>) -> Option<String> {
    let (mut path, mut before) = ("", String::new());
    let is_there = |path: &str, before: &str| {
        let after_a_line = |at: usize, text: &str| at == 0 || text.as_bytes()[at - 1] == b'\n';
        texts.get(path).is_some_and(|text| text.match_indices(before).any(|(at, _)| after_a_line(at, text)))
    };
    for line in hunks.lines().chain(["@@"]) {
        if line.starts_with("@@") || line.starts_with("diff --git ") {
            if !before.is_empty() && !is_there(path, &before) {
                return Some(format!("{path} is not as it was: mend the patch by hand, and see its test go red"));
            }
            before.clear();
        }
        match line.as_bytes().first() {
            _ if line.starts_with("--- ") => path = line.strip_prefix("--- a/").unwrap_or_default(),
            _ if line.starts_with("+++ ") || line.starts_with("index ") || path.is_empty() => {}
            Some(b' ' | b'-') => before.extend([&line[1..], "\n"]),
            // Git leaves out the space of an empty line when it is told to.
            None => before.push('\n'),
            _ => {}
        }
        if line.starts_with("diff --git ") {
            path = "";
        }
    }
    None
}
