// SPDX-License-Identifier: Apache-2.0
// What JitOptions and the environment say together.
#pragma once

#include <string>
#include <vector>

#include "flashprime/jit.h"
#include "jit/log.h"
#include "jit/nvrtc_compiler.h"

namespace flashprime {

struct CacheDirs {
  std::string writable;                // empty: memory only
  std::string why_memory_only;         // if so
  std::vector<std::string> read_only;  // looked at before `writable`
};

struct JitSettings {
  CacheDirs dirs;
  bool shared_by_group = false;
  int64_t max_bytes = int64_t{512} << 20;
  std::vector<std::string> bundles;
  std::vector<Sha256> bundle_hashes;  // none, or one for each bundle
  FreezePolicy freeze = FreezePolicy::kAllow;
  double lock_wait_seconds = 120.0;
  std::string dump_dir;
  std::string kernel_dir;
  NvrtcSearch nvrtc;
  LogSetting log;
  std::function<void(const JitEvent&)> on_event;
};

// kFormat, naming the variable or option, for values that mean nothing. A process that runs with
// somebody else's rights reads no environment and has no disk cache.
StatusOr<JitSettings> resolve_settings(const JitOptions& options);

}  // namespace flashprime
