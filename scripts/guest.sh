#!/usr/bin/env bash
# A real Linux kernel as peer, in a guest under emulation, both ways:
#   initiator   the kernel's initiator uses `yagura target` on this machine: discover, connect, mkfs, mount, copy, fio --verify
#   target      `yagura nvme` on this machine reads and writes a namespace of the kernel's target
# usage: guest.sh [initiator|target]     both by default
# Environment: YAGURA, the binary to test (built if not given).
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/yagura
# The image's name is what it is made from, so that a changed recipe makes a new image.
image=$cache/guest-$(cat guest/build-image.sh guest/init.sh guest/initrd.sh guest/modules.py | sha256sum | cut -c1-12)
nqn=nqn.2026-11.io.yagura:guest-test
yagura=${YAGURA:-}

work=$(mktemp -d)
share=$work/share
children=()
cleanup() {
  for child in "${children[@]}"; do kill "$child" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap cleanup EXIT

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }

# Waits until COMMAND… succeeds, a minute at most: a guest boots in 5 s on an idle machine.
await() {
  local tries
  for ((tries = 0; tries < 600; tries++)); do
    "$@" >/dev/null 2>&1 && return 0
    sleep 0.1
  done
  echo "guest.sh: this never came true: $*" >&2
  return 1
}

prepare() {
  mkdir -p "$cache"
  (
    flock 9
    [ -f "$image/root.ext4" ] || guest/build-image.sh "$image"
  ) 9>"$cache/guest.lock"
  if [ -z "$yagura" ]; then
    cargo build --locked --bin yagura
    yagura=${CARGO_TARGET_DIR:-target}/debug/yagura
  fi
}

# fresh_share NAME=VALUE…: an empty shared folder with the guest's scripts and these settings.
fresh_share() {
  rm -rf "$share"
  mkdir -p "$share"
  cp guest/tests/*.sh "$share"
  printf '%s\n' "NQN=$nqn" "$@" > "$share/settings"
}

initiator() {
  local port size=$((256 << 20)) kind node
  # Once in memory, once in a file by direct I/O: the kernel must not see the difference.
  for kind in memory=256MiB "file=$work/namespace,size=256MiB,block=512"; do
    port=$(free_port)
    echo "== guest: the kernel's initiator on a namespace of ${kind%%[=,]*}"
    "$yagura" target --listen "127.0.0.1:$port" --nqn "$nqn" --namespace "$kind" &
    node=$!
    children+=("$node")
    await answers "$port"
    fresh_share "PORT=$port" "SIZE=$size"
    guest/boot.sh "$image" "$share" kernel-initiator.sh
    kill -TERM "$node"
    wait "$node" || { echo "guest.sh: the target did not end cleanly" >&2; return 1; }
    children=()
  done
}

target() {
  local port size=$((64 << 20)) block=4096 boot digests
  port=$(free_port)
  echo "== guest: our host on the kernel's target"
  fresh_share "SIZE=$size" "BLOCK=$block"
  HOST_FORWARD=$port guest/boot.sh "$image" "$share" kernel-target.sh &
  boot=$!
  children+=("$boot")
  await test -e "$share/ready"

  local at=(--nqn "$nqn" "127.0.0.1:$port")
  "$yagura" nvme discover "127.0.0.1:$port" | tee "$work/discovery"
  grep -qF "$nqn" "$work/discovery"
  "$yagura" nvme identify "${at[@]}"
  : > "$share/written"
  local lba=0
  for digests in "" "--header-digest" "--data-digest" "--header-digest --data-digest"; do
    echo "== guest: read and write, ${digests:-no digests}"
    head -c $((768 * block)) /dev/urandom > "$share/bytes-$lba"
    # The flags are meant to be split.
    # shellcheck disable=SC2086
    "$yagura" nvme write $digests "${at[@]}" --lba $lba --file "$share/bytes-$lba"
    # shellcheck disable=SC2086
    "$yagura" nvme read $digests "${at[@]}" --lba $lba --length $((768 * block)) --file "$work/back"
    cmp "$share/bytes-$lba" "$work/back"
    echo "$((lba * block)) bytes-$lba" >> "$share/written"
    lba=$((lba + 1024))
  done
  "$yagura" nvme write "${at[@]}" --lba $lba --pattern 7 --length 8MiB --fua
  "$yagura" nvme read "${at[@]}" --lba $lba --length 8MiB --verify-pattern 7
  if "$yagura" nvme read "${at[@]}" --lba $lba --length 8MiB --verify-pattern 8 2>/dev/null; then
    echo "guest.sh: a wrong pattern was taken for the right one" >&2
    return 1
  fi
  touch "$share/done"
  wait "$boot" || { echo "guest.sh: the guest failed" >&2; return 1; }
  children=()
}

directions=("$@")
[ $# -gt 0 ] || directions=(initiator target)
prepare
for direction in "${directions[@]}"; do
  case "$direction" in
    initiator | target) "$direction" ;;
    *) echo "usage: guest.sh [initiator|target]" >&2; exit 2 ;;
  esac
done
echo "guest: all passed"
