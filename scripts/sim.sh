#!/usr/bin/env bash
# The simulation of the whole store: storage nodes, hosts, links and disks in one process on a virtual clock.
# Environment: SEEDS=n runs n fresh seeds, SEEDS_FULL=n those of them whose members have hardly any room; SEED=s runs that one;
# none: the fixed seeds of the gate and a fresh one. A seed that fails is printed, and is the same run wherever it is run.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo test --locked --package kv --test all -- --nocapture sim::
