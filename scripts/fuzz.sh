#!/usr/bin/env bash
# Runs every fuzz target for a while, on the stable toolchain: our code is safe Rust, so panics, hangs and unbounded memory
# are what there is to find, and no sanitizer is needed.
# usage: fuzz.sh SECONDS [TARGET…]
# As many run at once as there are processors. What one finds is left in fuzz/artifacts/TARGET; the program that is named then,
# given that file, replays it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shift

# A decoder that needs more for one input has lost a bound.
INPUT_SECONDS_MAX=10
MEMORY_MIB_MAX=1024
# Above the largest PDU header plus a few pages of data, so that length fields can be wrong in both directions.
INPUT_BYTES_MAX=16384

if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(basename -s .rs -a fuzz/fuzz_targets/*.rs); fi

# What `cargo fuzz build --sanitizer none` does, in the units of code that the manifest asks for: it insists on one, which is
# faster by a part that seconds of fuzzing do not repay. With a target named, build scripts are spared these flags.
host=$(rustc -vV | sed -n 's/^host: //p')
instrumented=(-Cpasses=sancov-module --cfg fuzzing)
for option in sanitizer-coverage-level=4 sanitizer-coverage-inline-8bit-counters sanitizer-coverage-pc-table \
  sanitizer-coverage-trace-compares sanitizer-coverage-stack-depth simplifycfg-branch-fold-threshold=0; do
  instrumented+=("-Cllvm-args=-$option")
done
# In a folder of its own, whatever this workspace's own target directory is.
RUSTFLAGS=${instrumented[*]} CARGO_TARGET_DIR=fuzz/target cargo build --manifest-path fuzz/Cargo.toml --locked --release --target "$host"

# fuzz TARGET
fuzz() {
  local folders=("fuzz/corpus/$1") log=fuzz/artifacts/$1/log program=fuzz/target/$host/release/$1
  mkdir -p "fuzz/corpus/$1" "fuzz/artifacts/$1"
  [ ! -d "fuzz/seeds/$1" ] || folders+=("fuzz/seeds/$1")
  if ! "$program" "${folders[@]}" -artifact_prefix="fuzz/artifacts/$1/" -max_total_time="$seconds" \
    -timeout=$INPUT_SECONDS_MAX -rss_limit_mb=$MEMORY_MIB_MAX -max_len=$INPUT_BYTES_MAX -print_final_stats=1 >"$log" 2>&1
  then
    tail -n 60 "$log"
    echo "fuzz: $1 FAILED; replay: $program FILE"
    return 1
  fi
  echo "fuzz: $1: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs in $seconds s, nothing found"
}
export -f fuzz
export host seconds INPUT_SECONDS_MAX MEMORY_MIB_MAX INPUT_BYTES_MAX
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
