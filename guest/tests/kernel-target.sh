# Runs in the guest: the kernel's target serves a namespace that the host reads and writes; then what the host says it
# wrote is compared on the backing device itself.
. /share/lib.sh
. /share/nvmet.sh

make_disk $((SIZE / 1048576)) "$BLOCK"
make_subsystem "$NQN" 1
make_port 1 4420
serve_at 1
step "serving $NQN"
touch /share/ready

await_host || fail "the host never finished"
step "comparing on the backing device"
while read -r offset file; do
  length=$(stat -c %s "/share/$file")
  dd if=/dev/disk bs=1M iflag=skip_bytes,count_bytes skip="$offset" count="$length" status=none | cmp - "/share/$file" \
    || fail "$file at byte $offset is not what the host wrote"
  step "$length bytes at $offset are $file"
done < /share/written
