#!/usr/bin/env bash
# Runs every fuzz target for a while, on the stable toolchain: our code is safe Rust, so panics, hangs and unbounded memory
# are what there is to find, and no sanitizer is needed.
# usage: fuzz.sh SECONDS [TARGET…]
# What it finds is left in fuzz/artifacts/TARGET; `cargo fuzz run --sanitizer none TARGET FILE` replays it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift

# A decoder that needs more for one input has lost a bound.
INPUT_SECONDS_MAX=10
MEMORY_MIB_MAX=1024
# Above the largest PDU header plus a few pages of data, so that length fields can be wrong in both directions.
INPUT_BYTES_MAX=16384

if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(cargo fuzz list); fi
# Where cargo-fuzz builds to, whatever this workspace's own target directory is.
unset CARGO_TARGET_DIR
cargo fuzz build --sanitizer none
built=fuzz/target/$(rustc -vV | sed -n 's/^host: //p')/release
for target in "${targets[@]}"; do
  mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
  folders=("fuzz/corpus/$target")
  [ ! -d "fuzz/seeds/$target" ] || folders+=("fuzz/seeds/$target")
  log=fuzz/artifacts/$target/log
  if ! "$built/$target" "${folders[@]}" -artifact_prefix="fuzz/artifacts/$target/" -max_total_time="$seconds" \
    -timeout=$INPUT_SECONDS_MAX -rss_limit_mb=$MEMORY_MIB_MAX -max_len=$INPUT_BYTES_MAX -print_final_stats=1 >"$log" 2>&1
  then
    tail -n 60 "$log"
    echo "fuzz: $target FAILED; replay: cargo fuzz run --sanitizer none $target FILE"
    exit 1
  fi
  echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, nothing found"
done
