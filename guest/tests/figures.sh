# Runs in the guest: 4 KiB reads and writes over loopback, our target beside the kernel's under the kernel's initiator, and our
# host beside the kernel's initiator on the kernel's target. Both targets serve memory. What each side did goes to
# /share/figures as a file a round; the figures are emulated and compare only with each other.
. /share/lib.sh
. /share/nvmet.sh
OURS=$NQN-ours KERNELS=$NQN-kernel
mkdir -p /share/figures

# The product with the libraries that it was built against.
yagura() { /share/lib/loader --library-path /share/lib /share/yagura "$@"; }

step "the kernel's target"
modprobe nvme-tcp
make_disk 64 4096
make_subsystem "$KERNELS" 1
make_port 1 4420
serve_at 1

step "our target"
ip link set lo up
yagura target --listen 127.0.0.1:4421 --nqn "$OURS" --namespace memory=64MiB &
await grep -q ':1145 ' /proc/net/tcp # port 4421

connect() {
  nvme connect -t tcp -a 127.0.0.1 -s "$1" -n "$2" --nr-io-queues=1 --queue-size=64 >/dev/null
  await device_of "$2"
}
connect 4421 "$OURS"
connect 4420 "$KERNELS"

# run_fio NAME DEVICE DEPTH readwrite
run_fio() {
  fio --name="$1" --filename="$2" --rw="rand$4" --bs=4k --iodepth="$3" --ioengine=libaio --direct=1 --size=64M \
    --time_based --runtime="$SECONDS_EACH" \
    --clat_percentiles=0 --lat_percentiles=1 --output-format=json --output="/share/figures/$1.json"
}
for ((round = 0; round < ROUNDS; round++)); do
  for way in read write; do
    for depth in 1 32; do
      step "round $round: $way, depth $depth"
      run_fio "target-$way-$depth.ours.$round" "$(device_of "$OURS")" $depth $way
      run_fio "target-$way-$depth.kernel.$round" "$(device_of "$KERNELS")" $depth $way
      yagura bench remote --json --rounds 1 --time "$((SECONDS_EACH * 1000))" --nqn "$KERNELS" 127.0.0.1:4420 \
        --depths $depth --access $way > "/share/figures/host-$way-$depth.ours.$round.json"
      # The kernel's initiator on the same target is the same run.
      cp "/share/figures/target-$way-$depth.kernel.$round.json" "/share/figures/host-$way-$depth.kernel.$round.json"
    done
  done
done
nvme disconnect-all
