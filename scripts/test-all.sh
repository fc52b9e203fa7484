#!/usr/bin/env bash
# Everything that the gate has no time for, once `make test` has passed: the mutants, which keep one processor busy for an hour or
# two, beside all guest tests, fuzzing, the long simulation, ten million entries and the models, one after the other. What a stage
# says is in a file of its own; one that fails keeps no other from being run. Ends with a table and one line, PASS or FAIL.
# Variables of `make test-all` (SEEDS, ENTRIES, SECONDS) reach the stages by make's own ways.
set -euo pipefail
cd "$(dirname "$0")/.."

# What a stage may take, several times what the longest does here: one that stands still is to be told, not waited for.
STAGE_SECONDS=$((4 * 3600))

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
logs=$target/test-all
# The gate has built the binary.
export YAGURA=$target/debug/yagura
rm -rf "$logs"
mkdir -p "$logs"
lanes=()
# Each lane is the leader of a process group, which ends as a whole.
trap 'for lane in "${lanes[@]}"; do kill -- "-$lane" 2>/dev/null || true; done' EXIT
trap 'exit 130' INT TERM

# lane STAGE…: one after the other, each `make STAGE`.
lane() {
  local stage began status
  for stage; do
    began=$SECONDS status=0
    printf '== %s: what it says is in %s\n' "$stage" "$logs/$stage.log"
    timeout --foreground --kill-after=10 "$STAGE_SECONDS" "${MAKE:-make}" "$stage" >"$logs/$stage.log" 2>&1 </dev/null || status=$?
    if [ $status != 0 ]; then
      printf '== %s: FAILED with status %d; its last lines:\n' "$stage" $status
      tail -n 20 "$logs/$stage.log"
    fi
    printf '%-8s %5d s  %s\n' "$stage" $((SECONDS - began)) "$([ $status = 0 ] && echo passed || echo FAILED)" | tee -a "$logs/table"
  done
}

began=$SECONDS
set -m
lane mutants &
lanes+=($!)
lane guest fuzz sim entries model &
lanes+=($!)
set +m
ended=0
for lane in "${lanes[@]}"; do wait "$lane" || ended=$?; done
lanes=()
printf '\n'
cat "$logs/table"
# A lane that ended between two stages leaves no row.
if grep -q 'FAILED$' "$logs/table" || [ "$ended" != 0 ] || [ "$(wc -l <"$logs/table")" != 6 ]; then
  echo "test-all: FAIL after $((SECONDS - began)) s beside the gate's"
  exit 1
fi
echo "test-all: PASS: the gate and $(wc -l <"$logs/table") more stages, in $((SECONDS - began)) s beside the gate's"
