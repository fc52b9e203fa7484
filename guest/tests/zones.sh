# Runs in the guest: the kernel's initiator on zones that our target serves: as a zoned block device, by fio, and with btrfs.
. /share/lib.sh
H=10.0.2.2
TREE=/usr/bin

modprobe nvme-tcp
modprobe btrfs
mkdir -p /mnt/disk

connect() {
  nvme connect -t tcp -a $H -s "$PORT" -n "$NQN" --nr-io-queues=2 --queue-size=64 >/dev/null
  await device_of "$NQN"
  device=$(device_of "$NQN")
  queue=/sys/block/$(basename "$device")/queue
}

# How many zones the kernel is told of in state $1 (em, oi, oe, cl, fu), on the device or at zone $2 alone.
zones_in() {
  local at=(--offset 0)
  [ -z "${2:-}" ] || at=(--offset "$2" --count 1)
  blkzone report "${at[@]}" "$device" | grep -c "($1)" || true
}

step "connect: the namespace is a zoned block device"
connect
[ "$(cat "$queue/zoned")" = host-managed ] || fail "it is not host-managed: $(cat "$queue/zoned")"
[ "$(cat "$queue/nr_zones")" = "$ZONES" ] || fail "it has $(cat "$queue/nr_zones") zones and not $ZONES"
[ "$(cat "$queue/max_open_zones") $(cat "$queue/max_active_zones")" = "14 14" ] || fail "the limits are other ones"
[ "$(cat "$queue/zone_append_max_bytes")" -gt 0 ] || fail "it takes no appends"
zone=$(($(cat "$queue/chunk_sectors")))
[ $zone = 16384 ] || fail "zones of $zone sectors"

step "nvme-cli: the pages of zones"
controller=${device%n*}
nvme zns id-ns "$device" | tee /tmp/out
grep -qE '^ozcs *: *(0x)?1$' /tmp/out || fail "reads across zones are not told"
grep -qiE '^lbafe +0: *zsze:0x800 ' /tmp/out || fail "the zone size is not told"
nvme zns id-ctrl "$controller" >/dev/null
nvme effects-log "$controller" --csi=2 | tee /tmp/out | grep -qi "append" || fail "the log of effects has no appends: $(cat /tmp/out)"
nvme get-feature "$controller" -f 0x19 >/dev/null
nvme zns report-zones "$device" --descs=3 --state=1 | tee /tmp/out
grep -q "nr_zones: " /tmp/out || fail "no zones are reported"

step "blkzone: open, close, finish, reset"
[ "$(zones_in em)" = "$ZONES" ] || fail "not all zones are empty"
blkzone open --offset 0 --count 1 "$device"
[ "$(zones_in oe 0)" = 1 ] || fail "a zone is not opened"
dd if=/dev/urandom of=/tmp/blocks bs=64K count=4 status=none
dd if=/tmp/blocks of="$device" bs=64K oflag=direct status=none
blkzone close --offset 0 --count 1 "$device"
[ "$(zones_in cl 0)" = 1 ] || fail "a zone is not closed"
cmp -n $((256 << 10)) /tmp/blocks "$device" || fail "other bytes came back"
if dd if=/tmp/blocks of="$device" bs=64K oflag=direct status=none 2>/dev/null; then
  fail "a write before the write pointer succeeded"
fi
blkzone finish --offset 0 --count 1 "$device"
[ "$(zones_in fu 0)" = 1 ] || fail "a zone is not finished"
blkzone reset "$device"
[ "$(zones_in em)" = "$ZONES" ] || fail "not all zones are empty after a reset of all"

step "nvme-cli: appends say where they went"
nvme zns zone-append "$device" --zslba=0x800 --data-size=8192 --data=/tmp/blocks | tee /tmp/out
nvme zns zone-append "$device" --zslba=0x800 --data-size=4096 --data=/tmp/blocks | tee -a /tmp/out
grep -qiE 'LBA:? *(0x)?(800|2048)' /tmp/out || fail "the first append went elsewhere"
grep -qiE 'LBA:? *(0x)?(802|2050)' /tmp/out || fail "the second append went elsewhere"
blkzone reset "$device"

step "fio in zones, verified"
fio --name=zones --filename="$device" --direct=1 --zonemode=zbd --rw=randwrite --bs=64K --size=$((8 * zone * 512)) \
  --io_size=24M --max_open_zones=6 --ioengine=libaio --iodepth=8 --verify=crc32c --do_verify=1 --verify_fatal=1 \
  --output-format=terse >/tmp/fio || fail "fio: $(cat /tmp/fio)"
blkzone reset "$device"

step "btrfs in zones"
mkfs.btrfs -q -f -O zoned -d single -m single "$device"
mount -t btrfs "$device" /mnt/disk
mkdir /mnt/disk/tree
(cd $TREE && find . -maxdepth 1 -type f -size -200k | head -n 150 | tar -cf - -T -) | tar -xf - -C /mnt/disk/tree
(cd /mnt/disk/tree && find . -type f | sort | xargs md5sum) > /tmp/sums
[ "$(wc -l < /tmp/sums)" -gt 50 ] || fail "few files were copied: $(wc -l < /tmp/sums)"
# Written over and deleted, so that zones are left behind.
for round in 1 2 3; do
  dd if=/dev/urandom of=/mnt/disk/again bs=1M count=6 conv=fsync status=none
done
md5sum /mnt/disk/again >> /tmp/sums.again
umount /mnt/disk

step "the target is restarted, and the file system is what it was"
nvme disconnect -n "$NQN" >/dev/null
wish restart
connect
btrfs check --readonly "$device" >/tmp/out 2>&1 || fail "btrfs check: $(cat /tmp/out)"
mount -t btrfs "$device" /mnt/disk
(cd /mnt/disk/tree && md5sum --quiet -c /tmp/sums) || fail "files differ"
md5sum --quiet -c /tmp/sums.again || fail "a file that was written over differs"
dd if=/dev/urandom of=/mnt/disk/more bs=1M count=4 conv=fsync status=none
btrfs scrub start -B /mnt/disk >/tmp/out 2>&1 || fail "btrfs scrub: $(cat /tmp/out)"
umount /mnt/disk
nvme disconnect -n "$NQN" >/dev/null
kernel_is_content 'I/O error|critical|btrfs.*error'
step "done"
