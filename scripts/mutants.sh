#!/usr/bin/env bash
# Breaks one guarantee at a time and shows that its named test notices. A test that cannot fail proves nothing.
# usage: mutants.sh [PATTERN]     only the patches whose name contains PATTERN
#
# Each mutants/*.patch opens with a header of "Name: value" lines:
#   Guarantee  the sentence that the patch makes untrue
#   Test       arguments of `cargo test` that select the crate and the test binary, then the exact name of the test
#   Env        optional: variables for the test, e.g. SEEDS=200
# For every patch: it applies; without it the test passes; with it the tree still builds and the test fails.
# Anything else is an error. The tree itself is not touched: the work is done on a copy, in a target directory of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
pattern=${1:-}

# A test that takes longer is not bounded, which is a defect of its own. Chosen: well above the slowest one here.
TEST_SECONDS_MAX=300

work=${CARGO_TARGET_DIR:-target}/mutants
mkdir -p "$work"
work=$(cd "$work" && pwd)
tree=$work/tree
export CARGO_TARGET_DIR=$work/target
log=$work/log.txt

copy_tree() {
  # Times are kept and files are replaced only where they differ, so that the copy builds incrementally.
  mkdir -p "$tree" "$work/fresh"
  (cd "$root" && git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -cf - 2>/dev/null) \
    | tar -C "$work/fresh" -xf -
  rm -rf "$tree"
  mv "$work/fresh" "$tree"
  git -C "$tree" init -q
}

# The value of header field $2 in patch $1.
field() { sed -n "/^diff --git/q; s/^$2: *//p" "$1" | head -n 1; }

# Runs the test of patch $1 in the copy. The words of Test are split on purpose: they are arguments.
run_test() {
  local words environment
  read -ra words <<<"$(field "$1" Test)"
  read -ra environment <<<"$(field "$1" Env)"
  local last=$((${#words[@]} - 1))
  (cd "$tree" && env "${environment[@]}" timeout "$TEST_SECONDS_MAX" \
    cargo test --locked "${words[@]:0:$last}" -- --exact "${words[$last]}") >"$log" 2>&1
}

explain() {
  tail -n 12 "$log" | sed 's/^/    | /'
}

copy_tree
bad=0 good=0
for patch in mutants/*"$pattern"*.patch; do
  [ -e "$patch" ] || { echo "mutants: no patch is named like '$pattern'" >&2; exit 2; }
  name=$(basename "$patch" .patch)
  if [ -z "$(field "$patch" Guarantee)" ] || [ -z "$(field "$patch" Test)" ]; then
    echo "BAD   $name: its header lacks Guarantee or Test"
    bad=$((bad + 1))
    continue
  fi
  began=$SECONDS
  test=$(field "$patch" Test)
  verdict=
  if ! git -C "$tree" apply --check "$root/$patch" 2>"$log"; then
    verdict="the patch no longer applies: mend it"
  elif ! run_test "$patch"; then
    verdict="its test fails without it: $test"
  elif ! grep -q '^test result: ok. 1 passed' "$log"; then
    verdict="there is no such test: $test"
  else
    git -C "$tree" apply "$root/$patch"
    status=0
    run_test "$patch" || status=$?
    git -C "$tree" apply --reverse "$root/$patch"
    if [ $status = 0 ]; then
      verdict="SURVIVED: $test does not notice"
    elif [ $status = 124 ]; then
      verdict="the test hangs: bound it"
    elif ! grep -qE "^running 1 test" "$log"; then
      verdict="the mutant does not build"
    fi
  fi
  if [ -n "$verdict" ]; then
    echo "BAD   $name: $verdict"
    explain
    bad=$((bad + 1))
  else
    echo "ok    $name: ${test##* } turns red ($((SECONDS - began)) s)"
    good=$((good + 1))
  fi
done
echo "mutants: $good noticed, $bad bad"
[ $bad = 0 ]
