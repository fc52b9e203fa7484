# Sourced by the TLS tests: the daemon that makes the kernel's handshakes, and keys in the kernel's keyring.

# The keyrings come with the modules; tlshd looks for the keyring when it starts.
start_tlshd() {
  modprobe nvme-keyring
  modprobe tls
  printf '[debug]\nloglevel=1\ntls=1\nnl=0\n[authenticate]\nkeyrings=.nvme\n' > /tmp/tlshd.conf
  # Away from this script's output: the daemon outlives what it is started for.
  tlshd -s -c /tmp/tlshd.conf >/tmp/tlshd.log 2>&1 &
  sleep 1
  kill -0 $! || fail "tlshd: $(cat /tmp/tlshd.log)"
}

# insert IDENTITY HEX: a key that was derived elsewhere.
insert() {
  step "key $1"
  key=$(printf "$(sed 's/../\\x&/g' <<< "$2")" | keyctl padd psk "$1" %keyring:.nvme)
}

# insert_by_tool VERSION HOST: what nvme-cli derives from the key file, for a host that is not this one too.
insert_by_tool() {
  step "key of nvme-cli, identity of version $1"
  nvme check-tls-key --keyring=.nvme --subsysnqn="$NQN" --hostnqn="$2" --keydata="$(cat /share/tls.key)" \
    --identity="$1" --insert | tee /tmp/inserted
  key=$(keyctl list %keyring:.nvme | sed -n 's/^ *\([0-9]*\):.*psk.*/\1/p' | tail -n 1)
}

forget() { keyctl unlink "$key" %keyring:.nvme >/dev/null; }
