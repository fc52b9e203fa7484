#!/usr/bin/env python3
"""Prints the files of kernel modules and of all they depend on, in the order in which they can be loaded.

usage: modules.py MODULES_DIR NAME…      (MODULES_DIR holds modules.dep; a NAME built into the kernel is skipped)
"""

import os
import sys


def canonical(name):
    return name.replace("-", "_")


def main(folder, *wanted):
    needs, files = {}, {}
    with open(os.path.join(folder, "modules.dep"), encoding="ascii") as lines:
        for line in lines:
            file, dependencies = line.split(":", 1)
            needs[file] = dependencies.split()
            files[canonical(os.path.basename(file).split(".ko")[0])] = file
    with open(os.path.join(folder, "modules.builtin"), encoding="ascii") as lines:
        built_in = {canonical(os.path.basename(line.strip()).removesuffix(".ko")) for line in lines}
    ordered = []

    def add(file):
        for dependency in needs[file]:
            if dependency not in ordered:
                add(dependency)
        if file not in ordered:
            ordered.append(file)

    for name in map(canonical, wanted):
        if name in files:
            add(files[name])
        elif name not in built_in:
            sys.exit(f"modules.py: this kernel has no module {name}")
    print("\n".join(ordered))


main(*sys.argv[1:])
