# Runs in the guest: the kernel's multipath over two ports of one of our targets. Whoever started the guest cuts the second
# path, stalls it and changes its ANA state when it finds our wishes in the shared folder; I/O goes on all the while.
. /share/lib.sh
H=10.0.2.2

connect() { nvme connect -t tcp -a $H -s "$1" -n "$NQN" --keep-alive-tmo=2 --reconnect-delay=1 --ctrl-loss-tmo=120 >/dev/null; }

# The controllers of the subsystem in state $1.
controllers() { cat /sys/class/nvme-subsystem/*/nvme*/state 2>/dev/null | grep -cx "$1" || true; }
both_live() { [ "$(controllers live)" = 2 ]; }
one_live() { [ "$(controllers live)" = 1 ]; }
states() { cat /sys/class/nvme-subsystem/*/nvme*/nvme*c*n*/ana_state 2>/dev/null | sort | tr '\n' ' '; }
states_are() { [ "$(states)" = "$1 " ]; }
# Requests that went through each path so far.
requests() { awk '{ print $1 + $5 }' /sys/class/nvme-subsystem/*/nvme*/nvme*c*n*/stat | tr '\n' ' '; }
running() { kill -0 "$load" 2>/dev/null || fail "the load has ended: $(tail -n 20 /tmp/fio)"; }

modprobe nvme-tcp
[ "$(cat /sys/module/nvme_core/parameters/multipath)" = Y ] || fail "this kernel does no multipath"

step "two paths to one namespace"
connect "$PORT_A"
connect "$PORT_B"
await both_live
await device_of "$NQN"
device=$(device_of "$NQN")
[ "$(ls -d /dev/nvme*n* | wc -l)" = 1 ] || fail "two paths are seen as two disks: $(ls /dev/nvme*)"
await states_are "optimized optimized"
echo round-robin > /sys/class/nvme-subsystem/*/iopolicy

step "I/O with verification begins on $device"
# A few seconds at a time until it has seen all, however long a slow machine makes that.
keep_loading() {
  until [ -e /tmp/enough ]; do
    fio --name=load --filename="$device" --rw=randrw --bs=4k-64k --size=48m --direct=1 --ioengine=libaio --iodepth=16 \
      --verify=crc32c --verify_fatal=1 --verify_backlog=128 --time_based --runtime=8 > /tmp/fio 2>&1 || return 1
  done
}
rm -f /tmp/enough
keep_loading &
load=$!
both_carry() {
  local first second
  read -r first second <<< "$(requests)"
  [ "$first" -gt 0 ] && [ "$second" -gt 0 ]
}
await both_carry

wish cut
await one_live
running
wish restore
await both_live
running

wish stall
await one_live
running
wish restore
await both_live
running

for state in non-optimized inaccessible optimized; do
  wish ana $state
  if [ $state = optimized ]; then await states_are "optimized optimized"; else await states_are "$(printf '%s\n' optimized $state | sort | tr '\n' ' ' | sed 's/ $//')"; fi
  sleep 1
  running
done

step "waiting for the load"
touch /tmp/enough
wait $load || fail "fio: $(tail -n 20 /tmp/fio)"
grep -E 'read:|write:|err=' /tmp/fio | head -n 3
both_live || fail "not both paths are back"
step "disconnect"
nvme disconnect -n "$NQN" | grep -q 'disconnected 2' || fail "not two controllers were disconnected"
kernel_is_content 'I/O error|corrupt'
