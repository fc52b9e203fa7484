# Runs in the guest: the kernel's target at two ports, with ANA groups and a referral from the one to the other. The host
# orders what becomes of the ports while it reads and writes: the Nth order is in `order-N`, and done once there is `obeyed-N`.
# No name is used twice: the guest may remember of a shared file that it is there, or is not.
. /share/lib.sh
. /share/nvmet.sh

make_disk $((SIZE / 1048576)) 4096
make_subsystem "$NQN" 1
for number in 1 2; do
  make_port $number $((4419 + number))
  # A second group. It would begin as inaccessible.
  mkdir "$port/ana_groups/2"
  echo optimized > "$port/ana_groups/2/ana_state"
  serve_at $number
done
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
    mend) serve_at "$2" ;;
    state) echo "$4" > "$config/nvmet/ports/$2/ana_groups/$3/ana_state" ;;
    group) echo "$2" > "$subsystem/namespaces/1/ana_grpid" ;;
    *) fail "an unknown order: $*" ;;
  esac
}

next=1
for ((tries = 0; tries < 1800; tries++)); do
  [ -e /share/done ] && break
  if [ -e /share/order-$next ]; then
    read -ra order < /share/order-$next
    step "order: ${order[*]}"
    obey "${order[@]}"
    : > /share/obeyed-$next
    next=$((next + 1))
  fi
  sleep 0.1
done
[ -e /share/done ] || fail "the host never finished"
# A kernel that has them would be asked for reservations; nvmet has them from 6.13 on.
step "reservations: $([ -e "$subsystem/namespaces/1/resv_enable" ] && echo offered || echo "not in this kernel's target")"
