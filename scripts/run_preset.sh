#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures, builds and tests one preset: run_preset.sh asan
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cmake --preset "$1"
cmake --build --preset "$1" --parallel "$(nproc)"
ctest --preset "$1" --parallel "$(nproc)" --output-on-failure
