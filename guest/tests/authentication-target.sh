# Runs in the guest: the kernel's target asks our host for DH-HMAC-CHAP, by every hash and group that it has, one way and
# both ways. The file `suite-N` from the host says which is the Nth; `armed-N` tells the host that it is set. No name is used
# twice: the guest may remember of a shared file that it is there, or is not.
. /share/lib.sh
. /share/nvmet.sh

make_disk 16 4096
make_subsystem "$NQN" 0
host=$config/nvmet/hosts/$HOST_NQN
mkdir "$host"
cat "/share/host.key" > "$host/dhchap_key"
ln -s "$host" "$subsystem/allowed_hosts/$HOST_NQN"
make_port 1 4420
serve_at 1
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
