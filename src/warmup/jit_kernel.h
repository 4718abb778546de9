// SPDX-License-Identifier: Apache-2.0
// The contract of a kernel that is compiled at run time: it says which key an input needs, which
// keys a configuration needs, makes a key's kernel available, and runs.
#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checks.h"
#include "warmup/warmup_inputs.h"

namespace flashprime {

// Keys are values: copied, compared, hashed and printed. A key that cannot be hashed is an error
// of compilation here (Python finds out at run time).
template <typename Key>
concept JitKey = std::copyable<Key> && std::equality_comparable<Key> && requires(const Key& key) {
  { std::hash<Key>{}(key) } -> std::convertible_to<std::size_t>;
  { key.to_string() } -> std::convertible_to<std::string>;
};

// The keys of an input space in order, the first of equal ones kept.
template <JitKey Key>
struct JitKeys {
  std::vector<Key> keys;
  std::vector<std::string> ignored;  // names that no input of dispatch has: perhaps a typing error
};

template <JitKey Key, typename Config, typename Call>
class JitKernel;

// `Config` is what a server knows at start. A call has `Args` and returns a Status or StatusOr.
template <JitKey Key, typename Config, typename Result, typename... Args>
  requires std::constructible_from<Result, Status>
class JitKernel<Key, Config, Result(Args...)> {
 public:
  using Kernel = std::function<Result(Args...)>;

  // `bound` is what calls run unless they bring a kernel of their own.
  explicit JitKernel(Kernel bound) : bound_(std::move(bound)) {}
  virtual ~JitKernel() = default;

  // The inputs of dispatch, by name.
  virtual WarmupSignature signature() const = 0;
  // The key that these inputs need. Pure: no device, no state, no clock. Runs without a compiler.
  virtual StatusOr<Key> dispatch(const WarmupInputs& inputs) const = 0;
  // The keys that a server of this configuration needs, in the order in which to compile them.
  virtual StatusOr<JitKeys<Key>> warmup_keys(const Config& config) const = 0;
  // Makes the key's kernel available.
  virtual Status compile(const Key& key) = 0;

  // Runs `runtime_kernel` when there is one, else the bound kernel. Never looks a key up and never
  // compiles: what a call costs does not depend on what was warmed.
  Result call(const Kernel& runtime_kernel, Args... args) const {
    const Kernel& kernel = runtime_kernel ? runtime_kernel : bound_;
    if (!kernel) {
      return Status(StatusCode::kNull, "runtime_kernel: got none, and no kernel is bound");
    }
    return kernel(std::forward<Args>(args)...);
  }

  // Compiles every key of the configuration in order; the first failure ends it and names its key.
  Status warmup(const Config& config) {
    const StatusOr<JitKeys<Key>> keys = warmup_keys(config);
    FLASHPRIME_RETURN_IF_ERROR(keys.status());
    for (const Key& key : keys->keys) {
      if (Status status = compile(key); !status.ok()) {
        return Status(status.code(),
                      status.message() + " (while compiling " + key.to_string() + ")");
      }
    }
    return ok_status();
  }

  // dispatch over every point of the space.
  StatusOr<JitKeys<Key>> expand(const WarmupSpace& space) const {
    JitKeys<Key> result;
    std::unordered_set<Key> seen;
    const auto add = [&](const WarmupInputs& inputs) -> Status {
      StatusOr<Key> key = dispatch(inputs);
      FLASHPRIME_RETURN_IF_ERROR(key.status());
      if (seen.insert(*key).second) result.keys.push_back(*std::move(key));
      return ok_status();
    };
    FLASHPRIME_RETURN_IF_ERROR(for_each_point(space, signature(), &result.ignored, add));
    return result;
  }

 private:
  Kernel bound_;
};

}  // namespace flashprime
