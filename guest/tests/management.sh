# Runs in the guest: namespaces of a drive are made, attached, used, detached and deleted by the kernel's own tools.
. /share/lib.sh
H=10.0.2.2
modprobe nvme-tcp
nvme connect -t tcp -a $H -s "$PORT" -n "$NQN" --hostnqn "$HOST_NQN" --hostid "$HOST_ID" >/dev/null
controller() { basename "$(dirname "$(grep -lx "$NQN" /sys/class/nvme/nvme*/subsysnqn | head -n 1)")"; }
await controller
device=/dev/$(controller)
id=$(nvme id-ctrl "$device" | sed -n 's/^cntlid *: *//p')

step "capacity"
nvme id-ctrl "$device" | grep -E '^(tnvmcap|unvmcap|oacs|nn|mnan)'
free() { nvme id-ctrl "$device" | sed -n 's/^unvmcap *: *//p'; }
before=$(free)

step "create, attach"
blocks=$((64 << 20 >> 12))
made=$(nvme create-ns "$device" --nsze=$blocks --ncap=$blocks --block-size=4096)
echo "$made"
nsid=$(echo "$made" | sed -n 's/.*nsid:\([0-9]*\).*/\1/p')
[ -n "$nsid" ] || fail "no namespace identifier in: $made"
nvme list-ns "$device" --all | grep -q ":0x$(printf %x "$nsid")" || fail "not among the allocated"
nvme list-ns "$device" | grep -q ":0x$(printf %x "$nsid")" && fail "active before it is attached"
nvme attach-ns "$device" --namespace-id="$nsid" --controllers="$id"
await device_of "$NQN"
disk=$(device_of "$NQN")
nvme list-ctrl "$device" --namespace-id="$nsid" | tee /tmp/list
[ "$(blockdev --getsize64 "$disk")" = $((64 << 20)) ] || fail "$(blockdev --getsize64 "$disk") bytes"
# The drive has a cache, and the kernel has to flush it although there was no namespace when it connected.
[ "$(cat "/sys/block/$(basename "$disk")/queue/write_cache")" = "write back" ] || fail "the kernel does not flush this namespace"

step "use"
mkfs.ext4 -q "$disk"
mkdir -p /mnt/disk
mount "$disk" /mnt/disk
cp -a /usr/bin /mnt/disk/tree
sync
used=$(nvme id-ns "$disk" | sed -n 's/^nuse *: *//p')
step "$used blocks in use"
[ "$((used))" -gt 0 ] && [ "$((used))" -le $blocks ] || fail "NUSE is $used"
umount /mnt/disk
fsck.ext4 -fn "$disk" >/dev/null 2>&1 || fail fsck

step "wrong requests"
refused 'already attached' nvme attach-ns "$device" --namespace-id="$nsid" --controllers="$id"
refused 'capacity' nvme create-ns "$device" --nsze=0x100000000000 --ncap=0x100000000000 --block-size=4096
refused 'invalid' nvme delete-ns "$device" --namespace-id=77

step "detach, delete"
nvme detach-ns "$device" --namespace-id="$nsid" --controllers="$id"
gone() { ! device_of "$NQN" >/dev/null; }
await gone
refused 'not attached' nvme detach-ns "$device" --namespace-id="$nsid" --controllers="$id"
nvme delete-ns "$device" --namespace-id="$nsid"

step "delete all; less capacity than size"
for size in 16 32 64; do nvme create-ns "$device" --nsze=$size --ncap=$size --block-size=4096 >/dev/null; done
nvme create-ns "$device" --nsze=$blocks --ncap=16 --block-size=4096 >/dev/null
[ "$(nvme list-ns "$device" --all | grep -c ':0x')" = 4 ] || fail "not four are allocated: $(nvme list-ns "$device" --all)"
nvme delete-ns "$device" --namespace-id=0xffffffff
[ "$(nvme list-ns "$device" --all | grep -c ':0x')" = 0 ] || fail "some are left: $(nvme list-ns "$device" --all)"
[ "$(free)" = "$before" ] || fail "$(free) bytes free, $before before"
nvme disconnect -n "$NQN" >/dev/null
kernel_is_content 'timeout'
