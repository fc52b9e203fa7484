# Runs in the guest: the kernel's target serves a namespace that the host reads and writes; then what the host says it
# wrote is compared on the backing device itself.
. /share/lib.sh
config=/sys/kernel/config

modprobe configfs
mountpoint -q $config || mount -t configfs none $config
modprobe nvmet-tcp
modprobe null_blk nr_devices=0
disk=$config/nullb/disk
mkdir $disk
echo $((SIZE / 1048576)) > $disk/size
echo 1 > $disk/memory_backed
echo "$BLOCK" > $disk/blocksize
echo 0 > $disk/irqmode
echo 1 > $disk/discard
echo 1 > $disk/power

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
ln -s "$subsystem" "$port/subsystems/$NQN"
step "serving $NQN"
touch /share/ready

for ((tries = 0; tries < 1200; tries++)); do
  [ -e /share/done ] && break
  sleep 0.1
done
[ -e /share/done ] || fail "the host never finished"
step "comparing on the backing device"
while read -r offset file; do
  length=$(stat -c %s "/share/$file")
  dd if=/dev/disk bs=1M iflag=skip_bytes,count_bytes skip="$offset" count="$length" status=none | cmp - "/share/$file" \
    || fail "$file at byte $offset is not what the host wrote"
  step "$length bytes at $offset are $file"
done < /share/written
