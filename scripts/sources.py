#!/usr/bin/env python3
"""For each package of the workspace a line: its name and a hash of all that its tests are built from: the sources of the package and
of every package of the workspace that it depends on (in tests too) but for what is only that one's tests, the versions of all other
packages below it, and what is said to the compiler. A package whose tests read more of the tree (the binary, the library for C) counts
as all of it."""
import hashlib
import json
import os
import pathlib
import subprocess
import tomllib

READS_ALL = {"yagura", "capi"}
# On these no test depends: mutants have hashes of their own.
NEVER = ("mutants/", "CHANGELOG.md")
# Folders outside the packages that tests of several read.
SHARED = (".cargo/", "fuzz/", "crates/cache/tests/all/port.rs")


def only_tests(name):
    """Whether file `name` is built for the tests of its own package alone."""
    folders, file = name.split("/")[:-1], name.split("/")[-1]
    return not {"tests", "benches", "examples"}.isdisjoint(folders) or file == "tests.rs" or file.endswith("_tests.rs")


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def closure(start, needs):
    found, more = set(), {start}
    while more:
        found |= more
        more = {need for name in more for need in needs.get(name, ())} - found
    return found


def digests_of(root):
    names = output("git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")
    files = [name for name in names if name and not name.startswith(NEVER) and (root / name).is_file()]
    return {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in files}


def main():
    metadata = json.loads(output("cargo", "metadata", "--no-deps", "--offline", "--locked", "--format-version", "1"))
    root = pathlib.Path(metadata["workspace_root"])
    folders = {p["name"]: os.path.relpath(pathlib.Path(p["manifest_path"]).parent, root) + "/" for p in metadata["packages"]}
    workspace = tomllib.loads((root / "Cargo.toml").read_text())
    locked = tomllib.loads((root / "Cargo.lock").read_text())["package"]
    # "name", or "name version" where there are several: all of a name are taken.
    needs, versions = {}, {}
    for package in locked:
        needs.setdefault(package["name"], set()).update(d.split()[0] for d in package.get("dependencies", ()))
        versions.setdefault(package["name"], []).append([package["version"], package.get("checksum")])
    digests = digests_of(root)
    # A package whose folder lies within another's is its own.
    owner = {name: max((f for f in folders.values() if name.startswith(f)), key=len, default="") for name in digests}
    shared = [name for name in digests if name.startswith(SHARED)]
    compiler = [output("rustc", "--version").decode(), workspace.get("profile"), workspace["workspace"].get("lints")]
    for package in sorted(folders):
        below = closure(package, needs)
        inside = {folders[name] for name in below & folders.keys()}
        own = folders[package]
        built = {n for n in digests if owner[n] == own or owner[n] in inside and not only_tests(n)}
        files = set(digests) if package in READS_ALL else built | set(shared)
        asked = {name: spec for name, spec in workspace["workspace"]["dependencies"].items() if name in below}
        said = [compiler, asked, sorted((n, versions[n]) for n in below), sorted((n, digests[n]) for n in files)]
        print(package, hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest())


if __name__ == "__main__":
    main()
