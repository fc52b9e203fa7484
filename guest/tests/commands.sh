# Runs in the guest: every log, feature and command of ours that nvme-cli knows, each with what it must say.
. /share/lib.sh
H=10.0.2.2
modprobe nvme-tcp
nvme connect -t tcp -a $H -s "$PORT" -n "$NQN" >/dev/null
await device_of "$NQN"
disk=$(device_of "$NQN")
device=$(echo "$disk" | sed 's/n[0-9]*$//')
block=$(blockdev --getss "$disk")

step "identify"
says 'subnqn' nvme id-ctrl "$device" -H
says 'nguid' nvme id-ns "$disk" -H
says 'nguid|uuid' nvme ns-descs "$disk"
says ':0x1' nvme list-ns "$device"
says 'cntlid|0x' nvme list-ctrl "$device"
says . nvme list-ctrl "$device" --namespace-id=1
says . nvme nvm-id-ctrl "$device"
says . nvme nvm-id-ns "$disk"
says 'nsfeat|nmic|anagrpid' nvme cmdset-ind-id-ns "$disk"
says . nvme id-iocs "$device"
says 'version|cap' nvme show-regs "$device" -H

step "logs"
says 'error_count|Error Log' nvme error-log "$device"
says 'data_units_read|Data Units Read' nvme smart-log "$device"
says 'afi|Firmware' nvme fw-log "$device"
says 'Admin Commands|ACS' nvme effects-log "$device"
says 'ANA|chgcnt|Asymmetric' nvme ana-log "$device"
says . nvme changed-ns-list-log "$device"
says 'support|LID' nvme supported-log-pages "$device"
says 'FID|support' nvme fid-support-effects-log "$device"
says . nvme resv-notif-log "$device"
step "a log by pieces is the log whole"
nvme get-log "$device" --log-id=5 --log-len=4096 -b > /tmp/whole
for ((at = 0; at < 4096; at += 1024)); do nvme get-log "$device" --log-id=5 --log-len=1024 --lpo=$at -b; done > /tmp/pieces
cmp /tmp/whole /tmp/pieces
refused 'log page|invalid' nvme get-log "$device" --log-id=0xbe --log-len=512

step "features"
for feature in 1 2 4 7 0xa 0xb 0xf 0x16; do
  says . nvme get-feature "$device" -f $feature -H
  says . nvme get-feature "$device" -f $feature --sel=1
  says . nvme get-feature "$device" -f $feature --sel=3
done
says . nvme get-feature "$device" -f 5 -n 1 -H
says . nvme get-feature "$device" -f 0x81 --data-len=16 --cdw11=1
refused 'invalid field|feature' nvme get-feature "$device" -f 0x70
nvme set-feature "$device" -f 0xb --value=0x100 >/dev/null
says 100 nvme get-feature "$device" -f 0xb
refused 'not saveable|saveable|invalid' nvme set-feature "$device" -f 0xb --value=0 --save
says . nvme get-feature "$device" -f 0x82 -n 1
says . nvme get-feature "$device" -f 0x83 -n 1

step "commands on blocks"
head -c $((8 * block)) /dev/urandom > /tmp/eight
nvme write "$disk" --start-block=0 --block-count=7 --data-size=$((8 * block)) --data=/tmp/eight >/dev/null
nvme compare "$disk" --start-block=0 --block-count=7 --data-size=$((8 * block)) --data=/tmp/eight >/dev/null
head -c $((8 * block)) /dev/urandom > /tmp/other
refused 'compare' nvme compare "$disk" --start-block=0 --block-count=7 --data-size=$((8 * block)) --data=/tmp/other
nvme verify "$disk" --start-block=0 --block-count=7 >/dev/null
nvme copy "$disk" --sdlba=64 --slbs=0 --blocks=7 >/dev/null
dd if="$disk" bs="$block" skip=64 count=8 iflag=direct status=none | cmp - /tmp/eight
refused 'lba|range' nvme copy "$disk" --sdlba=64 --slbs=0xfffffff0 --blocks=7
nvme write-uncor "$disk" --start-block=66 --block-count=0 >/dev/null
refused 'unrecovered|media|read' nvme read "$disk" --start-block=64 --block-count=7 --data-size=$((8 * block)) --data=/tmp/back
refused 'unrecovered|media|read' nvme verify "$disk" --start-block=66 --block-count=0
nvme write "$disk" --start-block=64 --block-count=7 --data-size=$((8 * block)) --data=/tmp/eight >/dev/null
nvme read "$disk" --start-block=64 --block-count=7 --data-size=$((8 * block)) --data=/tmp/back >/dev/null
cmp /tmp/back /tmp/eight
nvme write-zeroes "$disk" --start-block=0 --block-count=3 >/dev/null
nvme dsm "$disk" --ad --blocks=4 --slbs=4 >/dev/null
dd if="$disk" bs="$block" count=8 iflag=direct status=none | cmp -n $((8 * block)) - /dev/zero
nvme flush "$disk" >/dev/null
refused 'lba|range' nvme verify "$disk" --start-block=0xfffffffff --block-count=0
refused 'opcode' nvme io-passthru "$disk" --opcode=0x7d --namespace-id=1
refused 'opcode' nvme admin-passthru "$device" --opcode=0xbe

step "many queues"
nvme disconnect -n "$NQN" >/dev/null
nvme connect -t tcp -a $H -s "$PORT" -n "$NQN" --nr-io-queues="$(nproc)" --nr-write-queues="$(nproc)" --nr-poll-queues="$(nproc)" --hdr-digest --data-digest >/dev/null
await device_of "$NQN"
disk=$(device_of "$NQN")
queues=$(dmesg | sed -n 's/.*mapped \([0-9/a-z ]*\) queues.*/\1/p' | tail -n 1)
step "queues (default/read/poll): $queues, by $(nproc) processors"
[ "$(echo "$queues" | sed 's/[^0-9]\+/+/g; s/+$//' | tr -d ' ' | awk -F+ '{ s = 0; for (i = 1; i <= NF; i++) s += $i; print s }')" -ge $((3 * $(nproc))) ] \
  || fail "fewer queues than asked for: $queues"
fio --name=many --filename="$disk" --rw=randrw --bs=4k --size=8m --offset_increment=8m --numjobs="$(nproc)" --direct=1 --ioengine=libaio --iodepth=8 \
  --verify=crc32c --verify_fatal=1 --verify_backlog=32 --group_reporting --output-format=terse > /tmp/fio || fail "fio: $(tail -n 5 /tmp/fio)"
nvme disconnect -n "$NQN" >/dev/null
if dmesg | grep -iE 'BUG:|WARNING:|timeout|digest error' ; then fail "the kernel complained"; fi
