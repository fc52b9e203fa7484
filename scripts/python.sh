#!/usr/bin/env bash
# Builds the Python package as a wheel, installs it in an environment of its own, checks its types, and runs its tests.
# usage: python.sh [wheel]   (wheel: builds it optimised, as it is given away, and says where it is)
# Environment: YAGURA, the binary that serves the tests (built if not given).
# Kept under the target directory: the environment (as long as the pinned tools stay the same) and the wheels.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/python
venv=$place/venv
pins=python/requirements-test.txt

mkdir -p "$place"
if ! cmp -s "$pins" "$venv/pins" 2>/dev/null; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip --quiet --disable-pip-version-check install --requirement "$pins"
  cp "$pins" "$venv/pins"
fi

# What is tested shares the crates below with all other tests, which have the feature.
build=(--profile dev --features testing)
[ "${1:-}" != wheel ] || build=(--profile dist)
rm -rf "$place/wheels"
CARGO_TARGET_DIR=$target "$venv/bin/maturin" build --quiet --locked --manifest-path python/Cargo.toml "${build[@]}" \
  --interpreter "$venv/bin/python" --compatibility linux --out "$place/wheels"
wheels=("$place"/wheels/yagura-*.whl)
if [ "${1:-}" = wheel ]; then
  echo "${wheels[0]}"
  exit
fi
"$venv/bin/python" -m pip --quiet --disable-pip-version-check install --no-deps --force-reinstall "${wheels[0]}"

if [ -z "${YAGURA:-}" ]; then
  cargo build --quiet --locked --bin yagura
  YAGURA=$target/debug/yagura
fi
# From outside the source folder: what is tested is the package as it was installed.
rm -rf "$place/tests" "$place/examples"
cp -r python/tests python/examples python/pyproject.toml "$place/"
cd "$place"
"$venv/bin/python" -m mypy --no-incremental --package yagura --config-file pyproject.toml
"$venv/bin/python" -m mypy --no-incremental --config-file pyproject.toml tests
"$venv/bin/python" -m mypy --no-incremental --config-file pyproject.toml examples
YAGURA=$YAGURA exec "$venv/bin/python" -m pytest --rootdir "$place" -p no:cacheprovider tests
