#!/usr/bin/env bash
# The simulations of the whole store and of the whole volume: storage nodes, hosts, links and disks in one process on a virtual
# clock; and lives on flash whose power is lost. PACKAGE=kv, volume or flash runs one of the three; the other variables that tell
# seeds apart are the store's.
# Environment: SEEDS=n runs n fresh seeds, SEEDS_FULL, SEEDS_DRAWN_OUT, SEEDS_ROLLED_BACK, SEEDS_LOST, SEEDS_HUNGRY=n those of n
# that are such, SEED_FIRST=s begins there; SEED=s runs that one; none: the fixed seeds of the gate and a fresh one. A seed that
# fails is printed, and is the same run wherever it is run. Many seeds are built for in the profile `sim`: optimised, and with all
# assertions and overflow checks that the gate has.
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=$((${SEEDS:-0} + ${SEEDS_FULL:-0} + ${SEEDS_DRAWN_OUT:-0} + ${SEEDS_ROLLED_BACK:-0} + ${SEEDS_LOST:-0} + ${SEEDS_HUNGRY:-0}))
# Chosen: fewer are done by the time that the other build takes.
profile=(); ((seeds < 200)) || profile=(--profile sim)
packages=(--package kv --package volume --package flash)
[ -z "${PACKAGE:-}" ] || packages=(--package "$PACKAGE")
exec cargo test --locked "${profile[@]}" "${packages[@]}" --test all -- --nocapture sim::
