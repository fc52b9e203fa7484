#!/usr/bin/env bash
# Every row of figures in short form: ours and its peers in the same rounds, with JSON and pictures in OUTPUT.
# usage: bench.sh YAGURA OUTPUT
set -euo pipefail
yagura=$1 output=$2
mkdir -p "$output"

# Long enough that a round holds thousands of operations, short enough that all rows take minutes.
short=(--rounds 5 --time 300 --output "$output")

"$yagura" bench device "${short[@]}" --file "$output/device.img"
"$yagura" bench wire "${short[@]}"
"$yagura" bench kv "${short[@]}"
rm -f "$output/device.img"
echo "bench: JSON and SVG in $output"
