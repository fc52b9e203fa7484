# Runs in the guest: the kernel's target at two ports, with ANA groups and a referral from the one to the other. The host
# orders what becomes of the ports while it reads and writes; a word a line in /share/order.
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
echo 4096 > $disk/blocksize
echo 0 > $disk/irqmode
echo 1 > $disk/power

subsystem=$config/nvmet/subsystems/$NQN
mkdir "$subsystem"
echo 1 > "$subsystem/attr_allow_any_host"
mkdir "$subsystem/namespaces/1"
echo -n /dev/disk > "$subsystem/namespaces/1/device_path"
echo 1 > "$subsystem/namespaces/1/enable"

# port NUMBER SERVICE
port() {
  local port=$config/nvmet/ports/$1
  mkdir "$port"
  echo tcp > "$port/addr_trtype"
  echo ipv4 > "$port/addr_adrfam"
  echo 0.0.0.0 > "$port/addr_traddr"
  echo "$2" > "$port/addr_trsvcid"
  # A second group. It would begin as inaccessible.
  mkdir "$port/ana_groups/2"
  echo optimized > "$port/ana_groups/2/ana_state"
  ln -s "$subsystem" "$port/subsystems/$NQN"
}
port 1 4420
port 2 4421
echo inaccessible > $config/nvmet/ports/1/ana_groups/2/ana_state
referral=$config/nvmet/ports/1/referrals/second
mkdir $referral
echo tcp > $referral/addr_trtype
echo ipv4 > $referral/addr_adrfam
echo 127.0.0.1 > $referral/addr_traddr
echo "$SECOND" > $referral/addr_trsvcid
echo 1 > $referral/enable
step "serving $NQN at two ports"
touch /share/ready

# obey cut PORT | mend PORT | state PORT GROUP STATE | group GROUP
obey() {
  case "$1" in
    cut) rm "$config/nvmet/ports/$2/subsystems/$NQN" ;;
    mend) ln -s "$subsystem" "$config/nvmet/ports/$2/subsystems/$NQN" ;;
    state) echo "$4" > "$config/nvmet/ports/$2/ana_groups/$3/ana_state" ;;
    group) echo "$2" > "$subsystem/namespaces/1/ana_grpid" ;;
    *) fail "an unknown order: $*" ;;
  esac
}

for ((tries = 0; tries < 1800; tries++)); do
  [ -e /share/done ] && break
  if [ -e /share/order ]; then
    read -ra order < /share/order
    rm /share/order
    step "order: ${order[*]}"
    obey "${order[@]}"
    : > /share/obeyed
  fi
  sleep 0.1
done
[ -e /share/done ] || fail "the host never finished"
# A kernel that has them would be asked for reservations; nvmet has them from 6.13 on.
step "reservations: $([ -e "$subsystem/namespaces/1/resv_enable" ] && echo offered || echo "not in this kernel's target")"
