#!/usr/bin/env bash
# Installs what is missing, and only that: Debian packages by the command each one provides, cargo tools by name.
# usage: deps.sh GROUP…   (build, test, bench, ceph)
# A machine that has everything is left alone and needs neither root nor the network.
set -euo pipefail

# Tools of ours that come from the registry; pinned, so that a new release cannot turn the gate red by itself.
CARGO_DENY=0.20.2
CARGO_NEXTEST=0.9.151
# What others judge file systems by.
PJDFSTEST=0.2.2
FSX=0.3.2
CLIENTS_PY=(redis==8.1.0 pymemcache==4.0.0 pylibmc==1.6.3)
# The last one that Debian 12's Go (1.19) builds.
CSI_SANITY=v5.2.0
# apt on a fresh machine fails now and then (a mirror in mid-update, a lock held by the first boot).
TRIES=4

packages=()
tools=()
clients_py=
csi_sanity=
fio_tree=

# command=package: the package is wanted when the command is not there.
want() {
  for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null 2>&1 || packages+=("${pair#*=}")
  done
}

# name@version of a cargo tool, whose command is the name.
want_tool() {
  for tool in "$@"; do
    command -v "${tool%@*}" >/dev/null 2>&1 || tools+=("$tool")
  done
}

for group in "$@"; do
  case "$group" in
    # pkg-config and libssl-dev together: the one names the other's place to the build.
    build) want cc=gcc ld=binutils git=git pkg-config=pkg-config
      pkg-config --exists openssl 2>/dev/null || packages+=(libssl-dev)
      # The drill of `make run`, and the guest's image, are ext4: what makes and checks that lies where not everybody's path leads.
      [ -x /sbin/mke2fs ] || want mke2fs=e2fsprogs ;;
    test)
      # c++: libFuzzer is built from source. python3, zstd: the guest's image. redis-cli: the gateway's tests.
      want c++=g++ python3=python3 zstd=zstd qemu-system-x86_64=qemu-system-x86 redis-cli=redis-tools
      # openssl: TLS that is not ours, at the other end of our connections.
      want redis-benchmark=redis-tools openssl=openssl
      # redis-server: what the gateway's answers are compared with. The client library, and the tests of our own for Python, live in
      # environments of their own, which venv makes, which Debian packages apart.
      want redis-server=redis-server
      # memcached: what the cache's answers are compared with, with users of libsasl2 too.
      want memcached=memcached saslpasswd2=sasl2-bin
      compgen -G "/usr/lib/*/sasl2/libplain.so" >/dev/null || packages+=(libsasl2-modules)
      python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
      clients_py=yes
      # libisal: another implementation of erasure codes, whose parity ours is compared with.
      compgen -G "/usr/lib/*/libisal.so" >/dev/null || packages+=(libisal-dev)
      # etcd: the catalogue on several machines, three members of it in the tests.
      want etcd=etcd-server
      # nbdcopy, nbdinfo and qemu-img: clients of NBD by others.
      want nbdcopy=libnbd-bin qemu-img=qemu-utils
      # memccapable: a test of memcached's protocols by others.
      want memccapable=libmemcached-tools
      # sqlite3, tar and umount: programs that people run on a file system, and what ends a mount.
      want sqlite3=sqlite3 tar=tar umount=mount
      # fio, and the headers that its I/O engines are built against.
      want fio=fio
      fio_tree=yes
      # csi-sanity, which Go builds: a test of the Container Storage Interface by others.
      csi_sanity=${XDG_CACHE_HOME:-$HOME/.cache}/yagura/csi-sanity-$CSI_SANITY
      [ -x "$csi_sanity" ] || want go=golang-go
      want_tool "cargo-nextest@$CARGO_NEXTEST" "cargo-deny@$CARGO_DENY" "pjdfstest@$PJDFSTEST" "fsx@$FSX"
      ;;
    bench) want memcached=memcached fio=fio redis-server=redis-server mvn=maven javac=default-jdk-headless
      compgen -G "/usr/lib/*/libisal.so.2" >/dev/null || packages+=(libisal2) ;;
    # What volumes are compared with, and only if somebody asks.
    ceph) want ceph-mon=ceph-mon ceph-mgr=ceph-mgr ceph-osd=ceph-osd ceph=ceph-common fio=fio ;;
    *) echo "deps.sh: unknown group '$group' (build, test, bench, ceph)" >&2; exit 2 ;;
  esac
done

command -v cargo >/dev/null 2>&1 || {
  echo "deps.sh: cargo is not in PATH: install a Rust toolchain first, see https://rustup.rs" >&2
  exit 1
}

retry() {
  local try
  for ((try = 1; try <= TRIES; try++)); do
    "$@" && return 0
    echo "deps.sh: '$*' failed (try $try of $TRIES)" >&2
    sleep $((try * 3))
  done
  return 1
}

sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
if ((${#packages[@]})); then
  mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)
  echo "deps: installing ${packages[*]}"
  export DEBIAN_FRONTEND=noninteractive
  retry "${sudo[@]}" apt-get -qq update
  retry "${sudo[@]}" apt-get -qq install -y --no-install-recommends "${packages[@]}"
fi

# They run for seconds, so they are built for being built: unoptimised, and in one folder, since they share what they depend on.
# The caller's CARGO_TARGET_DIR is for this workspace alone.
install_tools() {
  local folder tool features
  folder=$(mktemp -d)
  for tool in "${tools[@]}"; do
    echo "deps: installing $tool"
    features=()
    # Without what looks for newer releases of itself, which is half of its dependencies.
    [ "${tool%@*}" != cargo-nextest ] || features=(--no-default-features --features default-no-update)
    retry env CARGO_TARGET_DIR="$folder" CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off \
      CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0 \
      cargo install --locked "${features[@]}" "$tool" || { rm -rf "$folder"; return 1; }
  done
  rm -rf "$folder"
}
((${#tools[@]} == 0)) || install_tools

if [ -n "$clients_py" ]; then
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/yagura/clients-py
  if [ "$("$venv/bin/python" -m pip freeze 2>/dev/null | grep -cxFf <(printf '%s\n' "${CLIENTS_PY[@]}"))" != "${#CLIENTS_PY[@]}" ]; then
    echo "deps: installing ${CLIENTS_PY[*]} for the tests"
    rm -rf "$venv"
    python3 -m venv "$venv"
    retry "$venv/bin/python" -m pip --quiet --disable-pip-version-check install "${CLIENTS_PY[@]}"
  fi
fi

# With a folder of its own for what it is built from, which goes again; what it is built from is checked by Go's own sums.
build_csi_sanity() {
  local folder
  folder=$(mktemp -d)
  echo "deps: building csi-sanity $CSI_SANITY for the tests"
  mkdir -p "$(dirname "$csi_sanity")"
  retry env GOPATH="$folder" GOCACHE="$folder/cache" GOBIN="$folder/bin" GOFLAGS=-modcacherw CGO_ENABLED=0 \
    go install "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@$CSI_SANITY" || { rm -rf "$folder"; return 1; }
  mv "$folder/bin/csi-sanity" "$csi_sanity"
  rm -rf "$folder"
}
[ -z "$csi_sanity" ] || [ -x "$csi_sanity" ] || build_csi_sanity

# The source of the fio that is installed, by package lists of its own: no package has its headers, and few machines list sources.
get_fio_tree() {
  local folder url place version
  folder=$(mktemp -d)
  # From where the package comes, as `500 http://HOST/debian bookworm/main amd64 Packages`.
  apt-cache policy fio | grep -qF ' http' || retry "${sudo[@]}" apt-get -qq update
  read -r _ url place _ < <(apt-cache policy fio | grep -m 1 -F ' http') ||
    { echo "deps.sh: apt knows no place where fio comes from" >&2; return 1; }
  version=$(dpkg-query --show --showformat '${Version}' fio)
  echo "deps: getting the source of fio $version for the tests"
  mkdir -p "$folder/lists/partial" "$folder/archives/partial" "$folder/source"
  echo "deb-src $url ${place%/*} ${place#*/}" > "$folder/sources.list"
  local apt=(apt-get -qq -o "Dir::Etc::SourceList=$folder/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$folder/lists" -o "Dir::Cache=$folder" -o APT::Sandbox::User=root)
  retry "${apt[@]}" update
  (cd "$folder" && retry "${apt[@]}" source --download-only "fio=$version")
  tar -xf "$folder"/fio_*.orig.tar.?z --strip-components 1 -C "$folder/source"
  (cd "$folder/source" && ./configure > /dev/null)
  mkdir -p "$(dirname "$fio_tree")"
  mv -T "$folder/source" "$fio_tree"
  rm -rf "$folder"
}
if [ -n "$fio_tree" ]; then
  fio_tree=${XDG_CACHE_HOME:-$HOME/.cache}/yagura/$(fio --version)
  [ -e "$fio_tree/config-host.h" ] || get_fio_tree
fi

# Every locked crate, those of other platforms too: cargo-deny reads them all, and no later step needs the network.
cargo fetch --quiet --locked
cargo fetch --quiet --manifest-path fuzz/Cargo.toml
