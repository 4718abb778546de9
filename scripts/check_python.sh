#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package: check_python.sh package | clients.
#
#   package   builds the wheel, checks its tag with auditwheel and its types with mypy, installs it
#             into an empty virtual environment and runs the tests there, from another folder
#   clients   the tests with torch, transformers, and the modules of vLLM and SGLang, which
#             `./check --clients` has installed
#
# Touches no network: scripts/bootstrap.sh has put everything into .venv, .venv-clients and .peers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
work=$root/build/python
mkdir -p "$work"
# A build machine with Debian 12's glibc and libstdc++; newer ones may make a newer tag.
wanted_tag=manylinux_2_35_$(uname -m)

export FLASHPRIME_CACHE_DIR=off
FLASHPRIME_NVRTC_PATH=$(compgen -G "$root/.venv/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13") ||
  { echo "no NVRTC in .venv: run ./check, which installs it" >&2; exit 1; }
export FLASHPRIME_NVRTC_PATH

build_wheel() {
  rm -f "$work"/*.whl
  # With the flags of the release preset, so that a compiler cache serves both.
  "$root/.venv/bin/pip" wheel --quiet --no-build-isolation --no-deps --no-index \
    --config-settings=cmake.define.FLASHPRIME_WERROR=ON --wheel-dir "$work" "$root"
  wheel=$(compgen -G "$work/flashprime-*.whl")
  case "$wheel" in
    *-py3-none-linux_*.whl) ;;
    *) echo "$wheel: wanted a py3-none wheel" >&2; exit 1 ;;
  esac
}

# The tag that auditwheel finds the wheel good for, which has to be one that $wanted_tag includes.
check_tag() {
  local tag
  tag=$("$root/.venv/bin/auditwheel" show "$wheel" 2>/dev/null | tr '\n' ' ' |
    grep -oE 'manylinux_[0-9]+_[0-9]+_[a-z0-9_]+' | tail -n 1)
  [ -n "$tag" ] || { echo "auditwheel names no manylinux tag for $wheel" >&2; exit 1; }
  echo "auditwheel: $tag"
  if [ "$(grep -s '^VERSION_ID=' /etc/os-release)" = 'VERSION_ID="12"' ]; then
    [ "$(printf '%s\n' "$tag" "$wanted_tag" | sort -V | tail -n 1)" = "$wanted_tag" ] ||
      { echo "$tag: wanted $wanted_tag or older" >&2; exit 1; }
  fi
}

# install_into VENV: the wheel, and what its tests need where the environment lacks it.
install_into() {
  "$1/bin/pip" install --quiet --disable-pip-version-check --no-index \
    --find-links "$root/.venv/wheels" --force-reinstall --no-deps "$wheel"
}

run_tests() {
  (cd "$work" && "$1/bin/python" -m pytest -c "$root/pyproject.toml" --rootdir "$root/python/tests" \
    "${@:2}")
}

case "${1:-}" in
  package)
    build_wheel
    check_tag
    "$root/.venv/bin/ruff" check --quiet python examples tests/gpu/python
    "$root/.venv/bin/ruff" format --check --quiet python examples tests/gpu/python
    "$root/.venv/bin/mypy" --no-error-summary
    rm -rf "$work/empty"
    python3 -m venv "$work/empty"
    "$work/empty/bin/pip" install --quiet --disable-pip-version-check --no-index \
      --find-links "$root/.venv/wheels" "$wheel"
    (cd "$work" && empty/bin/python -c "import flashprime; print(flashprime.explain('deepseek-v3'))")
    "$work/empty/bin/pip" install --quiet --disable-pip-version-check --no-index \
      --find-links "$root/.venv/wheels" pytest hypothesis ml-dtypes
    run_tests "$work/empty" "$root/python/tests" --ignore="$root/python/tests/clients"
    ;;
  clients)
    [ -x .venv-clients/bin/python ] ||
      { echo "no .venv-clients: run ./check --clients, which installs torch and the rest" >&2; exit 1; }
    wheel=$(compgen -G "$work/flashprime-*.whl") || wheel=
    # The package step's, unless something has changed since.
    [ -n "$wheel" ] && [ -z "$(find python/flashprime python/src src include kernels pyproject.toml \
      -newer "$wheel" -type f -not -name '*.pyc')" ] || build_wheel
    install_into "$root/.venv-clients"
    run_tests "$root/.venv-clients" "$root/python/tests/clients"
    ;;
  *)
    echo "usage: scripts/check_python.sh package | clients" >&2
    exit 2
    ;;
esac
