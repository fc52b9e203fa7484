//! The crates point one way: a crate depends only on crates above it in the map of `ARCHITECTURE.md` §1.
//!
//! Without this a cycle of concerns starts as one convenient `use` (the transport that peeks at the pool's map) and ends
//! as crates that can be neither tested nor replaced alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

/// Members of the workspace that are no part of the product: they depend on each other alone, and crates of the
/// house may use them in tests only.
const PROOF_CRATES: [&str; 3] = ["check", "kv-model", "volume-model"];

/// Parses the map's rows, ``| `name` | … |``, in order.
fn layers_of(architecture: &str) -> Vec<String> {
    let section = architecture.split("\n## ").find(|s| s.starts_with("1. ")).expect("ARCHITECTURE.md has a section 1");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| row.split('`').next().unwrap_or_default().to_owned()).collect()
}

fn workspace() -> (Metadata, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let metadata = MetadataCommand::new()
        .manifest_path(root.join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned(), "--locked".to_owned()])
        .exec()
        .expect("cargo metadata reads this workspace");
    let architecture = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is readable");
    (metadata, architecture)
}

/// What is wrong with the dependencies of `package`, in sentences.
fn faults(package: &Package, rank: &BTreeMap<&str, usize>, proof: &BTreeSet<&str>) -> Vec<String> {
    let name = package.name.as_str();
    let mut faults = Vec::new();
    for dependency in &package.dependencies {
        let on = dependency.name.as_str();
        let is_proof_crate = proof.contains(on);
        if !rank.contains_key(on) && !is_proof_crate {
            continue; // A library from outside.
        }
        if proof.contains(name) {
            if !is_proof_crate {
                faults.push(format!("{name} depends on {on}: a proof crate must not share code with what it judges"));
            }
        } else if is_proof_crate && dependency.kind != DependencyKind::Development {
            faults.push(format!("{name} depends on {on} outside its tests: {on} is no part of the product"));
        } else if !is_proof_crate && rank[on] >= rank[name] && on != name {
            faults.push(format!("{name} depends on {on}, which is not above it in ARCHITECTURE.md §1"));
        }
    }
    faults
}

#[test]
fn crates_depend_only_on_crates_above_them() {
    let (metadata, architecture) = workspace();
    let layers = layers_of(&architecture);
    let rank: BTreeMap<&str, usize> = layers.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
    let proof = BTreeSet::from(PROOF_CRATES);
    let mut faults_all = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        if rank.contains_key(name) || proof.contains(name) {
            faults_all.extend(faults(package, &rank, &proof));
        } else {
            faults_all.push(format!("crate {name} is not in the map of ARCHITECTURE.md §1: give it a place there"));
        }
    }
    for layer in &layers {
        if !metadata.packages.iter().any(|package| package.name.as_str() == layer) {
            faults_all.push(format!("ARCHITECTURE.md §1 lists {layer}, which is not a crate of the workspace"));
        }
    }
    assert!(faults_all.is_empty(), "\n{}\n", faults_all.join("\n"));
}

/// The feature of a crate that has what only tests use.
const TESTING: &str = "testing";

/// The crates of the house below `package` that have [`TESTING`], itself among them; those of its tests too, if it has any.
fn with_testing<'a>(package: &'a Package, by_name: &BTreeMap<&'a str, &'a Package>) -> BTreeSet<&'a str> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![package.name.as_str()]);
    while let Some(name) = waiting.pop() {
        let Some(&at) = by_name.get(name) else { continue };
        if !found.insert(at.name.as_str()) {
            continue;
        }
        let of_tests = at.name == package.name && package.targets.iter().any(|target| target.test);
        let needed = at.dependencies.iter().filter(|on| of_tests || on.kind == DependencyKind::Normal);
        waiting.extend(needed.filter_map(|on| by_name.get_key_value(on.name.as_str())).map(|(name, _)| *name));
    }
    found.retain(|name| by_name[name].features.contains_key(TESTING));
    found
}

/// The crates that [`TESTING`] is asked of where `package` is built for tests.
fn asked_for<'a>(package: &'a Package, by_name: &BTreeMap<&'a str, &'a Package>) -> BTreeSet<&'a str> {
    let mut waiting: Vec<&str> = Vec::new();
    if package.targets.iter().any(|target| target.test) {
        let of_tests = package.dependencies.iter().filter(|on| on.kind == DependencyKind::Development);
        waiting.extend(of_tests.filter(|on| on.features.iter().any(|name| name == TESTING)).map(|on| on.name.as_str()));
    } else {
        // A library that cargo doesn't test is built for its tests with its own feature.
        waiting.push(package.name.as_str());
    }
    let mut found = BTreeSet::new();
    while let Some(name) = waiting.pop() {
        let Some(at) = by_name.get(name).filter(|_| found.insert(name)) else { continue };
        let asked = at.features.get(TESTING).into_iter().flatten();
        waiting.extend(asked.filter_map(|asked| asked.strip_suffix("/testing")));
    }
    found
}

/// If the product had it, what injects faults would be a call away; and if one selection of crates asked for it where another
/// doesn't, everything between would be compiled once for each of them.
#[test]
fn what_only_tests_use_is_built_for_all_tests_and_for_no_product() {
    let (metadata, _) = workspace();
    let by_name: BTreeMap<&str, &Package> = metadata.packages.iter().map(|p| (p.name.as_str(), p)).collect();
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let name = &package.name;
        let in_product = package.dependencies.iter().filter(|on| on.kind != DependencyKind::Development);
        for on in in_product.filter(|on| on.features.iter().any(|feature| feature == TESTING)) {
            faults.push(format!("{name} depends on {} with `{TESTING}` outside its tests", on.name));
        }
        if package.features.get("default").is_some_and(|names| !names.is_empty()) {
            faults.push(format!("{name} has features by default: `{TESTING}` would be one of them some day"));
        }
        for missing in with_testing(package, &by_name).difference(&asked_for(package, &by_name)) {
            faults.push(format!(
                "{name}: its tests build {missing} without `{TESTING}`: name it in [dev-dependencies], or in the feature of a crate there"
            ));
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn versions_are_declared_once_in_the_workspace() {
    let (metadata, _) = workspace();
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("a member's manifest is readable");
        let section =
            manifest.split("\n[").filter(|s| s.split(']').next().is_some_and(|h| h.ends_with("dependencies")));
        for line in section.flat_map(|s| s.lines().skip(1)).map(str::trim) {
            if !line.is_empty() && !line.starts_with('#') && !line.contains("workspace = true") {
                let name = &package.name;
                faults.push(format!(
                    "{name}/Cargo.toml: `{line}`: versions stand in the root Cargo.toml, with the reason"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// All Rust below `folder`, in one string.
fn sources_below(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.join("Cargo.toml").exists() {
            text += &sources_below(&path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text += &std::fs::read_to_string(&path).expect("a source file is readable");
        }
    }
    text
}

#[test]
fn every_dependency_is_used() {
    let (metadata, _) = workspace();
    let mut faults = Vec::new();
    for package in &metadata.packages {
        let root = package.manifest_path.parent().expect("a manifest lies in a folder");
        let text = sources_below(root.as_std_path());
        // On itself a package depends for a feature in its tests.
        for dependency in package.dependencies.iter().filter(|dependency| dependency.name != *package.name) {
            let name = dependency.name.replace('-', "_");
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let used = text
                .match_indices(&name)
                .any(|(at, _)| !text[..at].ends_with(is_word) && !text[at + name.len()..].starts_with(is_word));
            if !used {
                faults
                    .push(format!("{}: nothing uses {}: take it out of its Cargo.toml", package.name, dependency.name));
            }
        }
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn the_map_is_read_in_order() {
    let text =
        "# A\n\n## 1. The map\n\n| crate | x |\n|---|---|\n| `one` | a |\n| `two` | b |\n\n## 2. Other\n| `no` | c |\n";
    assert_eq!(layers_of(text), ["one", "two"]);
}
