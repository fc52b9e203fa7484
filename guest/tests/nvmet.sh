# Sourced by the tests of the kernel's target: a memory disk, a subsystem with it, and ports.
config=/sys/kernel/config

# make_disk MIB BLOCK: /dev/disk, in memory; gives back what is discarded.
make_disk() {
  modprobe configfs
  mountpoint -q $config || mount -t configfs none $config
  modprobe nvmet-tcp
  modprobe null_blk nr_devices=0
  local disk=$config/nullb/disk
  mkdir $disk
  echo "$1" > $disk/size
  echo 1 > $disk/memory_backed
  echo "$2" > $disk/blocksize
  echo 0 > $disk/irqmode
  echo 1 > $disk/discard
  echo 1 > $disk/power
}

# make_subsystem NQN ANY_HOST: /dev/disk is its namespace 1; its folder is `$subsystem`.
make_subsystem() {
  subsystem=$config/nvmet/subsystems/$1
  mkdir "$subsystem"
  echo "$2" > "$subsystem/attr_allow_any_host"
  mkdir "$subsystem/namespaces/1"
  echo -n /dev/disk > "$subsystem/namespaces/1/device_path"
  echo 1 > "$subsystem/namespaces/1/enable"
}

# make_port NUMBER SERVICE: its folder is `$port`. It serves what serve_at puts there.
make_port() {
  port=$config/nvmet/ports/$1
  mkdir "$port"
  echo tcp > "$port/addr_trtype"
  echo ipv4 > "$port/addr_adrfam"
  echo 0.0.0.0 > "$port/addr_traddr"
  echo "$2" > "$port/addr_trsvcid"
}

# serve_at PORT_NUMBER: the subsystem made last.
serve_at() { ln -s "$subsystem" "$config/nvmet/ports/$1/subsystems/$(basename "$subsystem")"; }

# Waits until the host has done its part.
await_host() {
  local tries
  for ((tries = 0; tries < 1200; tries++)); do
    [ ! -e /share/done ] || return 0
    sleep 0.1
  done
  return 1
}
