# Runs in the guest: namespaces are added to, grown in and removed from a subsystem while the kernel is connected.
. /share/lib.sh
H=10.0.2.2

# The block device of namespace $1, by its number.
disk() { echo "$(device_of "$NQN" | sed 's/n[0-9]*$//')n$1"; }
is_bytes() { [ "$(blockdev --getsize64 "$1" 2>/dev/null)" = "$2" ]; }

modprobe nvme-tcp
nvme connect -t tcp -a $H -s "$PORT" -n "$NQN" >/dev/null
await device_of "$NQN"
base=$(device_of "$NQN" | sed 's/n[0-9]*$//')

step "one namespace at first"
[ "$(ls -d "$base"n* | wc -l)" = 1 ] || fail "$(ls -d "$base"n*)"

wish add
await test -b "${base}n2"
await is_bytes "${base}n2" $((32 << 20))
step "it takes data"
dd if=/dev/urandom of=/tmp/data bs=1M count=4 status=none
dd if=/tmp/data of="${base}n2" bs=64k oflag=direct status=none
dd if="${base}n2" bs=64k count=64 iflag=direct status=none | cmp - /tmp/data
nvme list-ns "$(echo "$base" | sed 's/n[0-9]*$//')" | tee /tmp/list
[ "$(grep -c ':0x' /tmp/list)" = 2 ] || fail "the list of active namespaces has not two"

if [ "${GROW:-}" = 1 ]; then
  wish grow
  await is_bytes "${base}n2" $((64 << 20))
  dd if="${base}n2" bs=64k count=64 iflag=direct status=none | cmp - /tmp/data
fi

step "removed under a reader"
(while dd if="${base}n2" of=/dev/null bs=64k count=512 iflag=direct status=none 2>/dev/null; do :; done) &
reader=$!
wish remove
gone() { [ ! -b "${base}n2" ]; }
await gone
wait $reader || true
step "the other one works on"
dd if="${base}n1" of=/dev/null bs=64k count=64 iflag=direct status=none
nvme disconnect -n "$NQN" >/dev/null
kernel_is_content 'timeout'
