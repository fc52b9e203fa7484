# Runs in the guest, with all that it needs in there: three storage nodes, a control plane, and a volume that the kernel has as a
# block device by ublk. A storage node dies and comes back, so does the process that answers the kernel, and another host takes the
# volume from it.
. /share/lib.sh
ulimit -l unlimited
CONTROL=nqn.2026-11.io.yagura:control
HOST=nqn.2026-11.io.yagura:guest
OTHER=nqn.2026-11.io.yagura:other
HOSTS=("$HOST" "$OTHER")

yagura() { /share/lib/loader --library-path /share/lib /share/yagura "$@"; }
# In the background, so that `$!` is the program itself.
start() { exec /share/lib/loader --library-path /share/lib /share/yagura "$@" 2>>/tmp/log <"$input"; }
input=/dev/null

# begin HOST FLAG…: the volume is being attached.
begin() {
  rm -f /tmp/ready
  local host=$1
  shift
  (RUST_LOG=info start volume attach --name db --control http://127.0.0.1:7420 --token-file /tmp/token --tenant shop \
    --host-nqn "$host" --json "$@" >/tmp/ready) &
  attached=$!
}
is_ready() { grep -q '"volume"' /tmp/ready || ! kill -0 "$attached"; }
device=
attach() {
  begin "$@"
  await is_ready
  grep -q '"volume"' /tmp/ready || { tail -n 20 /tmp/log; fail "it is not attached"; }
  device=$(grep -o '/dev/ublkb[0-9]*' /tmp/ready || echo "$device")
}
detach() {
  kill -TERM "$attached"
  wait "$attached" || { tail -n 20 /tmp/log; fail "it did not end cleanly"; }
}
kill_attached() {
  kill -KILL "$attached"
  wait "$attached" || true
}
no_device() { ! ls /dev/ublkb* /dev/ublkc* 2>/dev/null; }

verified() {
  fio --name=verify --ioengine=libaio --verify=crc32c --do_verify=1 --verify_fatal=1 --output-format=terse "$@" >/tmp/fio ||
    fail "fio: $(tail -n 5 /tmp/fio)"
}
# raw NAME MIB COUNT: so many megabytes of the device from there, as the kernel reads them anew.
raw() { dd if="$device" of="/tmp/$1" bs=1M skip="$2" count="$3" iflag=direct status=none; }

step "three storage nodes, a control plane, a volume of 48 MiB"
three_nodes 96MiB
control create db --tenant shop --size 48MiB

step "without the kernel's part that is said"
refused 'modprobe ublk_drv' yagura volume attach --name db --control http://127.0.0.1:7420 --token-file /tmp/token --tenant shop \
  --host-nqn $HOST --device=ublk
modprobe ublk_drv

step "the kernel has it as a block device"
attach $HOST --device=ublk
[ "$(blockdev --getsize64 "$device")" = $((48 << 20)) ] || fail "another size: $(blockdev --getsize64 "$device")"
grep -q '"listening": null' /tmp/ready || fail "it is served elsewhere, too: $(cat /tmp/ready)"
verified --filename="$device" --direct=1 --rw=randwrite --bs=4k --iodepth=16 --size=12m --fsync=64
dd if=/dev/urandom of=/tmp/bytes bs=64k count=32 status=none
# More than the device takes at once.
dd if=/tmp/bytes of="$device" bs=2M seek=8 oflag=direct status=none
raw back 16 2
cmp /tmp/bytes /tmp/back

step "discarded and zeroed"
blkdiscard --offset 0 --length 8MiB "$device"
blkdiscard --zeroout --offset 4MiB --length 8MiB "$device"
raw zeroes 4 8
cmp --bytes=$((8 << 20)) /tmp/zeroes /dev/zero

step "a filesystem; a storage node is killed, and so is the process, under load"
mkfs.ext4 -q "$device" 40M
mkdir -p /tmp/mounted
mount -o discard "$device" /tmp/mounted
verified --filename=/tmp/mounted/file --rw=randwrite --bs=4k --size=6m --fsync=8 --loops=2 &
load=$!
sleep 2
kill -KILL "$node_c"
sleep 3
kill_attached
[ -b "$device" ] || fail "the device went with its process"
before=$device
kill -0 $load || fail "there is no load any more"
sleep 1
attach $HOST --device=ublk
[ "$device" = "$before" ] || fail "another device: $device after $before"
sleep 1
kill -0 $load || fail "there is no load any more"
kill_attached
node c 4423
attach $HOST --device=ublk
wait $load

step "trimmed, unmounted and checked"
rm /tmp/mounted/file
fstrim /tmp/mounted
cp /tmp/bytes /tmp/mounted/bytes
umount /tmp/mounted
e2fsck -fn "$device" >/tmp/said 2>&1 || fail "$(cat /tmp/said)"

step "detached: what was not written yet is, and the device is gone"
# Into the kernel's cache of the device alone.
dd if=/tmp/bytes of="$device" bs=64k seek=704 status=none
detach
no_device || fail "$(ls /dev/ublk*)"
control show volumes db --tenant shop
grep -q 'attachment: -' /tmp/said || fail "the control plane has it that the volume is attached: $(cat /tmp/said)"
attach $HOST --device=ublk
raw back 44 2
cmp /tmp/bytes /tmp/back
mount -o ro "$device" /tmp/mounted
cmp /tmp/bytes /tmp/mounted/bytes
umount /tmp/mounted

step "its supervisor ends: what comes then is kept for the next process, and not refused"
detach
mkfifo /tmp/input
input=/tmp/input
begin $HOST --device=ublk --until-stdin-closes
exec 9>/tmp/input
await is_ready
device=$(grep -o '/dev/ublkb[0-9]*' /tmp/ready)
input=/dev/null
dd if=/dev/zero of="$device" bs=4k seek=10752 count=512 oflag=direct status=none 9>&- &
writing=$!
sleep 0.5
exec 9>&-
wait "$attached" || fail "it did not end cleanly"
kill -0 $writing || fail "there is no load any more"
attach $HOST --device=ublk
wait $writing || fail "a write was refused"
raw zeroes 42 2
cmp --bytes=$((2 << 20)) /tmp/zeroes /dev/zero
kernel_is_content 'i/o error|ext4-fs error'

step "another host has the volume meanwhile: nothing that waits is written"
kill_attached
dd if=/dev/zero of="$device" bs=64k seek=704 count=1 oflag=direct status=none 2>/tmp/refused &
waiting=$!
attach $OTHER --take --listen 127.0.0.1:4430
detach
begin $HOST --device=ublk
status=0
wait "$attached" || status=$?
[ $status = 6 ] || { tail -n 20 /tmp/log; fail "status $status"; }
if wait $waiting; then fail "what waited was written"; fi
no_device || fail "$(ls /dev/ublk*)"
attach $HOST --device=ublk
raw back 44 2
cmp /tmp/bytes /tmp/back
detach
no_device || fail "$(ls /dev/ublk*)"

step "another process of this host takes it: the device of the former one goes, and its own stays"
attach $HOST --device=ublk
former=$attached
begin $HOST --device=ublk
status=0
wait "$former" || status=$?
[ $status = 6 ] || { tail -n 20 /tmp/log; fail "status $status"; }
await is_ready
device=$(grep -o '/dev/ublkb[0-9]*' /tmp/ready) || { tail -n 20 /tmp/log; fail "it is not attached"; }
raw back 44 2
cmp /tmp/bytes /tmp/back
detach
no_device || fail "$(ls /dev/ublk*)"
