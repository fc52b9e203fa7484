# Runs in the guest: the kernel's target at a port that requires TLS, used by our host.
. /share/lib.sh
. /share/tls.sh
config=/sys/kernel/config

modprobe configfs
mountpoint -q $config || mount -t configfs none $config
modprobe nvmet-tcp
modprobe null_blk nr_devices=0
disk=$config/nullb/disk
mkdir $disk
echo 64 > $disk/size
echo 1 > $disk/memory_backed
echo 4096 > $disk/blocksize
echo 1 > $disk/power
start_tlshd
# Each derivation under identities of its own; version 0 has one identity for both: the standard's.
while read -r hex identity; do insert "$identity" "$hex"; done < /share/tls.derived

subsystem=$config/nvmet/subsystems/$NQN
mkdir "$subsystem"
echo 1 > "$subsystem/attr_allow_any_host"
mkdir "$subsystem/namespaces/1"
echo -n /dev/disk > "$subsystem/namespaces/1/device_path"
echo 1 > "$subsystem/namespaces/1/enable"
port=$config/nvmet/ports/1
mkdir $port
echo tcp > $port/addr_trtype
echo ipv4 > $port/addr_adrfam
echo 0.0.0.0 > $port/addr_traddr
echo 4420 > $port/addr_trsvcid
echo tls1.3 > $port/addr_tsas || fail "this kernel's target does no TLS"
echo required > $port/addr_treq
ln -s "$subsystem" "$port/subsystems/$NQN"
step "serving $NQN over TLS"
touch /share/ready
for ((tries = 0; tries < 1200; tries++)); do
  [ -e /share/done ] && break
  sleep 0.1
done
[ -e /share/done ] || { cat /tmp/tlshd.log; fail "the host never finished"; }
