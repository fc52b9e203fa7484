# Runs in the guest: the kernel's target asks our host for DH-HMAC-CHAP, by every hash and group that it has, one way and
# both ways. The file `suite-N` from the host says which is the Nth; `armed-N` tells the host that it is set. No name is used
# twice: the guest may remember of a shared file that it is there, or is not.
. /share/lib.sh
config=/sys/kernel/config

modprobe configfs
mountpoint -q $config || mount -t configfs none $config
modprobe nvmet-tcp
modprobe null_blk nr_devices=0
disk=$config/nullb/disk
mkdir $disk
echo 16 > $disk/size
echo 1 > $disk/memory_backed
echo 4096 > $disk/blocksize
echo 0 > $disk/irqmode
echo 1 > $disk/power

subsystem=$config/nvmet/subsystems/$NQN
mkdir "$subsystem"
echo 0 > "$subsystem/attr_allow_any_host"
mkdir "$subsystem/namespaces/1"
echo -n /dev/disk > "$subsystem/namespaces/1/device_path"
echo 1 > "$subsystem/namespaces/1/enable"
host=$config/nvmet/hosts/$HOST_NQN
mkdir "$host"
cat "/share/host.key" > "$host/dhchap_key"
ln -s "$host" "$subsystem/allowed_hosts/$HOST_NQN"
port=$config/nvmet/ports/1
mkdir $port
echo tcp > $port/addr_trtype
echo ipv4 > $port/addr_adrfam
echo 0.0.0.0 > $port/addr_traddr
echo 4420 > $port/addr_trsvcid
ln -s "$subsystem" "$port/subsystems/$NQN"
step "serving $NQN to $HOST_NQN"
touch /share/ready

next=1
for ((tries = 0; tries < 1800; tries++)); do
  [ ! -e /share/done ] || exit 0
  if [ -e /share/suite-$next ]; then
    read -r hash group both < /share/suite-$next
    echo "$hash" > "$host/dhchap_hash"
    echo "$group" > "$host/dhchap_dhgroup"
    # The kernel has no way to take a controller's key back: the one-way runs come first.
    [ "$both" = 0 ] || cat /share/controller.key > "$host/dhchap_ctrl_key"
    step "armed: $hash $group, both ways: $both"
    touch /share/armed-$next
    next=$((next + 1))
  fi
  sleep 0.1
done
fail "the host never finished"
