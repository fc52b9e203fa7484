# For the scripts that run inside the guest. The shared folder holds them, `settings` (from the host) and what they report.
set -euo pipefail
. /share/settings

step() { printf 'GUEST: %5.1f s: %s\n' "$(cut -d' ' -f1 /proc/uptime)" "$*"; }

fail() {
  echo "GUEST: FAILED: $*" >&2
  dmesg | tail -n 25 >&2
  exit 1
}
trap 'fail "line $LINENO: $BASH_COMMAND"' ERR

# Waits until COMMAND… succeeds; a step that never comes true ends the test, not the patience of whoever watches it.
await() {
  local tries=0
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || fail "this never came true: $*"
    sleep 0.1
  done
}

# Where the test begins in what the kernel says: how it took the emulated board is not the test's finding.
echo 'yagura: the test begins' >/dev/kmsg

# Fails if the kernel has told, since the test began, of a fault of its own or of what pattern $1 says.
kernel_is_content() {
  local said
  said=$(dmesg | sed '1,/yagura: the test begins/d')
  if grep -E 'BUG:|WARNING:' <<<"$said" || grep -iE "$1" <<<"$said"; then fail "the kernel complained"; fi
}

# The block device of the subsystem with NQN $1. Numbers of controllers change from boot to boot, names do not.
device_of() {
  local subsystem name
  for subsystem in /sys/class/nvme-subsystem/*; do
    [ "$(cat "$subsystem/subsysnqn" 2>/dev/null)" = "$1" ] || continue
    for name in "$subsystem"/nvme*n*; do
      name=$(basename "$name")
      [[ $name =~ ^nvme[0-9]+n[0-9]+$ && -b /dev/$name ]] && { echo "/dev/$name"; return 0; }
    done
  done
  return 1
}

# The name of this guest; the guests of one test are hosts of their own and share the folder.
NAME=$(sed -n 's/.*\bname=\([^ ]*\).*/\1/p' /proc/cmdline)

# Asks whoever started the guest for something, and waits until it is done.
wish() {
  step "wish: $*"
  echo "$*" > /share/wish.new
  mv /share/wish.new /share/wish
  await test -e /share/granted
  rm /share/granted
}

# Guests that wait for each other.
tell() { touch "/share/said-$1"; }
hear() { await test -e "/share/said-$1"; }

# says TEXT COMMAND…: it succeeds and says TEXT. refused TEXT COMMAND…: it fails and says TEXT.
says() {
  local text=$1
  shift
  "$@" > /tmp/said 2>&1 || fail "$*: $(cat /tmp/said)"
  grep -qiE -- "$text" /tmp/said || fail "$* does not say '$text': $(cat /tmp/said)"
}
refused() {
  local text=$1
  shift
  if "$@" > /tmp/said 2>&1; then fail "this succeeded: $*"; fi
  grep -qiE -- "$text" /tmp/said || fail "$* is refused otherwise than '$text': $(cat /tmp/said)"
}

# For volumes by name, in a test that has `yagura`, `start`, CONTROL, and in HOSTS the names of the hosts that use them.
control() { yagura control "$@" --control http://127.0.0.1:7420 --token-file /tmp/token >/tmp/said; }
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# node NAME PORT: a storage node; its process is $last.
node() {
  local flags=(--host "nqn=$CONTROL,manage=all") host
  for host in "${HOSTS[@]}"; do flags+=(--host "nqn=$host"); done
  (start target --listen "127.0.0.1:$2" --nqn "nqn.2026-11.io.yagura:$1" --drive "/tmp/drive-$1" "${flags[@]}" >>/tmp/log) &
  last=$!
  await listens "$2"
}

# three_nodes SIZE: storage nodes a, b and c with a drive each, and a control plane that knows them and tenant `shop`.
three_nodes() {
  local name port=4421
  for name in a b c; do yagura drive format "/tmp/drive-$name" --size "$1" >/dev/null; done
  for name in a b c; do
    node $name $port
    port=$((port + 1))
  done
  node_c=$last
  (start control serve --catalogue /tmp/catalogue --operator-token /tmp/token --host-nqn "$CONTROL" >>/tmp/log) &
  await listens 7420
  await test -s /tmp/token
  port=4421
  for name in a b c; do
    control node $name
    control drive $name --node $name --address 127.0.0.1:$port --nqn nqn.2026-11.io.yagura:$name
    port=$((port + 1))
  done
  control tenant shop
}
