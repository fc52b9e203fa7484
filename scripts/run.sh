#!/usr/bin/env bash
# `make run`: the whole product once, on real input, with one storage node killed on the way.
# usage: run.sh YAGURA POOL_DIR ONCE DATA     (ONCE and DATA may be empty)
set -euo pipefail
cd "$(dirname "$0")/.."
yagura=$1 pool_dir=$2 once=$3 data=$4

if [ -z "$data" ]; then
  # Our own tree, as a directory of its own: without build products, history, and the pool that it is imported into.
  data=$pool_dir/tree
  rm -rf "$data"
  mkdir -p "$data"
  tar -cf - --exclude=./target --exclude=./.git --exclude=./fuzz/{target,corpus,artifacts} --exclude="./$(realpath -m --relative-to=. "$pool_dir")" . \
    | tar -xf - -C "$data"
fi
[ -d "$data" ] || { echo "make run: DATA=$data is not a directory" >&2; exit 2; }

args=(up --data "$pool_dir" --drill "$data")
[ -z "$once" ] || args+=(--once)
exec "$yagura" "${args[@]}"
