#!/usr/bin/env bash
# The gate: every stage a change must pass, in the order that fails fastest. Prints each stage's name and time, the slowest
# tests, and ends with one line, PASS or FAIL; the exit status says the same.
# Environment: STAGES="format lint …" runs only those, for work on the gate itself (the last line then says PARTIAL).
set -euo pipefail
cd "$(dirname "$0")/.."
# What is for longer runs (`make test-all SEEDS=1000` hands it to every recipe) would have tests of fixed seeds pass unrun.
unset SEED "${!SEEDS@}" SEED_FIRST ENTRIES REQUESTS CRASH_EVERY

# What a stage may take, several times what the longest does: a test that stands still is to be told, not waited for.
GATE_STAGE_SECONDS=${GATE_STAGE_SECONDS:-3600}
SLOWEST_SHOWN=10

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
began=$SECONDS
stage=start
ran=()
child=
beside=
trap 'finish $?' EXIT
trap 'exit 130' INT TERM

finish() {
  local status=$1 total=$((SECONDS - began))
  trap - EXIT
  # Each is the leader of a process group, which ends as a whole.
  for pid in $child $beside; do kill "$pid" 2>/dev/null || true; done
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

known=" format tidy deny clippy product build test doc python guest "
for name in ${STAGES:-}; do
  [[ $known == *" $name "* ]] || { echo "there is no stage $name; there are$known" >&2; exit 2; }
done

wanted() { [[ -z "${STAGES:-}" || " $STAGES " == *" $1 "* ]]; }

bounded() { exec timeout --kill-after=10 "$GATE_STAGE_SECONDS" "$@"; }

# run NAME COMMAND…
run() {
  stage=$1
  shift
  wanted "$stage" || return 0
  local start=$SECONDS
  printf '\n== %s: %s\n' "$stage" "$*"
  bounded "$@" &
  child=$!
  wait "$child"
  child=
  ran+=("$(printf '%-10s %4d s' "$stage" $((SECONDS - start)))")
}

# begin_beside NAME COMMAND…: a stage that waits more than it computes, beside those that follow; there is one.
begin_beside() {
  wanted "$1" || return 0
  beside_name=$1 beside_log=$target/gate-$1.log beside_began=$(date +%s)
  shift
  printf '\n== %s: %s (beside what follows; what it says is in %s)\n' "$beside_name" "$*" "$beside_log"
  bounded "$@" >"$beside_log" 2>&1 </dev/null &
  beside=$!
}

end_beside() {
  [ -n "$beside" ] || return 0
  stage=$beside_name
  local start=$SECONDS status=0
  wait "$beside" || status=$?
  beside=
  if [ $status != 0 ]; then
    printf '\n== %s: FAILED; it said:\n' "$stage"
    cat "$beside_log"
    return $status
  fi
  local took=$(($(stat -c %Y "$beside_log") - beside_began))
  ran+=("$(printf '%-10s %4d s, the last %d of them alone' "$stage" $took $((SECONDS - start)))")
}

# The tests that took longest, and those that this machine can't run, of what the runner wrote about each.
slowest() {
  python3 - target/nextest/default/junit.xml "$SLOWEST_SHOWN" <<'PY'
import sys, xml.etree.ElementTree
found = list(xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"))
cases = [(float(case.get("time")), case.get("classname"), case.get("name")) for case in found]
print(f"{len(cases)} tests; the slowest:")
for seconds, program, name in sorted(cases, reverse=True)[:int(sys.argv[2])]:
    print(f"{seconds:8.1f} s  {program} {name}")
told = ["".join(case.itertext()) for case in found]
untried = [name for (_, _, name), said in zip(cases, told) if "skipped: " in said or "not tried: " in said]
print(f"{len(untried)} tests could not be tried on this machine{':' if untried else ''} {' '.join(untried)}".rstrip())
PY
}

# All that is tested is built once, in one profile: the programs that other stages use too.
tests=(cargo nextest run --workspace --locked)

run format cargo fmt --all --check
run format cargo fmt --manifest-path fuzz/Cargo.toml --check
run tidy scripts/tidy.sh
run deny cargo deny --offline --locked check --hide-inclusion-graph licenses bans sources
run clippy cargo clippy --workspace --all-targets --locked -- -D warnings
# All that is tested has the feature `testing`; what is given away must compile without it.
run product cargo clippy --workspace --locked -- -D warnings
run build "${tests[@]}" --no-run
! wanted build || export YAGURA=$target/debug/yagura
begin_beside guest scripts/guest.sh gate
# Many tests wait for a deadline, a process or the medium: half as many again as there are processors keeps those busy.
run test "${tests[@]}" --test-threads $(($(nproc) + ($(nproc) + 1) / 2))
! wanted test || slowest
run doc cargo test --workspace --doc --locked --quiet
run python scripts/python.sh
end_beside
