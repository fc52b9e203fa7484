//! The tree under lint: every text file that is, or could be, in the repository.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::source::Source;

/// Directories that hold products of a build or of a run.
const NOT_OURS: &[&str] = &["target", ".git", "data", "fuzz/target", "fuzz/corpus", "fuzz/artifacts"];

pub struct Tree {
    /// Every text file by path, sources and vendored text included; lock files excepted.
    pub texts: BTreeMap<String, String>,
    /// The Rust among them.
    pub sources: Vec<Source>,
    reached: BTreeSet<String>,
}

impl Tree {
    /// The tree, read once for all rules.
    pub fn get() -> &'static Tree {
        static TREE: OnceLock<Tree> = OnceLock::new();
        TREE.get_or_init(Tree::read)
    }

    fn read() -> Tree {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut texts = BTreeMap::new();
        for path in paths(&root) {
            // A file that git lists but that was deleted, or that is no text, is nobody's fault here.
            let Ok(text) = std::fs::read_to_string(root.join(&path)) else { continue };
            if !path.ends_with(".lock") {
                texts.insert(path, text);
            }
        }
        assert!(texts.contains_key("Cargo.toml"), "the root of the tree was not found");
        let reached = reach(&texts);
        let source = |(path, text): (&String, &String)| {
            let is_test = reached.get(path).copied().unwrap_or(false);
            Source::new(path, text.clone(), is_test)
        };
        let sources = texts.iter().filter(|(path, _)| path.ends_with(".rs")).map(source).collect();
        Tree { sources, reached: reached.into_keys().collect(), texts }
    }

    /// Files that nothing refers to, in sentences.
    pub fn dead_files(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for source in self.sources.iter().filter(|source| !self.reached.contains(&source.path)) {
            faults.push(format!("{}: no `mod` reaches it: it is not compiled", source.path));
        }
        for path in self.texts.keys() {
            let kept =
                ["scripts/", "guest/", "docs/", "fuzz/fuzz_targets/"].iter().any(|folder| path.starts_with(folder));
            let name = path.rsplit('/').next().unwrap_or(path);
            let mut others = self.texts.iter().filter(|(other, _)| *other != path);
            if kept && !others.any(|(_, text)| text.contains(name)) {
                faults.push(format!("{path}: no other file names it: delete it, or say what it is for"));
            }
        }
        faults
    }
}

/// Paths of the tree: what git tracks or would track; without git, everything outside [`NOT_OURS`].
fn paths(root: &Path) -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output();
    if let Ok(output) = listed
        && output.status.success()
    {
        let text = String::from_utf8_lossy(&output.stdout);
        return text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    }
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(root.join(&folder)).expect("a folder of the tree is readable");
        for entry in entries.map(|entry| entry.expect("a folder of the tree is readable")) {
            let path = folder.join(entry.file_name());
            let name = path.to_string_lossy().into_owned();
            if entry.path().is_dir() && !NOT_OURS.contains(&name.as_str()) {
                folders.push(path);
            } else if entry.path().is_file() {
                found.push(name);
            }
        }
    }
    found
}

/// Follows `mod` declarations from the roots that cargo compiles: each file reached, and whether for tests only.
fn reach(texts: &BTreeMap<String, String>) -> BTreeMap<String, bool> {
    let mut reached: BTreeMap<String, bool> = BTreeMap::new();
    let mut queue: VecDeque<(String, bool)> = texts.keys().filter_map(|path| root_kind(path)).collect();
    while let Some((path, is_test)) = queue.pop_front() {
        let Some(text) = texts.get(&path) else { continue };
        // Product code wins: a file used by both is product code.
        match reached.get(&path) {
            Some(&before) if !before || is_test => continue,
            _ => reached.insert(path.clone(), is_test),
        };
        for (name, named_path, under_test) in Source::new(&path, text.clone(), is_test).file_modules() {
            let under_test = is_test || under_test;
            let candidates = module_paths(&path, &name, named_path.as_deref());
            queue.extend(candidates.into_iter().map(|candidate| (candidate, under_test)));
        }
    }
    reached
}

/// Where the module `name` may lie that is declared in the file `path`: one of these is there.
pub fn module_paths(path: &str, name: &str, named_path: Option<&str>) -> Vec<String> {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    if let Some(named) = named_path {
        return vec![normal(&format!("{folder}/{named}"))];
    }
    let is_root = root_kind(path).is_some() || file == "mod.rs";
    let own = if is_root { folder } else { path.trim_end_matches(".rs") };
    vec![format!("{own}/{name}.rs"), format!("{own}/{name}/mod.rs")]
}

/// Whether cargo compiles `path` by itself: `Some((path, for tests only))`.
fn root_kind(path: &str) -> Option<(String, bool)> {
    if path.starts_with("fuzz/fuzz_targets/") {
        return Some((path.to_owned(), true));
    }
    let in_crate = || path.strip_prefix("crates/")?.split_once('/');
    let tail = path.strip_prefix("python/").or_else(|| in_crate().map(|(_, tail)| tail))?;
    let tail = tail.strip_prefix("model/").unwrap_or(tail);
    let parts: Vec<&str> = tail.split('/').collect();
    let is_test = match parts.as_slice() {
        ["src", "lib.rs" | "main.rs"] | ["src", "bin", _] | ["build.rs"] => false,
        ["examples", _] => false,
        ["tests" | "benches", _] | ["tests" | "benches", _, "main.rs"] => true,
        _ => return None,
    };
    path.ends_with(".rs").then(|| (path.to_owned(), is_test))
}

/// `a/b/../c` as `a/c`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
