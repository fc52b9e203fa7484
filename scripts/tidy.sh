#!/usr/bin/env bash
# Runs the lint of crates/yagura/tests/tidy/main.rs without cargo: it uses std alone, so this takes seconds on a cold tree.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${CARGO_TARGET_DIR:-target}/tidy
mkdir -p "$out"
CARGO_MANIFEST_DIR=$PWD/crates/yagura rustc --edition 2024 -C opt-level=1 --test crates/yagura/tests/tidy/main.rs -o "$out/tidy"
exec "$out/tidy" --quiet
