#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the library and bits_digest.cc with g++ -O0, g++ -O2 and clang++ -O2 and compares what they
# compute, bit for bit, on this machine's ISA target. Usage: compare_compilers.sh WORK_DIR
# Only what the digest needs is compiled, straight from the sources.
set -eu

work=${1:?usage: compare_compilers.sh WORK_DIR}
root=$(cd "$(dirname "$0")/../.." && pwd)
gcc=${GXX:-g++}
clang=${CLANGXX:-}
if [ -z "$clang" ]; then
  for name in clang++-19 clang++; do
    if command -v "$name" >/dev/null 2>&1; then clang=$name; break; fi
  done
fi
[ -n "$clang" ] || { echo "no clang++ found: install clang-19, or set CLANGXX" >&2; exit 1; }
mkdir -p "$work"

launcher=
if command -v ccache >/dev/null 2>&1; then launcher=ccache; fi
embedded="$work/embedded_kernels.cc"
cmake -DROOT="$root" -DOUTPUT="$embedded" -P "$root/cmake/embed_kernels.cmake"
sources="$(cd "$root" && find src -name '*.cc' | sort) $embedded tests/cases/dense_batch.cc
  tests/cases/staging.cc tests/cases/number_formats.cc tests/determinism/compilers/bits_digest.cc"

# build NAME COMPILER FLAGS...
build() {
  name=$1; shift
  mkdir -p "$work/$name"
  for source in $sources; do
    object="$work/$name/$(echo "$source" | tr '/' '_').o"
    echo "cd '$root' && $launcher $* -std=c++20 -ffp-contract=off -fPIC -I. -Iinclude -Isrc -c '$source' -o '$object'"
  done | xargs -P 2 -I{} sh -c '{}'
  # shellcheck disable=SC2086
  $1 "$work/$name"/*.o -l:libmbedcrypto.a -ldl -lpthread -o "$work/$name/bits_digest"
  "$work/$name/bits_digest" > "$work/$name.txt"
}

rm -rf "$work"/gcc_O0 "$work"/gcc_O2 "$work"/clang_O2
build gcc_O0 "$gcc" -O0
build gcc_O2 "$gcc" -O2
build clang_O2 "$clang" -O2

status=0
for name in gcc_O2 clang_O2; do
  if ! diff "$work/gcc_O0.txt" "$work/$name.txt"; then
    echo "bits differ between gcc_O0 and $name" >&2
    status=1
  fi
done
lines=$(wc -l < "$work/gcc_O0.txt")
[ "$lines" -gt 20 ] || { echo "the digest printed only $lines lines" >&2; status=1; }
[ "$status" -ne 0 ] || { head -n 1 "$work/gcc_O0.txt"; echo "$lines lines, the same bits from $gcc -O0, $gcc -O2 and $clang -O2"; }
exit "$status"
