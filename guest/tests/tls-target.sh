# Runs in the guest: the kernel's target at a port that requires TLS, used by our host.
. /share/lib.sh
. /share/tls.sh
. /share/nvmet.sh

make_disk 64 4096
start_tlshd
# Each derivation under identities of its own; version 0 has one identity for both: the standard's.
while read -r hex identity; do insert "$identity" "$hex"; done < /share/tls.derived

make_subsystem "$NQN" 1
make_port 1 4420
echo tls1.3 > $port/addr_tsas || fail "this kernel's target does no TLS"
echo required > $port/addr_treq
serve_at 1
step "serving $NQN over TLS"
touch /share/ready
await_host || { cat /tmp/tlshd.log; fail "the host never finished"; }
