#!/usr/bin/env bash
# A real Linux kernel as peer, in a guest under emulation:
#   initiator      the kernel's initiator uses `yagura target` on this machine: discover, connect, mkfs, mount, copy, fio --verify
#   target         `yagura nvme` on this machine reads and writes a namespace of the kernel's target
#   target-paths   the same over two ports with ANA groups, one of which is cut, made worse and left while bytes are under way
#   multipath      the kernel's multipath over two ports, one of which is cut, stalled and made worse under load
#   commands       every log, feature and command of ours that nvme-cli knows; many queues
#   reservations   two guests: what a reservation of the one lets the other do; it outlives the target
#   tls-initiator  the kernel's initiator uses our target over TLS, with keys of both versions of the identity and both derivations
#   tls-target     our host uses the kernel's target over TLS
#   medium         who serves a block device, a file or a drive has it alone
#   discovery      the kernel finds everything through our discovery service, stays connected to it, and is told of changes
#   live           namespaces come, grow and go while the kernel is connected
#   zones          the chunks of a model of flash as a zoned block device: blkzone, fio, and btrfs over a restart of the target
#   zoned-device   our media manager on zoned block devices of the kernel, over deaths of the target and zones that fail
#   management     namespaces of a drive, made and deleted by nvme-cli
#   csi            a volume is staged, published and used through the driver, over the death of a storage node and of the driver; it
#                  grows while it is mounted, and a snapshot of it becomes another volume
#   ublk           a volume as a block device by ublk, over the death of a storage node and of the process, and a change of hosts
#   authentication-initiator, authentication-target    DH-HMAC-CHAP, one way and both ways
#   figures        row B3: our target and host beside the kernel's, all inside the guest; B3.json in OUTPUT
# usage: guest.sh [gate | all | NAME…]     all: all but figures, which is the default; gate: those that the gate has time for,
# each with the few kinds, hashes and groups that need different code here
# Environment: YAGURA, the binary to test (built if not given); for figures OUTPUT, ROUNDS, SECONDS_EACH.
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

# A target in a guest computes slowly: beside other work a handshake has taken more than the usual five seconds.
patient=(--timeout 120)

free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }

# Waits until COMMAND… succeeds, five minutes at most: a guest boots in 5 s on an idle machine, in more than 40 beside other work.
await() {
  local tries
  for ((tries = 0; tries < 3000; tries++)); do
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
  local kinds=("file=$work/namespace,size=256MiB,block=512")
  [ -n "$brief" ] || kinds+=(memory=256MiB)
  for kind in "${kinds[@]}"; do
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

  local at=(--nqn "$nqn" "${patient[@]}" "127.0.0.1:$port")
  found() { "$yagura" nvme discover "127.0.0.1:$port" > "$work/discovery"; }
  await found
  cat "$work/discovery"
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

# Our host over two ports of the kernel's target.
target-paths() {
  local first second boot worker round
  first=$(free_port)
  second=$(free_port)
  echo "== guest: our host on two ports of the kernel's target"
  fresh_share "SIZE=$((64 << 20))" "SECOND=$second"
  HOST_FORWARD=$first HOST_FORWARD_SECOND=$second boot kernel-target-paths.sh
  await test -e "$share/ready"
  local at=(--nqn "$nqn" "${patient[@]}" "127.0.0.1:$first")

  # The first port's discovery service refers to the second one; both name the subsystem.
  followed() { "$yagura" nvme discover --follow --json "127.0.0.1:$first" > "$work/followed"; }
  await followed
  python3 - "$work/followed" "$nqn" "127.0.0.1:$first" "127.0.0.1:$second" <<'PY'
import json, sys
services = json.load(open(sys.argv[1]))
assert [service["service"] for service in services] == sys.argv[3:], services
for service in services:
    assert service["error"] is None and sys.argv[2] in json.dumps(service["entries"]), service
PY
  "$yagura" nvme identify "${at[@]}"
  "$yagura" nvme id-ns "${at[@]}"
  # The kernel's target has no fused pairs, so this namespace can't be a member of a store: that is said, and is no failure.
  "$yagura" nvme connect-test "${at[@]}" | tee "$work/trial"
  grep -q "Compare and Write" "$work/trial"

  local orders=0
  order() {
    orders=$((orders + 1))
    echo "$*" > "$share/order.new"
    mv "$share/order.new" "$share/order-$orders"
    await test -e "$share/obeyed-$orders"
  }
  # Bytes go out and come back for as long as the ports are troubled.
  work_on() {
    local seed
    for ((seed = 1; ; seed++)); do
      "$yagura" nvme write "${at[@]}" --path "127.0.0.1:$second" --pattern $seed --length 16MiB --fua > /dev/null
      "$yagura" nvme read "${at[@]}" --path "127.0.0.1:$second" --length 16MiB --verify-pattern $seed > /dev/null
      echo $seed > "$work/rounds"
      [ ! -e "$work/enough" ] || return 0
    done
  }
  rm -f "$work/enough"
  work_on &
  worker=$!
  children+=("$worker")
  # trouble NAME: lets the work go on under it for a while; it must get on.
  trouble() {
    local before
    before=$(cat "$work/rounds" 2>/dev/null || echo 0)
    gets_on() { [ "$(cat "$work/rounds" 2>/dev/null || echo 0)" -gt "$((before + 1))" ]; }
    await gets_on || { echo "guest.sh: the work stands still: $1" >&2; return 1; }
    kill -0 "$worker" || { echo "guest.sh: the work has failed: $1" >&2; return 1; }
    echo "== guest: the work goes on: $1"
  }
  trouble "both ports"
  for round in 1 2; do
    order cut $round
    trouble "port $round is cut"
    order mend $round
    trouble "port $round is back"
    order state $round 1 inaccessible
    trouble "port $round is inaccessible"
    order state $round 1 non-optimized
    trouble "port $round is the lesser one"
    order state $round 1 optimized
  done
  # At the first port the second group is inaccessible.
  order group 2
  trouble "the namespace is in a group of its own"
  order cut 1
  order mend 1
  order group 1
  order cut 2
  trouble "the namespace is in the first group again, at one port"
  order mend 2
  touch "$work/enough"
  wait "$worker" || { echo "guest.sh: the work has failed" >&2; return 1; }
  touch "$share/done"
  wait "$boot" || { echo "guest.sh: the guest failed" >&2; return 1; }
  children=()
}

# grant COMMAND…: does what the guest wishes, one word a wish, until it has ended: COMMAND WORD…
grant() {
  while kill -0 "$boot" 2>/dev/null; do
    if [ -e "$share/wish" ]; then
      local wish
      read -ra wish < "$share/wish"
      rm "$share/wish"
      "$@" "${wish[@]}"
      touch "$share/granted"
    fi
    sleep 0.1
  done
  wait "$boot" || { echo "guest.sh: the guest failed" >&2; return 1; }
}

# boot SCRIPT: a guest in the background, `$boot`.
boot() {
  guest/boot.sh "$image" "$share" "$1" &
  boot=$!
  children+=("$boot")
}

# serve ARGUMENT…: a target in the background, `$node`, with a control socket.
serve() { serve_as --nqn "$nqn" "$@"; }
serve_as() {
  rm -f "$work/control"
  "$yagura" target --control "$work/control" "$@" &
  node=$!
  children+=("$node")
  await test -S "$work/control"
}

stop() {
  kill -TERM "$node"
  wait "$node" || { echo "guest.sh: the target did not end cleanly" >&2; return 1; }
  children=()
}

multipath() {
  local direct behind through path_pid wishes
  direct=$(free_port)
  behind=$(free_port)
  echo "== guest: two paths, one of them cut, stalled and made worse, under load"
  serve --port "127.0.0.1:$direct,id=1" --port "127.0.0.1:$behind,id=2" --reactors 2 --namespace memory=64MiB
  coproc path { guest/path.py "$work/path.port" "$behind"; }
  # `path` is an array of its pipes only while it lives.
  # shellcheck disable=SC2154
  path_pid=$path_PID wishes=("${path[0]}" "${path[1]}")
  children+=("$path_pid")
  await test -s "$work/path.port"
  through=$(cat "$work/path.port")
  fresh_share "PORT_A=$direct" "PORT_B=$through"
  boot multipath.sh
  path_wish() {
    local done
    if [ "$1" = ana ]; then
      "$yagura" target ana --control "$work/control" --port 2 --group 1 --state "$2"
    else
      echo "$1" >&"${wishes[1]}"
      read -r done <&"${wishes[0]}"
      [ "$done" = "$1" ]
    fi
  }
  grant path_wish
  kill "$path_pid"
  stop
}

live() {
  local port
  port=$(free_port)
  echo "== guest: namespaces come, grow and go while the kernel is connected"
  serve --listen "127.0.0.1:$port" --namespace memory=64MiB
  fresh_share "PORT=$port" "GROW=1"
  boot live.sh
  live_wish() {
    case "$1" in
      add) "$yagura" target add-namespace --control "$work/control" "file=$work/second,size=32MiB,nsid=2" ;;
      grow) "$yagura" target resize-namespace --control "$work/control" --nsid 2 --size 64MiB ;;
      remove) "$yagura" target remove-namespace --control "$work/control" --nsid 2 ;;
    esac
  }
  grant live_wish
  stop
}

# The identity of a host that the targets know by its name.
host_nqn=nqn.2014-08.org.nvmexpress:uuid:6f2d1c3a-5b7e-4d11-9a80-0c1d2e3f4a5b
host_id=${host_nqn##*:}

management() {
  local port
  port=$(free_port)
  echo "== guest: namespaces of a drive, made and deleted by the kernel's tools"
  "$yagura" drive format "$work/drive" --size 512MiB
  serve --listen "127.0.0.1:$port" --drive "$work/drive" --host "nqn=$host_nqn,manage=yes"
  fresh_share "PORT=$port" "HOST_NQN=$host_nqn" "HOST_ID=$host_id"
  guest/boot.sh "$image" "$share" management.sh
  "$yagura" target drive list --control "$work/control"
  "$yagura" target drive scrub --control "$work/control"
  stop
  "$yagura" drive check "$work/drive"
}

# Keys of that host: one that both ends know for the host, one for the controller, one that nobody knows.
make_keys() {
  "$yagura" nvme gen-dhchap-key --hash sha256 --output "$share/host.key"
  "$yagura" nvme gen-dhchap-key --hash sha512 --output "$share/controller.key"
  "$yagura" nvme gen-dhchap-key --hash sha384 --output "$share/other.key"
}

# The kernel's initiator authenticates to our target, by every hash and every group: a target for each suite.
authentication-initiator() {
  local suite hash group port suites=() nodes=()
  echo "== guest: the kernel's initiator authenticates to our target"
  fresh_share "HOST_NQN=$host_nqn" "HOST_ID=$host_id"
  make_keys
  local wanted=(sha384:ffdhe2048 sha512:null)
  [ -n "$brief" ] || wanted+=(sha256:ffdhe3072 sha512:ffdhe4096 sha256:ffdhe6144 sha384:ffdhe8192)
  for suite in "${wanted[@]}"; do
    IFS=: read -r hash group <<< "$suite"
    port=$(free_port)
    "$yagura" target --nqn "$nqn" --listen "127.0.0.1:$port" --namespace memory=16MiB --dhchap-hashes "$hash" --dhchap-groups "$group" \
      --host "nqn=$host_nqn,dhchap-key-file=$share/host.key,dhchap-ctrl-key-file=$share/controller.key" &
    nodes+=($!)
    children+=($!)
    await answers "$port"
    suites+=("$suite:$port")
  done
  echo "SUITES='${suites[*]}'" >> "$share/settings"
  guest/boot.sh "$image" "$share" authentication-initiator.sh
  for node in "${nodes[@]}"; do
    kill -TERM "$node"
    wait "$node" || { echo "guest.sh: a target did not end cleanly" >&2; return 1; }
  done
  children=()
}

# Our host authenticates to the kernel's target.
authentication-target() {
  local port boot both hash group at number=0
  port=$(free_port)
  echo "== guest: our host authenticates to the kernel's target"
  fresh_share "HOST_NQN=$host_nqn"
  make_keys
  HOST_FORWARD=$port guest/boot.sh "$image" "$share" authentication-target.sh &
  boot=$!
  children+=("$boot")
  await test -e "$share/ready"
  # The kernel gives an authentication up a keep alive timeout after its last message, also while it computes with 8192 bits.
  at=(--nqn "$nqn" --host-nqn "$host_nqn" --keep-alive 60 "${patient[@]}" "127.0.0.1:$port")
  for both in 0 1; do
    for hash in sha256 sha384 sha512; do
      for group in null ffdhe2048 ffdhe3072 ffdhe4096 ffdhe6144 ffdhe8192; do
        # Each hash and each group once each way.
        [[ $hash = sha256 || $group = ffdhe3072 ]] || continue
        # The large groups take an emulated processor half a minute.
        [[ -z $brief || $hash:$group = sha256:null || $hash:$group = sha384:ffdhe3072 ]] || continue
        number=$((number + 1))
        echo "hmac($hash) $group $both" > "$share/next"
        mv "$share/next" "$share/suite-$number"
        await test -e "$share/armed-$number"
        local keys=(--dhchap-key-file "$share/host.key")
        [ $both = 0 ] || keys+=(--dhchap-ctrl-key-file "$share/controller.key")
        "$yagura" nvme write "${at[@]}" "${keys[@]}" --pattern 7 --length 1MiB
        "$yagura" nvme read "${at[@]}" "${keys[@]}" --length 1MiB --verify-pattern 7
      done
    done
  done
  refused() {
    if "$yagura" nvme identify "${at[@]}" "$@" 2> "$work/refused"; then
      echo "guest.sh: the kernel let us in with $*" >&2
      return 1
    fi
    cat "$work/refused"
  }
  refused
  refused --dhchap-key-file "$share/other.key"
  refused --dhchap-key-file "$share/host.key" --dhchap-ctrl-key-file "$share/other.key"
  touch "$share/done"
  wait "$boot" || { echo "guest.sh: the guest failed" >&2; return 1; }
  children=()
}

commands() {
  local port
  port=$(free_port)
  echo "== guest: every log, feature and command that nvme-cli knows of ours; many queues"
  serve --listen "127.0.0.1:$port" --reactors 2 --namespace "file=$work/commands,size=64MiB"
  fresh_share "PORT=$port"
  GUEST_CPUS=4 guest/boot.sh "$image" "$share" commands.sh
  stop
}

reservations() {
  local port other
  port=$(free_port)
  echo "== guest: reservations of two hosts, every type, also over a restart of the target"
  reserved() { serve --listen "127.0.0.1:$port" --namespace "file=$work/reserved,size=16MiB"; }
  reserved
  fresh_share "PORT=$port" "PERSIST=1"
  GUEST_NAME=b guest/boot.sh "$image" "$share" reservations.sh &
  other=$!
  children+=("$other")
  GUEST_NAME=a boot reservations.sh
  restart() {
    kill -KILL "$node"
    wait "$node" || true
    reserved
  }
  grant restart
  wait "$other" || { echo "guest.sh: the second guest failed" >&2; return 1; }
  stop
}

# tls_keys HOST: a key for HOST in the shared folder (tls.key), and its TLS keys as the standard says, made apart from our
# code: lines of key and identity (tls.derived), versions 1 and 0. By SHA-256 alone: the guest's tlshd (ktls-utils 1.0.0) asks
# GnuTLS for a pre-shared key without naming the hash of its binder, which is SHA-256 then, whatever the cipher suite.
tls_keys() {
  rm -f "$work/tls.key"
  "$yagura" nvme gen-tls-key --output "$work/tls.key"
  cp "$work/tls.key" "$share/tls.key"
  python3 - "$1" "$nqn" "$work/tls.key" > "$share/tls.derived" <<'PY'
import base64, hashlib, hmac, struct, sys
host, subsystem = sys.argv[1].encode(), sys.argv[2].encode()
key = base64.b64decode(open(sys.argv[3]).read().strip().split(":")[2])[:-4]
mac = lambda key, data: hmac.new(key, data, hashlib.sha256).digest()
def expand(key, label, context):
    info = struct.pack(">HB", 32, len(label) + 6) + b"tls13 " + label + bytes([len(context)]) + context
    return mac(mac(bytes(32), key), info + b"\x01")
retained = expand(key, b"HostNQN", host)
digest = base64.b64encode(mac(retained, host + b" " + subsystem + b" NVMe-over-Fabrics"))
for kind, context in ((b"NVMe1R01", b"01 " + digest), (b"NVMe0R01", None)):
    identity = kind + b" " + host + b" " + subsystem + (b" " + digest if context else b"")
    print(expand(retained, b"nvme-tls-psk", context or identity).hex(), identity.decode())
PY
}

tls-initiator() {
  local host port legacy
  host=$(echo "yagura guest guest" | md5sum | sed 's/\(.\{8\}\)\(.\{4\}\)\(.\{4\}\)\(.\{4\}\)\(.\{12\}\).*/\1-\2-\3-\4-\5/')
  host=nqn.2014-08.org.nvmexpress:uuid:$host
  port=$(free_port)
  echo "== guest: the kernel's initiator over TLS"
  legacy=$(free_port)
  fresh_share "PORT=$port" "PORT_LEGACY=$legacy" KEY_BYTES=32
  tls_keys "$host"
  local key="nqn=$host,tls-key-file=$work/tls.key" old
  # nvme-cli of the guest (2.13) derives in the old way, which has the same identities of version 0: a target of its own.
  "$yagura" target --nqn "$nqn" --port "127.0.0.1:$legacy,tls=allowed" --host "$key,tls-legacy=yes" --namespace memory=64MiB &
  old=$!
  children+=("$old")
  serve --port "127.0.0.1:$port,id=1,tls=required" --host "$key" --namespace memory=64MiB
  guest/boot.sh "$image" "$share" tls-initiator.sh
  kill -TERM "$old"
  wait "$old" || { echo "guest.sh: the target did not end cleanly" >&2; return 1; }
  stop
}

tls-target() {
  local boot port version host=nqn.2026-11.io.yagura:guest-test-host
  port=$(free_port)
  echo "== guest: our host on the kernel's target, over TLS"
  fresh_share
  tls_keys "$host"
  HOST_FORWARD=$port guest/boot.sh "$image" "$share" tls-target.sh &
  boot=$!
  children+=("$boot")
  await test -e "$share/ready"
  for version in 1 0; do
    local at=(--nqn "$nqn" --host-nqn "$host" --tls --tls-key-file "$work/tls.key" --tls-identity "$version")
    at+=("${patient[@]}" "127.0.0.1:$port")
    "$yagura" nvme identify "${at[@]}"
    "$yagura" nvme write "${at[@]}" --pattern "$version" --length 8MiB --fua
    "$yagura" nvme read "${at[@]}" --length 8MiB --verify-pattern "$version"
  done
  if "$yagura" nvme identify --nqn "$nqn" --host-nqn "$host" "127.0.0.1:$port" 2>/dev/null; then
    echo "guest.sh: the kernel served a plain connection where it requires TLS" >&2
    return 1
  fi
  touch "$share/done"
  wait "$boot" || { echo "guest.sh: the guest failed" >&2; return 1; }
  children=()
}

discovery() {
  local port other there
  port=$(free_port)
  other=$(free_port)
  echo "== guest: discovery, by referral and kept"
  # The guest knows this machine by another address.
  "$yagura" target --nqn "$nqn-referred" --port "127.0.0.1:$other,advertise=10.0.2.2:$other" --namespace memory=16MiB &
  there=$!
  children+=("$there")
  serve_as --port "127.0.0.1:$port,advertise=10.0.2.2:$port" --referral "10.0.2.2:$other" \
    --subsystem "nqn=$nqn-open,allow=any" --subsystem "nqn=$nqn-listed,allow=listed" \
    --namespace "memory=16MiB,subsystem=$nqn-open" --namespace "memory=16MiB,subsystem=$nqn-listed"
  fresh_share "PORT=$port"
  boot discovery.sh
  allow() { "$yagura" target allow-host --control "$work/control" --subsystem "$nqn-listed" "$2"; }
  grant allow
  kill -TERM "$there"
  wait "$there" || { echo "guest.sh: the referred target did not end cleanly" >&2; return 1; }
  stop
}

zones() {
  local port
  port=$(free_port)
  echo "== guest: zones, by fio and with btrfs, over a restart of the target"
  "$yagura" flash format "$work/zoned" --preset zoned --zones
  zoned() { serve --listen "127.0.0.1:$port" --namespace "zones=$work/zoned"; }
  zoned
  fresh_share "PORT=$port" "ZONES=128"
  boot zones.sh
  restart() {
    kill -KILL "$node"
    wait "$node" || true
    zoned
  }
  grant restart
  stop
}

zoned-device() {
  echo "== guest: our media manager on zoned block devices of the kernel"
  truncate -s 256M "$work/zoned-drive"
  fresh_share
  pack_product
  GUEST_ZONED=$work/zoned-drive GUEST_SECONDS_MAX=900 guest/boot.sh "$image" "$share" zoned-device.sh
}

medium() {
  echo "== guest: who uses a medium has it alone"
  fresh_share
  pack_product
  guest/boot.sh "$image" "$share" medium.sh
}

csi() {
  echo "== guest: a volume for containers, over the death of a storage node and of the driver"
  fresh_share
  pack_product
  guest/boot.sh "$image" "$share" csi.sh
}

ublk() {
  echo "== guest: a volume by ublk, over the death of a storage node and of the process"
  fresh_share
  pack_product
  guest/boot.sh "$image" "$share" ublk.sh
}

# Copies the product with its libraries and their loader, since the guest's own may be other ones.
pack_product() {
  mkdir -p "$share/lib"
  # Without what only a debugger reads, since the guest loads it over the shared folder.
  strip --strip-debug -o "$share/yagura" "$yagura"
  ldd "$yagura" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | xargs -I{} cp -L {} "$share/lib"
  cp -L "$(ldd "$yagura" | sed -n 's/^\s*\(\/[^ ]*ld-linux[^ ]*\).*/\1/p')" "$share/lib/loader"
}

figures() {
  local output=${OUTPUT:-bench}
  fresh_share "ROUNDS=${ROUNDS:-5}" "SECONDS_EACH=${SECONDS_EACH:-2}"
  pack_product
  echo "== guest: figures"
  GUEST_SECONDS_MAX=1800 guest/boot.sh "$image" "$share" figures.sh
  scripts/b3.py "$share/figures" "$output"
}

# All but the figures, in two lanes side by side that take about as long: a guest mostly waits for one processor of its own, or for
# the time that a test lets pass.
lanes=("initiator live management authentication-initiator tls-target"
  "commands target multipath discovery authentication-target")
# What the lanes have beyond the gate.
more=("target-paths medium csi zones" "reservations tls-initiator ublk zoned-device")
named=(figures)

# Each lane is this script with the lane's tests; what it says is shown when it has ended.
side_by_side() {
  local lane number=0 failed=0 pids=()
  for lane in "${lanes[@]}"; do
    # The names are meant to be split.
    # shellcheck disable=SC2086
    GUEST_BRIEF=$brief YAGURA=$yagura "$0" $lane > "$work/lane-$number" 2>&1 </dev/null &
    pids+=($!)
    number=$((number + 1))
  done
  children=("${pids[@]}")
  for number in "${!pids[@]}"; do
    wait "${pids[$number]}" || failed=1
    cat "$work/lane-$number"
  done
  children=()
  return $failed
}

# Of each test what the gate has time for.
brief=${GUEST_BRIEF:-}
case "$*" in
  '' | all) chosen=() lanes=("${lanes[0]} ${more[0]}" "${lanes[1]} ${more[1]}") ;;
  gate) chosen=() brief=1 ;;
  *) chosen=("$@") ;;
esac
for test in "${chosen[@]}"; do
  if [[ " ${lanes[*]} ${more[*]} ${named[*]} " != *" $test "* ]]; then
    echo "usage: guest.sh [gate | all | ${lanes[*]} ${more[*]} ${named[*]}]" >&2
    exit 2
  fi
done
prepare
if [ ${#chosen[@]} = 0 ]; then
  side_by_side
else
  for test in "${chosen[@]}"; do "$test"; done
fi
echo "guest: all passed (${chosen[*]:-${lanes[*]}})"
