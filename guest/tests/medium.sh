# Runs in the guest: who uses a medium has it alone, whether that is the product or the kernel.
. /share/lib.sh
. /share/nvmet.sh
# The product with the libraries that it was built against.
product=(/share/lib/loader --library-path /share/lib /share/yagura)
yagura() { "${product[@]}" "$@"; }
NGUID=0102030405060708090a0b0c0d0e0f10
mkdir -p /mnt/disk

# serving NAMESPACE: a target on it, `$node`.
serving() {
  "${product[@]}" target --listen 127.0.0.1:0 --nqn "$NQN" --namespace "$1" > /tmp/node 2>&1 &
  node=$!
  await grep -q listening /tmp/node
}
over() {
  kill $node
  wait $node || fail "the target did not end cleanly: $(cat /tmp/node)"
}

make_disk 64 4096
step "a block device that a target serves"
serving device=/dev/disk,nguid=$NGUID
refused 'in use' yagura target --listen 127.0.0.1:0 --namespace device=/dev/disk,nguid=$NGUID
refused 'in use' yagura drive format /dev/disk
refused 'in use|busy' mkfs.ext4 -q /dev/disk
over

step "a block device that is mounted"
mkfs.ext4 -q /dev/disk
mount /dev/disk /mnt/disk
refused 'in use' yagura target --listen 127.0.0.1:0 --namespace device=/dev/disk,nguid=$NGUID
refused 'in use' yagura drive format /dev/disk --force

step "a file that a target serves"
serving file=/mnt/disk/file,size=4MiB
refused 'in use' yagura target --listen 127.0.0.1:0 --namespace file=/mnt/disk/file
over
serving file=/mnt/disk/file
over

step "a drive that a target serves"
yagura drive format /mnt/disk/drive --size 16MiB
yagura drive create /mnt/disk/drive one --size 4MiB
serving drive=/mnt/disk/drive,name=one
refused 'in use' yagura drive check /mnt/disk/drive
refused 'in use' yagura drive create /mnt/disk/drive two --size 4MiB
over
yagura drive check /mnt/disk/drive
umount /mnt/disk
