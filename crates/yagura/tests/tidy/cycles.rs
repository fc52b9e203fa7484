//! The rule against circles: files of which each names what another defines, round to the first again. None of them can be read,
//! tested or changed without all others, whatever the folders say.
//!
//! What counts: a path to an item, in a `use` or inline (`crate::`, `super::`, `self::`, a module's name), at the file that defines
//! the item, through whatever re-exports. What does not: `mod x;`, a re-export that the file itself makes no use of, tests, and
//! methods, whose calls name no file. Macros are not expanded, and a name in two namespaces is taken for one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::rules::is_exempt;
use crate::source::{Source, closing, find_words, is_word};
use crate::tree::module_paths;

/// Re-exports that are followed from one name. Chosen: no honest chain is so long, so this ends a circle of `use`s.
const REEXPORTS_MAX: usize = 16;

/// A path of modules from the root of the crate on; the root's own is empty.
type Module = Vec<String>;

struct Use {
    at: usize,
    /// The name that it brings; `*` for all.
    name: String,
    path: Vec<String>,
    is_reexport: bool,
}

/// A file of a crate, without its tests.
struct File<'a> {
    source: &'a Source,
    /// The code without `use`s and `mod x;`.
    code: String,
    /// The modules in it, the file's own first, with their places.
    modules: Vec<(Range<usize>, Module)>,
}

/// What a path leads to.
struct Target {
    file: usize,
    module: Module,
    /// None: the module itself.
    item: Option<String>,
}

/// A crate's files and modules.
pub struct Crate<'a> {
    files: Vec<File<'a>>,
    by_module: BTreeMap<Module, usize>,
    uses: BTreeMap<Module, Vec<Use>>,
}

/// Which file names what of which.
pub type Edges = BTreeMap<(String, String), BTreeSet<String>>;

impl<'a> Crate<'a> {
    /// The crate whose root is the file `root`.
    pub fn of(root: &str, sources: &'a [Source]) -> Crate<'a> {
        let by_path: BTreeMap<&str, &Source> = sources.iter().map(|source| (source.path.as_str(), source)).collect();
        let mut found = Crate { files: Vec::new(), by_module: BTreeMap::new(), uses: BTreeMap::new() };
        let mut waiting = vec![(root.to_owned(), Module::new())];
        while let Some((path, module)) = waiting.pop() {
            let Some(source) = by_path.get(path.as_str()) else { continue };
            for (name, named_path, under_test) in source.file_modules() {
                if !under_test {
                    let child: Module = module.iter().cloned().chain([name.clone()]).collect();
                    let paths = module_paths(&path, &name, named_path.as_deref());
                    waiting.extend(paths.into_iter().map(|path| (path, child.clone())));
                }
            }
            found.add(source, module);
        }
        found
    }

    fn add(&mut self, source: &'a Source, module: Module) {
        let mut code = source.product_code();
        let modules = inline_modules(&code, module);
        let index = self.files.len();
        self.by_module.extend(modules.iter().map(|(_, module)| (module.clone(), index)));
        let mut hidden = Vec::new();
        for at in find_words(&code, "use") {
            let (rest, head) = (&code[at + 3..], &code[..at]);
            // `impl Trait + use<'a>` is no import.
            let Some(length) = rest.find(';').filter(|_| !rest.trim_start().starts_with('<')) else { continue };
            let before = &head[head.rfind([';', '{', '}']).map_or(0, |end| end + 1)..];
            let is_reexport = !find_words(before, "pub").is_empty();
            let uses = expanded(&rest[..length]);
            let uses = uses.into_iter().map(|(path, name)| Use { at, name, path, is_reexport });
            self.uses.entry(module_at(&modules, at).clone()).or_default().extend(uses);
            hidden.push(at..at + 3 + length);
        }
        for at in find_words(&code, "mod") {
            let length = code[at..].find([';', '{']).filter(|end| code[at + end..].starts_with(';'));
            hidden.extend(length.map(|length| at..at + length));
        }
        hidden.into_iter().for_each(|range| code.replace_range(range.clone(), &" ".repeat(range.len())));
        self.files.push(File { source, code, modules });
    }

    /// Where a path leads that stands in `module`; `None`: out of the crate.
    fn resolve(&self, module: &[String], path: &[String], reexports: usize) -> Option<Target> {
        let (first, mut rest) = path.split_first().filter(|_| reexports < REEXPORTS_MAX)?;
        let mut base = module.to_vec();
        match first.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => drop(base.pop()),
            name => {
                base.push(name.to_owned());
                if !self.by_module.contains_key(&base) {
                    return self.by_use(module, name, rest, reexports);
                }
            }
        }
        while let Some((name, more)) = rest.split_first() {
            if name == "super" {
                base.pop();
            } else if name != "self" {
                base.push(name.clone());
                if !self.by_module.contains_key(&base) {
                    base.pop();
                    let found = self.by_use(&base, name, more, reexports);
                    // A name that another crate defines is nobody's here.
                    let is_foreign = found.is_none() && self.has_use(&base, name);
                    let file = *self.by_module.get(&base)?;
                    let own = Target { file, module: base, item: Some(name.clone()) };
                    return found.or((!is_foreign).then_some(own));
                }
            }
            rest = more;
        }
        let file = *self.by_module.get(&base)?;
        Some(Target { file, module: base, item: None })
    }

    fn has_use(&self, module: &[String], name: &str) -> bool {
        self.uses.get(module).is_some_and(|uses| uses.iter().any(|found| found.name == name))
    }

    /// What `name`, which a `use` has brought into `module`, and the path behind it lead to.
    fn by_use(&self, module: &[String], name: &str, rest: &[String], reexports: usize) -> Option<Target> {
        let uses = self.uses.get(module)?;
        let follow = |found: &Use| {
            let path: Vec<String> = found.path.iter().chain(rest).cloned().collect();
            self.resolve(module, &path, reexports + 1)
        };
        if let Some(found) = uses.iter().find(|found| found.name == name) {
            return follow(found);
        }
        uses.iter().filter(|found| found.name == "*").find_map(|found| {
            let path = &found.path[..found.path.len() - 1];
            let target = self.resolve(module, path, reexports + 1).filter(|target| target.item.is_none())?;
            match self.defines(target.file, name) {
                true => Some(Target { item: Some(name.to_owned()), ..target }),
                false => self.by_use(&target.module, name, rest, reexports + 1),
            }
        })
    }

    fn defines(&self, file: usize, name: &str) -> bool {
        let code = &self.files[file].code;
        find_words(code, name).into_iter().any(|at| {
            let kinds = ["struct", "enum", "fn", "const", "static", "type", "trait", "union"];
            kinds.iter().any(|kind| code[..at].trim_end().ends_with(kind))
        })
    }

    /// What files name of one another.
    pub fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        let mut add = |from: usize, at: usize, target: Option<Target>| {
            let source = self.files[from].source;
            if let Some(Target { file, item: Some(item), .. }) = target
                && file != from
                && !is_exempt(source, at, "circle")
            {
                let ends = (source.path.clone(), self.files[file].source.path.clone());
                edges.entry(ends).or_default().insert(item);
            }
        };
        for (module, uses) in &self.uses {
            let file = self.by_module[module];
            let is_needed = |found: &Use| found.name != "*" && named_alone(&self.files[file].code, &found.name);
            for found in uses.iter().filter(|found| !found.is_reexport || is_needed(found)) {
                add(file, found.at, self.used(module, found));
            }
        }
        for (index, file) in self.files.iter().enumerate() {
            for (at, path) in inline_paths(&file.code) {
                add(index, at, self.resolve(module_at(&file.modules, at), &path, 0));
            }
        }
        edges
    }

    /// What a `use` names; of all that a module has, the module.
    fn used(&self, module: &[String], found: &Use) -> Option<Target> {
        let Some((last, path)) = found.path.split_last().filter(|(last, _)| *last == "*") else {
            return self.resolve(module, &found.path, 0);
        };
        let target = self.resolve(module, path, 0)?;
        Some(Target { item: Some(last.clone()), ..target })
    }
}

/// Whether `name` stands in `code` by itself, not as a part of a path or a field.
fn named_alone(code: &str, name: &str) -> bool {
    find_words(code, name).into_iter().any(|at| !code[..at].ends_with([':', '.']))
}

/// The modules of a file: its own, which is all of it, and those that stand in it.
fn inline_modules(code: &str, own: Module) -> Vec<(Range<usize>, Module)> {
    let mut modules = vec![(0..code.len(), own)];
    for at in find_words(code, "mod") {
        let rest = code[at + 3..].trim_start();
        let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
        if !name.is_empty() && rest[name.len()..].trim_start().starts_with('{') {
            let open = at + code[at..].find('{').unwrap_or_default();
            let module = module_at(&modules, at).iter().cloned().chain([name]).collect();
            modules.push((at..closing(code, open), module));
        }
    }
    modules
}

/// The innermost module at an offset.
fn module_at(modules: &[(Range<usize>, Module)], at: usize) -> &Module {
    let inner = modules.iter().rev().find(|(range, _)| range.contains(&at));
    &inner.unwrap_or(&modules[0]).1
}

/// The paths of a `use` tree with the names that they bring.
fn expanded(tree: &str) -> Vec<(Vec<String>, String)> {
    let tree = tree.trim();
    if let Some((prefix, rest)) = tree.split_once('{') {
        let prefix = segments(prefix);
        let inner = rest.rfind('}').map_or(rest, |end| &rest[..end]);
        let paths = branches(inner).into_iter().flat_map(expanded);
        let whole = |(path, name): (Vec<String>, String)| {
            let is_self = path == ["self"] && name == "self";
            let name = if is_self { prefix.last().cloned().unwrap_or_default() } else { name };
            let path = if path == ["self"] { Vec::new() } else { path };
            (prefix.iter().cloned().chain(path).collect(), name)
        };
        return paths.map(whole).collect();
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let path = segments(path);
    let Some(name) = alias.map(str::to_owned).or(path.last().cloned()) else { return Vec::new() };
    vec![(path, name)]
}

/// The parts of a `use` tree between its outermost commas.
fn branches(tree: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_i32, 0, Vec::new());
    for (at, byte) in tree.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&tree[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tree[start..]);
    parts
}

fn segments(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Paths of two and more names, with their places.
fn inline_paths(code: &str) -> Vec<(usize, Vec<String>)> {
    let mut paths: Vec<(usize, Vec<String>)> = Vec::new();
    let mut end = 0;
    for (at, _) in code.match_indices("::").filter(|(at, _)| !code[..*at].ends_with(':')) {
        if at < end {
            continue;
        }
        let head = code[..at].trim_end();
        let start = head.trim_end_matches(is_word).len();
        let (before, first) = (head[..start].trim_end(), &head[start..]);
        if first.is_empty() {
            continue;
        }
        let mut path = vec![first.to_owned()];
        end = at;
        while let Some(rest) = code[end..].trim_start().strip_prefix("::") {
            let rest = rest.trim_start();
            let name: String = rest.chars().take_while(|&c| is_word(c)).collect();
            if name.is_empty() {
                break;
            }
            end = code.len() - rest.len() + name.len();
            path.push(name);
        }
        if path.len() > 1 && !before.ends_with("::") {
            paths.push((start, path));
        }
    }
    paths
}

/// The circles among the files that `is_looked_at`, each of the files that lie in it.
pub fn circles(edges: &Edges, is_looked_at: impl Fn(&str) -> bool) -> Vec<BTreeSet<&str>> {
    let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys().filter(|(from, to)| is_looked_at(from) && is_looked_at(to)) {
        named.entry(from).or_default().insert(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = named.keys().map(|file| (*file, reached(file, &named))).collect();
    let mut circles = BTreeSet::new();
    for (file, others) in &reached {
        let back = |other: &&&str| reached.get(**other).is_some_and(|others| others.contains(file));
        circles.insert(others.iter().filter(back).copied().collect());
    }
    circles.into_iter().filter(|circle: &BTreeSet<&str>| !circle.is_empty()).collect()
}

/// The files that one names, directly or over others.
fn reached<'a>(from: &'a str, named: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(file) = waiting.pop() {
        waiting.extend(named.get(file).into_iter().flatten().filter(|next| found.insert(**next)));
    }
    found
}

/// A circle in words: its files, and the names that tie them.
pub fn told(circle: &BTreeSet<&str>, edges: &Edges) -> String {
    let ties = edges.iter().filter(|((from, to), _)| circle.contains(&**from) && circle.contains(&**to));
    let tie = |((from, to), names): (&(String, String), &BTreeSet<String>)| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        format!("\n    {from} names {} of {to}", names.join(", "))
    };
    let ties: String = ties.map(tie).collect();
    format!("a circle of {} files: what two of them need belongs in a file below both:{ties}", circle.len())
}
