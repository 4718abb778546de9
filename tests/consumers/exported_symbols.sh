#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# exported_symbols.sh LIBRARY [--write]: what the shared library exports and needs.
#   - the functions of the C ABI are exactly those of src/c_api.symbols (--write brings it up to date;
#     a line that goes away breaks programs that exist)
#   - anything else exported is in namespace flashprime
#   - it needs nothing at run time but libc, libstdc++ and what comes with them
set -euo pipefail
library=$1
list=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/src/c_api.symbols
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | LC_ALL=C sort)

c_symbols=$(grep '^flashprime_' <<<"$exported")
if [ "${2:-}" = --write ]; then cut -d@ -f1,3 <<<"$c_symbols" >"$list"; fi
diff "$list" <(cut -d@ -f1,3 <<<"$c_symbols") ||
  { echo "The C ABI is not the one in src/c_api.symbols (< list, > library)." && exit 1; }

cpp_symbols=$(grep -v '^flashprime_' <<<"$exported" | cut -d@ -f1 | c++filt)
if grep -v -E '^((vtable|typeinfo|typeinfo name) for )?flashprime::' <<<"$cpp_symbols"; then
  echo "These exported symbols are not of namespace flashprime."
  exit 1
fi
grep -q '^flashprime::prefill(' <<<"$cpp_symbols" ||
  { echo "flashprime::prefill is not exported." && exit 1; }

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
if grep -v -E '^(libc|libm|libstdc\+\+|libgcc_s|ld-linux-x86-64)\.so\.' <<<"$needed"; then
  echo "The library must not need these at run time."
  exit 1
fi
echo "$(wc -l <<<"$c_symbols") C and $(wc -l <<<"$cpp_symbols") C++ symbols"
