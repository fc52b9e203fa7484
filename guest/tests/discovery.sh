# Runs in the guest: the kernel asks our discovery service, goes to all that it names and refers to, stays connected to it, and
# is told when there is more for it.
. /share/lib.sh
H=10.0.2.2
modprobe nvme-tcp
host=$(cat /etc/nvme/hostnqn)

connected() { grep -hx "$1" /sys/class/nvme/nvme*/subsysnqn 2>/dev/null | wc -l; }
discovery_controllers() { grep -lx discovery /sys/class/nvme/nvme*/cntrltype 2>/dev/null | wc -l; }

step "the log names what is for this host, and where else to ask"
nvme discover -t tcp -a $H -s "$PORT" | tee /tmp/discovery
grep -qF "$NQN-open" /tmp/discovery || fail "the open subsystem is not named"
if grep -qF "$NQN-listed" /tmp/discovery; then fail "a subsystem is named that is not for $host"; fi
grep -q 'discovery subsystem referral' /tmp/discovery || fail "no referral"
grep -q 'current discovery subsystem' /tmp/discovery || fail "the service does not name itself"

step "a host that is not let in is refused by name"
refused 'invalid host|not allowed|denied|rejected|failed' nvme connect -t tcp -a $H -s "$PORT" -n "$NQN-listed"

step "connect to everything, through the referral too"
nvme connect-all -t tcp -a $H -s "$PORT" --persistent > /tmp/out 2>&1 || fail "$(cat /tmp/out)"
await device_of "$NQN-open"
await device_of "$NQN-referred"
[ "$(connected "$NQN-open")" = 1 ] && [ "$(connected "$NQN-referred")" = 1 ] || fail "$(cat /sys/class/nvme/nvme*/subsysnqn)"
dd if="$(device_of "$NQN-referred")" of=/dev/null bs=64k count=4 iflag=direct status=none

step "the connection to the discovery service stays"
[ "$(discovery_controllers)" -ge 1 ] || fail "no discovery controller is left: $(cat /sys/class/nvme/nvme*/cntrltype)"
sleep 3
[ "$(discovery_controllers)" -ge 1 ] || fail "the discovery controller has gone"
name=$(basename "$(dirname "$(grep -lx discovery /sys/class/nvme/nvme*/cntrltype | head -n 1)")")
nvme discover --device="$name" -t tcp -a $H -s "$PORT" | grep -qF "$NQN-open" || fail "the kept controller gives no log"

step "it tells of what is new"
busybox uevent busybox env > /tmp/events 2>&1 &
listener=$!
sleep 1
wish allow "$host"
# Asynchronous event 70h/F0h/2: Discovery Log Page Change.
await grep -q 'NVME_AEN=0x70f002' /tmp/events
kill $listener
nvme connect-all -t tcp -a $H -s "$PORT" > /tmp/out 2>&1 || fail "$(cat /tmp/out)"
await device_of "$NQN-listed"
[ "$(connected "$NQN-open")" = 1 ] || fail "what was connected was connected again"
nvme disconnect-all
kernel_is_content 'timeout'
