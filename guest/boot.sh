#!/usr/bin/env bash
# Boots the guest under emulation, runs SHARE/SCRIPT in it, exits with that script's status; 250 if it never reported.
# usage: boot.sh IMAGE SHARE SCRIPT
# Environment: HOST_FORWARD=PORT makes the guest's 10.0.2.15:4420 reachable at 127.0.0.1:PORT, and HOST_FORWARD_SECOND its port
# 4421; GUEST_SECONDS_MAX; GUEST_CPUS;
# GUEST_ZONED=FILE, for an NVMe drive whose namespace has zones, and is in the file: how far they are written the drive forgets with
# the guest;
# GUEST_NAME, for several guests over one SHARE (each is a host with an identity of its own).
set -euo pipefail
image=$1 share=$2 script=$3
name=${GUEST_NAME:-guest}

# A boot takes about 10 s under emulation and a test one to two minutes on a busy machine; beyond this it hangs.
limit=${GUEST_SECONDS_MAX:-420}
network="user,id=net,ipv6=off"
[ -z "${HOST_FORWARD:-}" ] || network+=",hostfwd=tcp:127.0.0.1:$HOST_FORWARD-10.0.2.15:4420"
[ -z "${HOST_FORWARD_SECOND:-}" ] || network+=",hostfwd=tcp:127.0.0.1:$HOST_FORWARD_SECOND-10.0.2.15:4421"

drives=()
if [ -n "${GUEST_ZONED:-}" ]; then
  # 15 units of 128 KiB can be written of each zone, less one block.
  zoned="zoned=true,zoned.zone_size=2M,zoned.zone_capacity=1916K,zoned.max_open=14,zoned.max_active=14"
  drives=(-drive "file=$GUEST_ZONED,format=raw,if=none,id=zoned,cache=unsafe"
    -device nvme,id=zones,serial=yagura-zoned
    -device "nvme-ns,drive=zoned,logical_block_size=4096,physical_block_size=4096,$zoned")
fi

# What the kernel measures by its own clock is, under emulation, how busy this machine is. And it tries out an algorithm before its
# first use, for which it gives itself a minute: for a Diffie-Hellman group of 8192 bits, beside much else, that was not enough.
patient="nowatchdog rcupdate.rcu_cpu_stall_suppress=1 cryptomgr.notests=1"
# What a process that such a signal has ended shows to its shell.
SEGMENTATION_FAULT=139

status=$share/status-$name
console=$(mktemp)
emulator=
# Whoever ends this script ends the guest.
trap 'kill $emulator 2>/dev/null || true; rm -f "$console"' EXIT
trap 'exit 143' TERM INT

emulate() {
  rm -f "$status"
  timeout --kill-after=5 "$limit" qemu-system-x86_64 \
    -accel tcg,thread=multi,tb-size=256 -cpu max -machine q35 -smp "${GUEST_CPUS:-2}" -m 768 \
    -nographic -no-reboot -nodefaults -serial stdio \
    -kernel "$image/vmlinux" -initrd "$image/initrd.gz" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 $patient run=$script name=$name" \
    -drive "file=$image/root.ext4,format=raw,if=none,id=disk,snapshot=on" -device virtio-blk-pci,drive=disk \
    -virtfs "local,path=$share,mount_tag=share,security_model=none" \
    "${drives[@]}" -netdev "$network" -device virtio-net-pci,netdev=net,romfile= \
    -device virtio-rng-pci </dev/null > >(tee "$console") &
  emulator=$! ended=0
  wait "$emulator" || ended=$?
  [ $ended = 0 ] || echo "boot.sh: QEMU ended with status $ended" >&2
}

# Whether nothing of ours has run: the kernel panicked, or the emulator itself crashed, before the script began.
never_began() {
  ! grep -q "^GUEST $name: Linux" "$console" && { grep -q "Kernel panic" "$console" || [ $ended = $SEGMENTATION_FAULT ]; }
}

# Under emulation the kernel itself panics now and then in its first second, and QEMU 7.2 has crashed in it, before anything of ours
# runs (each seen once in some hundred boots). Such a boot is tried again; what happens after the script began is the test's finding
# and is not.
for boot in 1 2 3; do
  emulate
  never_began || break
  echo "boot.sh: the guest died before the test began (boot $boot of 3)" >&2
done
[ -f "$status" ] || exit 250
exit "$(cat "$status")"
