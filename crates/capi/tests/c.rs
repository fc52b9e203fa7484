//! The C library from C: the example compiled as C and as C++, run against real targets; the header against the library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use client::testing::{MemoryNamespaces, MemoryPool};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Where cargo has put the library: beside this test.
fn library_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a file");
    test.parent().expect("it lies in a folder").to_owned()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}{error}", output.status);
    text.into_owned()
}

/// Compiles `source` against the shared library, and runs it on a pool of its own: what it says.
fn compile_and_run(compiler: &[&str], source: &str) -> String {
    let pool = MemoryPool::start(3).expect("a pool in memory");
    compile_and_run_at(compiler, source, &[&pool.addresses()[0]])
}

/// The same with other arguments.
fn compile_and_run_at(compiler: &[&str], source: &str, arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    let library = library_folder().join("libyagura.so");
    let warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-g"];
    let mut compile = Command::new(compiler[0]);
    compile.args(&compiler[1..]).args(warnings).arg("-I").arg(Path::new(ROOT).join("include"));
    compile.arg(Path::new(ROOT).join(source)).arg("-o").arg(&program);
    compile.args(["-x", "none"]).arg(&library).arg("-lpthread");
    run(&mut compile);
    // The library asks to be found under the name of its interface.
    std::os::unix::fs::symlink(&library, folder.path().join("libyagura.so.0")).expect("a link");
    // One that hangs ends here.
    run(Command::new("timeout").arg("60").arg(&program).args(arguments).env("LD_LIBRARY_PATH", folder.path()))
}

const C: &[&str] = &["cc", "-std=c11", "-D_POSIX_C_SOURCE=200809L", "-x", "c"];
const C_PLUS_PLUS: &[&str] = &["c++", "-std=c++17", "-x", "c++"];
/// Watches what the program, and the library for it, read, write and free, and that nothing is left at its end.
const SANITIZED: &[&str] = &[
    "cc",
    "-std=c11",
    "-D_POSIX_C_SOURCE=200809L",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover",
    "-x",
    "c",
];

fn all_is_well() -> String {
    format!("yagura {}: all is well\n", env!("CARGO_PKG_VERSION"))
}

#[test]
fn the_example_as_c() {
    assert_eq!(compile_and_run(C, "examples/kv.c"), all_is_well());
}

#[test]
fn the_example_as_c_plus_plus() {
    assert_eq!(compile_and_run(C_PLUS_PLUS, "examples/kv.c"), all_is_well());
}

#[test]
fn the_example_leaks_nothing_and_touches_no_foreign_memory() {
    assert_eq!(compile_and_run(SANITIZED, "examples/kv.c"), all_is_well());
}

#[test]
fn futures_in_c_plus_plus() {
    let said = compile_and_run(C_PLUS_PLUS, "examples/tasks.cpp");
    assert_eq!(said, "task-8: done by 1, task-x: nothing\nas it should, an empty key fails: 1\n");
}

#[test]
fn clients_end_well_with_requests_under_way_and_in_a_child() {
    assert_eq!(compile_and_run(C, "tests/ends.c"), "all ends are well\n");
}

#[test]
fn the_pool_that_is_meant_is_reached() {
    let pools = [(); 2].map(|()| MemoryPool::start(1).expect("a pool in memory"));
    let addresses = format!("{},{}", pools[0].addresses()[0], pools[1].addresses()[0]);
    assert_eq!(compile_and_run_at(C, "tests/pool.c", &[&addresses]), "each was reached\n");
}

#[test]
fn block_devices_are_used_and_no_foreign_memory_is() {
    let (blank, volume) = (MemoryNamespaces::blank(1), MemoryNamespaces::volume());
    let (blank, volume) = (blank.expect("a target in memory"), volume.expect("a volume in memory"));
    let namespace = format!("namespace {}", blank.addresses()[0]);
    let volume = format!("volume {}", volume.addresses().join(" "));
    for compiler in [C, SANITIZED] {
        assert_eq!(compile_and_run_at(compiler, "tests/device.c", &[&namespace, &volume]), "both are well\n");
    }
}

/// The example as a user builds it: by pkg-config, against nothing but what was installed.
#[test]
fn what_is_installed_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("usr");
    // Any file stands for the binary.
    let binary = std::env::current_exe().expect("a running test has a file");
    let script = Path::new(ROOT).join("../../scripts/install.sh");
    run(Command::new(script).arg(&prefix).arg(binary).arg(library_folder()));
    let source = std::fs::read_to_string(Path::new(ROOT).join("examples/kv.c")).expect("the example is there");
    let (program, lonely) = (folder.path().join("kv"), folder.path().join("kv.c"));
    std::fs::write(&lonely, source).expect("a copy");
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(["--cflags", "--libs", "yagura"]);
    let flags = run(&mut pkg_config);
    run(Command::new("cc").arg(&lonely).args(flags.split_whitespace()).arg("-lpthread").arg("-o").arg(&program));
    let pool = MemoryPool::start(1).expect("a pool in memory");
    let mut example = Command::new("timeout");
    example.arg("60").arg(&program).arg(&pool.addresses()[0]).env("LD_LIBRARY_PATH", prefix.join("lib"));
    assert_eq!(run(&mut example), all_is_well());
    assert!(prefix.join("bin/yagura").exists());
}

#[test]
fn the_snippet_of_the_page_compiles() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("../../docs/programs.md")).expect("it is there");
    let (_, rest) = page.split_once("```c\n").expect("it has a piece of C");
    let (snippet, _) = rest.split_once("```").expect("which ends");
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("snippet.c");
    std::fs::write(&source, snippet).expect("a file");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]);
    run(compile.arg(Path::new(ROOT).join("include")).arg(&source));
}

/// One form for all ways to lay out a line: words and marks with single blanks.
fn tokens(text: &str) -> String {
    let mut spaced = String::new();
    for c in text.chars() {
        if c.is_alphanumeric() || c == '_' {
            spaced.push(c);
        } else {
            spaced.extend([' ', c, ' ']);
        }
    }
    spaced.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn header() -> String {
    std::fs::read_to_string(Path::new(ROOT).join("include/yagura.h")).expect("the header is there")
}

/// The functions that the header declares, comments left out.
fn declared() -> BTreeSet<String> {
    let mut text = header();
    while let (Some(from), Some(to)) = (text.find("/*"), text.find("*/")) {
        text.replace_range(from..to + 2, " ");
    }
    let functions = text.lines().filter(|line| line.contains("yagura_") && line.ends_with(");"));
    functions.filter(|line| !line.starts_with("typedef")).map(tokens).collect()
}

/// A type of the library as the header writes it.
fn in_c(rust: &str) -> String {
    let names = [
        ("c_void", "void"),
        ("c_char", "char"),
        ("i64", "int64_t"),
        ("u64", "uint64_t"),
        ("u32", "uint32_t"),
        ("usize", "size_t"),
        ("Bytes", "yagura_bytes"),
        ("RawPutOptions", "yagura_put_options"),
        ("RawOptions", "yagura_options"),
        ("RawClient", "yagura_client"),
        ("RawScan", "yagura_scan"),
        ("RawDevice", "yagura_device"),
        ("RawQueue", "yagura_queue"),
        ("Event", "yagura_event"),
        ("c_int", "int"),
        ("Value", "yagura_value"),
        ("Status", "yagura_status"),
        ("Completion", "yagura_completion"),
        ("Decide", "yagura_decide"),
    ];
    if let Some(target) = rust.strip_prefix("*const ") {
        return format!("const {} *", in_c(target));
    }
    if let Some(target) = rust.strip_prefix("*mut ") {
        return format!("{} *", in_c(target));
    }
    let known = names.iter().find(|(name, _)| *name == rust);
    known.unwrap_or_else(|| panic!("the type {rust} has no place in C")).1.to_owned()
}

/// What the library exports, in the header's words.
fn exported() -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(Path::new(ROOT).join("src")).expect("the sources are there") {
        let source = std::fs::read_to_string(entry.expect("an entry").path()).expect("a source");
        for piece in source.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, function) = piece.split_once("extern \"C\" fn ").expect("what is exported is C's");
            let (head, _) = function.split_once('{').expect("it has a body");
            let (name, rest) = head.split_once('(').expect("it has arguments");
            let (arguments, result) = rest.rsplit_once(')').expect("they end");
            let result = result.trim().strip_prefix("->").map_or("void".to_owned(), |result| in_c(result.trim()));
            let argument = |text: &str| {
                let (name, kind) = text.split_once(':').expect("an argument has a type");
                format!("{} {}", in_c(kind.trim()), name.trim())
            };
            let arguments: Vec<String> =
                arguments.split(',').map(str::trim).filter(|text| !text.is_empty()).map(argument).collect();
            let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
            all.insert(tokens(&format!("{result} {name}({arguments});")));
        }
    }
    all
}

#[test]
fn the_header_declares_what_the_library_exports() {
    let (declared, exported) = (declared(), exported());
    let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| one.difference(other).cloned().collect::<Vec<_>>();
    assert_eq!(only(&exported, &declared), only(&declared, &exported), "left: exported, right: declared");
    assert!(exported.len() > 30, "{} functions were found", exported.len());
}

#[test]
fn the_header_has_the_librarys_numbers() {
    let header = header();
    let source = std::fs::read_to_string(Path::new(ROOT).join("src/fault.rs")).expect("the source is there");
    let (_, statuses) = source.split_once("pub enum Status {").expect("the statuses");
    let mut count = 0;
    for line in statuses.lines().take_while(|line| *line != "}").filter_map(|line| line.trim().strip_suffix(',')) {
        let (name, number) = line.split_once(" = ").expect("a status has its number");
        let mut upper = String::new();
        for (at, c) in name.chars().enumerate() {
            upper.extend((at > 0 && c.is_uppercase()).then_some('_'));
            upper.extend(c.to_uppercase());
        }
        let has = |end: &str| header.contains(&format!("    YAGURA_{upper} = {number}{end}\n"));
        assert!(has(",") || has(""), "YAGURA_{upper} = {number}");
        count += 1;
    }
    let (_, declared) = header.split_once("typedef enum yagura_status {").expect("the statuses in C");
    let declared = declared.lines().take_while(|line| !line.starts_with('}'));
    assert_eq!(count, declared.filter(|line| line.starts_with("    YAGURA_")).count());
    let source = std::fs::read_to_string(Path::new(ROOT).join("src/update.rs")).expect("the source is there");
    for (name, number) in [("KEEP", 0), ("PUT", 1), ("DELETE", 2)] {
        assert!(source.contains(&format!("const {name}: Decision = {number};\n")), "{name} is {number} here");
        assert!(header.contains(&format!("    YAGURA_{name} = {number}")), "YAGURA_{name} is {number} there");
    }
    for (name, number) in [("KEY_MAX", client::KEY_BYTES_MAX), ("VALUE_MAX", client::VALUE_BYTES_MAX)] {
        assert!(header.contains(&format!("#define YAGURA_{name} {number}\n")), "YAGURA_{name} is {number}");
    }
}
