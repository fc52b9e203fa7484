#!/usr/bin/env bash
# Every row of figures in short form: ours and its peers in the same rounds, with JSON and pictures in OUTPUT.
# usage: bench.sh YAGURA OUTPUT
set -euo pipefail
yagura=$1 output=$2
mkdir -p "$output"
output=$(realpath "$output")

# Long enough that a round holds thousands of operations, short enough that all rows take minutes.
short=(--rounds 5 --time 300 --output "$output")

"$yagura" bench device "${short[@]}" --file "$output/device.img"
"$yagura" bench wire "${short[@]}"
"$yagura" bench scale "${short[@]}"
"$yagura" bench kv "${short[@]}"
"$yagura" bench kv "${short[@]}" --replicas 1,3 --values 3900 --folder "$output"
"$yagura" bench kv-scale "${short[@]}"
# YCSB itself, whose client takes a second to warm up.
scripts/ycsb.py "$yagura" "$output" --rounds 3 --operations 20000
rm -f "$output/device.img"*
# Row B3 runs inside a guest: Linux's own target and initiator want a kernel of their own.
YAGURA=$yagura OUTPUT=$output ROUNDS=3 SECONDS_EACH=1 scripts/guest.sh figures
scripts/report.py "$output" > "$output/REPORT.md"
echo "bench: JSON, SVG and REPORT.md in $output"
