#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every C++ file is as the pinned clang-format writes it. `scripts/check_format.sh --fix` makes it so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=(--dry-run -Werror)
if [ "${1:-}" = --fix ]; then mode=(-i); fi

mapfile -d '' files < <(find bench cli examples include kernels python/src src tests \
  \( -name '*.h' -o -name '*.cuh' -o -name '*.c' -o -name '*.cc' -o -name '*.cu' \) \
  -not -path '*/build/*' -print0)
.venv/bin/clang-format "${mode[@]}" "${files[@]}"
echo "${#files[@]} files"
