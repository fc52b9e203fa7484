//! The rules on words. Each has a name (for exemptions), a scope and a reason that stands in its message.

use crate::source::{Source, is_word};

/// Folders of the code that runs on the engine, for real and in the simulated world, where one seed must be one run: all crates of
/// `ARCHITECTURE.md`'s map above the library for programs. Of the engine itself it is the simulated world.
pub fn engine_driven(architecture: &str) -> Vec<String> {
    let rows = architecture.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let crates = rows.take_while(|name| *name != "client");
    crates
        .map(|name| if name == "engine" { "crates/engine/src/sim/".into() } else { format!("crates/{name}/src/") })
        .collect()
}

pub enum Scope {
    /// [`engine_driven`], tests excepted.
    EngineDriven,
    /// Every crate but the binary, tests and programs (`main.rs`, examples) excepted.
    Libraries,
    /// All Rust, tests too.
    Everywhere,
}

pub struct Ban {
    pub rule: &'static str,
    pub scope: Scope,
    pub words: &'static [&'static str],
    pub reason: &'static str,
}

pub const BANS: &[Ban] = &[
    Ban {
        rule: "thread",
        scope: Scope::EngineDriven,
        words: &["thread::sleep", "thread::spawn", "thread::scope", "thread::Builder"],
        reason: "blocks the reactor, and the simulated world has one thread: engine::task, engine::time",
    },
    Ban {
        rule: "clock",
        scope: Scope::EngineDriven,
        words: &["SystemTime", "UNIX_EPOCH", "std::time::Instant", "Instant::now"],
        reason: "the wall clock makes a seed's run differ from itself: engine::time",
    },
    Ban {
        rule: "randomness",
        scope: Scope::EngineDriven,
        words: &["getrandom", "RandomState", "new_v4", "rand::random", "thread_rng"],
        reason: "the system's randomness makes a seed's run differ from itself: engine::task::random_u64",
    },
    Ban {
        rule: "hash-order",
        scope: Scope::EngineDriven,
        words: &["HashMap", "HashSet"],
        reason: "iterates in another order each run: BTreeMap, or say why no iteration depends on the order",
    },
    Ban {
        rule: "print",
        scope: Scope::Libraries,
        words: &["println!", "eprintln!", "print!", "eprint!"],
        reason: "a library has no terminal: return it, or log it with tracing",
    },
    Ban {
        rule: "stub",
        scope: Scope::Everywhere,
        words: &["todo!", "unimplemented!", "dbg!"],
        reason: "unfinished work is not landed",
    },
    Ban {
        rule: "ignored-test",
        scope: Scope::Everywhere,
        words: &["#[ignore", "#[ignore]"],
        reason: "a test that does not run proves nothing: mend it or delete it",
    },
];

impl Scope {
    fn covers(&self, source: &Source, offset: usize, engine_driven: &[String]) -> bool {
        let program = source.path.ends_with("/main.rs") || source.path.contains("/examples/");
        match self {
            Scope::EngineDriven => {
                engine_driven.iter().any(|prefix| source.path.starts_with(prefix)) && !source.in_test(offset)
            }
            Scope::Libraries => {
                source.path.contains("/src/")
                    && !source.path.starts_with("crates/yagura/")
                    && !program
                    && !source.in_test(offset)
            }
            Scope::Everywhere => true,
        }
    }
}

/// A comment `tidy: <rule>: <reason>` at the place or in the lines above it; the reason must be a sentence, not a shrug.
pub fn is_exempt(source: &Source, offset: usize, rule: &str) -> bool {
    let comment = source.comment_near(offset, 3);
    comment.split_once(&format!("tidy: {rule}: ")).is_some_and(|(_, reason)| reason.len() > 15)
}

pub fn find_banned(source: &Source, ban: &Ban, engine_driven: &[String]) -> Vec<String> {
    let mut places: Vec<usize> = ban.words.iter().flat_map(|word| source.find(word)).collect();
    places.sort_unstable();
    places.retain(|&at| ban.scope.covers(source, at, engine_driven) && !is_exempt(source, at, ban.rule));
    places.dedup_by_key(|at| source.line_of(*at));
    let fault = |at: usize| format!("{}:{}: {}: {}", source.path, source.line_of(at), ban.rule, ban.reason);
    places.into_iter().map(fault).collect()
}

/// Modules of these names serve tests: of other crates, of fuzzers.
const FOR_TESTS: &[&str] = &["conformance", "fuzz", "testing"];

/// Modules for tests that the product is built with.
pub fn find_ungated(source: &Source) -> Vec<String> {
    if source.is_test || !source.path.contains("/src/") {
        return Vec::new();
    }
    let is_named = |at: &usize| {
        let name: String = source.code[at + 3..].trim_start().chars().take_while(|&c| is_word(c)).collect();
        FOR_TESTS.contains(&&*name)
    };
    let is_gated = |at: &usize| {
        let head = source.code[..*at].rfind([';', '}', '{']).map_or(0, |end| end + 1);
        source.in_test(*at) || source.text[head..*at].contains("#[cfg(any(test, feature = \"testing\"))]")
    };
    let ungated = source.find("mod").into_iter().filter(is_named).filter(|at| !is_gated(at));
    let told = |at| {
        format!(
            "{}:{}: the product has what only tests use: #[cfg(any(test, feature = \"testing\"))]",
            source.path,
            source.line_of(at)
        )
    };
    ungated.map(told).collect()
}

/// Product code whose safety the reader must be told: places that can panic, that drop a result, that bound something.
pub fn find_unexplained(source: &Source) -> Vec<String> {
    if !source.path.contains("/src/") {
        return Vec::new();
    }
    let mut faults = Vec::new();
    let mut require = |at: usize, explained: bool, what: &str| {
        if !explained && !source.in_test(at) {
            faults.push((at, format!("{}:{}: {what}", source.path, source.line_of(at))));
        }
    };
    for at in source.find(".unwrap()") {
        let explained = !source.comment_near(at, 2).is_empty();
        require(at, explained, "unwrap: a comment says which invariant makes it safe, or it is an error");
    }
    for at in source.find(".expect(") {
        let explained = says_why(source, at) || !source.comment_near(at, 2).is_empty();
        require(at, explained, "expect: its message proves that it cannot happen, or a comment does");
    }
    for at in ["panic!", "unreachable!"].iter().flat_map(|word| source.find(word)) {
        let explained = says_why(source, at) || !source.comment_near(at, 2).is_empty();
        require(at, explained, "panic: bad input is an error; else a sentence says why this cannot happen");
    }
    for at in source.find("let _ =") {
        // Formatting into a string cannot fail.
        let formatting =
            ["write!(", "writeln!("].iter().any(|call| source.code[at + 7..].trim_start().starts_with(call));
        let explained = formatting || !source.comment_near(at, 2).is_empty();
        require(at, explained, "a result is dropped: a comment says why that is right");
    }
    for at in ["#[allow(", "#![allow("].iter().flat_map(|word| source.find(word)) {
        let attribute = source.text[at..].split(']').next().unwrap_or_default();
        let explained = attribute.contains("reason =") || !source.comment_near(at, 1).is_empty();
        require(at, explained, "allow: `expect` with a `reason`, so that it goes when it can");
    }
    for at in source.find("const") {
        let name = source.code[at + 5..].trim_start().split(|c: char| !crate::source::is_word(c)).next();
        if name.is_some_and(|name| name.ends_with("_MAX") && name.len() > 4) {
            let explained = source.is_described(at, 4);
            require(at, explained, "a limit: a comment says how it was chosen (measured, derived, guessed)");
        }
    }
    faults.sort_unstable();
    faults.into_iter().map(|(_, fault)| fault).collect()
}

/// Whether the call at `at` has a message that is a sentence (three words), or a constant that holds one.
fn says_why(source: &Source, at: usize) -> bool {
    let argument = source.text[at..].split_once('(').map_or("", |(_, rest)| rest.trim_start());
    let message = argument.strip_prefix('"').and_then(|rest| rest.split('"').next()).unwrap_or_default();
    let constant = message.starts_with('{') && message[1..].starts_with(|c: char| c.is_ascii_uppercase());
    constant || message.split_whitespace().count() >= 3
}

/// What the binary counts for people, as it stands behind a number.
const COUNTED: &[&str] = &[
    "blocks",
    "chunks",
    "extents",
    "faults",
    "files",
    "groups",
    "items",
    "keys",
    "namespaces",
    "pages",
    "parts",
    "regions",
    "replicas",
    "sectors",
    "segments",
];

/// Whether `line` puts a plural of [`COUNTED`] behind a number that may be one: `1 files`. Behind "of", as in `2 of 8 chunks`, it
/// may stand.
pub fn counts_by_hand(line: &str) -> bool {
    line.match_indices("} ").any(|(close, _)| {
        let (before, behind) = (&line[..close], &line[close + 2..]);
        let word = behind.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        let Some(open) = before.rfind('{') else { return false };
        let is_name = before[open + 1..].chars().all(|c| is_word(c) || c == '.');
        is_name && COUNTED.contains(&word) && !before[..open].ends_with("of ")
    })
}

/// The part of `line` that names a place of one machine: a checkout, a home, a private mirror.
pub fn machine_path(line: &str) -> Option<String> {
    // Written in two halves, so that this file does not break its own rule.
    let places = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/fa", "rm/"], ["/Us", "ers/"]];
    for place in places.map(|halves| halves.concat()) {
        for at in line.match_indices(&place).map(|(at, _)| at) {
            let path_before = line[..at].ends_with(|c: char| crate::source::is_word(c) || "./-$})".contains(c));
            if !path_before {
                return Some(place);
            }
        }
    }
    let hosts = [["//registry", "."], ["//mirror", "."], ["//proxy", "."], ["//deb", "."], ["//static", "."]];
    hosts.map(|halves| halves.concat()).into_iter().find(|host| line.contains(host.as_str()))
}
