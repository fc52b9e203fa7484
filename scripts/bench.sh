#!/usr/bin/env bash
# Rows of figures in short form: ours and its peers in the same rounds, with JSON and pictures in OUTPUT.
# usage: bench.sh YAGURA OUTPUT [ROW]   ROW: device, B1 (to B2b), scale, B4, ycsb, B5, B6 (with B7), B9, B10, B11, B12, B13, B14,
# B15, B3; all if left out; or B8, for which Ceph is installed
set -euo pipefail
yagura=$1 output=$2 only=${3:-}
mkdir -p "$output"
output=$(realpath "$output")

# Long enough that a round holds thousands of operations, short enough that all rows take minutes.
short=(--rounds 5 --time 300 --output "$output")

device() {
  "$yagura" bench device "${short[@]}" --file "$output/device.img"
  rm -f "$output/device.img"*
}
B1() { "$yagura" bench wire "${short[@]}"; }
scale() { "$yagura" bench scale "${short[@]}"; }
table() { "$yagura" bench table "${short[@]}"; }
B4() {
  "$yagura" bench kv "${short[@]}"
  "$yagura" bench kv "${short[@]}" --replicas 1,3 --values 3900 --folder "$output"
  ycsb
}
# YCSB itself, whose client takes a second to warm up.
ycsb() { scripts/ycsb.py "$yagura" "$output" --rounds 3 --operations 20000; }
# Enough that the least DRAM share is a server's least memory, and is stored within seconds.
B6() {
  "$yagura" bench cache "${short[@]}" --size 1280MiB --connections 16 --folder "$output"
  "$yagura" bench cache-busy "${short[@]}" --size 1GiB --folder "$output"
}
# A tenth of what the aim is for.
B15() { "$yagura" bench cache-start "${short[@]}" --size 1GiB --folder "$output"; }
# Its sides are many and even: briefer ones.
B12() { "$yagura" bench erasure --rounds 9 --time 30 --output "$output"; }
# In virtual time: neither rounds nor times say how sure it is.
B10() { "$yagura" bench flash --rows olive --rounds 1 --time 500 --output "$output"; }
# One seed; a hundred device writes are enough to see wear.
B11() { "$yagura" bench flash --rows cost --rounds 1 --device-writes 100 --output "$output"; }
B9() {
  "$yagura" bench volume "${short[@]}"
  "$yagura" bench volume "${short[@]}" --folder "$output"
}
# Ceph is a quarter of a gigabyte of packages: only for who asks. Longer rounds, as it takes a while to get going. Its files, ours
# and the disk's take 28 GiB while it runs.
B8() {
  scripts/deps.sh ceph
  "$yagura" bench ceph --rounds 3 --time 3000 --output "$output" --folder "$output"
}
B5() { "$yagura" bench kv-scale "${short[@]}"; }
B13() { "$yagura" bench hot-node "${short[@]}"; }
# Wants root, for the mounts; beside GlusterFS where that is installed.
B14() { scripts/files.py "$yagura" "$output" --rounds 3 --seconds 1; }
# Inside a guest: Linux's own target and initiator want a kernel of their own.
B3() { YAGURA=$yagura OUTPUT=$output ROUNDS=3 SECONDS_EACH=1 scripts/guest.sh figures; }

case $only in
  "") for row in device B1 scale table B4 B5 B6 B9 B10 B11 B12 B13 B14 B15 B3; do "$row"; done ;;
  B1 | B2 | B2a | B2b) B1 ;;
  B7) B6 ;;
  device | scale | table | B4 | ycsb | B5 | B6 | B8 | B9 | B10 | B11 | B12 | B13 | B14 | B15 | B3) "$only" ;;
  *) echo "bench: no row $only; there are device, B1, B2, B2a, B2b, B3, B4, ycsb, B5, B6, B7, B8, B9, B10, B11, B12, B13, B14, B15, scale and table" >&2; exit 2 ;;
esac
scripts/report.py "$output" > "$output/REPORT.md"
echo "bench: JSON, SVG and REPORT.md in $output"
