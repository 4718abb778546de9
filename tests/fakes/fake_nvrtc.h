// SPDX-License-Identifier: Apache-2.0
// What tests see of the fake NVRTC: a library with NVRTC's entry points that "compiles" anything in
// no time, so that caching, locking and errors can be tested anywhere.
#pragma once

#include <atomic>

struct FakeNvrtcState {
  std::atomic<int> compilations{0};
  std::atomic<int> running{0};
  std::atomic<int> delay_ms{0};  // of each compilation; starts as $FAKE_NVRTC_DELAY_MS
  std::atomic<int> result{0};    // that nvrtcCompileProgram returns
  std::atomic<int> salt{0};      // changes the bytes of every cubin
  char last_options[2048] = {};  // of the latest compilation, one a line
};
// Symbol of the state in the library.
inline constexpr char kFakeNvrtcState[] = "fake_nvrtc_state";
