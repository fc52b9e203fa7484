#!/bin/busybox sh
# First process of the guest: loads the disk's driver, mounts the disk, hands over to its /init.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module"; done < /modules/order
n=0
while [ ! -b /dev/vda ] && [ $n -lt 100 ]; do $b sleep 0.1; n=$((n + 1)); done
$b mount -t ext4 -o noatime /dev/vda /new || { echo "GUEST: no root disk"; $b poweroff -f; }
$b umount /proc
$b umount /sys
$b mount -o move /dev /new/dev
exec $b switch_root /new /init
