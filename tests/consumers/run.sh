#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs a consumer project:
#   run.sh add_subdirectory SOURCE WORK [CMAKE_ARGUMENT...]       from the sources, as a shared library
#   run.sh find_package|pkg_config BUILD WORK [CMAKE_ARGUMENT...] against an install of BUILD
# The install is moved once before it is used, so nothing may remember where it was made.
set -euo pipefail
kind=$1 from=$(realpath "$2") work=$3
shift 3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$work"
work=$(cd "$work" && pwd)

run_apps() { # FOLDER
  "$1/use_cpp"
  "$1/use_c"
}

build_with_cmake() { # KIND CMAKE_ARGUMENT...
  local kind=$1
  shift
  cmake -S "$here/$kind" -B "$work/build" "$@" >"$work/configure.log" 2>&1 ||
    { cat "$work/configure.log" && return 1; }
  cmake --build "$work/build" --parallel >"$work/build.log" 2>&1 ||
    { cat "$work/build.log" && return 1; }
}

install_and_move() {
  rm -rf "$work/made_here" "$work/moved"
  cmake --install "$from" --prefix "$work/made_here" --component library >"$work/install.log"
  mv "$work/made_here" "$work/moved"
  if grep -rIl -e "$work/made_here" -e "$from" "$work/moved"; then
    echo "These installed files name the folder that they were built or installed in."
    return 1
  fi
}

case $kind in
  add_subdirectory)
    # Nothing that only tests and the command need may be looked for.
    build_with_cmake add_subdirectory "-DFLASHPRIME_SOURCE_DIR=$from" -DBUILD_SHARED_LIBS=ON \
      -DFLASHPRIME_INSTALL=ON -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON \
      -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON \
      -DCMAKE_DISABLE_FIND_PACKAGE_Python3=ON "$@"
    run_apps "$work/build"
    ;;
  find_package)
    install_and_move
    rm -rf "$work/build"
    build_with_cmake find_package "-DCMAKE_PREFIX_PATH=$work/moved" "$@"
    run_apps "$work/build"
    ;;
  pkg_config)
    install_and_move
    PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name flashprime.pc)")
    export PKG_CONFIG_PATH
    # A C compiler that knows nothing of C++: Libs.private has to name the C++ library.
    read -ra flags < <(pkg-config --cflags --libs --static flashprime)
    read -ra cxx_flags < <(pkg-config --cflags --libs flashprime)
    "${CC:-cc}" -std=c99 -pedantic -Wall -Wextra -Werror "$here/app/use_c.c" -o "$work/use_c" \
      "${flags[@]}"
    "${CXX:-c++}" -std=c++20 -Wall -Wextra -Werror "$here/app/use_cpp.cc" -o "$work/use_cpp" \
      "${cxx_flags[@]}" -pthread
    run_apps "$work"
    ;;
  *)
    echo "unknown kind of consumer: $kind" >&2
    exit 2
    ;;
esac
