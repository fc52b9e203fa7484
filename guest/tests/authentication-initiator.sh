# Runs in the guest: the kernel's initiator authenticates to our target by DH-HMAC-CHAP, one way and both ways, over every
# I/O queue, and again after a reset; wrong keys and no keys get nowhere. Each of SUITES, HASH:GROUP:PORT, is a target that
# takes that hash and that group alone.
. /share/lib.sh
H=10.0.2.2
modprobe nvme-tcp

# attempt KEY CONTROLLER_KEY: connects to PORT with these keys; an empty one is not given.
attempt() {
  local flags=()
  [ -z "$1" ] || flags+=(--dhchap-secret "$1")
  [ -z "$2" ] || flags+=(--dhchap-ctrl-secret "$2")
  nvme connect -t tcp -a $H -s "$PORT" -n "$NQN" --hostnqn "$HOST_NQN" --hostid "$HOST_ID" --nr-io-queues=2 \
    --ctrl-loss-tmo=5 "${flags[@]}" >/tmp/out 2>&1
}

refused() {
  if attempt "$2" "$3"; then fail "connected with $1"; fi
  if device_of "$NQN" >/dev/null; then fail "there is a device with $1"; fi
  step "refused: $1"
}

key=$(cat /share/host.key)
controller_key=$(cat /share/controller.key)
other=$(cat /share/other.key)

# use BOTH: connects, one way or both ways, and moves bytes there and back.
use() {
  step "connect, both ways: $1"
  if [ "$1" = 1 ]; then attempt "$key" "$controller_key" || fail "$(cat /tmp/out)"
  else attempt "$key" "" || fail "$(cat /tmp/out)"
  fi
  await device_of "$NQN"
  device=$(device_of "$NQN")
  dd if=/dev/urandom of=/tmp/bytes bs=64k count=16 status=none
  dd if=/tmp/bytes of="$device" bs=64k oflag=direct status=none
  dd if="$device" of=/tmp/back bs=64k count=16 iflag=direct status=none
  cmp /tmp/bytes /tmp/back || fail "what was read is not what was written"
}
# again: what was read before is read after every queue has authenticated anew.
again() {
  await dd if="$device" of=/tmp/back bs=64k count=16 iflag=direct
  cmp /tmp/bytes /tmp/back || fail "what was read is not what was written"
}

first=1
for suite in $SUITES; do
  IFS=: read -r hash group PORT <<< "$suite"
  step "$hash, $group"
  if [ $first = 1 ]; then
    refused "no key" "" ""
    refused "another key" "$other" ""
    refused "the right key, and another controller key" "$key" "$other"
  fi
  for both in 0 1; do
    dmesg -C
    use $both
    dmesg | grep -iE "authenticated with.*$hash.*$group" || fail "the kernel does not say that it has authenticated so: $(dmesg)"
    if [ $first = 1 ]; then
      step "reset: every queue authenticates again"
      nvme reset "${device%n*}"
      again
      # Writing a secret to its own attribute makes the kernel authenticate anew on the queues that are there.
      step "authenticate anew on live queues"
      echo "$key" > "/sys/class/nvme/$(basename "${device%n*}")/dhchap_secret"
      again
    fi
    nvme disconnect -n "$NQN" >/dev/null
  done
  first=0
done
