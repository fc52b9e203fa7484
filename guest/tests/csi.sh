# Runs in the guest, with all that it needs in there: three storage nodes, a control plane, and the driver of the Container Storage
# Interface, which has the kernel attach, format and mount a volume. A storage node dies and comes back, and so does the driver.
. /share/lib.sh
ulimit -l unlimited
CONTROL=nqn.2026-11.io.yagura:control
HOST=nqn.2026-11.io.yagura:guest
HOSTS=("$HOST")
SOCKET=/tmp/csi.sock

# The driver starts its own program again, so that it is run as it is: with the guest's own loader and those libraries alone that
# the guest has not.
mkdir -p /tmp/lib /mnt/target
for library in /share/lib/*.so*; do
  [ -e "/usr/lib/x86_64-linux-gnu/$(basename "$library")" ] || cp "$library" /tmp/lib
done
cp /share/yagura /tmp/yagura
yagura() { LD_LIBRARY_PATH=/tmp/lib /tmp/yagura "$@"; }
# In the background, so that `$!` is the program itself.
start() { LD_LIBRARY_PATH=/tmp/lib exec /tmp/yagura "$@" >>/tmp/log 2>&1 </dev/null; }

driver() {
  rm -f $SOCKET
  (RUST_LOG=info start csi --endpoint unix://$SOCKET --control http://127.0.0.1:7420 --token-file /tmp/token --tenant shop \
    --node-id guest --state-dir /tmp/state --host-nqn $HOST) &
  driver=$!
  await test -S $SOCKET
}

# A message in protocol buffers: byte A B… gives bytes, text N TEXT the field N, a text of less than 128 bytes.
byte() { local b; for b in "$@"; do printf "\\x$(printf %02x "$b")"; done; }
text() { byte $(($1 << 3 | 2)) ${#2}; printf %s "$2"; }
# A filesystem, for one node that writes: a VolumeCapability of six bytes as field N.
mounted() { byte $(($1 << 3 | 2)) 6 18 0 26 2 8 1; }

# call METHOD: the message on standard input as a call of gRPC. What is answered is in /tmp/answer.
call() {
  cat > /tmp/message
  local length
  length=$(stat -c %s /tmp/message)
  { byte 0 0 0 $((length >> 8)) $((length & 255)); cat /tmp/message; } > /tmp/frame
  curl -sS --max-time 100 --http2-prior-knowledge --unix-socket $SOCKET -H 'content-type: application/grpc' -H 'te: trailers' \
    --data-binary @/tmp/frame -D /tmp/heads -o /tmp/answer "http://localhost/csi.v1.$1"
  grep -q '^grpc-status: 0' /tmp/heads || { cat /tmp/heads; tail -n 20 /tmp/log; fail "$1"; }
}
# Each of the volume $1, which is `db` unless said.
stage() { { text 1 "${1:-db}"; text 3 "/mnt/staging/${1:-db}"; mounted 4; } | call Node/NodeStageVolume; }
publish() {
  { text 1 "${1:-db}"; text 3 "/mnt/staging/${1:-db}"; text 4 "/mnt/target/${1:-db}"; mounted 5; } | call Node/NodePublishVolume
}
unpublish() { { text 1 "${1:-db}"; text 2 "/mnt/target/${1:-db}"; } | call Node/NodeUnpublishVolume; }
unstage() { { text 1 "${1:-db}"; text 2 "/mnt/staging/${1:-db}"; } | call Node/NodeUnstageVolume; }
# has VOLUME MIB: its filesystem has more than that.
has() { [ "$(df --output=size -B1M "/mnt/target/$1" | tail -n 1)" -gt "$2" ] || fail "$(df -B1M "/mnt/target/$1")"; }

write() {
  dd if=/dev/urandom of="/tmp/$1" bs=64k count=16 status=none
  dd if="/tmp/$1" of="/mnt/target/db/$1" bs=64k conv=fsync status=none
}
no_device() { [ -z "$(ls /sys/class/nvme 2>/dev/null)" ]; }

modprobe nvme-tcp
step "three storage nodes, a control plane"
three_nodes 192MiB

driver
step "a volume of 32 MiB is made"
# The size: a CapacityRange of five bytes.
{ text 1 db; byte 18 5 8 128 128 128 16; mounted 3; } | call Controller/CreateVolume
step "staged and published, each twice"
stage
stage
publish
publish
grep -q ' /mnt/target/db ext4 ' /proc/mounts || fail "$(cat /proc/mounts)"
write before

step "the kernel alone is let in where the volume is served"
for key in /sys/class/nvme/nvme*/dhchap_secret; do
  [ "$(stat -c %a "$key")" = 600 ] || fail "$key may be read by others"
done
served=$(cat /sys/class/nvme/nvme0/subsysnqn)
# reaches HOST: without a key (nvme-cli, which root runs, would take the one that the kernel shows to root).
reaches() { echo "transport=tcp,traddr=127.0.0.1,trsvcid=14420,nqn=$served,$1,duplicate_connect" 2>/dev/null >/dev/nvme-fabrics; }
if reaches "hostnqn=nqn.2026-11.io.yagura:stranger,hostid=11111111-1111-4111-8111-111111111111"; then
  fail "a stranger is let in"
fi
if reaches "hostnqn=$(cat /sys/class/nvme/nvme0/hostnqn),hostid=$(cat /sys/class/nvme/nvme0/hostid)"; then
  fail "the kernel's name alone is let in"
fi

step "a storage node is killed, and comes back"
kill -KILL $node_c
write without
node c 4423
write after

step "the driver is killed, and comes back"
kill -KILL "$driver"
wait "$driver" || true
driver
write anew
[ "$(grep -c ' /mnt/target/db ' /proc/mounts)" = 1 ] || fail "$(cat /proc/mounts)"
for name in before without after anew; do cmp "/tmp/$name" "/mnt/target/db/$name"; done

step "it grows to 48 MiB while it is mounted"
{ text 1 db; byte 18 5 8 128 128 128 24; } | call Controller/ControllerExpandVolume
{ text 1 db; text 2 /mnt/target/db; byte 26 5 8 128 128 128 24; } | call Node/NodeExpandVolume
has db 36

step "a snapshot of it becomes a volume of 64 MiB, mounted beside it"
{ text 1 db; text 2 s; } | call Controller/CreateSnapshot
write later
# What it is made of: the snapshot db@s, in a message of six bytes in one of eight.
{ text 1 copy; byte 18 5 8 128 128 128 32; mounted 3; byte 50 8 10 6; text 1 db@s; } | call Controller/CreateVolume
stage copy
publish copy
has copy 50
for name in before without after anew; do cmp "/tmp/$name" "/mnt/target/copy/$name"; done
[ ! -e /mnt/target/copy/later ] || fail "the copy has what was written after the snapshot"
unpublish copy
unstage copy
text 1 copy | call Controller/DeleteVolume
text 1 db@s | call Controller/DeleteSnapshot

step "unpublished and unstaged, each twice"
unpublish
unpublish
unstage
unstage
if grep /mnt/target /proc/mounts; then fail "it is mounted still"; fi
await no_device
control show volumes db --tenant shop
grep -q 'attachment: -' /tmp/said || fail "the control plane has it that the volume is attached: $(cat /tmp/said)"

step "staged again: the bytes are there"
stage
publish
for name in before without after anew; do cmp "/tmp/$name" "/mnt/target/db/$name"; done
unpublish
unstage
step "deleted"
text 1 db | call Controller/DeleteVolume
control show volumes --tenant shop
if grep -q . /tmp/said; then fail "a volume is left: $(cat /tmp/said)"; fi
kernel_is_content 'i/o error|ext4-fs error'
