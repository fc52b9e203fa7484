#!/bin/bash
# First process of the guest's root: mounts, network, then the script named on the kernel's command line; its exit status
# is left in the shared folder and the guest powers off.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
for folder in /run /tmp; do mount -t tmpfs tmpfs $folder; done
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
modprobe -q virtio_net
modprobe -q virtio_rng
ip link set lo up
# QEMU's user network: this is the guest, 10.0.2.2 is the host's loopback.
ip addr add 10.0.2.15/24 dev eth0
ip link set eth0 up
modprobe -q 9pnet_virtio
modprobe -q 9p
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /share
read -r uptime _ < /proc/uptime
argument() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" /proc/cmdline; }
script=$(argument run) name=$(argument name)
# A host identity that is always the same for a name, so that a target can tell one guest from another.
host=$(echo "yagura guest $name" | md5sum | sed 's/\(.\{8\}\)\(.\{4\}\)\(.\{4\}\)\(.\{4\}\)\(.\{12\}\).*/\1-\2-\3-\4-\5/')
echo "nqn.2014-08.org.nvmexpress:uuid:$host" > /etc/nvme/hostnqn
echo "$host" > /etc/nvme/hostid
echo "GUEST $name: Linux $(uname -r) after $uptime s, running $script"
bash "/share/$script"
status=$?
read -r uptime _ < /proc/uptime
echo "GUEST $name: $script ended with status $status after $uptime s"
echo $status > "/share/status-$name"
sync
echo o > /proc/sysrq-trigger
sleep 10
