#!/usr/bin/env bash
# Installs the binary, the C library (shared and static), its header and pkg-config's file.
# usage: install.sh PREFIX BINARY   (DESTDIR: put in front of every place, for packages)
set -euo pipefail
prefix=$(realpath -m "$1")
binary=$(realpath "$2")
cd "$(dirname "$0")/.."

root=${DESTDIR:-}$prefix
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)

# The static library is made only here: it holds all of Rust's, and takes long.
cargo rustc --release --locked --package capi --lib --crate-type cdylib
cargo rustc --release --locked --package capi --lib --crate-type staticlib

install -D -m 755 "$binary" "$root/bin/yagura"
install -D -m 755 "$target/release/libyagura.so" "$root/lib/libyagura.so.$version"
ln -sf "libyagura.so.$version" "$root/lib/libyagura.so.0"
ln -sf libyagura.so.0 "$root/lib/libyagura.so"
install -D -m 644 "$target/release/libyagura.a" "$root/lib/libyagura.a"
install -D -m 644 crates/capi/include/yagura.h "$root/include/yagura.h"
mkdir -p "$root/lib/pkgconfig"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" crates/capi/yagura.pc.in > "$root/lib/pkgconfig/yagura.pc"
echo "installed below $root"
