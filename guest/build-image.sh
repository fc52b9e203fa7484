#!/usr/bin/env bash
# Builds the guest: a Debian kernel and a small root with nvme-cli and fio, from Debian's packages, about a minute.
# Installs nothing on this machine and needs no root: packages are fetched with apt into a folder and unpacked there.
# usage: build-image.sh IMAGE     makes the folder IMAGE with vmlinux, initrd.gz and root.ext4
# Environment: DEBIAN_MIRROR, if the archive cannot be told from this machine's own apt sources.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
image=$(readlink -m "$1")

# The suite is ours to choose, not the host's: 6.12 is the first long-term kernel whose initiator and target are both
# complete over TCP.
SUITE=trixie
# btrfs-progs: a file system in zones. keyutils and ktls-utils: the keys of TLS, and the daemon that makes the kernel's TLS
# handshakes. curl: calls of gRPC.
PACKAGES=(busybox-static bash coreutils util-linux mount kmod iproute2 nvme-cli fio e2fsprogs btrfs-progs diffutils keyutils
  ktls-utils curl)
# The ciphers and hashes that authentication (ffdhe, HMAC) and TLS ask for by name are loaded on demand: they must be there.
MODULES=(virtio_pci virtio_net virtio_blk virtio_rng ext4 9p 9pnet_virtio nvme nvme-tcp nvmet-tcp null_blk configfs crc32c_generic
  btrfs xxhash_generic blake2b_generic ublk_drv nvme-auth nvme-keyring tls dh_generic hmac sha256_generic sha512_generic gcm ccm
  ctr ghash-generic aes_generic cmac)
BOOT_MODULES=(virtio_pci virtio_blk ext4 crc32c_generic)

for command in apt-get dpkg-deb python3 mke2fs zstd; do
  command -v "$command" >/dev/null || { echo "build-image.sh: $command is missing: run 'make deps'" >&2; exit 1; }
done

mkdir -p "$(dirname "$image")"
work=$(mktemp -d "$(dirname "$image")/.build.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p lists/partial debs/partial none kernel root initrd out

# 1. Packages: the whole closure, libc included, because the private apt state knows of nothing installed.
archive=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | grep -E '/debian/?$' | sort -u | head -n 1)}
[ -n "$archive" ] || { echo "build-image.sh: no Debian archive among apt's sources: set DEBIAN_MIRROR" >&2; exit 1; }
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $SUITE main" > sources.list
cat > apt.conf <<CONF
Dir::Etc::sourcelist "$work/sources.list"; Dir::Etc::sourceparts "$work/none";
Dir::Etc::preferences "$work/none/none"; Dir::Etc::preferencesparts "$work/none";
Dir::State::lists "$work/lists"; Dir::State::status "/dev/null";
Dir::Cache "$work"; Dir::Cache::archives "$work/debs";
APT::Sandbox::User ""; Acquire::Languages "none"; Acquire::Retries "4";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
CONF
export APT_CONFIG=$work/apt.conf
apt-get -qq update
# linux-image-amd64 only names the current kernel's package.
kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ { print $2; exit }')
version=${kernel#linux-image-}
apt-get -qq install -y --download-only --no-install-recommends "${PACKAGES[@]}" >/dev/null
(cd kernel && apt-get -qq download "$kernel" && dpkg-deb -x "$kernel"_*.deb . && rm "$kernel"_*.deb)

# 2. The kernel, uncompressed: QEMU enters an ELF image directly, and emulated decompression costs seconds.
python3 - "kernel/boot/vmlinuz-$version" out/vmlinux <<'PY'
import lzma, subprocess, sys
data = open(sys.argv[1], "rb").read()
for magic, unpack in ((b"\xfd7zXZ\0", lambda d: lzma.LZMADecompressor().decompress(d)),
                      (b"\x28\xb5\x2f\xfd", lambda d: subprocess.run(["zstd", "-dcq"], input=d, capture_output=True).stdout)):
    at = data.find(magic)
    if at > 0 and (image := unpack(data[at:]))[:4] == b"\x7fELF":
        open(sys.argv[2], "wb").write(image)
        sys.exit(0)
sys.exit("the kernel is compressed in a way that build-image.sh does not know")
PY

# 3. The root: packages unpacked over merged /usr, no maintainer script run; busybox stands in for what is missing.
mkdir -p root/usr/{bin,sbin,lib,lib64} root/{proc,sys,dev,tmp,run,etc/nvme,root,share,mnt}
for folder in bin sbin lib lib64; do ln -s "usr/$folder" "root/$folder"; done
for package in debs/*.deb; do
  dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink -C root \
    --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' --exclude='./usr/share/info/*'
done
for applet in $(root/bin/busybox --list); do
  [ -e "root/usr/bin/$applet" ] || [ -e "root/usr/sbin/$applet" ] || ln -s busybox "root/usr/bin/$applet"
done
echo 'root:x:0:0:root:/root:/bin/bash' > root/etc/passwd
echo 'root:x:0:' > root/etc/group
install -m 755 "$here/init.sh" root/init

# 4. Modules: what the tests need and what that needs. The guest's own depmod indexes them, through its own loader.
depmod() {
  root/lib64/ld-linux-x86-64.so.2 --argv0 depmod --library-path root/usr/lib/x86_64-linux-gnu root/usr/bin/kmod "$@"
}
from=kernel/usr/lib/modules/$version to=root/usr/lib/modules/$version
[ -d "$from" ] || from=kernel/lib/modules/$version
if [ -d kernel/usr/lib ] && [ ! -e kernel/lib ]; then ln -s usr/lib kernel/lib; fi
depmod -b "$work/kernel" "$version"
python3 "$here/modules.py" "$from" "${MODULES[@]}" | while read -r module; do
  install -D -m 644 "$from/$module" "$to/$module"
done
cp "$from"/modules.{order,builtin,builtin.modinfo} "$to"
depmod -b "$work/root" "$version"

# 5. The first root: just enough to mount the disk.
mkdir -p initrd/{bin,dev,proc,sys,new,modules}
cp root/bin/busybox initrd/bin/busybox
python3 "$here/modules.py" "$to" "${BOOT_MODULES[@]}" | while read -r module; do
  name=$(basename "${module%.xz}")
  if [ "$module" = "${module%.xz}" ]; then cp "$to/$module" "initrd/modules/$name"
  else python3 -c 'import lzma,sys; sys.stdout.buffer.write(lzma.open(sys.argv[1]).read())' "$to/$module" > "initrd/modules/$name"
  fi
  echo "$name" >> initrd/modules/order
done
install -m 755 "$here/initrd.sh" initrd/init
(cd initrd && find . | ./bin/busybox cpio -o -H newc 2>/dev/null) | gzip -1 > out/initrd.gz

# 6. The disk, made without mounting anything.
size=$(($(du -sm root | cut -f1) + 100))
mke2fs -q -t ext4 -O ^has_journal -E root_owner=0:0 -d root out/root.ext4 "${size}M"

rm -rf "$image"
mv out "$image"
echo "build-image.sh: kernel $version, $(du -sm "$image" | cut -f1) MiB in $image"
