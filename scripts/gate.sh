#!/usr/bin/env bash
# The gate: every stage a change must pass, in the order that fails fastest. Prints each stage's name and time and ends
# with one line, PASS or FAIL; the exit status says the same.
# Environment: STAGES="format lint …" runs only those, for work on the gate itself (the last line then says PARTIAL).
set -euo pipefail
cd "$(dirname "$0")/.."

# Seconds per fuzz target in the gate; the long run is `make fuzz`.
GATE_FUZZ_SECONDS=${GATE_FUZZ_SECONDS:-5}
# What a stage may take, several times what the longest does: a test that stands still is to be told, not waited for.
GATE_STAGE_SECONDS=${GATE_STAGE_SECONDS:-1800}

began=$SECONDS
stage=start
ran=()
child=
trap 'finish $?' EXIT
trap 'kill "$child" 2>/dev/null; exit 130' INT TERM

finish() {
  local status=$1 total=$((SECONDS - began))
  trap - EXIT
  echo
  for line in "${ran[@]}"; do echo "  $line"; done
  if [ "$status" = 124 ]; then
    echo "gate: FAIL in stage '$stage', ended after $GATE_STAGE_SECONDS s: its last lines say what stands still"
  elif [ "$status" != 0 ]; then
    echo "gate: FAIL in stage '$stage' after $total s"
  elif [ -n "${STAGES:-}" ]; then
    echo "gate: PARTIAL: ${#ran[@]} stages passed in $total s ($STAGES)"
  else
    echo "gate: PASS: ${#ran[@]} stages in $total s"
  fi
  exit "$status"
}

# run NAME COMMAND…
run() {
  stage=$1
  shift
  [[ -z "${STAGES:-}" || " $STAGES " == *" $stage "* ]] || return 0
  local start=$SECONDS
  printf '\n== %s: %s\n' "$stage" "$*"
  # In a process group of its own, which ends as a whole.
  timeout --kill-after=10 "$GATE_STAGE_SECONDS" "$@" &
  child=$!
  wait "$child"
  ran+=("$(printf '%-10s %4d s' "$stage" $((SECONDS - start)))")
}

run format cargo fmt --all --check
run format cargo fmt --manifest-path fuzz/Cargo.toml --check
run tidy scripts/tidy.sh
run deny cargo deny --offline --locked check --hide-inclusion-graph licenses bans sources
run clippy cargo clippy --workspace --all-targets --locked -- -D warnings
run unit cargo test --workspace --locked --exclude yagura --exclude kv --exclude kv-model \
  --exclude device
# What enumerates crashes and searches states (drive, store, model) runs optimised, with every assertion kept.
run store cargo test --profile sim --locked --package device --package kv --package kv-model -- \
  --skip fixed_seeds --skip fresh_seeds --skip one_seed_is_one_run --skip without_faults_nothing_fails
run sim scripts/sim.sh
run process cargo test --package yagura --locked
run python scripts/python.sh
run fuzz scripts/fuzz.sh "$GATE_FUZZ_SECONDS"
run guest scripts/guest.sh gate
