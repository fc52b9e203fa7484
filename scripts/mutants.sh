#!/usr/bin/env bash
# Breaks one guarantee at a time and shows that its named test notices. A test that cannot fail proves nothing.
# usage: mutants.sh [PATTERN...]     only the patches whose name contains one of them
# Environment: LANES=n at a time, each in a copy of its own (as many as there are processors); ANEW=1: those, too, that are known.
#
# Each mutants/*.patch opens with a header of "Name: value" lines:
#   Guarantee  the sentence that the patch makes untrue
#   Test       arguments of `cargo test` that select the crate and the test binary, then the exact name of the test
#   Env        optional: variables for the test, e.g. SEEDS=200
# First, all named tests pass without any patch. Then, for every patch: it applies, and with it the tree still builds and
# the test fails. Anything else is an error. The tree itself is not touched: each lane works on a copy, in a target directory of
# its own, and takes one package after the other. What was noticed is kept there, by the patch and by all that its test is built
# from: while neither changes it is not run again, so that a run that was ended goes on where it was.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

# A test that takes longer is not bounded, which is a defect of its own. Chosen: well above the slowest one here.
TEST_SECONDS_MAX=300

work=${CARGO_TARGET_DIR:-target}/mutants
mkdir -p "$work"
work=$(cd "$work" && pwd)
# What is for longer runs would have tests of fixed seeds pass, or fail, unrun; what a patch needs of it stands in its header.
unset SEED "${!SEEDS@}" SEED_FIRST ENTRIES REQUESTS CRASH_EVERY
# One crate is built anew for each patch, and one test run: unoptimised, in small units and from what is left of the last build
# that is quickest.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_CODEGEN_UNITS=256 CARGO_INCREMENTAL=1
dependencies=profile.dev.package.\"*\".opt-level=2
LANES=${LANES:-$(nproc)}
kept=$work/noticed
queue=$work/queue
rm -rf "$queue"
mkdir -p "$kept" "$queue"

# Only files that differ are replaced, and those get a new time: what was last built may have been a mutant.
copy_tree() {
  mkdir -p "$tree"
  [ -d "$tree/.git" ] || git -C "$tree" init -q
  local file files=$lane/files
  (cd "$root" && git ls-files -z --cached --others --exclude-standard) >"$files"
  while IFS= read -r -d '' file; do
    [ -e "$root/$file" ] || continue
    cmp -s "$root/$file" "$tree/$file" && continue
    mkdir -p "$tree/$(dirname "$file")"
    cp "$root/$file" "$tree/$file"
  done <"$files"
  (cd "$tree" && find . -name .git -prune -o -type f -printf '%P\0') | sort -z >"$lane/there"
  sort -z "$files" | comm -z -13 - "$lane/there" | (cd "$tree" && xargs -0 -r rm -f)
}

# The value of header field $2 in patch $1.
field() { sed -n "/^diff --git/q; s/^$2: *//p" "$1" | head -n 1; }

# How cargo is told which tests to build for patch $1, with the patch's variables before it.
selection() {
  local words
  read -ra words <<<"$(field "$1" Test)"
  echo "$(field "$1" Env) cargo test --config $dependencies --locked ${words[*]:0:${#words[@]}-1}"
}

# The exact name of the test of patch $1.
test_name() {
  local words
  read -ra words <<<"$(field "$1" Test)"
  echo "${words[-1]}"
}

# Runs `$1`, the words of a selection, in the copy; they are split on purpose. The rest is for cargo.
cargo_test() {
  local words
  read -ra words <<<"$1"
  shift
  (cd "$tree" && timeout --foreground "$seconds" env "${words[@]}" "$@") >"$log" 2>&1
}

explain() {
  tail -n 12 "$log" | sed 's/^/    | /'
}

# The package of patch $1's test, which its selection names first.
package_of() {
  local words
  read -ra words <<<"$(field "$1" Test)"
  if [ "${words[0]:-}" = -p ]; then echo "${words[1]}"; else echo none; fi
}

declare -A sources
# Tests of the lane that fail without any patch: that they fail with one says nothing.
declare -A red
while read -r package hash; do sources[$package]=$hash; done < <(scripts/sources.py)

# What patch $1 and all that its test is built from come to.
state_of() { cat "$1" - <<<"${sources[$(package_of "$1")]}" | sha256sum; }

# Whether patch $1 was noticed in just this state.
is_kept() { [ "$(cat "$kept/$(basename "$1" .patch)" 2>/dev/null)" = "$(state_of "$1")" ]; }

report_bad() {
  echo "BAD   $1: $2"
  echo "$1" >>"$queue/bad"
}

# The named tests pass in the tree as it is: one run for all that share a binary.
run_untouched() {
  local patch selection
  declare -A names
  for patch in "${patches[@]}"; do
    selection=$(selection "$patch")
    names[$selection]+=" $(test_name "$patch")"
  done
  for selection in "${!names[@]}"; do
    local list
    read -ra list <<<"${names[$selection]}"
    echo "without any patch: $selection (${#list[@]} tests)"
    seconds=$((TEST_SECONDS_MAX * (${#list[@]} + 3)))
    cargo_test "$selection" -- --exact "${list[@]}" || explain
    for name in "${list[@]}"; do
      grep -qxF "test $name ... ok" "$log" && continue
      red[$selection $name]=1
      report_bad "$name" "is no test, or fails without any patch: $selection"
    done
  done
}

# Prints what is wrong with patch $1, if anything is.
verdict() {
  local selection status=0
  selection=$(selection "$1")
  git -C "$tree" apply --check "$root/$1" 2>"$log" || { echo "the patch no longer applies: mend it"; return; }
  git -C "$tree" apply "$root/$1"
  seconds=$((10 * TEST_SECONDS_MAX))
  if ! cargo_test "$selection" --no-run; then
    echo "the mutant does not build"
  else
    seconds=$TEST_SECONDS_MAX
    cargo_test "$selection" -- --exact "$(test_name "$1")" || status=$?
    if [ $status = 0 ]; then
      echo "SURVIVED: $(test_name "$1") does not notice"
    elif [ $status = 124 ]; then
      echo "the test hangs: bound it"
    elif ! grep -q "^running 1 test" "$log"; then
      echo "its test did not run"
    # A test fails, or takes its process with it by a signal; else the machine had no room, say.
    elif ! grep -qE "^test result: FAILED|\(signal: (4|6|7|8|11)," "$log"; then
      echo "its test did not end as one that fails"
    fi
  fi
  git -C "$tree" apply --reverse "$root/$1"
}

# All patches of one package, $1, in this lane.
run_package() {
  local patches patch name wrong began state
  mapfile -t patches <"$1"
  run_untouched
  for patch in "${patches[@]}"; do
    began=$SECONDS
    name=$(basename "$patch" .patch)
    [ -z "${red[$(selection "$patch") $(test_name "$patch")]:-}" ] || continue
    # First: one that is edited meanwhile is not the one that was run.
    state=$(state_of "$patch")
    wrong=$(verdict "$patch")
    if [ -n "$wrong" ]; then
      report_bad "$name" "$wrong"
      explain
    else
      echo "ok    $name: $(test_name "$patch") turns red ($((SECONDS - began)) s)"
      echo "$name" >>"$queue/good"
      echo "$state" >"$kept/$name"
    fi
  done
}

# Lane $1: the largest package that nobody has taken, as long as there is one.
run_lane() {
  lane=$work/lane-$1
  tree=$lane/tree
  log=$lane/log.txt
  export CARGO_TARGET_DIR=$lane/target
  mkdir -p "$lane"
  copy_tree
  local package
  while read -r package; do
    mv "$package" "$package.$1" 2>/dev/null || continue
    run_package "$package.$1"
  done < <(wc -l "$queue"/*.list 2>/dev/null | grep -v ' total$' | sort -rn | awk '{ print $2 }')
}

before=0
touch "$queue/bad" "$queue/good"
for pattern in "${@:-}"; do
  for patch in mutants/*"$pattern"*.patch; do
    [ -e "$patch" ] || { echo "mutants: no patch is named like '$pattern'" >&2; exit 2; }
    package=$(package_of "$patch")
    if [ -z "$(field "$patch" Guarantee)" ] || [ -z "$(field "$patch" Test)" ]; then
      report_bad "$patch" "its header lacks Guarantee or Test"
    elif [ -z "${sources[$package]:-}" ]; then
      report_bad "$patch" "its Test does not begin with -p and a package of this workspace"
    elif [ "${ANEW:-}" != 1 ] && is_kept "$patch"; then
      before=$((before + 1))
    else
      list=$queue/$package.list
      # Two patterns may name one patch.
      grep -qsxF "$patch" "$list" || echo "$patch" >>"$list"
    fi
  done
done

if compgen -G "$queue/*.list" >/dev/null; then
  # Each lane is the leader of a process group, which ends as a whole.
  lanes=()
  trap 'for pid in "${lanes[@]}"; do kill -- "-$pid" 2>/dev/null || true; done' EXIT
  trap 'exit 130' INT TERM
  set -m
  for ((i = 1; i <= LANES; i++)); do
    run_lane "$i" &
    lanes+=($!)
  done
  set +m
  for pid in "${lanes[@]}"; do wait "$pid" || report_bad "lane of process $pid" "ended with status $?"; done
  lanes=()
fi
bad=$(wc -l <"$queue/bad") good=$(wc -l <"$queue/good")
echo "mutants: $((good + before)) noticed ($before of them before, on the same sources), $bad bad"
[ "$bad" = 0 ]
