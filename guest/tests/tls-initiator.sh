# Runs in the guest: the kernel's initiator connects to our target over TLS, with keys of either derivation.
. /share/lib.sh
. /share/tls.sh
H=10.0.2.2

connect() {
  nvme connect -t tcp -a $H -s "$PORT" -n "$NQN" --nr-io-queues=2 "$@" 2>/tmp/err >/dev/null
}

use() {
  connect --tls "$@" || fail "nvme connect --tls: $(cat /tmp/err /tmp/tlshd.log)"
  await device_of "$NQN"
  device=$(device_of "$NQN")
  head -c 4M /dev/urandom > /tmp/bytes
  dd if=/tmp/bytes of="$device" bs=1M oflag=direct status=none
  dd if="$device" bs=1M count=4 iflag=direct status=none | cmp - /tmp/bytes || fail "what was written over TLS does not come back"
  fio --name=verify --filename="$device" --rw=randrw --bs=8k --size=8M --direct=1 --ioengine=libaio --iodepth=16 \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --output-format=terse >/tmp/fio || fail "fio: $(tail -n 5 /tmp/fio)"
  cat /sys/class/nvme/nvme*/tls_key
  nvme disconnect -n "$NQN" >/dev/null
  step "served over TLS $*"
}

modprobe nvme-tcp
start_tlshd

step "a plain connection is refused"
if connect; then fail "a plain connection was served where TLS is required"; fi

step "a connection without a key is refused"
if connect --tls; then fail "connected without a key"; fi

while read -r hex identity; do
  insert "$identity" "$hex"
  use
  use --hdr-digest --data-digest
  forget
done < /share/tls.derived

insert "$(sed -n 's/^[0-9a-f]* //p' /share/tls.derived | head -n 1)" "$(printf '5a%.0s' $(seq "$KEY_BYTES"))"
step "a wrong key is refused"
if connect --tls; then fail "connected with a wrong key"; fi
forget

PORT=$PORT_LEGACY
for version in 0 1; do
  insert_by_tool $version "$(cat /etc/nvme/hostnqn)"
  use
  forget
done
