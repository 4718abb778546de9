# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by ./demo and ./check: installs what is missing on a Debian machine, and nothing else.
# With everything in place it touches no network and needs no root.

# What building the library and the command needs.
build_packages=(g++ cmake ninja-build libhwy-dev libcli11-dev nlohmann-json3-dev libfmt-dev
  libmbedtls-dev python3-venv)
# What the checks need on top.
check_packages=(libgtest-dev libgmock-dev librapidcheck-dev pkg-config git python3 clang-19 libclang-rt-19-dev)
# Debian 12 and 13 ship different clang-formats, which disagree; PyPI has one for both.
clang_format_version=19.1.7

# Runs a command and shows what it prints only if it fails.
quietly() {
  local log code=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 || code=$?
  [ $code = 0 ] || cat "$log" >&2
  rm -f "$log"
  return $code
}

# install_missing PACKAGE...
install_missing() {
  if ! command -v dpkg-query >/dev/null; then
    echo "This is not a Debian system: please see to it that it has the likes of $*" >&2
    return
  fi
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ]; then
    echo "Missing packages. Install them, then run this again:" >&2
    echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
    return 1
  fi
  echo "Installing ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  quietly apt-get update -qq
  quietly apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

# Puts the pinned clang-format into .venv.
install_clang_format() {
  if [ "$(.venv/bin/clang-format --version 2>/dev/null | grep -o "$clang_format_version")" ]; then
    return
  fi
  echo "Installing clang-format $clang_format_version into .venv" >&2
  quietly python3 -m venv .venv
  quietly .venv/bin/pip install --quiet "clang-format==$clang_format_version"
}

# Puts NVIDIA's run-time compiler into .venv, where CMake and the command find it. It needs neither a
# GPU nor a driver; what 13.0 makes loads on drivers from 580 on.
nvrtc_version=13.0.88
install_nvrtc() {
  if compgen -G '.venv/lib/python3*/site-packages/nvidia/cu13/lib/libnvrtc.so.13' >/dev/null; then
    return
  fi
  echo "Installing nvidia-cuda-nvrtc $nvrtc_version into .venv" >&2
  quietly python3 -m venv .venv
  quietly .venv/bin/pip install --quiet "nvidia-cuda-nvrtc==$nvrtc_version"
}

# CMake reads these when it configures a build folder for the first time.
use_ccache() {
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  fi
}

# Tools of the Python package in .venv, and in .venv/wheels what an empty environment gets without a
# network.
python_tools=(scikit-build-core==1.1.2 apache-tvm-ffi==0.1.15.post2 numpy==2.4.6 mypy==2.4.1
  ruff==0.17.6 auditwheel==6.8.2)
python_wheels=(apache-tvm-ffi==0.1.15.post2 numpy==2.4.6 pytest==9.2.0 hypothesis==6.170.17
  ml-dtypes==0.6.0)
install_python_tools() {
  local wanted="${python_tools[*]} ${python_wheels[*]}"
  [ "$(cat .venv/python_tools 2>/dev/null)" = "$wanted" ] && return
  echo "Installing ${python_tools[*]} into .venv" >&2
  quietly python3 -m venv .venv
  quietly .venv/bin/pip install --quiet "${python_tools[@]}"
  rm -rf .venv/wheels
  quietly .venv/bin/pip download --quiet --dest .venv/wheels "${python_wheels[@]}"
  echo "$wanted" >.venv/python_tools
}

# The software that uses the package, in .venv-clients; and in .peers the Python files of the engines,
# whose wheels are too large to install. PyPI's torch is a build of gigabytes for CUDA on many
# machines: PIP_EXTRA_INDEX_URL can name PyTorch's own index of CPU builds.
client_packages=(torch==2.13.0 transformers==5.24.0 jax==0.10.2 jax-tvm-ffi==0.1.3
  psutil msgspec orjson "${python_wheels[@]}")
engines=(vllm==0.33.0 sglang==0.5.23)
install_clients() {
  local wanted="${client_packages[*]} ${engines[*]}" engine
  [ "$(cat .venv-clients/clients 2>/dev/null)" = "$wanted" ] && return
  echo "Installing ${client_packages[*]} into .venv-clients" >&2
  quietly python3 -m venv .venv-clients
  quietly .venv-clients/bin/pip install --quiet "${client_packages[@]}"
  for engine in "${engines[@]}"; do
    echo "Unpacking the Python files of $engine into .peers" >&2
    rm -rf .peers/wheel ".peers/${engine%%=*}"
    # Any Python's wheel will do.
    quietly .venv-clients/bin/pip download --quiet --no-deps --only-binary=:all: \
      --python-version 3.11 --dest .peers/wheel "$engine"
    python3 - .peers/wheel/*.whl ".peers/${engine%%=*}" <<'PYTHON'
import sys
import zipfile

with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.endswith(".py")])
PYTHON
    rm -rf .peers/wheel
  done
  echo "$wanted" >.venv-clients/clients
}
