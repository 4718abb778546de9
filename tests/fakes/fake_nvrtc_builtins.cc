// SPDX-License-Identifier: Apache-2.0
// NVRTC wants a library of built-in functions beside it; the fake's is empty.
extern "C" __attribute__((visibility("default"))) int fake_nvrtc_builtins() {
  return 0;
}
