#!/usr/bin/env bash
# Builds the I/O engine for fio, with the library beside it: FOLDER/libyagura_fio.so.
# usage: fio-engine.sh FIO LIBRARY FOLDER   FIO: fio's source tree, configured (./configure), of the version that is to load it;
#                                           LIBRARY: libyagura.so
set -euo pipefail
fio=$(realpath "$1")
library=$(realpath "$2")
mkdir -p "$3"
folder=$(realpath "$3")
cd "$(dirname "$0")/.."

[ -e "$fio/fio.h" ] || { echo "fio-engine.sh: $fio is no source tree of fio" >&2; exit 2; }
[ -e "$fio/config-host.h" ] || { echo "fio-engine.sh: $fio is not configured: run ./configure there" >&2; exit 2; }
# By the name of its interface, under which the engine asks for it.
install -m 755 "$library" "$folder/libyagura.so.0"
# fio's headers are for its own warnings.
cc -std=gnu11 -O2 -g -fPIC -shared -D_GNU_SOURCE -include "$fio/config-host.h" -isystem "$fio" -I crates/capi/include \
  -Wall -Wextra -Wno-unused-parameter -Werror crates/capi/fio/engine.c \
  "$folder/libyagura.so.0" -Wl,-rpath,'$ORIGIN' -o "$folder/libyagura_fio.so"
