#!/usr/bin/env bash
# Installs the binary, the C library (shared, and static where it was built), its header and pkg-config's file.
# usage: install.sh PREFIX BINARY LIBRARIES   (LIBRARIES: the folder where cargo has put them)
# Environment: DESTDIR is put in front of every place, for packages.
set -euo pipefail
prefix=$(realpath -m "$1")
binary=$(realpath "$2")
libraries=$(realpath "$3")
cd "$(dirname "$0")/.."

root=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1)

install -D -m 755 "$binary" "$root/bin/yagura"
install -D -m 755 "$libraries/libyagura.so" "$root/lib/libyagura.so.$version"
ln -sf "libyagura.so.$version" "$root/lib/libyagura.so.0"
ln -sf libyagura.so.0 "$root/lib/libyagura.so"
if [ -e "$libraries/libyagura.a" ]; then
  install -D -m 644 "$libraries/libyagura.a" "$root/lib/libyagura.a"
fi
install -D -m 644 crates/capi/include/yagura.h "$root/include/yagura.h"
mkdir -p "$root/lib/pkgconfig"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" crates/capi/yagura.pc.in > "$root/lib/pkgconfig/yagura.pc"
echo "installed below $root"
