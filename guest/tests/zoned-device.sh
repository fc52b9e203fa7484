# Runs in the guest: our media manager on zoned block devices of the kernel: null_blk's in memory, and a drive of NVMe's Zoned
# Namespace Command Set. The target and the kernel's initiator are both in here.
. /share/lib.sh
ulimit -l unlimited
# In memory, since it is started often.
cp -r /share/lib /share/yagura /tmp
product=(/tmp/lib/loader --library-path /tmp/lib /tmp/yagura)
yagura() { "${product[@]}" "$@"; }
config=/sys/kernel/config
PORT=4425
NGUID=0102030405060708090a0b0c0d0e0f10

modprobe configfs
mountpoint -q $config || mount -t configfs none $config
modprobe null_blk nr_devices=0
modprobe nvme
modprobe nvme-tcp

# make_null NAME KEY=VALUE…: /dev/NAME in memory, with 128 zones of 2 MiB, of which one can be written.
make_null() {
  local disk=$config/nullb/$1 name=$1 setting
  shift
  mkdir "$disk"
  for setting in size=256 memory_backed=1 blocksize=512 irqmode=0 zoned=1 zone_size=2 zone_capacity=1 zone_max_open=14 \
    zone_max_active=14 "$@"; do
    echo "${setting#*=}" > "$disk/${setting%%=*}"
  done
  echo 1 > "$disk/power"
  await test -b "/dev/$name"
}
gone() { rmdir "$config/nullb/$1"; }

# zones DEVICE STATE…: its zones in these states (em, oi, oe, cl, fu): the first sector, and how many from there on are written.
zones() {
  local device=$1
  shift
  blkzone report "$device" | grep -E "\(($(IFS='|'; echo "$*"))\)" |
    sed -E 's/^ *start: (0x[0-9a-f]+),.* wptr (0x[0-9a-f]+) .*/\1 \2/'
}
count() { zones "$@" | wc -l; }
# Those of nullz that hold no roots: all but the first two of each of its two units, whose zones take turns. With both copies of a
# root's place gone there is none to turn to, and the device is read on as it was flushed last.
payload() {
  zones /dev/nullz "$@" | while read -r start written; do
    ((start / 4096 < 4)) || echo "$start $written"
  done
}

serving() {
  "${product[@]}" target --listen 127.0.0.1:$PORT --nqn "$NQN" --namespace "flash=$1" > /tmp/node 2>&1 &
  node=$!
  await grep -q listening /tmp/node
}
over() {
  kill $node
  wait $node || fail "the target did not end cleanly: $(cat /tmp/node)"
}
killed() {
  kill -KILL $node
  wait $node || true
}
connect() {
  nvme connect -t tcp -a 127.0.0.1 -s $PORT -n "$NQN" --nr-io-queues=2 --reconnect-delay=1 >/dev/null
  await device_of "$NQN"
  served=$(device_of "$NQN")
}
disconnect() { nvme disconnect -n "$NQN" >/dev/null; }
verified() {
  fio --name=verify --filename="$served" --direct=1 --ioengine=libaio --verify=crc32c --do_verify=1 --verify_fatal=1 \
    --output-format=terse "$@" >/tmp/fio || fail "fio: $(tail -n 5 /tmp/fio) $(tail -n 20 /tmp/node)"
}
sound() {
  says ' 0 faults' yagura flash check "$1"
  [ "$(count "$1" oi oe cl)" -le 14 ] || fail "more zones are active than may be: $(count "$1" oi oe cl)"
}

# What the verbs say of a device.
verbs() {
  local device=$1
  step "$device: the verbs"
  refused 'yagura flash format' yagura flash info "$device"
  refused 'yagura flash format' yagura target --listen 127.0.0.1:0 --namespace "flash=$device"
  yagura flash format "$device"
  refused 'something is written' yagura flash format "$device"
  says '2 parallel units' yagura flash format "$device" --force
  says '^zoned block device' yagura flash info "$device"
  says 'chunks 0 to 63' yagura flash map "$device"
  says 'levels its wear by itself' yagura flash wear "$device"
  says '0 of 128 chunks are bad' yagura flash bbt get "$device"
  refused 'by itself' yagura flash bbt set "$device" 0:9
  refused 'in the order of its zones' yagura target --listen 127.0.0.1:0 --namespace "device=$device,nguid=$NGUID"
  refused 'in the order of its zones' yagura drive format "$device" --force
  sound "$device"
  step "$device: who serves it has it alone"
  serving "$device"
  refused 'in use' yagura flash info "$device"
  refused 'in use' yagura flash format "$device" --force
  refused 'in use' yagura target --listen 127.0.0.1:0 --namespace "flash=$device"
  over
}

# The life of a device.
lives() {
  local device=$1
  step "$device: formatted and served"
  yagura flash format "$device" --force
  serving "$device"
  connect

  step "$device: the target is killed twice under writes that are stable when they are acknowledged"
  verified --rw=randwrite --bs=16k --size=16m --iodepth=4 --sync=dsync &
  local load=$!
  sleep 3
  kill_under_load $load "$device"
  kill_under_load $load "$device"
  wait $load || fail "the load has failed"

  step "$device: killed, and looked at: nothing changes"
  killed
  blkzone report "$device" > /tmp/before
  says ' 0 faults' yagura flash check "$device"
  yagura flash map "$device" >/dev/null
  blkzone report "$device" | diff /tmp/before - || fail "a look has changed zones"
  serving "$device"

  step "$device: more is written than it has room for"
  verified --rw=randwrite --bs=64k --size=40m --iodepth=4 --loops=2
  disconnect
  over
  sound "$device"
  yagura flash info "$device"
}
kill_under_load() {
  kill -0 "$1" || fail "there is no load any more"
  killed
  serving "$2"
  sleep 2
}

make_null nullz
verbs /dev/nullz
lives /dev/nullz

step "zones that fail: writes, then zones as a whole"
serving /dev/nullz
connect
verified --rw=write --bs=64k --size=8m --iodepth=2
disk=$config/nullb/nullz
payload oi oe cl | sed 4q > /tmp/zones
while read -r start written; do
  bad="$((start + written))-$((start + written + 7))"
  echo "+$bad" > $disk/badblocks
  echo "-$bad" >> /tmp/bad
done < /tmp/zones
verified --rw=randwrite --bs=64k --size=32m --iodepth=4
grep -q 'a write in a zone failed' /tmp/node || fail "no write has failed"
while read -r bad; do echo "$bad" > $disk/badblocks; done < /tmp/bad
payload fu | sed -n '20p;30p' | while read -r start _; do echo $((start)) > $disk/zone_readonly; done
# Also zones that are being written: each costs itself alone.
payload oi oe | tail -n 2 | while read -r start _; do echo $((start)) > $disk/zone_readonly; done
verified --rw=randwrite --bs=64k --size=48m --iodepth=4 --loops=2
grep -q 'a write in a zone failed.*read only' /tmp/node || fail "no write has met a zone that is read only"
! grep -q 'the namespace is read-only from now on' /tmp/node || fail "a zone that is read only has stopped the device"
dd if="$served" bs=1M count=64 iflag=direct status=none | md5sum > /tmp/sum
disconnect
over
sound /dev/nullz
yagura flash info /dev/nullz
yagura flash bbt get /dev/nullz
serving /dev/nullz
connect
dd if="$served" bs=1M count=64 iflag=direct status=none | md5sum | diff /tmp/sum - || fail "other bytes after an opening"
disconnect
over

step "what was formatted with other zones is told from what it is"
make_null other size=320
zones /dev/nullz oi oe cl fu | sed 4q > /tmp/zones
while read -r start written; do
  # Of a zone that is full the kernel says that it is written to its end, beyond what it can hold.
  blocks=$((written < 2048 ? written : 2048))
  dd if=/dev/nullz of=/dev/other bs=512 skip=$((start)) seek=$((start)) count=$blocks iflag=direct oflag=direct status=none
done < /tmp/zones
refused 'was written for a device of' yagura flash info /dev/other
gone other
gone nullz

step "zones that are written anywhere are left out"
make_null mixed zone_nr_conv=5
yagura flash format /dev/mixed
says '123 chunks' yagura flash info /dev/mixed
serving /dev/mixed
connect
verified --rw=randwrite --bs=16k --size=8m --iodepth=4 --fsync=16
disconnect
over
sound /dev/mixed
cmp --bytes=$((10 << 20)) /dev/zero /dev/mixed || fail "something is in a zone that is left out"
gone mixed

step "devices that can't be used say so"
make_null few zone_max_open=6 zone_max_active=6
refused '6 chunks may be open; [0-9]* are needed' yagura flash format /dev/few
gone few
make_null plain zoned=0
refused 'only host-managed' yagura flash format /dev/plain
refused 'no flash device' yagura flash info /dev/plain
refused 'leave --preset' yagura flash format /dev/plain --preset small
gone plain

for controller in /sys/class/nvme/*; do
  [ "$(cat "$controller/transport")" != pcie ] || drive=/dev/$(basename "$controller")n1
done
await test -b "$drive"
lives "$drive"
kernel_is_content 'critical|lockup'
step "done"
