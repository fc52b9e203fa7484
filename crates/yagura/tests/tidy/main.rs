//! Lint as a test: the habits of this project that neither rustfmt nor clippy knows, each with its reason in the message.
//!
//! It is a ratchet: what breaks a rule today stands in a list here with its bound, the bound may only shrink, and an entry
//! that is no longer needed is itself an error. It uses `std` alone, so that `make tidy` answers in seconds.
//!
//! A single place may be exempt from a rule by a comment on it or just above: `// tidy: <rule>: <why it is right here>`.

mod cycles;
mod mutants;
mod rules;
mod source;
mod tree;

use std::collections::{BTreeMap, BTreeSet};

use cycles::{Crate, circles, told};
use rules::{Scope, engine_driven};
use source::Source;
use tree::Tree;

/// Lines of a file. Chosen: what one can hold in the head; 800 is never exceeded, whatever the list below says.
const FILE_LINES_MAX: usize = 500;
const FILE_LINES_LIMIT_MAX: usize = 800;
/// Lines of a function, signature and braces included. Chosen: one screen.
const FUNCTION_LINES_MAX: usize = 70;
/// Columns of a line of Rust or shell. rustfmt breaks code at 120 but not comments; a comment may finish its word.
const LINE_COLUMNS_MAX: usize = 132;

/// Files above [`FILE_LINES_MAX`]: path, bound, reason.
const LONG_FILES: &[(&str, usize, &str)] = &[];
/// Functions above [`FUNCTION_LINES_MAX`]: path, name, bound, reason.
const LONG_FUNCTIONS: &[(&str, &str, usize, &str)] = &[];

/// Files that lie in circles, by the root of their crate; none of a crate that is not named.
const FILES_IN_CIRCLES: &[(&str, usize)] = &[
    ("crates/bench/src/lib.rs", 2),
    ("crates/cache/src/lib.rs", 38),
    ("crates/client/src/lib.rs", 4),
    ("crates/device/src/lib.rs", 2),
    ("crates/fabric/src/lib.rs", 40),
    ("crates/kv/model/src/lib.rs", 7),
    ("crates/kv/src/lib.rs", 27),
    ("crates/yagura/src/main.rs", 18),
];
/// Folders whose own files name one another in no circle, in a crate that has some.
const WITHOUT_CIRCLES: &[&str] = &["crates/kv/src/table/"];

fn check(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n\n{}\n\n{} faults\n", faults.join("\n"), faults.len());
}

#[test]
fn files_are_short() {
    let mut faults = Vec::new();
    for source in &Tree::get().sources {
        let lines = source.text.lines().count();
        let listed = LONG_FILES.iter().find(|(path, ..)| *path == source.path);
        let max = listed.map_or(FILE_LINES_MAX, |(_, max, _)| *max).min(FILE_LINES_LIMIT_MAX);
        if lines > max {
            faults.push(format!("{}: {lines} lines, {max} at most: split it by concern", source.path));
        } else if listed.is_some() && lines <= FILE_LINES_MAX {
            faults.push(format!("{}: is short again: take it out of LONG_FILES", source.path));
        }
    }
    check(faults);
}

#[test]
fn functions_are_short() {
    let mut faults = Vec::new();
    for source in &Tree::get().sources {
        for (name, range) in source.functions() {
            let line = source.line_of(range.start);
            let lines = source.line_of(range.end) - line + 1;
            let listed = LONG_FUNCTIONS.iter().find(|(path, listed, ..)| *path == source.path && *listed == name);
            let max = listed.map_or(FUNCTION_LINES_MAX, |(_, _, max, _)| *max);
            if lines > max {
                let place = format!("{}:{line}", source.path);
                faults.push(format!("{place}: fn {name}: {lines} lines, {max} at most: name its parts"));
            }
        }
    }
    check(faults);
}

#[test]
fn lists_name_what_exists() {
    let tree = Tree::get();
    let mut faults = Vec::new();
    for (path, ..) in LONG_FILES {
        if !tree.sources.iter().any(|source| source.path == *path) {
            faults.push(format!("LONG_FILES names {path}, which is gone"));
        }
    }
    for (path, name, ..) in LONG_FUNCTIONS {
        let source = tree.sources.iter().find(|source| source.path == *path);
        let lengths = source.map(|source| {
            let named = source.functions().into_iter().filter(|(found, _)| found == name);
            named.map(|(_, range)| source.line_of(range.end) - source.line_of(range.start) + 1).max().unwrap_or(0)
        });
        if lengths.unwrap_or(0) <= FUNCTION_LINES_MAX {
            faults.push(format!("LONG_FUNCTIONS names {name} in {path}, which is gone or short: take it out"));
        }
    }
    check(faults);
}

#[test]
fn banned_words_are_absent() {
    let tree = Tree::get();
    let engine_driven = engine_driven(&tree.texts["ARCHITECTURE.md"]);
    assert!(engine_driven.contains(&"crates/cache/src/".to_owned()), "the map is not found: {engine_driven:?}");
    let mut faults = Vec::new();
    for source in &tree.sources {
        for ban in rules::BANS {
            faults.extend(rules::find_banned(source, ban, &engine_driven));
        }
    }
    check(faults);
}

#[test]
fn what_is_counted_for_people_is_one_or_many() {
    let mut faults = Vec::new();
    for source in Tree::get().sources.iter().filter(|source| source.path.starts_with("crates/yagura/src/")) {
        let lines = source.text.lines().enumerate().filter(|(_, line)| rules::counts_by_hand(line));
        faults.extend(lines.map(|(index, _)| format!("{}:{}: `output::many`: 1 has no s", source.path, index + 1)));
    }
    check(faults);
}

#[test]
fn panics_errors_and_limits_are_explained() {
    let mut faults = Vec::new();
    for source in &Tree::get().sources {
        faults.extend(rules::find_unexplained(source));
    }
    check(faults);
}

#[test]
fn what_only_tests_use_is_in_no_product() {
    check(Tree::get().sources.iter().flat_map(rules::find_ungated).collect());
}

#[test]
fn unsafe_code_lives_in_the_engine() {
    let mut faults = Vec::new();
    for source in &Tree::get().sources {
        let counting_allocator = source.is_test && source.code.contains("GlobalAlloc");
        // OpenSSL's C interface, in one file; our own C interface, in one crate.
        let foreign = source.path == "crates/tls/src/session.rs" || source.path.starts_with("crates/capi/src/");
        // ISA-L's C interface, a peer.
        let peer = source.path.ends_with("/isal.rs");
        // Vectors of the processor: the loops over them, and who chooses what it has.
        let vectors = source.path.starts_with("crates/erasure/src/kernel");
        if source.path.starts_with("crates/engine/") || counting_allocator || foreign || peer || vectors {
            continue;
        }
        for at in source.find("unsafe") {
            let place = format!("{}:{}", source.path, source.line_of(at));
            faults.push(format!(
                "{place}: unsafe outside `engine`, `tls::session`, `capi`, `erasure::kernel` and ISA-L: its proofs are kept in one place"
            ));
        }
    }
    check(faults);
}

#[test]
fn lines_fit_and_files_end_well() {
    let mut faults = Vec::new();
    for (path, text) in &Tree::get().texts {
        let code = path.ends_with(".rs") || path.ends_with(".sh");
        for (index, line) in text.lines().enumerate() {
            let place = format!("{path}:{}", index + 1);
            let columns = line.chars().count();
            // A sentence in a literal, or an address, is one word to rustfmt, and to the eye.
            if code && columns > LINE_COLUMNS_MAX && !line.contains("://") && !line.contains('"') {
                faults.push(format!("{place}: {columns} columns, {LINE_COLUMNS_MAX} at most"));
            }
            if line.ends_with([' ', '\t', '\r']) && !path.ends_with(".patch") {
                faults.push(format!("{place}: blank at the end of the line"));
            }
            if ["<<<<<<< ", ">>>>>>> "].iter().any(|mark| line.starts_with(mark)) {
                faults.push(format!("{place}: a conflict that was never resolved"));
            }
        }
        if !text.is_empty() && !text.ends_with('\n') {
            faults.push(format!("{path}: no newline at the end"));
        }
    }
    check(faults);
}

#[test]
fn nothing_names_the_machine_it_was_written_on() {
    let mut faults = Vec::new();
    for (path, text) in &Tree::get().texts {
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = rules::machine_path(line) {
                let place = format!("{path}:{}", index + 1);
                faults.push(format!("{place}: `{found}`: a path or host of one machine is wrong on every other"));
            }
        }
    }
    check(faults);
}

#[test]
fn no_file_is_dead() {
    check(Tree::get().dead_files());
}

#[test]
fn files_name_one_another_in_no_circle() {
    let tree = Tree::get();
    let is_root = |path: &str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    let roots = tree.sources.iter().map(|source| source.path.as_str()).filter(|path| is_root(path));
    let is_there = |place: &&str| tree.sources.iter().any(|source| source.path.starts_with(*place));
    let places = FILES_IN_CIRCLES.iter().map(|(root, _)| *root).chain(WITHOUT_CIRCLES.iter().copied());
    let mut faults: Vec<String> = places
        .filter(|place| !is_there(place))
        .map(|place| format!("{place}: is not there: name its new place"))
        .collect();
    for root in roots {
        let edges = Crate::of(root, &tree.sources).edges();
        for folder in WITHOUT_CIRCLES {
            faults.extend(circles(&edges, |path| path.starts_with(folder)).iter().map(|circle| told(circle, &edges)));
        }
        let listed = FILES_IN_CIRCLES.iter().find(|(listed, _)| *listed == root);
        let (circles, max) = (circles(&edges, |_| true), listed.map_or(0, |(_, max)| *max));
        let files: usize = circles.iter().map(|circle| circle.len()).sum();
        if files > max {
            faults.push(format!("{root}: {files} files of its crate lie in circles, {max} at most"));
            faults.extend(circles.iter().map(|circle| told(circle, &edges)));
        } else if files < max {
            faults
                .push(format!("{root}: {files} files in circles are left, {max} stand in FILES_IN_CIRCLES: lower it"));
        }
    }
    check(faults);
}

#[test]
fn mutants_apply_and_name_a_test() {
    let tree = Tree::get();
    let name = |text: &'static String| text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let manifests = tree.texts.iter().filter(|(path, _)| path.ends_with("/Cargo.toml"));
    let folders: BTreeMap<&str, &str> =
        manifests.filter_map(|(path, text)| Some((name(text)?, path.strip_suffix("Cargo.toml")?))).collect();
    let mut named: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in &tree.sources {
        // One may lie within another.
        let own = folders.iter().filter(|(_, folder)| source.path.starts_with(**folder));
        let Some((package, _)) = own.max_by_key(|(_, folder)| folder.len()) else { continue };
        named.entry(*package).or_default().extend(source.functions().into_iter().map(|(name, _)| name));
    }
    let has_test = |package: &str, test: &str| {
        let folder = folders.get(package)?;
        let is_function = named.get(package).is_some_and(|names| names.contains(test));
        // Or by a macro's argument.
        let own = || tree.sources.iter().filter(|source| source.path.starts_with(*folder));
        Some(is_function || own().any(|source| !source.find(test).is_empty()))
    };
    let patches = tree.texts.iter().filter(|(path, _)| path.starts_with("mutants/") && path.ends_with(".patch"));
    let fault = |(path, patch): (&String, &String)| {
        mutants::fault_of(patch, &tree.texts, &has_test).map(|fault| format!("{path}: {fault}"))
    };
    check(patches.filter_map(fault).collect());
}

#[test]
fn circles_are_found_through_all_that_names_a_file() {
    let source =
        |path: &str, text: &str, is_test| Source::new(&format!("crates/x/src/{path}"), text.to_owned(), is_test);
    let ties = |sources: &[Source]| -> Vec<String> {
        let edges = Crate::of("crates/x/src/lib.rs", sources).edges();
        let short = |path: &str| path.trim_start_matches("crates/x/src/").trim_end_matches(".rs").to_owned();
        let tie = |((from, to), names): (&(String, String), &std::collections::BTreeSet<String>)| {
            format!("{} {} {}", short(from), short(to), names.iter().cloned().collect::<Vec<_>>().join("+"))
        };
        edges.iter().map(tie).collect()
    };
    let lib = "mod a;\nmod b;\nmod c;\npub use a::{A, other as renamed};\n#[cfg(test)]\nmod t;";
    let a = "pub struct A;\npub fn other() {}\n// crate::b::B in prose\nfn f() -> &'static str { \"crate::b::B\" }";
    // By the re-export, by a tree with a glob, by a module that was brought, and of another crate.
    let b = "use std::{fmt, io};\nuse crate::{A, c::{self, inner::*}};\nfn f() { c::d::D; Deep; fmt::A; io::C; super::renamed(); }";
    let c = "pub mod d;\npub mod inner { use super::super::b; pub struct Deep; fn f() { b::B } }\nfn f() -> impl T + use<'_> {}";
    let d = "// tidy: circle: as an example of what is let pass.\nuse crate::b::B;\npub struct D;\n#[cfg(test)]\nmod tests { use crate::a::A; }";
    let files = [("lib.rs", lib), ("a.rs", a), ("b.rs", b), ("c.rs", c), ("c/d.rs", d)];
    let mut sources: Vec<Source> = files.iter().map(|(path, text)| source(path, text, false)).collect();
    sources.push(source("t.rs", "use crate::b::B;", true));
    assert_eq!(ties(&sources), ["b a A+other", "b c *", "b c/d D", "c b B"]);
    let edges = Crate::of("crates/x/src/lib.rs", &sources).edges();
    let circle = circles(&edges, |_| true);
    assert_eq!(circle.len(), 1, "{circle:?}");
    assert_eq!(circle[0].iter().copied().collect::<Vec<_>>(), ["crates/x/src/b.rs", "crates/x/src/c.rs"]);
    assert!(told(&circle[0], &edges).contains("crates/x/src/c.rs names B of crates/x/src/b.rs"));
    assert!(circles(&edges, |path| path.starts_with("crates/x/src/c")).is_empty());
    // A re-export that the file does not use is no tie; one that it uses is.
    let parent = |text: &str| [source("lib.rs", text, false), source("a.rs", "pub struct A;\nuse super::Top;", false)];
    assert_eq!(ties(&parent("mod a;\npub use a::A;\npub struct Top;")), ["a lib Top"]);
    assert_eq!(ties(&parent("mod a;\npub use a::A;\npub struct Top(A);")), ["a lib Top", "lib a A"]);
}

#[test]
fn the_rules_can_fail() {
    let text = r##"
        //! unwrap() in prose, "quoted /* not a comment" and 'x' are no code.
        fn long() { let a = r#"todo!() "inner" "#; a.unwrap(); }
        fn generic<'a>(x: &'a str) -> [u8; 2] where T: Fn(u8) { b.expect("hm"); }


        const THINGS_MAX: usize = 3;
        /// Guessed.
        const OTHERS_MAX: usize = 3;
        // Proven: checked above.
        fn fine() { c.unwrap(); let _ = d(); }
        #[cfg(test)]
        mod tests { fn t() { e.unwrap(); std::thread::sleep(x); } }
        fn clocked() { std::thread::sleep(x); }
        // tidy: thread: the one place that must wait in the kernel.
        fn exempt() { std::thread::sleep(x); }
    "##;
    let source = Source::new("crates/kv/src/x.rs", text.to_owned(), false);
    assert_eq!(source.functions().len(), 6);
    let unexplained = rules::find_unexplained(&source);
    let lines: Vec<&str> = unexplained.iter().filter_map(|fault| fault.split(':').nth(1)).collect();
    assert_eq!(lines, ["3", "4", "7"], "{unexplained:#?}");
    let thread = rules::BANS.iter().find(|ban| ban.rule == "thread").unwrap();
    assert!(matches!(thread.scope, Scope::EngineDriven));
    let folders = engine_driven("| `engine` | x |\n| `kv` | pages |\n| `client` | a program |\n| `yagura` | all |");
    assert_eq!(folders, ["crates/engine/src/sim/", "crates/kv/src/"]);
    assert_eq!(rules::find_banned(&source, thread, &folders).len(), 1);
    for (line, is_fault) in
        [("{n} files", true), ("{} pages", true), ("{n} of {m} files", false), ("{n} filesets", false)]
    {
        assert_eq!(rules::counts_by_hand(line), is_fault, "{line}");
    }
    let gate = "#[cfg(any(test, feature = \"testing\"))]";
    let modules = format!(
        "pub mod fuzz;\n{gate}\npub mod testing;\nmod conformance {{}}\n#[cfg(test)]\nmod fuzz {{}}\nmod fuzzy;"
    );
    let ungated = rules::find_ungated(&Source::new("crates/kv/src/lib.rs", modules, false));
    let lines: Vec<&str> = ungated.iter().filter_map(|fault| fault.split(':').nth(1)).collect();
    assert_eq!(lines, ["1", "4"], "{ungated:#?}");
    assert!(rules::machine_path(&["see /wo", "rk/notes"].concat()).is_some());
    assert!(rules::machine_path("a /working set").is_none());
    let texts = [("a.rs".to_owned(), "one\n    two\nthree\n".to_owned())].into();
    let has_test = |package: &str, test: &str| (package == "kv").then_some(test == "noticed");
    for (test, line, fault) in [
        ("-p kv --lib x::noticed", "    two", None),
        ("-p kv --lib x::noticed", "two", Some("a.rs is not as it was")),
        ("-p kv --lib x::gone", "    two", Some("no test gone")),
        ("-p other --lib x::noticed", "    two", Some("a package")),
        ("", "    two", Some("a package")),
    ] {
        let patch = format!(
            "Guarantee: g\nTest: {test}\n\ndiff --git a/a.rs b/a.rs\n--- a/a.rs\n+++ b/a.rs\n@@ x\n one\n-{line}\n+new\n"
        );
        let found = mutants::fault_of(&patch, &texts, &has_test);
        assert_eq!(found.is_some(), fault.is_some(), "{found:?}");
        let without = &patch[patch.find("diff").unwrap()..];
        assert!(mutants::fault_of(without, &texts, &has_test).unwrap().contains("header"));
        assert!(fault.is_none_or(|words| found.unwrap().contains(words)), "{test} {line}");
    }
    let parent = Source::new("x.rs", "mod a;\n#[cfg(test)]\n#[path = \"t/b.rs\"]\nmod b;\nmod c {}".to_owned(), false);
    let modules = parent.file_modules();
    assert_eq!(modules, [("a".to_owned(), None, false), ("b".to_owned(), Some("t/b.rs".to_owned()), true)]);
}
