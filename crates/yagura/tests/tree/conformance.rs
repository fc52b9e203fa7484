//! `docs/conformance.md` tells the truth: every "yes" names a test that exists, every "no" a reason, and every status that
//! the target can answer has a row whose test provokes it.
//!
//! Without this the document would rot as documents do: a renamed test, a status that nobody ever saw.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use walkdir::WalkDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A row of a table: its cells, and the section it stands in.
struct Row {
    section: String,
    line: usize,
    cells: Vec<String>,
}

impl Row {
    fn at(&self) -> String {
        format!("docs/conformance.md:{} ({}): {}", self.line, self.section, self.cells[0])
    }
}

fn rows(document: &str) -> Vec<Row> {
    let (mut rows, mut section) = (Vec::new(), String::new());
    for (index, line) in document.lines().enumerate() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        }
        let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else { continue };
        let cells: Vec<String> = cells.split(" | ").map(|cell| cell.trim().to_owned()).collect();
        let is_head = cells[0] == "feature" || cells[0] == "status";
        if !is_head && !section.is_empty() {
            rows.push(Row { section: section.clone(), line: index + 1, cells });
        }
    }
    rows
}

/// What stands between back quotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// A test function: where it is, and its text.
struct Test {
    /// Crate and modules, as far as the path of its file tells them.
    modules: Vec<String>,
    text: String,
}

/// Every test of the workspace by its name.
fn tests() -> BTreeMap<String, Vec<Test>> {
    let mut found: BTreeMap<String, Vec<Test>> = BTreeMap::new();
    let crates = root().join("crates");
    for entry in WalkDir::new(&crates).sort_by_file_name() {
        let entry = entry.expect("the tree is readable");
        if entry.path().extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let relative = entry.path().strip_prefix(&crates).expect("it lies below").with_extension("");
        let modules: Vec<String> = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let text = read(entry.path());
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            let Some(name) = line.trim_start().strip_prefix("fn ") else { continue };
            let is_test = lines[..index].iter().rev().take(4).take_while(|line| !line.trim().is_empty());
            if !is_test.clone().any(|line| line.trim() == "#[test]") {
                continue;
            }
            let name = name.split(['(', '<']).next().unwrap_or_default().to_owned();
            let indent = &line[..line.len() - line.trim_start().len()];
            let end = format!("{indent}}}");
            let body: Vec<&str> = lines[index..].iter().copied().take_while(|line| *line != end).collect();
            let test = Test { modules: modules.clone(), text: body.join("\n") };
            found.entry(name).or_default().push(test);
        }
    }
    found
}

/// The test that `reference` names: `crate module::test`, where modules may be left out from the left.
fn find<'a>(tests: &'a BTreeMap<String, Vec<Test>>, reference: &str) -> Option<&'a Test> {
    let (package, path) = reference.split_once(' ')?;
    let mut modules: Vec<&str> = path.split("::").collect();
    let name = modules.pop()?;
    tests.get(name)?.iter().find(|test| {
        let mut places = test.modules.iter();
        let in_order =
            modules.iter().filter(|module| **module != "tests").all(|module| places.any(|place| place == module));
        test.modules[0] == package && in_order
    })
}

/// A step of a script that runs in the guest: `guest:SCRIPT:STEP`.
fn is_guest_step(reference: &str) -> bool {
    let Some((script, step)) = reference.strip_prefix("guest:").and_then(|rest| rest.split_once(':')) else {
        return false;
    };
    let path = root().join(format!("guest/tests/{script}.sh"));
    path.is_file() && read(&path).lines().any(|line| line.trim().starts_with("step ") && line.contains(step))
}

#[test]
fn every_yes_names_its_test_and_every_no_its_reason() {
    let (tests, document) = (tests(), read(&root().join("docs/conformance.md")));
    let mut faults = Vec::new();
    let mut seen = 0;
    for row in rows(&document).iter().filter(|row| !row.section.starts_with("Status codes")) {
        let [_, _, kind, answer, shown] = &row.cells[..] else {
            faults.push(format!("{}: five cells: feature, clause, M/O, yes/no, shown by / reason", row.at()));
            continue;
        };
        seen += 1;
        if !["M", "O", "P"].contains(&kind.as_str()) {
            faults.push(format!("{}: {kind:?} is not M (mandatory), O (optional) or P (prohibited)", row.at()));
        }
        match answer.as_str() {
            "yes" => {
                let references: Vec<&str> = quoted(shown).collect();
                if references.is_empty() {
                    faults.push(format!("{}: yes, and no test is named", row.at()));
                }
                let missing = |reference: &&&str| find(&tests, reference).is_none() && !is_guest_step(reference);
                let unknown = references.iter().filter(missing);
                faults.extend(unknown.map(|reference| format!("{}: there is no test {reference:?}", row.at())));
            }
            "no" if shown.split_whitespace().count() < 3 => faults.push(format!("{}: no, and no reason", row.at())),
            "no" => {}
            other => faults.push(format!("{}: {other:?} is neither yes nor no", row.at())),
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert!(seen > 50, "only {seen} rows were understood");
}

/// Names of the constants of `Status` that product code of the target mentions, and that of the states of its paths.
fn statuses_of_the_target() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let places =
        ["crates/fabric/src/subsystem", "crates/nvme/src/ana.rs"].map(|place| WalkDir::new(root().join(place)));
    for entry in places.into_iter().flatten() {
        let entry = entry.expect("the tree is readable");
        let path = entry.path().to_string_lossy().into_owned();
        if !path.ends_with(".rs") || path.contains("/tests/") || path.ends_with("tests.rs") {
            continue;
        }
        let text = read(entry.path());
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        for after in product.split("Status::").skip(1) {
            let name: String =
                after.chars().take_while(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '_').collect();
            let is_constant = !after[name.len()..].starts_with(char::is_lowercase) && name.len() > 1;
            if is_constant {
                names.insert(name);
            }
        }
    }
    names
}

#[test]
fn every_status_that_the_target_answers_is_provoked() {
    let (tests, document) = (tests(), read(&root().join("docs/conformance.md")));
    let all_rows = rows(&document);
    let rows: BTreeMap<&str, &Row> = all_rows
        .iter()
        .filter(|row| row.section.starts_with("Status codes"))
        .filter_map(|row| Some((quoted(&row.cells[0]).next()?, row)))
        .collect();
    let mut faults = Vec::new();
    for name in statuses_of_the_target() {
        let Some(row) = rows.get(name.as_str()) else {
            faults.push(format!("Status::{name} is answered by the target and has no row under \"Status codes\""));
            continue;
        };
        let shown = row.cells.last().map(String::as_str).unwrap_or_default();
        let provoking = quoted(shown).filter_map(|reference| find(&tests, reference));
        if !provoking.map(|test| &test.text).any(|text| text.contains(&name)) {
            faults.push(format!("{}: none of the tests named exists and mentions {name}", row.at()));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
