# Runs in two guests, `a` and `b`, at a time: what a reservation of the one lets the other do, for every type; preemption,
# release, clearing; and a reservation that outlives the target.
. /share/lib.sh
H=10.0.2.2
declare -A KEY=([a]=0xa1 [b]=0xb2)
other=$([ "$NAME" = a ] && echo b || echo a)

modprobe nvme-tcp
nvme connect -t tcp -a $H -s "$PORT" -n "$NQN" --reconnect-delay=1 --keep-alive-tmo=2 >/dev/null
await device_of "$NQN"
device=$(device_of "$NQN")

may_read() { dd if="$device" of=/dev/null bs=4k count=1 iflag=direct status=none 2>/dev/null; }
may_write() { dd if=/dev/zero of="$device" bs=4k count=1 oflag=direct status=none 2>/dev/null; }
# may r+w- as WHO: whether this host reads and writes right now.
may() {
  local is
  is="$(may_read && echo r+ || echo r-)$(may_write && echo w+ || echo w-)"
  [ "$is" = "$1" ] || fail "type $type, $2: $is, not $1"
}
register() { nvme resv-register "$device" --nrkey="${KEY[$NAME]}" --rrega=0 "$@" >/dev/null; }
unregister() { nvme resv-register "$device" --crkey="${KEY[$NAME]}" --rrega=1 >/dev/null; }
acquire() { nvme resv-acquire "$device" --crkey="${KEY[$NAME]}" --rtype="$1" --racqa=0 >/dev/null; }
release() { nvme resv-release "$device" --crkey="${KEY[$NAME]}" --rtype="$1" --rrela=0 >/dev/null; }
report() { nvme resv-report "$device" --eds --output-format=json; }
# The type of the notification that is there for us, which is taken; 0: none. 1 is Registration Preempted.
notice() { nvme get-log "$device" --log-id=0x80 --log-len=64 -b | od -An -tu1 -j8 -N1 | tr -d ' '; }
no_notice() { [ "$(notice)" = 0 ]; }
field() { report | tr -d ' ",' | sed -n "s/^$1://p" | head -n 1; }

# For the types 1 to 6: what a registrant, and what any other host, may do while somebody else holds the reservation.
REGISTRANT=(- r+w- r-w- r+w+ r+w+ r+w+ r+w+)
STRANGER=(- r+w- r-w- r+w- r-w- r+w- r-w-)

for type in 1 2 3 4 5 6; do
  step "type $type"
  if [ "$NAME" = a ]; then
    register
    acquire $type
    may r+w+ holder
    [ "$(field rtype)" = $type ] || fail "the report says type $(field rtype), not $type"
    tell "held-$type"
    hear "looked-$type"
    release $type
    may r+w+ "nobody holds it"
    unregister
    tell "free-$type"
    hear "next-$type"
  else
    hear "held-$type"
    may "${STRANGER[$type]}" "not registered"
    register
    may "${REGISTRANT[$type]}" registrant
    [ "$(field regctl)" = 2 ] || fail "the report says $(field regctl) registered controllers, not 2"
    unregister
    may "${STRANGER[$type]}" "not registered any more"
    tell "looked-$type"
    hear "free-$type"
    may r+w+ "nobody holds it"
    tell "next-$type"
  fi
done

# Preempt, and preempt with abort: the winner is b each time.
for action in 1 2; do
  step "preemption $action, and what the loser is told"
  type=1
  if [ "$NAME" = a ]; then
    register
    acquire 1
    # What the rounds before have left.
    await no_notice
    tell "held-by-key-$action"
    hear "taken-$action"
    may r+w- "preempted"
    nvme write "$device" --start-block=0 --block-count=0 --data-size=4096 --data=/dev/zero > /tmp/said 2>&1 && fail "a preempted host writes"
    grep -qi 'reservation conflict' /tmp/said || fail "a preempted host is told: $(cat /tmp/said)"
    [ "$(notice)" = 1 ] || fail "the preempted host is not notified"
    nvme resv-notif-log "$device" >/dev/null
    tell "noticed-$action"
    hear "given-up-$action"
  else
    hear "held-by-key-$action"
    register
    nvme resv-acquire "$device" --crkey="${KEY[b]}" --prkey="${KEY[a]}" --rtype=1 --racqa=$action >/dev/null
    may r+w+ holder
    [ "$(field regctl)" = 1 ] || fail "the preempted host is still registered"
    tell "taken-$action"
    hear "noticed-$action"
    if [ $action = 1 ]; then unregister; fi
    tell "given-up-$action"
  fi
done

step "keys: replaced, ignored, and what is asked wrongly"
if [ "$NAME" = b ]; then
  nvme resv-register "$device" --crkey="${KEY[b]}" --nrkey=0xb3 --rrega=2 >/dev/null
  refused 'reservation conflict' nvme resv-release "$device" --crkey="${KEY[b]}" --rtype=1 --rrela=0
  nvme resv-register "$device" --nrkey="${KEY[b]}" --rrega=2 --iekey >/dev/null
  nvme resv-release "$device" --crkey="${KEY[b]}" --rtype=1 --rrela=0 >/dev/null
  refused 'invalid' nvme resv-acquire "$device" --crkey="${KEY[b]}" --rtype=9 --racqa=0
fi

step "clear"
if [ "$NAME" = b ]; then
  nvme resv-release "$device" --crkey="${KEY[b]}" --rrela=1 >/dev/null
  tell cleared
else
  hear cleared
  may r+w+ "cleared"
fi
hear cleared

if [ "${PERSIST:-}" = 1 ]; then
  step "a reservation outlives the target"
  if [ "$NAME" = a ]; then
    register --cptpl=3
    acquire 1
    wish restart
    await may_write
    [ "$(field rtype)" = 1 ] || fail "the reservation is gone"
    tell restarted
    hear confirmed
    nvme resv-release "$device" --crkey="${KEY[a]}" --rrela=1 >/dev/null
  else
    hear restarted
    await may_read
    type=1
    may r+w- "after the restart"
    tell confirmed
  fi
fi
tell "done-$NAME"
hear "done-$other"
nvme disconnect -n "$NQN" >/dev/null
