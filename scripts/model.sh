#!/usr/bin/env bash
# Searches the models of the store's protocol and of the mirror's far beyond what the gate has time for; fails on a violation, on
# a broken rule that is not caught, and on a search that does not end.
set -euo pipefail
cd "$(dirname "$0")/.."
groups=(small main delete loss cas reserve struck one-attempt full-small full
  change-small change change-full-small collect-small collect
  page-small page-main page-large orphan bundle bundle-large
  agree agree-large superblock superblock-large broken)
for group in "${groups[@]}"; do
  printf '== %s\n' "$group"
  cargo run --quiet --locked --package kv-model -- "$group"
done
for group in one replace degraded resume two both lease three mid volatile power uncounted handover snapshot grow broken; do
  printf '== volume: %s\n' "$group"
  cargo run --quiet --locked --package volume-model -- "$group"
done
